"""Transcription on a cluster of Ray: the results of one by one, whatever becomes of the actors."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pyarrow.parquet
import pytest
import soundfile
import tiny
import torch
from bad_audio import BAD
from test_cli import REPOSITORY, in_a_process, the_line

from mocha_stream.cli import main
from mocha_stream.model_folder import save_model
from mocha_stream.ray_engine import transcribe_with_ray
from mocha_stream.recognizer import Recognizer


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(tiny.random_model(), tiny.tokenizer(), folder, "a random model", torch.float32)
    return folder


@pytest.fixture(autouse=True)
def one_kind_of_cluster(monkeypatch):
    """A process cannot go from a cluster that asks for tokens, as Ray starts them, to one that does not."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two processors that another process has started."""
    program = """if True:
        import sys
        import ray
        print(ray.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8).address_info["gcs_address"])
        sys.stdout.flush()
        sys.stdin.read()
    """
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    for _ in range(10):  # Ray gives its parts 15 s to start, which is too little on a busy machine
        with subprocess.Popen([sys.executable, "-c", program], env=environment, text=True, **pipes) as process:
            if address := process.stdout.readline().strip():
                yield address
                process.communicate()
                return
    pytest.fail("no cluster has started")


def write(path: Path, seconds: float, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tiny.noise(seconds, seed), tiny.RATE)
    return path


def readers(pipe: Path) -> list[int]:
    """The other processes that have it open to read: a child of this one has the end to write, until it runs its own
    program.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and any(_reads(fd, pipe) for fd in (entry / "fd").iterdir()):
                found.append(int(entry.name))
        except OSError:  # another's, or gone
            continue
    return found


def _reads(fd: Path, pipe: Path) -> bool:
    if os.readlink(fd) != str(pipe):
        return False
    flags = re.search(r"flags:\s*(\d+)", (fd.parents[1] / "fdinfo" / fd.name).read_text())
    return int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY


def kill_the_reader(pipe: Path, before: Callable[[], None] = lambda: None) -> int:
    """Waits until a process reads the pipe, and kills it after doing what has to be done before; returns its id."""
    end = os.open(pipe, os.O_WRONLY)
    while not (found := readers(pipe)):  # the other side is still about to open it
        time.sleep(0.01)
    before()
    os.kill(found[0], signal.SIGKILL)
    while readers(pipe):  # or the next to open the pipe finds it there
        time.sleep(0.01)
    os.close(end)
    return found[0]


@pytest.mark.slow
def test_a_killed_actor_changes_no_result(tmp_path, model_folder, cluster):
    files = [write(tmp_path / f"{number}.wav", 0.3 + number % 5, number) for number in range(50)]
    recognizer = Recognizer.load(model_folder)
    expected = [recognizer.transcribe(path) for path in files]
    assert sum(len(transcript.words) for transcript in expected) > 50

    whole, pipe = tmp_path / "whole.wav", files[25]
    pipe.rename(whole)
    os.mkfifo(pipe)
    killed: list[int] = []
    killer = Thread(target=lambda: killed.append(kill_the_reader(pipe, lambda: whole.replace(pipe))), daemon=True)
    killer.start()
    results = list(transcribe_with_ray(files, 2, model_folder, None, 60, None, cluster))
    killer.join()
    assert len(killed) == 1
    assert len(results) == 50
    assert dict(results) == dict(enumerate(expected))


@pytest.mark.slow
def test_only_the_file_that_kills_every_actor_fails(tmp_path, model_folder, cluster):
    files = [write(tmp_path / f"{number}.wav", 0.3, number) for number in range(8)]
    files[1].unlink()
    os.mkfifo(files[1])
    num_killed = 0

    def kill() -> None:
        nonlocal num_killed
        while True:
            kill_the_reader(files[1])
            num_killed += 1

    Thread(target=kill, daemon=True).start()
    results = dict(transcribe_with_ray(files, 1, model_folder, None, 60, None, cluster))
    assert num_killed == 4  # twice beside another, twice alone
    assert f"{files[1]}: the actor that had it ended every time" in str(results.pop(1))
    recognizer = Recognizer.load(model_folder)
    assert results == {number: recognizer.transcribe(files[number]) for number in (0, 2, 3, 4, 5, 6, 7)}


@pytest.mark.slow
def test_the_command_gives_the_same_with_either_engine(tmp_path, monkeypatch, capfd, model_folder, cluster):
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        write(tmp_path / "in" / f"{number}.wav", 1 + number % 3, number)
    BAD["text renamed .wav"][0](tmp_path / "in")
    lines = [{"path": "in/5.wav"}, {"path": f"file://{tmp_path}/in/4.wav"}, {"path": "file:///gone.wav"}]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["in", "list.jsonl", f"file://{tmp_path}/in/3.wav", f"file://{tmp_path}/list.jsonl"]
    options = ["--model", str(model_folder), "--format", "jsonl", "--beam", "2"]

    assert main(["transcribe", *given, *options]) == 1
    out, err = capfd.readouterr()
    assert out.count("\n") == 6 + 2 + 1 + 2
    with_ray = ["--engine", "ray", "--ray-address", cluster, "--jobs", "2"]
    assert main(["transcribe", *given, *options, *with_ray]) == 1
    ray_out, ray_err = capfd.readouterr()
    assert ray_out == out
    assert sorted(ray_err.splitlines()[:-1]) == sorted(err.splitlines()[:-1])
    assert ray_err.splitlines()[-1].startswith("mocha-stream: 11 of 14 recordings transcribed, 3 failed")

    options = ["--model", str(model_folder), "--format", "parquet", "--output-dir"]
    assert main(["transcribe", "in", *options, "processes"]) == 1
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "part-00000.parquet").write_bytes((tmp_path / "processes" / "part-00000.parquet").read_bytes())
    write(tmp_path / "in" / "6.wav", 1, 6)
    assert main(["transcribe", "in", *options, "processes", "--resume"]) == 1
    capfd.readouterr()
    assert main(["transcribe", "in", *options, "ray", "--resume", *with_ray]) == 1
    assert "1 of 8 recordings transcribed, 6 done before, 1 failed" in capfd.readouterr().err
    tables = [pyarrow.parquet.read_table(tmp_path / name).sort_by("path") for name in ("processes", "ray")]
    assert tables[0] == tables[1]
    assert len(tables[1]) == 8


@pytest.mark.slow
def test_a_cluster_of_its_own_says_nothing(tmp_path, capfd, model_folder):
    paths = [str(write(tmp_path / f"{number}.wav", 2, number)) for number in range(2)]
    command = ["transcribe", *paths, "--model", str(model_folder)]
    assert main(command) == 0
    expected = capfd.readouterr().out
    command = [sys.executable, "-m", "mocha_stream", *command, "--engine", "ray"]
    for _ in range(10):  # as for the fixture
        process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        if "Ray cannot start" not in process.stderr:
            break
    assert "2 of 2 recordings transcribed: " in the_line(process.stderr)
    assert process.stdout == expected
    assert process.returncode == 0


@pytest.mark.slow
def test_mistakes_are_told_in_one_line(tmp_path, capfd, cluster):
    path = str(write(tmp_path / "a.wav", 1, 0))
    ray = ["--engine", "ray", "--ray-address"]
    assert main(["transcribe", path, "--model", str(tmp_path), *ray, cluster]) == 2
    assert "config.toml" in the_line(capfd.readouterr().err)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_no_cluster_at_an_address(tmp_path, capfd, address):
    start = time.monotonic()
    assert main(["transcribe", str(write(tmp_path / "a.wav", 1, 0)), "--engine", "ray", "--ray-address", address]) == 2
    assert f"no Ray cluster at {address}" in the_line(capfd.readouterr().err)
    assert time.monotonic() - start < 60, "it was tried again and again"


def test_ray_is_not_installed(tmp_path):
    program = "import sys; sys.modules['ray'] = None; from mocha_stream.cli import main; sys.exit(main(sys.argv[1:]))"
    path = write(tmp_path / "a.wav", 1, 0)
    process = in_a_process(
        program, "transcribe", str(path), "--engine", "ray", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = process.communicate()
    assert process.returncode == 2
    assert not out
    assert "pip install 'mocha-stream[ray]'" in the_line(err)


def test_an_address_is_for_ray_alone(tmp_path, capsys):
    assert main(["transcribe", str(write(tmp_path / "a.wav", 1, 0)), "--ray-address", "auto"]) == 2
    assert "--engine ray" in the_line(capsys.readouterr().err)
