"""What `mocha-stream evaluate` reports is right: word errors, counters, delays, and recordings that cannot be used."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import tiny
import torch

from mocha_stream.corpus import read_corpus
from mocha_stream.errors import ConfigError, DataError
from mocha_stream.evaluate import (
    STREAM_BLOCK_S,
    Errors,
    Screen,
    count_errors,
    emission_delays,
    evaluate,
    matching_words,
    measure,
    summary,
    word_aligner,
)
from mocha_stream.recognizer import Recognizer
from mocha_stream.search import SCAN_BLOCK
from mocha_stream.transcript import Final, Overflow, Partial, Word


def spoken(*words: str) -> tuple[Word, ...]:
    return tuple(Word(word, float(i), i + 0.5, 0.5) for i, word in enumerate(words))


@pytest.mark.parametrize(
    "reference, hypothesis, expected",
    [
        ("A B C D", "A B C D", Errors(4, 0, 0, 0)),
        ("A B C D", "A X C D E", Errors(4, 1, 0, 1)),
        ("A B C D", "A D", Errors(4, 0, 2, 0)),
        ("A B", "", Errors(2, 0, 2, 0)),
        ("", "A B", Errors(0, 0, 0, 2)),
        ("", "", Errors()),
    ],
)
def test_word_errors(reference, hypothesis, expected):
    assert count_errors(reference, hypothesis) == expected


def test_errors_add_up():
    total = Errors(4, 1, 0, 1) + Errors(6, 0, 2, 0)
    assert total == Errors(10, 1, 2, 1)
    assert total.wer == 40.0
    assert Errors(0, 0, 0, 2).wer is None


def test_only_words_recognised_right_have_a_delay():
    words = ["THE", "CAT", "SAT"]
    assert matching_words("THE FAT CAT SAT", words) == [(0, 0), (2, 1), (3, 2)]
    assert emission_delays("THE FAT CAT SAT", words, [1.0, 2.0, 3.0], [0.5, 0.8, 1.5, 2.25]) == [0.5, 0.5, 0.75]
    assert emission_delays("A B", ["C"], [1.0], [0.5, 0.8]) == []
    assert emission_delays("", ["C"], [1.0], []) == emission_delays("A", [], [], [0.5]) == []


def test_screen_remembers_when_words_were_shown_and_counts_those_that_change():
    screen = Screen()
    screen.show([Partial("a", spoken("a"), 1.0, 1), Partial("a b", spoken("a", "b"), 2.0, 2), Overflow(0.1, 2.0)])
    screen.show([Final("a b c", spoken("a", "b", "c"), 0.0, 3.0, 3.0), Partial("d", spoken("d"), 4.0, 1)])
    assert [word.word for word in screen.words] == ["a", "b", "c", "d"]
    assert screen.shown_at_s == [1.0, 2.0, 3.0, 4.0]
    assert screen.num_rewrites == 0
    screen.show([Partial("e f", spoken("e", "f"), 5.0, 0), Final("e", spoken("e"), 3.0, 5.0, 6.0)])
    assert [word.word for word in screen.words] == ["a", "b", "c", "e"]
    assert screen.shown_at_s == [1.0, 2.0, 3.0, 5.0]
    assert screen.num_rewrites == 2, "d became e, and f was taken back"


def test_summary():
    assert summary([]) is None
    assert summary([1.0, 2.0, 3.0]) == {"mean": 2.0, "p50": 2.0, "p95": pytest.approx(2.9), "max": 3.0}


# Whole corpora


@pytest.fixture(scope="module")
def recognizer():
    return Recognizer(tiny.random_model(), tiny.tokenizer())


@pytest.fixture
def corpus(tmp_path):
    """Four recordings of noise by two speakers, one of them in stereo at another rate."""
    entries = []
    for i, (seconds, text) in enumerate(((2.0, "THE LAZY DOG"), (3.3, "MY BOX"), (0.5, ""), (6.1, "THE QUICK SHIP"))):
        samples, rate = tiny.noise(seconds, seed=i), tiny.RATE
        if i == 1:
            samples, rate = np.stack([samples, samples], 1), 24_000
        soundfile.write(tmp_path / f"{i}.wav", samples, rate)
        entries.append({"path": f"{i}.wav", "text": text, "speaker": f"s{i % 2}"})
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return tmp_path


class Script:
    """A recogniser that says what it is told, a word each 100 ms, whatever it hears."""

    latencies_ms = (640,)

    def __init__(self, *texts: str):
        self.texts = list(texts)
        self.num_opened = 0

    def session(self, latency_ms):
        self.num_opened += 1
        session = SimpleNamespace(num_frames=10, num_tokens=3, num_energies=12, num_forced=1, heard_s=2.0)
        text = self.texts[max(0, self.num_opened - 2)]  # the first session only tries the latency
        session.feed = lambda block, rate: []
        session.finish = lambda: [Final(text, spoken(*text.split()), 0.0, 1.0, 2.0)] if text else []
        return session


def test_report_adds_up(corpus):
    report = evaluate(Script("THE LAZY DOG", "MY FOX BOX", "", "SHIP"), corpus, latency_ms=640)
    figures = report.figures()
    assert (figures["num_words"], figures["substitutions"]) == (8, 0)
    assert (figures["deletions"], figures["insertions"], figures["wer"]) == (2, 1, 37.5)
    assert (figures["num_frames"], figures["num_tokens"], figures["num_energies"]) == (40, 12, 48)
    assert figures["energy_bound"] == 40 + SCAN_BLOCK * 12
    assert figures["num_forced"] == 4
    assert figures["by_speaker"]["s0"]["wer"] == 0.0
    assert figures["by_speaker"]["s1"]["num_words"] == 5
    assert figures["by_length"]["0 to 5 s"]["num_utterances"] == 4
    assert figures["emission_delay_s"] is figures["num_rewrites"] is None, "nothing is shown of whole recordings"
    text = report.to_text()
    assert "WER               37.50%  (0 substitutions, 2 deletions, 1 insertions)" in text
    assert f"energies          48 <= bound {40 + SCAN_BLOCK * 12}" in text
    values = json.loads(report.to_json())
    assert values["wer"] == 37.5
    assert [item["hypothesis"] for item in values["recordings"]] == ["THE LAZY DOG", "MY FOX BOX", "", "SHIP"]


def test_whole_recordings_are_heard_as_transcribe_hears_them(recognizer, corpus):
    report = evaluate(recognizer, corpus)
    transcripts = [recognizer.transcribe(utterance.path) for utterance in read_corpus(corpus)]
    assert [item.hypothesis for item in report.recordings] == [transcript.text for transcript in transcripts]
    assert [item.duration_s for item in report.recordings] == [transcript.duration_s for transcript in transcripts]
    assert all(0 < item.num_frames <= item.num_energies <= item.energy_bound for item in report.recordings)
    assert sum(item.num_tokens for item in report.recordings) > 20
    assert "offline, whole recordings" in report.to_text()


def test_counters_of_a_model_keep_their_bound(recognizer, corpus):
    offline = evaluate(recognizer, corpus, latency_ms=recognizer.latencies_ms[0])
    streaming = evaluate(recognizer, corpus, streaming=True, latency_ms=recognizer.latencies_ms[0])
    for whole, stream in zip(offline.recordings, streaming.recordings, strict=True):
        assert stream.hypothesis == whole.hypothesis
        assert stream.num_energies <= stream.energy_bound
        assert (stream.num_tokens, stream.num_frames) == (whole.num_tokens, whole.num_frames)
        assert stream.num_rewrites == 0
        assert 0 <= stream.tail_s <= stream.recognition_s
    durations = [item.duration_s for item in streaming.recordings]
    assert durations == pytest.approx([2.0, 3.3 * 2 / 3, 0.5, 6.1], abs=1e-3)
    num_features = [int((duration - 0.025) / 0.01) + 1 for duration in durations]
    assert [item.num_frames for item in streaming.recordings] == [-(-count // 8) for count in num_features]
    assert sum(item.num_tokens for item in streaming.recordings) > 20, "the model says something"
    assert streaming.figures()["num_energies"] >= streaming.figures()["num_frames"]


def test_energies_are_those_that_the_search_computes(recognizer, corpus, monkeypatch):
    """Counted at the energy function itself, which may compute up to a block more at the end of each piece."""
    computed = []
    forward = recognizer.model.attention.stop_energy.forward

    def count(queries, keys):
        computed.append(keys.shape[1])
        return forward(queries, keys)

    monkeypatch.setattr(recognizer.model.attention.stop_energy, "forward", count)
    report = evaluate(recognizer, corpus, latency_ms=recognizer.latencies_ms[-1])
    figures = report.figures()
    assert max(computed) <= SCAN_BLOCK
    num_calls = sum(-(-item.num_frames // 4) + 1 for item in report.recordings)
    assert (
        figures["num_energies"]
        <= sum(computed)
        <= figures["num_energies"] + SCAN_BLOCK * (num_calls + figures["num_tokens"])
    )


def test_words_end_where_ctc_hears_their_last_token(recognizer, monkeypatch):
    tokens = tiny.tokenizer().encode("THE LAZY DOG")
    stops = [3 * i + 2 for i in range(len(tokens))]
    last = [stop for token, stop in zip(tokens, stops, strict=True) if tiny.tokenizer().ends_word(token)]

    def heard(frames):
        scores = torch.zeros(1, frames.shape[1], len(tiny.tokenizer()))
        scores[0, :, 0] = 5.0
        scores[0, stops, tokens] = 10.0
        return scores

    align, notes = word_aligner(recognizer)
    monkeypatch.setattr(recognizer.model.ctc, "forward", heard)
    seconds = (stops[-1] + 2) * 0.08
    blocks = [(block, 48_000) for block in np.array_split(np.zeros((round(seconds * 48_000), 2), np.float32), 7)]
    assert len(last) == 3
    assert align(blocks, "THE LAZY DOG") == pytest.approx([(stop + 1) * 0.08 for stop in last])
    assert align(blocks, "THE LAZY DOG " * 20) is None, "more tokens than frames"
    assert "CTC" in notes[0]


def test_delay_is_from_the_end_of_the_word_to_its_display(recognizer, corpus):
    [utterance] = read_corpus(corpus / "all.jsonl")[:1]
    session, screen = recognizer.session(320), Screen()
    for block in np.split(tiny.noise(2.0), 20):
        screen.show(session.feed(block))
    screen.show(session.finish())
    assert len(screen.words) > 3
    utterance = replace(utterance, text=" ".join(word.word for word in screen.words))
    recording = measure(recognizer, utterance, True, 320, lambda blocks, text: [0.25] * len(text.split()))
    assert recording.errors.wer == 0.0
    assert recording.delays_s == pytest.approx([shown - 0.25 for shown in screen.shown_at_s])
    assert set(np.round(screen.shown_at_s, 6)) <= set(np.round(np.arange(1, 21) * STREAM_BLOCK_S, 6))


def test_without_torchaudio_the_delay_is_left_out_and_said_so(recognizer, corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "mocha_stream.training.losses", None)
    report = evaluate(recognizer, corpus, streaming=True, latency_ms=320)
    assert report.figures()["emission_delay_s"] is None
    assert "torchaudio" in report.notes[0]
    assert "emission delay    not measured" in report.to_text()


def test_broken_recordings_are_told_and_the_rest_goes_on(recognizer, corpus):
    (corpus / "1.wav").write_text("this is no sound")
    soundfile.write(corpus / "3.wav", np.array([0.0, np.nan] * 4000, np.float32), tiny.RATE, subtype="FLOAT")
    report = evaluate(recognizer, corpus)
    assert [item.id for item in report.recordings] == ["0", "2"]
    assert len(report.failures) == 2
    for name, line in zip(("1.wav", "3.wav"), report.failures, strict=True):
        assert line.startswith(str(corpus / name))
        assert f"not used: {line}" in report.to_text()
    for i in range(4):
        (corpus / f"{i}.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"none of 4 recordings .* is empty"):
        evaluate(recognizer, corpus)


def test_limit_and_latency(recognizer, corpus):
    assert len(evaluate(recognizer, corpus, limit=2).recordings) == 2
    with pytest.raises(ConfigError, match="latency of 123 ms"):
        evaluate(recognizer, corpus, latency_ms=123)
    with pytest.raises(ConfigError, match="latency of 640 ms"):
        evaluate(recognizer, corpus, streaming=True)


def test_groups_are_in_order_of_length(recognizer, corpus):
    report = evaluate(recognizer, corpus, limit=1)
    durations = (12.0, 3.0, 25.0, 7.0, 16.0, 5.0)
    items = tuple(replace(report.recordings[0], duration_s=duration) for duration in durations)
    groups = list(replace(report, recordings=items).figures()["by_length"])
    assert groups == ["0 to 5 s", "5 to 10 s", "10 to 15 s", "15 to 20 s", "20 s and more"]
