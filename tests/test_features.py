"""Log-mel features: Kaldi's arithmetic, in any cutting, from streams of any length."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import RATE, cuts, noise, silence

from mocha_stream.config import FeatureConfig
from mocha_stream.errors import AudioError
from mocha_stream.features import FeatureStream, log_mel


@pytest.mark.parametrize(
    "config",
    [
        FeatureConfig(),
        FeatureConfig(num_mels=40),
        FeatureConfig(sample_rate=8000, num_mels=23),
        FeatureConfig(window_ms=32.0, hop_ms=16.0),
    ],
)
@pytest.mark.parametrize("sound", [noise(2), noise(2, amplitude=1e-3), np.concatenate([silence(1), noise(1)])])
def test_equals_torchaudio_to_1e_3(config, sound):
    kaldi = pytest.importorskip("torchaudio.compliance.kaldi")
    expected = kaldi.fbank(
        torch.from_numpy(sound)[None],
        dither=0.0,
        num_mel_bins=config.num_mels,
        sample_frequency=config.sample_rate,
        frame_length=config.window_ms,
        frame_shift=config.hop_ms,
    ).numpy()
    np.testing.assert_allclose(log_mel(sound, config), expected, rtol=0, atol=1e-3)
    assert len(expected) == 1 + (len(sound) - config.window_samples) // config.hop_samples


@settings(deadline=None, max_examples=60)
@given(data=st.data(), size=st.integers(0, 3000))
def test_any_cutting_gives_the_same_bit_for_bit(data, size):
    samples, stream, parts = noise(1)[:size], FeatureStream(FeatureConfig()), []
    for start, end in pairwise(data.draw(cuts(size))):
        parts.append(stream.feed(samples[start:end]))
        assert len(np.concatenate(parts)) == max(0, 1 + (end - 400) // 160)  # nothing waits that could be computed
    parts.append(stream.finish())
    np.testing.assert_array_equal(np.concatenate(parts), log_mel(samples, FeatureConfig()))


def test_one_sample_at_a_time():
    samples, stream = noise(0.1), FeatureStream(FeatureConfig())
    parts = [stream.feed(samples[i : i + 1]) for i in range(len(samples))]
    np.testing.assert_array_equal(np.concatenate([*parts, stream.finish()]), log_mel(samples, FeatureConfig()))


@pytest.mark.parametrize(
    ("size", "num_frames"), [(0, 0), (1, 1), (160, 1), (399, 1), (400, 1), (559, 1), (560, 2), (RATE, 98)]
)
def test_frames_of_short_streams(size, num_frames):
    features = log_mel(noise(1)[:size], FeatureConfig())
    assert features.shape == (num_frames, 80)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    if 0 < size < 400:
        padded = np.concatenate([noise(1)[:size], np.zeros(400 - size, np.float32)])
        np.testing.assert_array_equal(features, log_mel(padded, FeatureConfig()))


def test_silence_and_full_scale_are_finite():
    for samples in (silence(1), np.ones(RATE, np.float32), -noise(1, amplitude=100)):
        assert np.isfinite(log_mel(samples, FeatureConfig())).all()


def test_samples_that_cannot_be_used_are_refused_and_leave_the_stream_as_it_was():
    stream, samples = FeatureStream(FeatureConfig()), noise(0.2)
    parts = [stream.feed(samples[:1000])]
    for bad, message in ((np.zeros((5, 2)), r"shape \(5, 2\)"), (np.array([0.0, np.nan]), "NaN")):
        with pytest.raises(AudioError, match=message):
            stream.feed(bad)
    parts += [stream.feed(samples[1000:]), stream.finish()]
    np.testing.assert_array_equal(np.concatenate(parts), log_mel(samples, FeatureConfig()))


def test_what_lies_in_memory_in_strides_is_read_right():
    samples = noise(0.2)
    wide = np.repeat(samples[:, None], 3, 1)
    np.testing.assert_array_equal(log_mel(wide[:, 1], FeatureConfig()), log_mel(samples, FeatureConfig()))
    np.testing.assert_array_equal(
        log_mel(samples.astype(np.float64), FeatureConfig()), log_mel(samples, FeatureConfig())
    )
