"""Where an utterance ends: at a pause that the model itself hears. And when nobody can be speaking.

A frame is silent when neither a token stops there nor CTC hears one. An utterance ends when its trailing silence has
lasted long enough; the longer it has been going on, the shorter a pause will do. It is never cut by a clock.
"""

from dataclasses import dataclass

import numpy as np

from .config import FeatureConfig
from .features import log_mel


@dataclass(frozen=True)
class EndpointRule:
    pause_s: float = 0.8
    """Trailing silence that ends an utterance."""
    long_s: float = 15.0
    """From this duration on, `long_pause_s` will do."""
    long_pause_s: float = 0.4
    fresh_s: float = 5.0
    """In longer silence, the encoder starts afresh this often, so that it never drifts."""

    def ends(self, silence_s: float, utterance_s: float) -> bool:
        return silence_s >= (self.pause_s if utterance_s < self.long_s else self.long_pause_s)


class SilenceGate:
    """Tells sound in which nobody can be speaking: all but silent, or low and steady like the noise of a room.

    It errs towards speech, which always swells and fades: of 12 minutes of LibriSpeech it takes 1% of the chunks of
    640 ms for silence, which are pauses between sentences. Levels are those of white noise as loud to the
    features; speech in LibriSpeech reaches about -30 dB.
    """

    SILENT_DB = -65.0
    LOW_DB, STEADY_DB = -45.0, 6.0
    SHORTEST_S = 0.48
    """Less may be steady within a vowel."""

    def __init__(self, config: FeatureConfig):
        noise = np.random.default_rng(0).standard_normal(config.sample_rate // 5).astype(np.float32)
        self._shortest = round(self.SHORTEST_S / config.hop_s)
        self._full_scale_db = float(_energies_db(log_mel(noise, config)).mean())

    def is_silent(self, features: np.ndarray, num_new: int) -> bool:
        """Whether nobody can be speaking in the last `num_new` of (T, M) features, nor before them if they are few."""
        features = features[max(0, len(features) - max(num_new, self._shortest)) :]
        levels_db = _energies_db(features) - self._full_scale_db
        loudest_db = levels_db.max(initial=-np.inf)
        if loudest_db < self.SILENT_DB:
            return True
        return bool(loudest_db < self.LOW_DB and loudest_db - np.percentile(levels_db, 10) < self.STEADY_DB)


def _energies_db(features: np.ndarray) -> np.ndarray:
    """The (T,) energies of log-mel features (T, M), in dB."""
    return np.float64(10 / np.log(10)) * np.logaddexp.reduce(features.astype(np.float64), axis=1)
