"""Whole recordings, many at a time: results that do not depend on what is beside them, and what becomes of files."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import soundfile
import tiny
import torch
from bad_audio import BAD
from test_cli import HAS_MODEL, REPOSITORY, SPEECH

from mocha_stream import MochaError
from mocha_stream.cli import main
from mocha_stream.config import BeamConfig
from mocha_stream.errors import AudioError
from mocha_stream.jobs import transcribe_in_processes
from mocha_stream.model_folder import save_model
from mocha_stream.recognizer import Recognizer

LENGTHS_S = [0.01, 2.5, 0.3, 7, 12, 35, 3, 5]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(tiny.random_model(), tiny.tokenizer(), folder, "a random model", torch.float32)
    return folder


def write(path: Path, seconds: float, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tiny.noise(seconds, seed), tiny.RATE)
    return path


def texts(folder: Path) -> dict[str, str]:
    """Every file there is, temporary ones too."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


# Equality


@pytest.mark.parametrize(
    ("kind", "on_miss"), [("highway_bilstm", "stop"), ("highway_bilstm", "last"), ("star_transformer", "stop")]
)
def test_batches_give_what_one_by_one_gives(kind, on_miss):
    recognizer = Recognizer(tiny.random_model(kind=kind, on_miss=on_miss), tiny.tokenizer())
    sounds = [tiny.noise(seconds, seed) for seed, seconds in enumerate(LENGTHS_S)]
    order = random.Random(0).sample(range(len(sounds)), len(sounds))
    expected = [recognizer.transcribe(sound) for sound in sounds]
    assert sum(len(transcript.words) for transcript in expected) > 5
    for batch_s in (1, 480):
        assert list(recognizer.transcribe_many(sounds, batch_s=batch_s)) == expected
    shuffled = recognizer.transcribe_many([sounds[i] for i in order])
    assert list(shuffled) == [expected[i] for i in order]


def test_a_recording_of_one_segment_is_what_the_model_makes_of_it():
    """Against the plainest way there is: `forward` of the encoder on its own."""
    from mocha_stream.features import log_mel
    from mocha_stream.search import GreedySearch, token_lists

    model = tiny.random_model()
    sound = tiny.noise(8)
    features = torch.from_numpy(log_mel(sound, model.config.features))[None]
    with torch.inference_mode():
        frames, lengths = model.encoder(features, torch.tensor([features.shape[1]]))
        search = GreedySearch(model)
        tokens, _ = search.step(frames, search.initial_state(1), lengths)
    text = tiny.tokenizer().decode(token_lists(tokens, 1)[0])
    assert text
    assert Recognizer(model, tiny.tokenizer()).transcribe(sound).text == text


def test_words_of_long_recordings_are_in_order():
    transcript = Recognizer(tiny.random_model(), tiny.tokenizer()).transcribe(tiny.noise(100))
    times = [time for word in transcript.words for time in (word.start_s, word.end_s)]
    assert times == sorted(times)
    assert times[-1] > 90
    assert times[-1] <= transcript.duration_s == 100


def test_silence_and_nothing_have_no_words():
    recognizer = Recognizer(tiny.hearing_model(on_miss="last"), tiny.tokenizer())
    silent, nothing = recognizer.transcribe_many([tiny.silence(40), tiny.silence(0)])
    assert (silent.text, silent.words, silent.duration_s) == ("", (), 40.0)
    assert (nothing.text, nothing.words, nothing.duration_s) == ("", (), 0.0)


def test_results_come_while_sources_are_still_being_read():
    recognizer = Recognizer(tiny.random_model(), tiny.tokenizer())
    num_drawn = 0

    def sources() -> Iterator[np.ndarray]:
        nonlocal num_drawn
        while True:
            num_drawn += 1
            yield tiny.noise(1)

    results = recognizer.transcribe_many(sources(), batch_s=5)
    assert next(results) == next(results)
    assert num_drawn <= 41


def test_an_unknown_latency_is_refused():
    recognizer = Recognizer(tiny.random_model(), tiny.tokenizer())
    with pytest.raises(MochaError, match="trained for 160, 320 ms"):
        next(recognizer.transcribe_many([tiny.noise(1)], latency_ms=7))


@pytest.mark.skipif(not HAS_MODEL, reason="no bundled model in mocha_stream/pretrained")
def test_the_bundled_model_in_batches_and_processes():
    paths = sorted(SPEECH.rglob("*.flac"))[::10]
    recognizer = Recognizer.load()
    expected = [recognizer.transcribe(path) for path in paths]
    assert all(transcript.words for transcript in expected)
    for batch_s in (15, 60, 480):
        assert list(recognizer.transcribe_many(paths, batch_s=batch_s)) == expected
    assert dict(transcribe_in_processes(paths, 2, None, None, 60)) == dict(enumerate(expected))
    beam = BeamConfig(size=3)
    searched = dict(transcribe_in_processes(paths[:6], 2, None, None, 60, beam))
    assert searched == dict(enumerate(Recognizer.load(beam=beam).transcribe_many(paths[:6])))
    assert list(searched.values()) != expected[:6]


# Files that cannot be used


def test_broken_files_do_not_stop_the_others(tmp_path):
    recognizer = Recognizer(tiny.random_model(), tiny.tokenizer())
    good = [write(tmp_path / f"{number}.wav", 1 + number % 3, number) for number in range(10)]
    bad = [make(tmp_path) for make, _ in BAD.values()]
    files = [path for pair in zip(good, bad, strict=False) for path in pair] + good[len(bad) :]
    results = dict(zip(files, recognizer.transcribe_many(files), strict=True))
    assert [results[path] for path in good] == [recognizer.transcribe(path) for path in good]
    for path, (_, message) in zip(bad, BAD.values(), strict=True):
        assert isinstance(results[path], AudioError)
        assert message in str(results[path]) or path.is_dir()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_command_lists_broken_files(tmp_path, capsys, model_folder, jobs):
    good = [write(tmp_path / "in" / f"{number}.wav", 0.5, number) for number in range(20)]
    bad = {name: make(tmp_path / "in") for name, (make, _) in BAD.items()}
    given = [str(tmp_path / "in"), str(bad["missing file"]), str(bad["directory without audio"])]
    assert main(["transcribe", *given, "--model", str(model_folder), "--jobs", jobs]) == 1
    out, err = capsys.readouterr()
    assert [line.partition("\t")[0] for line in out.splitlines()] == sorted(map(str, good))
    lines = err.splitlines()
    assert len(lines) == len(bad) + 1
    for name, path in bad.items():
        assert sum(f"{path}: " in line and BAD[name][1] in line for line in lines) == 1
    assert f"20 of 28 recordings transcribed, {len(bad)} failed" in lines[-1]


def kill_the_last_process() -> None:
    while len(active_children()) > 1:
        time.sleep(0.01)
    active_children()[0].kill()


def test_a_process_that_dies_takes_only_its_files_with_it(tmp_path, model_folder):
    files = [write(tmp_path / f"{number}.wav", 0.2, number) for number in range(6)]
    os.mkfifo(tmp_path / "stuck.wav")  # whoever opens it waits for ever
    files.insert(3, tmp_path / "stuck.wav")
    results = {}
    for number, result in transcribe_in_processes(files, 2, model_folder, None, 0.01):
        results[number] = result
        if len(results) == 6:
            Thread(target=kill_the_last_process).start()
    assert "stuck.wav: the process that had it ended by signal 9" in str(results.pop(3))
    recognizer = Recognizer.load(model_folder)
    assert results == {number: recognizer.transcribe(files[number]) for number in (0, 1, 2, 4, 5, 6)}


def test_a_bad_model_is_told_once_for_all_processes(tmp_path, capsys):
    files = [str(write(tmp_path / f"{number}.wav", 0.2)) for number in range(3)]
    assert main(["transcribe", *files, "--model", str(tmp_path), "--jobs", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "config.toml" in line


# The command


def test_jobs_give_the_same_in_the_same_order(tmp_path, capsys, model_folder):
    for number, seconds in enumerate([9, 0.5, 1, 3, 0.2, 2]):
        write(tmp_path / f"{number}.wav", seconds, number)
    outputs = []
    for jobs in ("1", "2"):
        arguments = ["--model", str(model_folder), "--jobs", jobs, "--batch-s", "2", "--format", "jsonl"]
        assert main(["transcribe", str(tmp_path), *arguments]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert [json.loads(line)["path"] for line in outputs[0].splitlines()] == sorted(map(str, tmp_path.glob("*.wav")))


def test_resume_after_a_kill_leaves_out_what_is_done(tmp_path, model_folder, capsys):
    for number in range(60):
        write(tmp_path / "in" / str(number % 7) / f"{number}.wav", 0.3 + number % 4, number)
    options = ["--model", str(model_folder), "--format", "jsonl", "--batch-s", "4"]
    assert main(["transcribe", str(tmp_path / "in"), "--output-dir", str(tmp_path / "undisturbed"), *options]) == 0

    command = ["transcribe", str(tmp_path / "in"), "--output-dir", str(tmp_path / "out"), *options]
    arguments = [sys.executable, "-m", "mocha_stream", *command, "--jobs", "2"]
    process = subprocess.Popen(arguments, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list((tmp_path / "out").rglob("[0-9]*.jsonl"))) < 20:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("[0-9]*.jsonl")}
    assert 20 <= len(done) < 60

    (tmp_path / "out" / "0").mkdir(exist_ok=True)
    (tmp_path / "out" / "0" / ".0.jsonl.part").write_text("half of")  # as if killed in the middle of writing
    (tmp_path / "out" / "0" / "0.jsonl").unlink(missing_ok=True)
    done = {path: when for path, when in done.items() if path.exists()}
    capsys.readouterr()
    assert main([*command, "--resume"]) == 0
    assert f"{60 - len(done)} of 60 recordings transcribed, {len(done)} done before: " in capsys.readouterr().err
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert texts(tmp_path / "out") == texts(tmp_path / "undisturbed")

    assert main([*command, "--resume"]) == 0
    assert "0 of 60 recordings transcribed, 60 done before: " in capsys.readouterr().err


def test_resume_needs_an_output_directory(tmp_path, capsys):
    assert main(["transcribe", str(write(tmp_path / "a.wav", 1)), "--resume"]) == 2
    assert "--output-dir" in capsys.readouterr().err


def test_lists_patterns_and_standard_input(tmp_path, capsys, model_folder, monkeypatch):
    a, b = write(tmp_path / "x" / "1-2-3.wav", 1, 1), write(tmp_path / "x" / "1-2-4.wav", 1, 2)
    lines = [{"path": "x/1-2-4.wav"}, {"path": "gone.wav", "text": "not there"}, {"path": str(a)}]
    listed = tmp_path / "list.jsonl"
    listed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "x" / "1-2.trans.txt").write_text("1-2-3 SOME TEXT\n1-2-4 MORE TEXT\n")

    def paths(*given: str, code: int = 0) -> list[str]:
        assert main(["transcribe", *given, "--model", str(model_folder)]) == code
        return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]

    assert paths(str(listed), code=1) == [str(b), str(a)]
    assert paths(str(tmp_path / "x" / "1-2.trans.txt")) == [str(a), str(b)]
    assert paths(str(tmp_path / "**" / "*3.wav")) == [str(a)]
    listed.write_text('{"text": "no path"}\n')
    assert paths(str(listed), code=2) == []
    with open(a, "rb") as file:
        monkeypatch.setattr(sys, "stdin", type("Standard", (), {"buffer": file}))
        assert paths("-") == ["-"]


def test_places_of_transcripts_of_a_list(tmp_path, model_folder):
    inside, outside = write(tmp_path / "x" / "y" / "a.wav", 0.3), write(tmp_path / "b.wav", 0.3)
    listed = tmp_path / "x" / "list.jsonl"
    listed.write_text(f'{{"path": "y/a.wav"}}\n{{"path": "{outside}"}}\n')
    assert main(["transcribe", str(listed), "--model", str(model_folder), "--output-dir", str(tmp_path / "out")]) == 0
    assert inside.exists()
    below = outside.relative_to(outside.anchor).with_suffix(".txt")
    assert sorted(texts(tmp_path / "out")) == sorted([str(below), "y/a.txt"])


# Size


def run_long(minutes: float) -> tuple[float, float]:
    """Seconds of processor time to transcribe so much sound, and the peak memory, MiB.

    Not the peak that getrusage knows: a process begins with that of the one which started it.
    """
    program = """if True:
        import sys, time
        import numpy as np
        import torch
        import tiny
        from benchmarks.memory import peak_mib
        from mocha_stream.batch import recognise
        from mocha_stream.search import GreedySearch
        torch.set_num_threads(1)
        model, block = tiny.hearing_model(), tiny.noise(10)
        blocks = (block * np.float32(i % 3 != 0) for i in range(round(float(sys.argv[1]) * 6)))
        start = time.process_time()
        (result,) = recognise(GreedySearch(model), tiny.tokenizer(), [blocks])
        assert result.transcript.words
        print(time.process_time() - start, peak_mib())
    """
    path = os.pathsep.join(str(REPOSITORY / folder) for folder in ("", "tests", "tools"))
    environment = {**os.environ, "PYTHONPATH": path}
    out = subprocess.check_output([sys.executable, "-c", program, str(minutes)], env=environment, text=True)
    seconds, peak = out.split()
    return float(seconds), float(peak)


@pytest.mark.slow
def test_long_recordings_take_linear_time_and_bounded_memory():
    (short_s, short_peak), (long_s, long_peak) = run_long(40), run_long(160)
    assert long_peak < 1000
    assert long_peak < short_peak + 60
    assert np.log(long_s / short_s) / np.log(4) < 1.15  # 1, but for what else the machine does
