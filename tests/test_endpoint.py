"""When nobody can be speaking: silence of any kind, and no speech however soft."""

import numpy as np
import pytest
import soundfile
from test_cli import SPEECH

from mocha_stream.config import FeatureConfig
from mocha_stream.endpoint import SilenceGate
from mocha_stream.features import log_mel

CONFIG = FeatureConfig()
RATE = CONFIG.sample_rate


def level(db: float) -> float:
    return 10 ** (db / 20)


def white(db: float, seconds: float = 30.0) -> np.ndarray:
    return level(db) * np.random.default_rng(1).standard_normal(round(seconds * RATE))


def room(db: float) -> np.ndarray:
    """Noise that falls by 6 dB an octave, as that of fans and traffic."""
    noise = np.cumsum(white(0))
    noise -= np.convolve(noise, np.ones(800) / 800, "same")
    return level(db) * noise / noise.std()


def silent_share(samples: np.ndarray, chunk_s: float) -> float:
    """Of the chunks, those that the gate takes for silence."""
    gate, features, size = SilenceGate(CONFIG), log_mel(np.float32(samples), CONFIG), round(100 * chunk_s)
    chunks = [features[at : at + size] for at in range(0, len(features) - size + 1, size)]
    return float(np.mean([gate.is_silent(chunk, size) for chunk in chunks]))


@pytest.mark.parametrize("chunk_s", [0.32, 0.64, 1.28])
def test_silence(chunk_s):
    dither = np.random.default_rng(0).integers(-1, 2, 30 * RATE) / 2**15
    for samples in (np.zeros(30 * RATE), dither, white(-70), white(-50), room(-40)):
        assert silent_share(samples, chunk_s) == 1


@pytest.mark.parametrize("chunk_s", [0.32, 0.64, 1.28])
def test_loud_noise_is_left_to_the_model(chunk_s):
    assert silent_share(white(-40), chunk_s) == 0


def test_few_features_are_judged_with_those_before_them():
    """16 of them may be steady within a vowel."""
    gate = SilenceGate(CONFIG)
    soft, loud = (log_mel(np.float32(white(db, 0.5)), CONFIG) for db in (-50, -30))
    assert gate.is_silent(soft[:16], 16)
    assert not gate.is_silent(np.concatenate([loud[-30:], soft[:16]]), 16)
    assert gate.is_silent(np.concatenate([loud[-30:], soft]), len(soft))


def test_no_features_are_silent():
    assert SilenceGate(CONFIG).is_silent(np.zeros((0, CONFIG.num_mels), np.float32), 0)


@pytest.mark.parametrize(("gain_db", "most"), [(0, 0.015), (-20, 0.03)])
def test_speech(gain_db, most):
    """A few recordings have pauses that are digital silence."""
    paths = sorted(SPEECH.glob("*/*/*.flac"))[::20]
    samples = np.concatenate([soundfile.read(path)[0] for path in paths])
    assert len(samples) > 60 * RATE
    assert silent_share(level(gain_db) * samples, 0.64) <= most
