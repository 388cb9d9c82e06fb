"""Recognised words against spoken ones: word errors, confidences and times. Imports no torch.

Texts are spelt as LibriSpeech's, by `corpus.normalise`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jiwer
import numpy as np

from .corpus import normalise
from .transcript import Word

NUM_BINS = 10
"""Of equal width, that confidences are sorted into."""


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
class Span:
    """When a word is spoken."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class ScoredWord:
    """A recognised word, and what is known of it. Times are seconds of audio from the start of the recording."""

    word: str
    start_s: float
    end_s: float
    confidence: float
    is_correct: bool
    """Whether the fewest word errors leave it as it is."""
    shown_at_s: float | None
    """Audio heard when it was first shown; None where only whole recordings are heard."""
    spoken: Span | None
    """Of the matching word of the reference; None for a wrong word, or when the reference is not aligned."""

    @property
    def delay_s(self) -> float | None:
        """From the end of the word to when it was shown."""
        return self.shown_at_s - self.spoken.end_s if self.shown_at_s is not None and self.spoken else None

    @property
    def start_error_s(self) -> float | None:
        """How much later than it was spoken the word is said to start."""
        return self.start_s - self.spoken.start_s if self.spoken else None


@dataclass(frozen=True)
class Bin:
    """Words whose confidence is from `low` up to `high`."""

    low: float
    high: float
    num_words: int
    confidence: float
    """On average."""
    accuracy: float
    """Share of them that is correct."""


def count_errors(reference: str, hypothesis: str) -> Errors:
    """The fewest word errors that turn one text into the other."""
    measured = jiwer.process_words(reference, hypothesis)
    num_words = measured.hits + measured.substitutions + measured.deletions
    return Errors(num_words, measured.substitutions, measured.deletions, measured.insertions)


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


def score_words(
    reference: str,
    words: Sequence[Word],
    shown_at_s: Sequence[float] | None = None,
    spans: Sequence[Span] | None = None,
) -> tuple[ScoredWord, ...]:
    """The recognised words of one recording, normalised, against its reference.

    Args:
        shown_at_s: of each recognised word, the audio heard when it was first shown
        spans: of each word of the reference, when it is spoken
    """
    times = [None] * len(words) if shown_at_s is None else shown_at_s
    spelt = [(part, *item) for item in zip(words, times, strict=True) for part in normalise(item[0].word).split()]
    matches = {j: i for i, j in matching_words(reference, [part for part, *_ in spelt])}
    return tuple(
        ScoredWord(
            part,
            word.start_s,
            word.end_s,
            word.confidence,
            j in matches,
            shown,
            spans[matches[j]] if spans is not None and j in matches else None,
        )
        for j, (part, word, shown) in enumerate(spelt)
    )


def reliability(words: Iterable[ScoredWord]) -> tuple[Bin, ...]:
    """How often words of like confidence are correct; bins without a word are left out."""
    bins: dict[int, list[ScoredWord]] = {}
    for word in words:
        bins.setdefault(min(int(word.confidence * NUM_BINS), NUM_BINS - 1), []).append(word)
    return tuple(
        Bin(
            i / NUM_BINS,
            (i + 1) / NUM_BINS,
            len(bins[i]),
            float(np.mean([word.confidence for word in bins[i]])),
            float(np.mean([word.is_correct for word in bins[i]])),
        )
        for i in sorted(bins)
    )


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Expected calibration error: |accuracy - confidence| of the bins, weighted by their words; None without any.

    Guo et al. 2017, "On calibration of modern neural networks", arXiv 1706.04599.
    """
    num_words = sum(each.num_words for each in bins)
    if not num_words:
        return None
    return sum(each.num_words * abs(each.accuracy - each.confidence) for each in bins) / num_words


def summary(values: Sequence[float]) -> dict[str, float] | None:
    """Middle and upper end of some values; None of none."""
    if not len(values):
        return None
    p50, p95 = np.percentile(values, (50, 95))
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "max": float(max(values))}


def start_errors(words: Iterable[ScoredWord]) -> dict[str, float] | None:
    """Absolute errors of the start times in milliseconds, and by how many they are late; None where none is known."""
    errors_ms = [1000 * word.start_error_s for word in words if word.start_error_s is not None]
    if not errors_ms:
        return None
    p50, p90 = np.percentile(np.abs(errors_ms), (50, 90))
    return {"num_words": len(errors_ms), "p50": float(p50), "p90": float(p90), "bias": float(np.median(errors_ms))}
