"""What an evaluation found: each recording, and the figures, rows and tables that they come to. Times are seconds."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .scores import Errors, ScoredWord, calibration_error, reliability, start_errors, summary
from .search import SCAN_BLOCK
from .table import table

LENGTHS_S = (5.0, 10.0, 15.0, 20.0)
"""Bounds between the groups of recordings by length."""
MOST_SPEAKERS = 3
"""That are all shown; of more, the best, the median and the worst."""


@dataclass(frozen=True)
class Recording:
    """What one recording gave."""

    id: str
    path: str
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
    words: tuple[ScoredWord, ...]

    @property
    def energy_bound(self) -> int:
        return self.num_frames + SCAN_BLOCK * self.num_tokens

    @property
    def delays_s(self) -> list[float]:
        """Of each word recognised right: audio heard when it was shown, less where it ends. Empty when not measured."""
        return [word.delay_s for word in self.words if word.delay_s is not None]


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    """The first column is text, the others are numbers."""

    def to_text(self) -> str:
        return "\n  ".join([f"{self.title}:", *table(self.header, self.rows).splitlines()])


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
        words = [word for item in items for word in item.words]
        bins = reliability(words)
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
            "emission_delay_s": summary([delay for item in items for delay in item.delays_s]),
            "word_start_error_ms": start_errors(words),
            "num_rewrites": sum(item.num_rewrites for item in items) if self.block_s else None,
            "num_frames": sum(item.num_frames for item in items),
            "num_tokens": sum(item.num_tokens for item in items),
            "num_energies": sum(item.num_energies for item in items),
            "energy_bound": sum(item.energy_bound for item in items),
            "worst_energies": {"id": worst.id, "energies": worst.num_energies, "bound": worst.energy_bound},
            "num_forced": sum(item.num_forced for item in items),
            "expected_calibration_error": calibration_error(bins),
            "reliability": [asdict(each) for each in bins],
            "by_length": _group(items, lambda item: _length_group(item.duration_s)),
            "by_speaker": _group(items, lambda item: item.speaker or "unknown"),
        }

    def to_json(self) -> str:
        """The figures, and each recording with its text, words and counts."""
        recordings = [asdict(item) for item in self.recordings]
        values = {**self.figures(), "failures": self.failures, "notes": self.notes, "recordings": recordings}
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"

    def to_text(self) -> str:
        """The figures, a few lines to read."""
        lines = [f"{self.data}: {self.conditions()}"]
        lines += [f"{name:<18}{value}" for name, value in self.rows()]
        lines += [table.to_text() for table in self.tables()]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"not used: {failure}" for failure in self.failures]
        return "\n".join(lines)

    def conditions(self) -> str:
        """What was heard, and how."""
        f = self.figures()
        latency = "whole recordings" if self.latency_ms is None else f"latency {self.latency_ms} ms"
        heard = f"streaming, blocks of {1000 * self.block_s:.0f} ms" if self.block_s else "offline"
        size = f"{f['num_utterances']} recordings, {f['num_words']} words, {f['audio_s']:.0f} s"
        return f"{size}; {heard}, {latency}"

    def rows(self) -> list[tuple[str, str]]:
        """The figures over all recordings, each with its name."""
        f = self.figures()
        worst, starts = f["worst_energies"], f["word_start_error_ms"]
        rows = [
            (
                "WER",
                f"{_percent(f['wer'])}  ({f['substitutions']} substitutions, {f['deletions']} deletions, "
                f"{f['insertions']} insertions)",
            ),
            (
                "real-time factor",
                f"{f['real_time_factor']:.4f}  ({f['recognition_s']:.1f} s of arithmetic, "
                f"{f['processor_s']:.1f} s of processor time; threads: {self.num_threads}; reading the files took "
                f"{f['reading_s']:.1f} s more)",
            ),
        ]
        if self.block_s:
            rows += [
                ("final text", f"{_spread(f['tail_s'])}, of arithmetic after the last sample"),
                (
                    "emission delay",
                    f"{_spread(f['emission_delay_s'])}; audio from the end of a word to its display",
                ),
                ("rewritten words", str(f["num_rewrites"])),
            ]
        starts_text = "not measured"
        if starts:
            starts_text = (
                f"{starts['p50']:.0f} ms median, {starts['p90']:.0f} ms at 90%, from forced alignment; "
                f"bias {starts['bias']:+.0f} ms; {starts['num_words']} words recognised right"
            )
        error = f["expected_calibration_error"]
        return [
            *rows,
            ("word starts", starts_text),
            ("confidence", "no words" if error is None else f"expected calibration error {error:.3f}"),
            (
                "energies",
                f"{f['num_energies']} <= bound {f['energy_bound']}  "
                f"({f['num_frames']} frames + {SCAN_BLOCK} x {f['num_tokens']} tokens)",
            ),
            ("  worst recording", f"{worst['energies']} <= bound {worst['bound']}  ({worst['id']})"),
            ("loop guard", f"{f['num_forced']} times"),
        ]

    def tables(self) -> list[Table]:
        """Word error rates by length and by speaker, and how far confidences can be relied on."""
        f = self.figures()
        header = ("recordings", "words", "WER")
        speakers, title = f["by_speaker"], "by speaker"
        if len(speakers) > MOST_SPEAKERS:
            title = f"by speaker, of {len(speakers)}"
            speakers = {f"{label}: {name}": speakers[name] for label, name in notable(speakers)}
        bins = [
            (
                f"{each['low']:.1f} to {each['high']:.1f}",
                str(each["num_words"]),
                f"{each['confidence']:.2f}",
                f"{each['accuracy']:.2f}",
            )
            for each in f["reliability"]
        ]
        tables = [
            Table("by length", ("", *header), [_row(name, group) for name, group in f["by_length"].items()]),
            Table(title, ("", *header), [_row(name, group) for name, group in speakers.items()]),
            Table("by confidence", ("", "words", "confidence", "correct"), bins),
        ]
        return [table for table in tables if table.rows]


def total_errors(recordings: Iterable[Recording]) -> Errors:
    return sum((item.errors for item in recordings), Errors())


def notable(groups: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """The names of the groups with the best, the median and the worst WER; those without words do not count."""
    ranked = sorted((group["wer"], name) for name, group in groups.items() if group["wer"] is not None)
    places = {"best": 0, "median": (len(ranked) - 1) // 2, "worst": len(ranked) - 1}
    return [(label, ranked[place][1]) for label, place in places.items()] if ranked else []


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


def _row(name: str, group: dict[str, Any]) -> tuple[str, ...]:
    return name, str(group["num_utterances"]), str(group["num_words"]), _percent(group["wer"])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}%"


def _spread(values: dict[str, float] | None) -> str:
    if values is None:
        return "not measured"
    return f"{values['p50']:.3f} s median, {values['p95']:.3f} s at 95%, {values['max']:.3f} s at most"
