"""Transcripts as files: each format read back, and subtitles that a person can read."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import srt as srt_reader
import webvtt
from hypothesis import given
from hypothesis import strategies as st

from mocha_stream.transcript import Transcript, Word
from mocha_stream.writers import FORMATS, ctm, jsonl, srt, tsv, txt, vtt

PATH = Path("talks/my talk.flac")
CUE = re.compile(r"(\d\d):(\d\d):(\d\d)[,.](\d{3}) --> (\d\d):(\d\d):(\d\d)[,.](\d{3})")

CUE_LINE = re.compile(r"^\S+ --> \S+$", re.MULTILINE)


def transcript(*words: Word) -> Transcript:
    end_s = words[-1].end_s if words else 0.0
    return Transcript(" ".join(word.word for word in words), words, end_s + 0.5)


def spoken(text: str, pauses: dict[int, float] | None = None, seconds_a_word: float = 0.3) -> Transcript:
    """Words one after the other, with a pause of so many seconds after those whose number is given."""
    words, at = [], 0.0
    for i, word in enumerate(text.split()):
        words.append(Word(word, at, at + seconds_a_word, 0.9))
        at += seconds_a_word + (pauses or {}).get(i, 0.0)
    return transcript(*words)


def cues(subtitles: str) -> list[tuple[int, int, list[str]]]:
    """Start and end in milliseconds and lines of each cue."""
    found = []
    for block in subtitles.split("\n\n"):
        lines = block.strip().split("\n")
        for i, line in enumerate(lines):
            if match := CUE.fullmatch(line):
                h1, m1, s1, ms1, h2, m2, s2, ms2 = map(int, match.groups())
                start, end = ((h1 * 60 + m1) * 60 + s1) * 1000 + ms1, ((h2 * 60 + m2) * 60 + s2) * 1000 + ms2
                found.append((start, end, lines[i + 1 :]))
    return found


TWO = transcript(Word("HELLO", 0.5, 0.9004, 0.98765), Word("WORLD", 1.0, 1.25, 0.5))


def test_plain_formats():
    assert txt(PATH, TWO) == "HELLO WORLD\n"
    assert tsv(PATH, TWO) == "talks/my talk.flac\tHELLO WORLD\n"
    assert tsv(Path("a\tb\n.wav"), TWO) == "a b .wav\tHELLO WORLD\n"
    assert ctm(PATH, TWO) == "my_talk 1 0.500 0.400 HELLO 0.988\nmy_talk 1 1.000 0.250 WORLD 0.500\n"


def test_jsonl():
    line = jsonl(PATH, TWO)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "path": "talks/my talk.flac",
        "text": "HELLO WORLD",
        "duration_s": 1.75,
        "words": [
            {"word": "HELLO", "start_s": 0.5, "end_s": 0.9, "confidence": 0.988},
            {"word": "WORLD", "start_s": 1.0, "end_s": 1.25, "confidence": 0.5},
        ],
    }
    assert list(json.loads(line)) == ["path", "text", "duration_s", "words"]


def test_subtitle_formats():
    assert srt(PATH, TWO) == "1\n00:00:00,500 --> 00:00:01,500\nHELLO WORLD\n"
    assert vtt(PATH, TWO) == "WEBVTT\n\n00:00:00.500 --> 00:00:01.500\nHELLO WORLD\n"
    late = transcript(Word("A<B&C>", 3723.0, 3725.004, 1.0), Word("D", 3730.0, 3731.0, 1.0))
    assert srt(PATH, late) == "1\n01:02:03,000 --> 01:02:05,004\nA<B&C>\n\n2\n01:02:10,000 --> 01:02:11,000\nD\n"
    assert "\nA&lt;B&amp;C&gt;\n" in vtt(PATH, late)


@pytest.mark.parametrize("name", FORMATS)
def test_silence(name):
    expected = {"txt": "\n", "tsv": f"{PATH}\t\n", "vtt": "WEBVTT\n", "srt": "", "ctm": ""}
    text = FORMATS[name](PATH, Transcript("", (), 3.0))
    assert text == expected.get(name, '{"path": "talks/my talk.flac", "text": "", "duration_s": 3.0, "words": []}\n')


def test_names_that_are_no_text_can_be_written():
    path = Path("caf\udce9.wav")  # Latin-1 on disk
    for write in FORMATS.values():
        write(path, TWO).encode("utf-8")


def test_a_cue_ends_at_the_longest_pause_of_its_second_half():
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    found = cues(srt(PATH, spoken(text, {1: 0.6, 9: 0.4, 11: 0.2})))
    assert [" ".join(lines) for _, _, lines in found] == [
        "one two three four five six seven eight nine ten",
        "eleven twelve thirteen fourteen fifteen sixteen seventeen",
    ]


def test_a_long_silence_always_ends_a_cue():
    found = cues(vtt(PATH, spoken("yes no", {0: 0.8})))
    assert found == [(0, 1000, ["yes"]), (1100, 2100, ["no"])]


def test_two_lines_are_about_as_long():
    ((_, _, lines),) = cues(srt(PATH, spoken("it was the age of wisdom it was the age of foolishness")))
    assert lines == ["it was the age of wisdom it", "was the age of foolishness"]


TIMES = st.floats(0, 2, allow_subnormal=False)


@given(st.lists(st.tuples(st.text("ABCDEFG'", min_size=1, max_size=42), TIMES, TIMES), max_size=80))
def test_subtitles_are_readable_whatever_is_said(drawn):
    words, at = [], 0.0
    for word, pause, length in drawn:
        words.append(Word(word, at + pause, at + pause + length, 1.0))
        at += pause + length
    found = cues(srt(PATH, transcript(*words)))
    assert found == cues(vtt(PATH, transcript(*words)))
    assert " ".join(line for _, _, lines in found for line in lines) == " ".join(word.word for word in words)
    for start, end, lines in found:
        assert 0 < end - start <= 6000
        assert len(lines) <= 2
        assert all(len(line) <= 42 for line in lines)
    for (_, end, _), (start, _, _) in pairwise(found):
        assert end <= start


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 3)), max_size=40))
def test_cues_never_overlap_even_where_words_do(drawn):
    words = [Word("WORD", start, start + length, 1.0) for start, length in sorted(drawn)]
    found = cues(srt(PATH, transcript(*words)))
    assert all(start < end for start, end, _ in found)
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(found))


def test_an_hour_of_speech_without_a_pause():
    found = cues(srt(PATH, spoken("WORD " * 12_000)))
    assert sum(len(line.split()) for _, _, lines in found for line in lines) == 12_000


@given(st.lists(st.tuples(st.text("AB<>&-'", min_size=1, max_size=9), TIMES, TIMES), min_size=1, max_size=20))
def test_subtitles_load_in_the_usual_readers(drawn):
    words, at = [], 0.0
    for word, pause, length in drawn:
        words.append(Word(word, at + pause, at + pause + length, 1.0))
        at += pause + length
    expected = cues(srt(PATH, transcript(*words)))
    read = [
        (round(item.start.total_seconds() * 1000), round(item.end.total_seconds() * 1000), item.content.split("\n"))
        for item in srt_reader.parse(srt(PATH, transcript(*words)))
    ]
    assert read == expected
    assert (
        srt_reader.compose(srt_reader.parse(srt(PATH, transcript(*words)))).strip()
        == srt(PATH, transcript(*words)).strip()
    )
    read = [f"{item.start} --> {item.end}" for item in webvtt.from_string(vtt(PATH, transcript(*words)))]
    assert read == CUE_LINE.findall(vtt(PATH, transcript(*words)))
    assert len(read) == len(expected)


def test_ctm_is_what_scoring_tools_take():
    """As NIST's sclite wants it: five or six fields a line, the times of a recording never going back."""
    found = [line.split(" ") for line in ctm(PATH, spoken("IT'S A QUARTER TO TEN", {1: 0.5})).splitlines()]
    assert all(len(fields) == 6 for fields in found)
    starts = [float(fields[2]) for fields in found]
    assert starts == sorted(starts)
    assert all(float(fields[3]) >= 0 and 0 <= float(fields[5]) <= 1 for fields in found)
