"""Training data: cached features, batches that hold everything once, and shares that add up."""

import json
import os

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MELS, RATE, noise

from mocha_stream.config import FeatureConfig
from mocha_stream.errors import AudioError, ConfigError, DataError
from mocha_stream.features import log_mel
from mocha_stream.training.augment import AugmentConfig, add_noise, augment, warp
from mocha_stream.training.data import (
    cache_exists,
    cache_features,
    feature_statistics,
    make_batches,
    pad,
    read_examples,
    share,
    write_cache,
)

FEATURES = FeatureConfig(num_mels=MELS)
LENGTHS = st.lists(st.integers(1, 2000), min_size=1, max_size=60).map(np.array)


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    lines = []
    for number in range(5):
        soundfile.write(folder / f"u{number}.wav", noise(0.5 + number / 4, number), RATE, subtype="FLOAT")
        lines.append(f"u{number}\ts{number % 2}\t1\tWORD {'ABCDE'[number]}\n")
    (folder / "transcripts.tsv").write_text("".join(lines))
    return folder


def test_cached_features_are_those_of_the_recording(corpus, tmp_path):
    examples = cache_features(corpus, FEATURES, 1.0, tmp_path / "cache", 1)
    assert [(item.id, item.text, item.speaker) for item in examples] == [
        (f"u{i}", f"WORD {'ABCDE'[i]}", f"s{i % 2}") for i in range(5)
    ]
    for number, example in enumerate(examples):
        expected = log_mel(noise(0.5 + number / 4, number), FEATURES)
        assert example.load().dtype == np.float32
        np.testing.assert_allclose(example.load(), expected, atol=0.01, rtol=1e-3)
        assert example.num_frames == len(expected)


def test_speed_makes_it_shorter_and_higher(corpus, tmp_path):
    fast = cache_features(corpus, FEATURES, 1.25, tmp_path / "cache", 1)[4]
    samples = soxr.resample(noise(1.5, 4), RATE * 1.25, RATE)
    assert fast.num_frames == pytest.approx(150 / 1.25, abs=3)
    np.testing.assert_allclose(fast.load(), log_mel(samples, FEATURES), atol=0.01, rtol=1e-3)


def test_several_processes_write_what_one_writes(corpus, tmp_path, monkeypatch):
    for number in (1, 2):
        cache_features(corpus, FEATURES, 1.1, tmp_path / str(number), number)
        monkeypatch.setattr("mocha_stream.training.data.WORTH_A_PROCESS", 2)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / number).iterdir()} for number in ("1", "2"))
    assert one == two


def die(utterance):
    os._exit(9)


def test_a_process_that_dies_is_told_in_a_line_and_leaves_no_cache(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("mocha_stream.training.data.WORTH_A_PROCESS", 2)
    with pytest.raises(DataError, match=r"was ended from outside, .*; start again"):
        write_cache(corpus, tmp_path / "cache" / "set", die, 2)
    assert not cache_exists(tmp_path / "cache" / "set")


def test_a_cache_is_used_again_and_an_interrupted_one_is_not(corpus, tmp_path):
    cache = tmp_path / "cache"
    first = cache_features(corpus, FEATURES, 1.0, cache, 1)
    times = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(times) == 2
    again = cache_features(corpus, FEATURES, 1.0, cache, 1)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == times
    np.testing.assert_array_equal(first[3].load(), again[3].load())
    next(cache.glob("*.jsonl")).unlink()
    cache_features(corpus, FEATURES, 1.0, cache, 1)
    frames = next(cache.glob("*.f16"))
    frames.write_bytes(frames.read_bytes()[: -2 * MELS])
    with pytest.raises(DataError, match="delete both"):
        cache_features(corpus, FEATURES, 1.0, cache, 1)


def test_a_corpus_that_has_changed_is_not_taken_from_the_cache(corpus, tmp_path):
    cache_features(corpus, FEATURES, 1.0, tmp_path / "cache", 1)
    text = (corpus / "transcripts.tsv").read_text()
    (corpus / "transcripts.tsv").write_text(text.replace("WORD C", "OTHER C"))
    with pytest.raises(DataError, match="other utterances"):
        cache_features(corpus, FEATURES, 1.0, tmp_path / "cache", 1)


def test_corpora_of_the_same_name_are_not_mixed_up(corpus, tmp_path):
    other = tmp_path / "elsewhere" / tmp_path.name / "set"
    other.mkdir(parents=True)
    soundfile.write(other / "x.wav", noise(1), RATE)
    (other / "transcripts.tsv").write_text("x\ts\t1\tHELLO\n")
    cache_features(corpus, FEATURES, 1.0, tmp_path / "cache", 1)
    with pytest.raises(DataError, match="other utterances"):
        cache_features(other, FEATURES, 1.0, tmp_path / "cache", 1)


def test_a_bad_recording_is_told_and_leaves_no_cache(corpus, tmp_path):
    (corpus / "u3.wav").write_text("Call me Ishmael.")
    with pytest.raises(AudioError, match=r"u3\.wav"):
        cache_features(corpus, FEATURES, 1.0, tmp_path / "cache", 1)
    assert not list((tmp_path / "cache").glob("*.jsonl"))


def test_statistics_are_those_of_all_frames(corpus, tmp_path):
    examples = read_examples([corpus], FEATURES, (1.0, 1.1), tmp_path / "cache", 1)
    assert [item.speed for item in examples] == [1.0] * 5 + [1.1] * 5
    mean, deviation = feature_statistics(examples)
    frames = np.concatenate([item.load() for item in examples])
    np.testing.assert_allclose(mean, frames.mean(0), rtol=1e-4)
    np.testing.assert_allclose(deviation, frames.std(0), rtol=1e-3)


@settings(deadline=None)
@given(lengths=LENGTHS, most=st.integers(100, 5000), epoch=st.integers(0, 3))
def test_batches_hold_every_utterance_once_and_not_too_much(lengths, most, epoch):
    batches = make_batches(lengths, most, epoch, 1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or lengths[batch].max() * len(batch) <= most
    again = make_batches(lengths, most, epoch, 1)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_batches_differ_from_epoch_to_epoch_and_hold_like_lengths():
    lengths = np.random.default_rng(0).integers(100, 2000, 500)
    first, second = (make_batches(lengths, 14_000, epoch, 1) for epoch in (0, 1))
    assert [batch.tolist() for batch in first] != [batch.tolist() for batch in second]
    padded = sum(lengths[batch].max() * len(batch) for batch in first)
    assert padded < 1.2 * lengths.sum()


@given(lengths=LENGTHS, world=st.integers(1, 4))
def test_shares_add_up_to_the_batch_and_are_alike(lengths, world):
    batch = np.arange(len(lengths))
    shares = [share(batch, lengths, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(shares).tolist()) == batch.tolist()
    if len(batch) >= world:
        assert max(len(part) for part in shares) - min(len(part) for part in shares) <= 1
        assert all(len(part) for part in shares)


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_pad(sizes):
    rows = [np.arange(1, 2 * size + 1, dtype=np.float32).reshape(size, 2) for size in sizes]
    padded, lengths = pad(rows)
    assert lengths.tolist() == sizes
    assert padded.shape == (len(sizes), max(1, *sizes, 0), 2)
    for row, size, got in zip(rows, sizes, padded, strict=True):
        np.testing.assert_array_equal(got[:size], row)
        assert (got[size:] == 0).all()


@settings(deadline=None)
@given(num_frames=st.integers(1, 300), hop_s=st.sampled_from([0.01, 0.016]), seed=st.integers(0, 100))
def test_augmentation_changes_a_copy_within_bounds(num_frames, hop_s, seed):
    features = np.random.default_rng(seed).normal(size=(num_frames, MELS)).astype(np.float32)
    mean, kept = np.linspace(-1, 1, MELS).astype(np.float32), features.copy()
    config = AugmentConfig(gain_db=0, warp=0, frequency_masks=1, frequency_mask=4, time_masks_per_s=1, time_mask=10)
    changed = augment(features, hop_s, mean, config, np.random.default_rng(seed))
    np.testing.assert_array_equal(features, kept)
    assert changed.shape == features.shape
    assert changed.dtype == np.float32
    different = changed != features
    masked = np.broadcast_to(mean, features.shape)[different]
    np.testing.assert_array_equal(changed[different], masked)
    rows = different.mean(1) > 0.5
    assert rows.sum() <= 10 * round(num_frames * hop_s)
    assert different[~rows].any(0).sum() <= 4
    again = augment(features, hop_s, mean, config, np.random.default_rng(seed))
    np.testing.assert_array_equal(changed, again)


def test_no_augmentation_is_no_change():
    features, mean = np.ones((30, MELS), np.float32), np.zeros(MELS, np.float32)
    config = AugmentConfig(gain_db=0, warp=0, frequency_masks=0, time_masks_per_s=0)
    np.testing.assert_array_equal(augment(features, 0.01, mean, config, np.random.default_rng(0)), features)
    louder = (
        augment(
            features,
            0.01,
            mean,
            AugmentConfig(gain_db=6, warp=0, frequency_masks=0, time_masks_per_s=0),
            np.random.default_rng(0),
        )
        - features
    )
    assert 0 < np.abs(louder).max() <= 6 * np.log(10) / 10
    assert np.ptp(louder) == 0


def test_another_microphone_is_the_same_curve_on_every_frame():
    features = np.random.default_rng(0).normal(size=(30, MELS)).astype(np.float32)
    config = AugmentConfig(gain_db=0, equalise_db=5, warp=0, frequency_masks=0, time_masks_per_s=0)
    change = augment(features, 0.01, np.zeros(MELS, np.float32), config, np.random.default_rng(1)) - features
    assert change.dtype == np.float32
    assert np.ptp(change, axis=0).max() < 1e-5
    assert 0 < np.abs(change).max() <= 5 * np.log(10) / 10 + 1e-5
    assert np.ptp(change[0]) > 0


def test_noise_fills_the_gaps_and_leaves_what_is_loud():
    features, mean = np.zeros((4000, MELS), np.float32), np.full(MELS, -5, np.float32)
    features[::2] = -20
    config = AugmentConfig(noise_db=20)
    levels = []
    for seed in range(5):
        noisy = add_noise(features, mean, config, np.random.default_rng(seed))
        assert noisy.dtype == np.float32
        assert (noisy >= features).all()
        assert noisy[1::2].max() < 0.5
        levels.append(np.log(np.exp(noisy[::2]).mean(0)) - mean)
    assert -26 <= np.min(levels) / (np.log(10) / 10) < -7
    assert np.max(levels) <= 0.1
    changes = [augment(features, 0.01, mean, config, np.random.default_rng(seed)) for seed in range(8)]
    assert len({bool(change.min() > -17) for change in changes}) == 2, "some utterances stay as they are"


@given(factor=st.floats(0.5, 2), num_frames=st.integers(0, 4))
def test_warping_the_mel_axis_reads_between_the_bands(factor, num_frames):
    ramp = np.tile(np.arange(MELS, dtype=np.float32), (num_frames, 1))
    warped = warp(ramp, factor)
    assert warped.dtype == np.float32
    np.testing.assert_allclose(warped, np.minimum(ramp * factor, MELS - 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(warp(ramp, 1.0), ramp)


def test_a_warp_that_turns_the_axis_over_is_refused():
    with pytest.raises(ConfigError, match=r"augment\.warp is 1"):
        AugmentConfig(warp=1.0)


def test_an_index_is_plain_json(corpus, tmp_path):
    cache_features(corpus, FEATURES, 1.0, tmp_path / "cache", 1)
    (index,) = (tmp_path / "cache").glob("*.jsonl")
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    assert [line["offset"] for line in lines] == np.cumsum([0] + [line["num_frames"] for line in lines[:-1]]).tolist()
    assert os.path.getsize(index.with_suffix(".f16")) == 2 * MELS * sum(line["num_frames"] for line in lines)
