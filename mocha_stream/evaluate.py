"""How well, how fast and how soon a model recognises a corpus: what `mocha-stream evaluate` prints.

Word errors are counted as LibriSpeech's are, after `corpus.normalise`. All times are seconds.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .audio import MonoStream, read_audio, read_blocks
from .batch import recognise
from .corpus import Utterance, normalise, read_corpus
from .errors import AudioError, DataError
from .features import log_mel
from .recognizer import BLOCK_S, Recognizer, Session
from .search import SCAN_BLOCK
from .transcript import Event, Final, Overflow, Word

STREAM_BLOCK_S = 0.1
"""What a microphone gives at a time, and so the grain of the emission delays."""
STREAM_LATENCY_MS = 640
LENGTHS_S = (5.0, 10.0, 15.0, 20.0)
"""Bounds between the groups of recordings by length."""

Blocks = Sequence[tuple[np.ndarray, int]]
"""Of a recording, each with its rate in Hz."""
Align = Callable[[Blocks, str], list[float] | None]
"""A recording and its text to the time at which each word ends; None where that cannot be told."""


@dataclass(frozen=True)
class Errors:
    """Word errors of some recordings; they add up."""

    num_words: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    def __add__(self, other: "Errors") -> "Errors":
        return Errors(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def wer(self) -> float | None:
        """Errors per spoken word, in percent; None without words."""
        wrong = self.substitutions + self.deletions + self.insertions
        return 100 * wrong / self.num_words if self.num_words else None


@dataclass(frozen=True)
class Recording:
    """What one recording gave."""

    id: str
    speaker: str
    reference: str
    hypothesis: str
    errors: Errors
    duration_s: float
    reading_s: float
    """Wall clock of decoding the file."""
    recognition_s: float
    """Wall clock of the arithmetic from samples to text."""
    processor_s: float
    """The same in processor time of all threads, which other programs on the machine do not lengthen."""
    tail_s: float
    """The part of it after the last sample had come: the last block and the end of the stream."""
    num_frames: int
    num_tokens: int
    num_energies: int
    num_forced: int
    """Times that the guard against loops pushed the attention on."""
    num_rewrites: int
    """Words that changed after they had been shown."""
    delays_s: tuple[float, ...] | None
    """Of each word recognised right: audio heard when it was shown, less where it ends. None when not measured."""

    @property
    def energy_bound(self) -> int:
        return self.num_frames + SCAN_BLOCK * self.num_tokens


@dataclass(frozen=True)
class Report:
    """The recordings, and what they come to."""

    data: str
    latency_ms: int | None
    """None: whole recordings."""
    block_s: float | None
    """Length of the blocks of a stream; None: offline."""
    num_threads: int
    recordings: tuple[Recording, ...]
    failures: tuple[str, ...]
    """A line for each recording that could not be used."""
    notes: tuple[str, ...] = ()

    def figures(self) -> dict[str, Any]:
        """Everything that is printed, as plain values."""
        items = self.recordings
        errors = total_errors(items)
        audio_s, seconds = sum(item.duration_s for item in items), sum(item.recognition_s for item in items)
        delays = [delay for item in items for delay in item.delays_s or ()]
        worst = max(items, key=lambda item: item.num_energies / max(1, item.energy_bound))
        return {
            "data": self.data,
            "latency_ms": self.latency_ms,
            "block_s": self.block_s,
            "num_threads": self.num_threads,
            "num_utterances": len(items),
            "num_failed": len(self.failures),
            "audio_s": audio_s,
            **asdict(errors),
            "wer": errors.wer,
            "real_time_factor": seconds / max(audio_s, 1e-9),
            "recognition_s": seconds,
            "processor_s": sum(item.processor_s for item in items),
            "reading_s": sum(item.reading_s for item in items),
            "tail_s": summary([item.tail_s for item in items]),
            "emission_delay_s": summary(delays),
            "num_rewrites": sum(item.num_rewrites for item in items) if self.block_s else None,
            "num_frames": sum(item.num_frames for item in items),
            "num_tokens": sum(item.num_tokens for item in items),
            "num_energies": sum(item.num_energies for item in items),
            "energy_bound": sum(item.energy_bound for item in items),
            "worst_energies": {"id": worst.id, "energies": worst.num_energies, "bound": worst.energy_bound},
            "num_forced": sum(item.num_forced for item in items),
            "by_speaker": _group(items, lambda item: item.speaker or "unknown"),
            "by_length": _group(items, lambda item: _length_group(item.duration_s)),
        }

    def to_json(self) -> str:
        """The figures, and each recording with its text and counts."""
        recordings = [asdict(item) for item in self.recordings]
        values = {**self.figures(), "failures": self.failures, "notes": self.notes, "recordings": recordings}
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"

    def to_text(self) -> str:
        """The figures, a few lines to read."""
        f = self.figures()
        latency = "whole recordings" if self.latency_ms is None else f"latency {self.latency_ms} ms"
        heard = f"streaming, blocks of {1000 * self.block_s:.0f} ms" if self.block_s else "offline"
        worst = f["worst_energies"]
        lines = [
            f"{self.data}: {f['num_utterances']} recordings, {f['num_words']} words, {f['audio_s']:.0f} s; "
            f"{heard}, {latency}",
            f"WER               {_percent(f['wer'])}  ({f['substitutions']} substitutions, {f['deletions']} deletions, "
            f"{f['insertions']} insertions)",
            f"real-time factor  {f['real_time_factor']:.4f}  ({f['recognition_s']:.1f} s of arithmetic, "
            f"{f['processor_s']:.1f} s of processor time; threads: {self.num_threads}; reading the files took "
            f"{f['reading_s']:.1f} s more)",
            f"energies          {f['num_energies']} <= bound {f['energy_bound']}  "
            f"({f['num_frames']} frames + {SCAN_BLOCK} x {f['num_tokens']} tokens)",
            f"  worst recording {worst['energies']} <= bound {worst['bound']}  ({worst['id']})",
            f"loop guard        {f['num_forced']} times",
        ]
        if self.block_s:
            lines[3:3] = [
                f"final text        {_spread(f['tail_s'])}, of arithmetic after the last sample",
                f"emission delay    {_spread(f['emission_delay_s'])}; from the end of a word to its display",
                f"rewritten words   {f['num_rewrites']}",
            ]
        for title, groups in (("by length", f["by_length"]), ("by speaker", f["by_speaker"])):
            lines.append(f"{title}:")
            width = max(map(len, groups))
            for name, group in groups.items():
                lines.append(
                    f"  {name:<{width}}  {group['num_utterances']:5} recordings {group['num_words']:6} words"
                    f"  WER {_percent(group['wer'])}"
                )
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"not used: {failure}" for failure in self.failures]
        return "\n".join(lines)


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
    align, notes = word_aligner(recognizer) if streaming else (None, ())
    recordings, failures = [], []
    for utterance in tqdm(utterances, "evaluate", unit="utt", disable=None, leave=False):
        try:
            if latency_ms is None:
                recordings.append(measure_whole(recognizer, utterance))
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


def measure_whole(recognizer: Recognizer, utterance: Utterance) -> Recording:
    """Recognises one recording as `Recognizer.transcribe` does. Raises AudioError when it cannot be read."""
    started = time.perf_counter()
    samples = read_audio(utterance.path, recognizer.config.features.sample_rate)
    reading_s = time.perf_counter() - started

    started, processor_started = time.perf_counter(), time.process_time()
    (result,) = recognise(recognizer.model, recognizer.tokenizer, [[samples]])
    recognition_s, processor_s = time.perf_counter() - started, time.process_time() - processor_started
    if isinstance(result, AudioError):
        raise result
    text = normalise(result.transcript.text)
    return Recording(
        utterance.id,
        utterance.speaker,
        utterance.text,
        text,
        count_errors(utterance.text, text),
        result.transcript.duration_s,
        reading_s,
        recognition_s,
        processor_s,
        recognition_s,
        result.num_frames,
        result.num_tokens,
        result.num_energies,
        result.num_forced,
        0,
        None,
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
    words = [normalise(word.word) for word in screen.words]
    ends = align(blocks, utterance.text) if align else None
    return Recording(
        utterance.id,
        utterance.speaker,
        utterance.text,
        " ".join(words),
        count_errors(utterance.text, " ".join(words)),
        session.heard_s,
        reading_s,
        recognition_s,
        processor_s,
        tail_s,
        *_counts(session),
        screen.num_rewrites,
        tuple(emission_delays(utterance.text, words, screen.shown_at_s, ends)) if ends is not None else None,
    )


def _counts(session: Session) -> tuple[int, int, int, int]:
    return session.num_frames, session.num_tokens, session.num_energies, session.num_forced


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


def count_errors(reference: str, hypothesis: str) -> Errors:
    """The fewest word errors that turn one text into the other."""
    measured = jiwer.process_words(reference, hypothesis)
    num_words = measured.hits + measured.substitutions + measured.deletions
    return Errors(num_words, measured.substitutions, measured.deletions, measured.insertions)


def total_errors(recordings: Iterable[Recording]) -> Errors:
    return sum((item.errors for item in recordings), Errors())


def matching_words(reference: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Places of the words recognised right, in the reference and in the hypothesis."""
    if not reference or not words:
        return []
    chunks = jiwer.process_words(reference, " ".join(words)).alignments[0]
    return [
        (chunk.ref_start_idx + i, chunk.hyp_start_idx + i)
        for chunk in chunks
        if chunk.type == "equal"
        for i in range(chunk.ref_end_idx - chunk.ref_start_idx)
    ]


def emission_delays(
    reference: str, words: Sequence[str], shown_at_s: Sequence[float], ends_s: Sequence[float]
) -> list[float]:
    """From the end of each word recognised right to when it was shown, seconds."""
    return [shown_at_s[j] - ends_s[i] for i, j in matching_words(reference, words)]


# ---------------------------------------------------------------- where words end


def word_aligner(recognizer: Recognizer) -> tuple[Align | None, tuple[str, ...]]:
    """Forced alignment by the model's own CTC head, and notes for the report; None where torchaudio is missing."""
    try:
        from .training.losses import ctc_stops
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        return None, (f"emission delay needs forced alignment from torchaudio, which cannot be imported ({reason})",)

    @torch.inference_mode()
    def align(blocks: Blocks, text: str) -> list[float] | None:
        model, tokenizer = recognizer.model, recognizer.tokenizer
        mono = MonoStream(model.config.features.sample_rate)
        samples = np.concatenate([*(mono.feed(block, rate) for block, rate in blocks), mono.finish()])
        features = torch.from_numpy(log_mel(samples, model.config.features))[None]
        frames, _ = model.encoder(features, torch.tensor([features.shape[1]]))
        tokens = tokenizer.encode(text)
        stops: Tensor | None = ctc_stops(model.ctc(frames)[0].log_softmax(-1), torch.tensor(tokens))
        if stops is None:
            return None
        ends = [stop for token, stop in zip(tokens, stops.tolist(), strict=True) if tokenizer.ends_word(token)]
        return [(stop + 1) * recognizer.frame_s for stop in ends] if len(ends) == len(text.split()) else None

    return align, ("words end where forced alignment by the model's own CTC head puts the last token, to a frame",)


# ---------------------------------------------------------------- figures


def summary(values: Sequence[float]) -> dict[str, float] | None:
    """Middle and upper end of some values; None of none."""
    if not len(values):
        return None
    p50, p95 = np.percentile(values, (50, 95))
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "max": float(max(values))}


def _group(recordings: Sequence[Recording], key: Callable[[Recording], str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Recording]] = {}
    for item in sorted(recordings, key=lambda item: (len(key(item)), key(item))):
        groups.setdefault(key(item), []).append(item)
    totals = {name: total_errors(items) for name, items in groups.items()}
    return {
        name: {"num_utterances": len(groups[name]), **asdict(errors), "wer": errors.wer}
        for name, errors in totals.items()
    }


def _length_group(duration_s: float) -> str:
    above = sum(duration_s >= bound for bound in LENGTHS_S)
    if above == len(LENGTHS_S):
        return f"{LENGTHS_S[-1]:g} s and more"
    return f"{LENGTHS_S[above - 1] if above else 0:g} to {LENGTHS_S[above]:g} s"


def _percent(value: float | None) -> str:
    return "  -  " if value is None else f"{value:.2f}%"


def _spread(values: dict[str, float] | None) -> str:
    if values is None:
        return "not measured"
    return f"{values['p50']:.3f} s median, {values['p95']:.3f} s at 95%, {values['max']:.3f} s at most"
