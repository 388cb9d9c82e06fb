"""How well, how fast and how soon a model recognises a corpus: what `mocha-stream evaluate` runs.

`report.py` has what comes of it. All times are seconds.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from .audio import join_mono, read_audio, read_blocks
from .batch import recognise
from .corpus import Utterance, read_corpus
from .errors import AudioError, DataError
from .features import log_mel
from .recognizer import BLOCK_S, Recognizer
from .report import Recording, Report
from .scores import ScoredWord, Span, count_errors, score_words
from .transcript import Event, Final, Overflow, Word

STREAM_BLOCK_S = 0.1
"""What a microphone gives at a time, and so the grain of the emission delays."""
STREAM_LATENCY_MS = 640
LONGEST_ALIGNED_S = 120.0
"""Forced alignment takes memory by the square of the length."""

Blocks = Sequence[tuple[np.ndarray, int]]
"""Of a recording, each with its rate in Hz."""
Align = Callable[[Blocks, str], list[Span] | None]
"""A recording and its text to when each word is spoken; None where that cannot be told."""


def evaluate(
    recognizer: Recognizer,
    data: Path,
    streaming: bool = False,
    latency_ms: int | None = None,
    limit: int | None = None,
) -> Report:
    """Recognises the first `limit` recordings of a corpus, one stream at a time, and measures it.

    Args:
        data: folder or manifest, as `corpus.read_corpus` takes them
        streaming: feed blocks of `STREAM_BLOCK_S`, and measure how soon words are shown
        latency_ms: that the encoder waits for; by default the whole recording, or `STREAM_LATENCY_MS` in a stream

    Raises:
        DataError: no corpus, or none of its recordings can be read.
        ConfigError: a latency that the model was not trained for.
    """
    latency_ms = STREAM_LATENCY_MS if streaming and latency_ms is None else latency_ms
    recognizer.session(latency_ms)  # refuses the latency before anything is read
    utterances = read_corpus(data)[:limit]
    align, notes = word_aligner(recognizer)
    recordings, failures = [], []
    for utterance in tqdm(utterances, "evaluate", unit="utt", disable=None, leave=False):
        try:
            if latency_ms is None:
                recordings.append(measure_whole(recognizer, utterance, align))
            else:
                recordings.append(measure(recognizer, utterance, streaming, latency_ms, align))
        except AudioError as error:
            line = str(error)
            failures.append(line if line.startswith(str(utterance.path)) else f"{utterance.path}: {line}")
    if not recordings:
        raise DataError(f"{data}: none of {len(failures)} recordings can be used; the first: {failures[0]}")
    block_s = STREAM_BLOCK_S if streaming else None
    threads = torch.get_num_threads()
    return Report(str(data), latency_ms, block_s, threads, tuple(recordings), tuple(failures), notes)


def measure_whole(recognizer: Recognizer, utterance: Utterance, align: Align | None) -> Recording:
    """Recognises one recording as `Recognizer.transcribe` does. Raises AudioError when it cannot be read."""
    started = time.perf_counter()
    rate = recognizer.config.features.sample_rate
    samples = read_audio(utterance.path, rate)
    reading_s = time.perf_counter() - started

    started, processor_started = time.perf_counter(), time.process_time()
    (result,) = recognise(recognizer.search, recognizer.tokenizer, [[samples]])
    recognition_s, processor_s = time.perf_counter() - started, time.process_time() - processor_started
    if isinstance(result, AudioError):
        raise result
    spans = align([(samples, rate)], utterance.text) if align else None
    return _recording(
        utterance,
        score_words(utterance.text, result.transcript.words, None, spans),
        duration_s=result.transcript.duration_s,
        reading_s=reading_s,
        recognition_s=recognition_s,
        processor_s=processor_s,
        tail_s=recognition_s,
        num_frames=result.num_frames,
        num_tokens=result.num_tokens,
        num_energies=result.num_energies,
        num_forced=result.num_forced,
        num_rewrites=0,
    )


def measure(
    recognizer: Recognizer, utterance: Utterance, streaming: bool, latency_ms: int, align: Align | None
) -> Recording:
    """Recognises one recording in a session. Raises AudioError when it cannot be read."""
    started = time.perf_counter()
    blocks = list(read_blocks(utterance.path, STREAM_BLOCK_S if streaming else BLOCK_S))
    reading_s = time.perf_counter() - started

    session, screen = recognizer.session(latency_ms), Screen()
    recognition_s = processor_s = tail_s = 0.0
    for i, (block, rate) in enumerate(blocks):
        started, processor_started = time.perf_counter(), time.process_time()
        events = session.feed(block, rate)
        if i == len(blocks) - 1:
            events += session.finish()
        tail_s = time.perf_counter() - started
        recognition_s += tail_s
        processor_s += time.process_time() - processor_started
        screen.show(events)
    spans = align(blocks, utterance.text) if align else None
    return _recording(
        utterance,
        score_words(utterance.text, screen.words, screen.shown_at_s if streaming else None, spans),
        duration_s=session.heard_s,
        reading_s=reading_s,
        recognition_s=recognition_s,
        processor_s=processor_s,
        tail_s=tail_s,
        num_frames=session.num_frames,
        num_tokens=session.num_tokens,
        num_energies=session.num_energies,
        num_forced=session.num_forced,
        num_rewrites=screen.num_rewrites,
    )


def _recording(utterance: Utterance, words: tuple[ScoredWord, ...], **measured: Any) -> Recording:
    """The recognised words of an utterance, with what else is measured of it."""
    text = " ".join(word.word for word in words)
    return Recording(
        id=utterance.id,
        path=str(utterance.path),
        speaker=utterance.speaker,
        reference=utterance.text,
        hypothesis=text,
        errors=count_errors(utterance.text, text),
        words=words,
        **measured,
    )


class Screen:
    """What a reader of the events sees: all words so far, when each was first shown, and how many were changed."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.shown_at_s: list[float] = []
        """For each word, how much audio had been heard."""
        self.num_rewrites = 0
        self._num_final = 0

    def show(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Overflow):
                continue
            before, now = self.words[self._num_final :], list(event.words)
            kept = [a.word == b.word for a, b in zip(before, now, strict=False)]
            self.num_rewrites += len(before) - sum(kept)
            times = self.shown_at_s[self._num_final :]
            times = [times[i] if i < len(kept) and kept[i] else event.at_s for i in range(len(now))]
            self.words[self._num_final :], self.shown_at_s[self._num_final :] = now, times
            if isinstance(event, Final):
                self._num_final = len(self.words)


def word_aligner(recognizer: Recognizer) -> tuple[Align | None, tuple[str, ...]]:
    """Forced alignment by the model's own CTC head, and notes for the report; None where torchaudio is missing."""
    try:
        from .training.losses import ctc_spans
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        return None, (
            f"delays and word times need forced alignment from torchaudio, which cannot be imported ({reason})",
        )

    @torch.inference_mode()
    def align(blocks: Blocks, text: str) -> list[Span] | None:
        model, tokenizer = recognizer.model, recognizer.tokenizer
        tokens = tokenizer.encode(text)
        if 0 in tokens:  # a letter that the model cannot write
            return None
        samples = join_mono(blocks, model.config.features.sample_rate)
        if len(samples) > LONGEST_ALIGNED_S * model.config.features.sample_rate:
            return None
        features = torch.from_numpy(log_mel(samples, model.config.features))[None]
        frames, _ = model.encoder(features, torch.tensor([features.shape[1]]))
        found = ctc_spans(model.ctc(frames)[0].log_softmax(-1), torch.tensor(tokens))
        if found is None:
            return None
        spans, first = [], None
        for token, (start, stop) in zip(tokens, found.tolist(), strict=True):
            first = start if first is None else first
            if tokenizer.ends_word(token):
                spans.append(Span(first * recognizer.frame_s, (stop + 1) * recognizer.frame_s))
                first = None
        return spans if len(spans) == len(text.split()) else None

    return align, (
        "words are spoken from the first to the last frame of their tokens in forced alignment by the model's own "
        f"CTC head, which is good to a frame or two of {1000 * recognizer.frame_s:.0f} ms",
    )
