"""Recordings by URL, and transcripts as a Parquet data set."""

import json
import sys
import time
from pathlib import Path

import fake_recognizer
import fsspec
import pyarrow.parquet
import pytest
import soundfile
from bad_audio import RATE, tone
from test_cli import in_a_process, the_line

from mocha_stream import dataset
from mocha_stream.cli import main
from mocha_stream.dataset import Dataset
from mocha_stream.errors import AudioError
from mocha_stream.transcript import Transcript


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setitem(sys.modules, "mocha_stream.recognizer", fake_recognizer)


@pytest.fixture
def remote(tmp_path):
    """A file system in memory: two recordings of two seconds, of which one is listed, and a text."""
    soundfile.write(tmp_path / "two.wav", tone(2 * RATE), RATE)
    system = fsspec.filesystem("memory")
    lines = [{"path": "deep/b.wav"}, {"path": "memory://talks/a.wav"}, {"path": str(tmp_path / "two.wav")}]
    files = {"a.wav": tmp_path / "two.wav", "deep/b.wav": tmp_path / "two.wav"}
    for name, path in files.items():
        system.pipe(f"/talks/{name}", path.read_bytes())
    system.pipe("/talks/notes.txt", b"no sound here")
    system.pipe("/talks/list.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    yield
    system.rm("/talks", recursive=True)


@pytest.mark.parametrize(
    ("given", "names", "places"),
    [
        ("memory://talks/a.wav", ["memory://talks/a.wav"], ["a"]),
        ("memory://talks", ["memory:///talks/a.wav", "memory:///talks/deep/b.wav"], ["a", "deep/b"]),
        ("memory://talks/**/b.wav", ["memory:///talks/deep/b.wav"], ["talks/deep/b"]),
        ("memory://talks/list.jsonl", ["memory://talks/deep/b.wav", "memory://talks/a.wav", "two"], ["a", "deep/b"]),
    ],
)
def test_recordings_by_url(remote, tmp_path, capsys, given, names, places):
    assert main(["transcribe", given]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [f"{tmp_path / 'two.wav' if name == 'two' else name}\tWORD0 WORD1" for name in names]
    assert main(["transcribe", given, "--output-dir", str(tmp_path / "out")]) == 0
    written = sorted(path.relative_to(tmp_path / "out").with_suffix("") for path in (tmp_path / "out").rglob("*.txt"))
    below = (tmp_path / "two").relative_to("/")
    assert written == sorted([*map(Path, places), *([below] if "two" in names else [])])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://talks/gone.wav", "FileNotFoundError"),
        ("memory://talks/deep/*.mp3", "no audio files"),
        ("memory://talks/notes.txt", "is not audio"),
        ("nothing://talks/a.wav", "nothing"),
    ],
)
def test_urls_that_cannot_be_used(remote, capsys, url, message):
    assert main(["transcribe", url]) == 2
    line = the_line(capsys.readouterr().err)
    assert line.startswith(f"mocha-stream: {url}: ")
    assert message in line


def test_what_fails_to_be_fetched_does_not_stop_the_others(remote, capsys):
    given = ["memory://talks/gone.wav", "memory://talks/a.wav", "memory://talks/gone.wav"]
    assert main(["transcribe", *given]) == 1
    out, err = capsys.readouterr()
    assert out == "memory://talks/a.wav\tWORD0 WORD1\n"
    assert err.count("memory://talks/gone.wav: cannot be fetched") == 2


def rows(folder: Path) -> dict[str, dict]:
    return {row["path"]: row for row in pyarrow.parquet.read_table(folder).to_pylist()}


def test_a_parquet_data_set_is_added_to(tmp_path, capsys):
    soundfile.write(tmp_path / "a.wav", tone(2 * RATE), RATE)
    (tmp_path / "b.wav").write_text("no sound")
    given = [str(tmp_path / name) for name in ("a.wav", "b.wav")]
    command = ["transcribe", *given, "--format", "parquet", "--output-dir", str(tmp_path / "out")]
    assert main(command) == 1
    a, b = (rows(tmp_path / "out")[path] for path in given)
    assert (a["text"], a["duration_s"], a["error"]) == ("WORD0 WORD1", 2.0, None)
    assert a["words"][1] == {"word": "WORD1", "start_s": 1.25, "end_s": 1.75, "confidence": 0.5}
    assert (b["text"], b["duration_s"], b["words"]) == (None, None, None)
    assert b["error"].startswith(f"{given[1]}: is not audio")

    capsys.readouterr()
    assert main(command) == 2
    assert "--resume" in the_line(capsys.readouterr().err)

    soundfile.write(tmp_path / "b.wav", tone(RATE), RATE)
    assert main([*command, "--resume"]) == 0
    assert "1 of 2 recordings transcribed, 1 done before" in capsys.readouterr().err
    assert rows(tmp_path / "out")[given[0]] == a
    assert rows(tmp_path / "out")[given[1]]["text"] == "WORD0"
    assert len(pyarrow.parquet.read_table(tmp_path / "out")) == 2


def test_parts_are_written_as_rows_come(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "ROWS_PER_PART", 3)
    with pytest.raises(KeyboardInterrupt), Dataset(tmp_path, resume=False) as parts:
        for number in range(7):
            parts.add(str(number), Transcript(f"TEXT {number}", (), 1.0))
        assert len(rows(tmp_path)) == 6
        monkeypatch.setattr(time, "monotonic", lambda: 1e9)
        parts.add("late", AudioError("late: gone"))
        assert len(rows(tmp_path)) == 8
        parts.add("last", Transcript("", (), 1.0))
        raise KeyboardInterrupt
    assert list(rows(tmp_path)) == [*"0123456", "late", "last"]
    assert Dataset(tmp_path, resume=True).done == {*"0123456", "last"}


def test_a_part_that_cannot_be_read(tmp_path, capsys):
    soundfile.write(tmp_path / "a.wav", tone(RATE), RATE)
    (tmp_path / "part-00000.parquet").write_text("no table")
    command = ["transcribe", str(tmp_path / "a.wav"), "--format", "parquet", "--output-dir", str(tmp_path)]
    assert main([*command, "--resume"]) == 2
    assert "part-00000.parquet: cannot be read" in the_line(capsys.readouterr().err)


def test_parquet_needs_a_directory_and_pyarrow(tmp_path, capsys):
    soundfile.write(tmp_path / "a.wav", tone(RATE), RATE)
    assert main(["transcribe", str(tmp_path / "a.wav"), "--format", "parquet"]) == 2
    assert "--output-dir" in the_line(capsys.readouterr().err)
    program = (
        "import sys; sys.modules['pyarrow'] = None; from mocha_stream.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["transcribe", str(tmp_path / "a.wav"), "--format", "parquet", "--output-dir", str(tmp_path / "out")]
    process = in_a_process(program, *arguments, stderr=-1, text=True)
    _, err = process.communicate()
    assert process.returncode == 2
    assert "pip install 'mocha-stream[ray]'" in the_line(err)
