"""Changes to the features of a training utterance: gain, vocal tract length and SpecAugment.

Each draws from the generator it is given, one per utterance and epoch, so what an utterance becomes does not depend
on the batch, the process or the run it is read in. Masks follow Park et al. 2019 (arXiv 1904.08779) without time
warping; the stretch of the mel axis is that of Jaitly and Hinton 2013. Speed perturbation is applied to the
samples, before features are cached (`data.py`).
"""

from dataclasses import dataclass

import numpy as np

from ..config import check, check_least

DECIBEL = np.log(10) / 10
"""One decibel in units of a natural-log power."""


@dataclass(frozen=True)
class AugmentConfig:
    gain_db: float = 6.0
    """Largest change of loudness, either way."""
    equalise_db: float = 0.0
    """Largest change of each of five points of a smooth curve over the mel axis: another microphone or room."""
    noise_db: float = 0.0
    """Half of the utterances get steady noise, 30% to 100% of so far below the mean of the corpus."""
    warp: float = 0.1
    """Largest stretch of the mel axis, either way: another length of the vocal tract."""
    frequency_masks: int = 2
    frequency_mask: int = 27
    """Widest frequency mask, in mel bands."""
    time_masks_per_s: float = 0.7
    time_mask: int = 40
    """Longest time mask, in frames of the features."""
    start: float = 0.0
    """Part of the run before any of this is done."""
    end: float = 1.0
    """Part of the run after which nothing of this is done any more."""

    def __post_init__(self) -> None:
        check_least(self, "augment", 0, "gain_db", "equalise_db", "noise_db", "warp", "frequency_masks")
        check_least(self, "augment", 0, "frequency_mask", "time_masks_per_s", "time_mask")
        check(0 <= self.start <= 1, f"augment.start is {self.start}; it is a part of the run, 0 to 1")
        check(0 <= self.end <= 1, f"augment.end is {self.end}; it is a part of the run, 0 to 1")
        check(self.warp < 1, f"augment.warp is {self.warp}; it is a share of the mel axis, below 1")


def augment(
    features: np.ndarray, hop_s: float, mean: np.ndarray, config: AugmentConfig, random: np.random.Generator
) -> np.ndarray:
    """A changed copy of (T, M) log-mel frames, `hop_s` apart; masked parts become the (M,) mean of the corpus."""
    num_frames, num_mels = features.shape
    features = features + np.float32(random.uniform(-config.gain_db, config.gain_db) * DECIBEL)
    if config.noise_db and random.random() < 0.5:
        features = add_noise(features, mean, config, random)
    if config.equalise_db:
        features = features + _curve(num_mels, config.equalise_db, random)
    features = warp(features, random.uniform(1 - config.warp, 1 + config.warp))
    for _ in range(config.frequency_masks):
        start, width = _span(num_mels, config.frequency_mask, random)
        features[:, start : start + width] = mean[start : start + width]
    for _ in range(round(config.time_masks_per_s * num_frames * hop_s)):
        start, width = _span(num_frames, config.time_mask, random)
        features[start : start + width] = mean
    return features


def add_noise(features: np.ndarray, mean: np.ndarray, config: AugmentConfig, random: np.random.Generator) -> np.ndarray:
    """Features with the power of noise added: coloured like the mean of the corpus, give or take 6 dB.

    The power of Gaussian noise in a mel band is about gamma distributed; its shape here is 4.
    """
    level = mean - random.uniform(0.3, 1.0) * config.noise_db * DECIBEL + _curve(len(mean), 6.0, random)
    power = random.standard_gamma(4.0, features.shape, np.float32) / 4
    return np.log(np.exp(features) + np.exp(level).astype(np.float32) * power)


def _curve(num_mels: int, largest_db: float, random: np.random.Generator) -> np.ndarray:
    """(M,) smooth changes of level, from five points."""
    points = random.uniform(-largest_db, largest_db, 5) * DECIBEL
    return np.interp(np.arange(num_mels), np.linspace(0, num_mels - 1, 5), points).astype(np.float32)


def warp(features: np.ndarray, factor: float) -> np.ndarray:
    """Features whose band m is what band m * factor was; beyond the last band, the last one."""
    at = np.minimum(np.arange(features.shape[1]) * factor, features.shape[1] - 1)
    low = np.minimum(at.astype(int), features.shape[1] - 2)
    share = (at - low).astype(features.dtype)
    return features[:, low] * (1 - share) + features[:, low + 1] * share


def _span(size: int, widest: int, random: np.random.Generator) -> tuple[int, int]:
    width = int(random.integers(0, min(widest, size) + 1))
    return int(random.integers(0, size - width + 1)), width
