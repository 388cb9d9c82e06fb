"""What `mocha-stream evaluate` measures is right: counters, delays, word times, and recordings that cannot be used."""

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
from mocha_stream.evaluate import STREAM_BLOCK_S, Screen, evaluate, measure, measure_whole, word_aligner
from mocha_stream.recognizer import Recognizer
from mocha_stream.scores import Span
from mocha_stream.search import SCAN_BLOCK
from mocha_stream.transcript import Final, Overflow, Partial, Word


def spoken(*words: str) -> tuple[Word, ...]:
    return tuple(Word(word, float(i), i + 0.5, 0.5) for i, word in enumerate(words))


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
    frame_s = 0.08

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


def test_report_adds_up(corpus, monkeypatch):
    monkeypatch.setattr("mocha_stream.evaluate.word_aligner", lambda recognizer: (None, ()))
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


def test_words_are_spoken_where_ctc_hears_their_tokens(recognizer, monkeypatch):
    words = ["THE", "LAZY", "DOG"]
    tokens = [tiny.tokenizer().encode(word) for word in words]
    assert [token for word in tokens for token in word] == tiny.tokenizer().encode("THE LAZY DOG")
    assert max(map(len, tokens)) > 1
    scores, spans, frame = torch.zeros(1, 1000, len(tiny.tokenizer())), [], 2
    scores[0, :, 0] = 5.0
    for word in tokens:  # each token two frames, then one of nothing
        first = frame
        for token in word:
            scores[0, frame : frame + 2, token] = 10.0
            frame += 3
        spans.append(Span(pytest.approx(first * 0.08), pytest.approx((frame - 1) * 0.08)))

    align, notes = word_aligner(recognizer)
    monkeypatch.setattr(recognizer.model.ctc, "forward", lambda frames: scores[:, : frames.shape[1]])
    samples = np.zeros((round((frame + 1) * 0.08 * 48_000), 2), np.float32)
    blocks = [(block, 48_000) for block in np.array_split(samples, 7)]
    assert align(blocks, "THE LAZY DOG") == spans
    assert align(blocks, "THE LAZY DOG " * 20) is None, "more tokens than frames"
    assert align(blocks, "THE 1AZY DOG") is None, "a letter that is no unit"
    assert align(blocks, "") is None
    assert "CTC" in notes[0]
    monkeypatch.setattr("mocha_stream.evaluate.LONGEST_ALIGNED_S", 1.0)
    assert align(blocks, "THE LAZY DOG") is None, "longer than is aligned"


def test_delay_is_from_the_end_of_the_word_to_its_display(recognizer, corpus):
    [utterance] = read_corpus(corpus / "all.jsonl")[:1]
    session, screen = recognizer.session(320), Screen()
    for block in np.split(tiny.noise(2.0), 20):
        screen.show(session.feed(block))
    screen.show(session.finish())
    assert len(screen.words) > 3
    utterance = replace(utterance, text=" ".join(word.word for word in screen.words))

    def align(blocks, text):
        return [Span(0.125, 0.25)] * len(text.split())

    recording = measure(recognizer, utterance, True, 320, align)
    assert recording.errors.wer == 0.0
    assert recording.delays_s == pytest.approx([shown - 0.25 for shown in screen.shown_at_s])
    assert set(np.round(screen.shown_at_s, 6)) <= set(np.round(np.arange(1, 21) * STREAM_BLOCK_S, 6))
    assert [word.start_error_s for word in recording.words] == [word.start_s - 0.125 for word in screen.words]
    unheard = measure(recognizer, utterance, False, 320, align)
    assert unheard.delays_s == [], "nothing is shown of a recording that is not streamed"
    assert unheard.words[0].start_error_s == recording.words[0].start_error_s


def test_words_of_whole_recordings_have_confidences_and_times(recognizer, corpus):
    [utterance] = read_corpus(corpus / "all.jsonl")[:1]
    transcript = recognizer.transcribe(utterance.path)
    utterance = replace(utterance, text=transcript.text)
    given = []

    def align(blocks, text):
        given.append((sum(len(block) for block, _ in blocks), text))
        return [Span(0.5, 0.75)] * len(text.split())

    recording = measure_whole(recognizer, utterance, align)
    assert given == [(2 * tiny.RATE, transcript.text)]
    assert [word.confidence for word in recording.words] == [word.confidence for word in transcript.words]
    assert [word.start_error_s for word in recording.words] == [word.start_s - 0.5 for word in transcript.words]
    assert recording.delays_s == []


def test_without_torchaudio_the_delay_is_left_out_and_said_so(recognizer, corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "mocha_stream.training.losses", None)
    report = evaluate(recognizer, corpus, streaming=True, latency_ms=320)
    assert report.figures()["emission_delay_s"] is None
    assert "torchaudio" in report.notes[0]
    assert "emission delay    not measured" in report.to_text()
    assert "word starts       not measured" in report.to_text()


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
