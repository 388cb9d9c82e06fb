"""Corpora: the three layouts, what is refused, and names that are the same in two places."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocha_stream.corpus import Utterance, normalise, read_corpus
from mocha_stream.errors import DataError

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def librispeech(folder: Path) -> Path:
    chapter = folder / "61" / "70968"
    touch(chapter / "61-70968-0000.flac", chapter / "61-70968-0001.opus", folder / "12" / "1" / "12-1-0000.wav")
    (chapter / "61-70968.trans.txt").write_text("61-70968-0000 HE BEGAN\n61-70968-0001 GIVE NOT SO\n")
    (folder / "12" / "1" / "12-1.trans.txt").write_text("12-1-0000 WELL\n")
    return folder


def manifest(folder: Path, *entries: object) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_librispeech(tmp_path):
    utterances = read_corpus(librispeech(tmp_path))
    chapter = tmp_path / "61" / "70968"
    assert utterances == [
        Utterance("12-1-0000", tmp_path / "12" / "1" / "12-1-0000.wav", "WELL", "12"),
        Utterance("61-70968-0000", chapter / "61-70968-0000.flac", "HE BEGAN", "61"),
        Utterance("61-70968-0001", chapter / "61-70968-0001.opus", "GIVE NOT SO", "61"),
    ]
    assert read_corpus(chapter) == utterances[1:]
    assert read_corpus(chapter / "61-70968.trans.txt") == utterances[1:]


def test_transcripts_tsv(tmp_path):
    touch(tmp_path / "a.opus", tmp_path / "b.MP3")
    (tmp_path / "transcripts.tsv").write_text("a\ts1\t1.5\tIt\N{RIGHT SINGLE QUOTATION MARK}s so\r\n\nb\ts2\t2\tNO\n")
    assert read_corpus(tmp_path) == [
        Utterance("a", tmp_path / "a.opus", "IT'S SO", "s1"),
        Utterance("b", tmp_path / "b.MP3", "NO", "s2"),
    ]


def test_manifest(tmp_path):
    touch(tmp_path / "sub" / "x.wav", tmp_path / "y.flac")
    path = manifest(
        tmp_path,
        {"path": "y.flac", "text": "Two, please!", "speaker": "me", "id": "own"},
        {"path": "sub/x.wav", "text": "one", "more": 1},
    )
    assert read_corpus(path) == read_corpus(tmp_path)
    assert [(item.id, item.text, item.speaker) for item in read_corpus(path)] == [
        ("own", "TWO PLEASE", "me"),
        (str(Path("sub") / "x"), "ONE", ""),
    ]


def test_recordings_of_the_same_name_in_a_manifest_are_different_utterances(tmp_path):
    touch(tmp_path / "a" / "0001.wav", tmp_path / "b" / "0001.wav")
    path = manifest(tmp_path, {"path": "a/0001.wav", "text": "YES"}, {"path": "b/0001.wav", "text": "NO"})
    assert len({item.id for item in read_corpus(path)}) == 2


def test_names_that_are_listed_twice_are_refused(tmp_path):
    touch(tmp_path / "a.wav", tmp_path / "b.wav")
    path = manifest(tmp_path, {"path": "a.wav", "text": "YES", "id": "1"}, {"path": "b.wav", "text": "NO", "id": "1"})
    with pytest.raises(DataError, match=r"'1' twice"):
        read_corpus(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "list no utterance"),
        ("nonsense", "'nonsense'; expected"),
        ("[1, 2]", "expected"),
        ("null", "expected"),
        ('{"path": "a.wav"}', "expected"),
        ('{"text": "A"}', "expected"),
        ('{"path": "a.wav", "text": 3}', "expected"),
        ('{"path": 3, "text": "A"}', "expected"),
        ('{"path": "a.wav", "text": "A", "id": 3}', "expected"),
        ('{"path": "missing.wav", "text": "A"}', "missing.wav does not exist"),
        ('{"path": "sub", "text": "A"}', "is no file"),
    ],
)
def test_manifests_that_cannot_be_used(tmp_path, line, message):
    touch(tmp_path / "a.wav", tmp_path / "sub" / "b.wav")
    (tmp_path / "set.jsonl").write_text(line + "\n")
    assert_refused(tmp_path / "set.jsonl", message)


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_corpus(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_folders_and_lists_that_cannot_be_used(tmp_path):
    assert_refused(tmp_path / "missing", "does not exist")
    (tmp_path / "empty").mkdir()
    assert_refused(tmp_path / "empty", "holds no transcripts")
    (tmp_path / "transcripts.tsv").write_text("a\tTEXT\n")
    assert_refused(tmp_path, "2 columns; expected utterance, speaker, seconds and text")
    (tmp_path / "transcripts.tsv").write_text("a\ts\t1\tTEXT\n")
    assert_refused(tmp_path, "no recording a beside it")
    (tmp_path / "transcripts.tsv").write_text("")
    assert_refused(tmp_path, "list no utterance")
    (tmp_path / "transcripts.tsv").write_bytes(b"\xff\xfe\x00")
    assert_refused(tmp_path, "is not text")


@pytest.mark.parametrize("name", ["a.wav", "notes.txt", "a.jsonl"])
def test_a_recording_is_no_manifest(tmp_path, name):
    (tmp_path / name).write_bytes(os.urandom(50) + b"\xff\n")
    assert_refused(tmp_path / name, str(tmp_path / name))


@given(text=st.text())
def test_normalised_text_stays_so(text):
    once = normalise(text)
    assert normalise(once) == once
    assert set(once) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ' ")
    assert once == " ".join(once.split())


def test_the_spelling_of_librispeech():
    assert normalise("It\N{RIGHT SINGLE QUOTATION MARK}s  well-known,\tMr. O'Neil--1984") == "IT'S WELL KNOWN MR O'NEIL"


def test_the_data_beside_the_project():
    if not DATA.is_dir():
        if "CI" in os.environ:
            pytest.fail(f"{DATA} is missing")
        pytest.skip(f"{DATA} is not here")
    assert len(read_corpus(DATA / "LibriSpeech" / "test-clean")) == 200
    assert len(read_corpus(DATA / "LibriSpeech" / "dev-clean")) == 1313
    utterances = read_corpus(DATA / "extra" / "an4")
    assert len(utterances) == 1065
    assert all(item.path.exists() and item.text for item in utterances)
