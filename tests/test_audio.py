"""Sound from files and blocks: the cutting law, kinds and rates, and everything a file may do wrong."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import soundfile
import soxr
from bad_audio import BAD, RATE, tone, unreadable
from hypothesis import given, settings
from hypothesis import strategies as st

from mocha_stream.audio import MonoStream, find_audio, read_audio, read_blocks, stream_audio
from mocha_stream.errors import AudioError

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
KINDS = (np.uint8, np.int16, np.int32, np.float32, np.float64)
RATES = st.one_of(
    st.sampled_from([8000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000]), st.integers(8000, 192_000)
)


def noise(num_samples: int, num_channels: int, kind: type) -> np.ndarray:
    """(n,) samples if there are no channels, else (n, channels)."""
    shape = (num_samples, num_channels) if num_channels else (num_samples,)
    samples = np.random.default_rng(num_samples).uniform(-0.9, 0.9, shape)
    if np.issubdtype(kind, np.floating):
        return samples.astype(kind)
    limits = np.iinfo(kind)
    return np.round((samples + 1) / 2 * (float(limits.max) - limits.min) + limits.min).astype(kind)


def cuts(total: int) -> st.SearchStrategy[list[int]]:
    """Where to cut `total` samples, into pieces of 0 and of 1 sample among others."""
    places = st.lists(st.integers(0, total), max_size=12)
    near = st.lists(st.integers(0, min(total, 40)), max_size=40)
    return st.tuples(places, near).map(lambda parts: [0, *sorted(parts[0] + parts[1]), total])


def feed(stream: MonoStream, block: np.ndarray, rate: float, at: list[int]) -> list[np.ndarray]:
    return [stream.feed(block[start:end], rate) for start, end in pairwise(at)]


@settings(deadline=None, max_examples=150)
@given(data=st.data(), kind=st.sampled_from(KINDS), num_channels=st.integers(0, 3), rate=RATES)
def test_samples_do_not_depend_on_how_they_are_cut(data, kind, num_channels, rate):
    block = noise(data.draw(st.sampled_from([0, 1, 2, 700, 30_000])), num_channels, kind)
    whole, pieces = MonoStream(), MonoStream()
    expected = np.concatenate([whole.feed(block, rate), whole.finish()])
    parts = feed(pieces, block, rate, data.draw(cuts(len(block))))
    np.testing.assert_array_equal(np.concatenate([*parts, pieces.finish()]), expected)
    assert expected.dtype == np.float32
    assert abs(len(expected) - len(block) * 16_000 / rate) <= 0.5
    assert np.abs(expected).max(initial=0) < 2


@settings(deadline=None, max_examples=50)
@given(data=st.data(), rates=st.lists(RATES, min_size=2, max_size=4))
def test_a_change_of_rate_ends_one_stream_and_begins_another(data, rates):
    rates = [rate for i, rate in enumerate(rates) if i == 0 or rate != rates[i - 1]]
    stream, parts, expected = MonoStream(), [], []
    for rate in rates:
        block = noise(data.draw(st.sampled_from([1, 500, 5000])), 2, np.int16)
        parts += feed(stream, block, rate, data.draw(cuts(len(block))))
        parts.append(stream.feed(block[:0], 8000))  # no samples, so no change of rate either
        alone = MonoStream()
        expected += [alone.feed(block, rate), alone.finish()]
    np.testing.assert_array_equal(np.concatenate([*parts, stream.finish()]), np.concatenate(expected))


@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
def test_one_sample_at_a_time(rate):
    block, stream = noise(3000, 1, np.int16), MonoStream()
    pieces = np.concatenate([*feed(stream, block, rate, list(range(3001))), stream.finish()])
    np.testing.assert_array_equal(pieces, soxr.resample(block[:, 0] / np.float32(2**15), rate, 16_000))


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100, 48_000, 192_000])
def test_resampling_shifts_nothing(rate):
    seconds = np.arange(rate) / rate
    stream = MonoStream()
    samples = np.concatenate([stream.feed(np.sin(2 * np.pi * 1000 * seconds), rate), stream.finish()])
    expected = np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(samples[1000:-1000], expected[1000:-1000], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_scale(kind):
    expected = noise(1000, 0, np.float64)
    np.testing.assert_allclose(MonoStream().feed(noise(1000, 0, kind), RATE), expected, atol=1.5 / 128)


def test_full_scale_and_silence_of_integers():
    for kind, silence in ((np.uint8, 128), (np.int16, 0), (np.int32, 0)):
        samples = MonoStream().feed(np.array([np.iinfo(kind).min, silence], kind), RATE)
        np.testing.assert_array_equal(samples, [-1, 0])


def test_channels_are_averaged_however_they_lie_in_memory():
    block = noise(1000, 9, np.float32)
    samples = MonoStream().feed(block, RATE)
    np.testing.assert_allclose(samples, block.mean(1), atol=1e-6)
    np.testing.assert_array_equal(MonoStream().feed(np.asfortranarray(block), RATE), samples)
    np.testing.assert_array_equal(MonoStream().feed(block[::-1], RATE), samples[::-1])


def test_the_callers_block_is_neither_kept_nor_written():
    block = noise(100, 0, np.float32)
    kept = block.copy()
    samples = MonoStream().feed(block, RATE)
    np.testing.assert_array_equal(block, kept)
    block[:] = 0
    np.testing.assert_array_equal(samples, kept)


@pytest.mark.parametrize(
    ("block", "rate", "message"),
    [
        (np.array([0.0, np.nan]), 48_000, "sample 101 "),
        (np.array([0.0, -np.inf]), 48_000, "is -inf"),
        (np.array([1e300]), 48_000, "is inf"),
        (np.array([-12_345.0]), 48_000, "reach 12345; .* int16"),
        (np.zeros((2, 16_000)), 48_000, r"shape \(2, 16000\)"),
        (np.zeros((5, 0)), 48_000, r"shape \(5, 0\)"),
        (np.zeros((5, 1, 1)), 48_000, r"shape \(5, 1, 1\)"),
        (np.zeros(5, np.int64), 48_000, "samples are int64"),
        (np.zeros(5, complex), 48_000, "samples are complex128"),
        (np.array(["a"]), 48_000, "samples are <U1"),
        (np.zeros(5), 7999, "sample rate is 7999 Hz; expected 8000 to 192000 Hz"),
        (np.zeros(5), 192_001, "sample rate is 192001 Hz"),
        (np.zeros(5), float("nan"), "sample rate is nan Hz"),
    ],
)
def test_a_refused_block_leaves_the_stream_as_it_was(block, rate, message):
    good, stream, other = noise(100, 0, np.float32), MonoStream(), MonoStream()
    before = stream.feed(good, 48_000)
    with pytest.raises(AudioError, match=message):
        stream.feed(block, rate)
    after = [stream.feed(good, 48_000), stream.finish()]
    expected = [other.feed(np.tile(good, 2), 48_000), other.finish()]
    np.testing.assert_array_equal(np.concatenate([before, *after]), np.concatenate(expected))


@pytest.mark.parametrize("pattern", ["LibriSpeech/test-clean/*/*/*.flac", "LibriSpeech/dev-clean/*/*/*.opus"])
def test_real_recordings(pattern):
    path = sorted(DATA.glob(pattern))[0]
    samples = read_audio(path)
    np.testing.assert_array_equal(samples, soundfile.read(path, dtype="float32")[0])
    np.testing.assert_array_equal(np.concatenate(list(stream_audio(path, 0.037))), samples)


@pytest.mark.parametrize(
    ("name", "container", "subtype"),
    [
        ("a.wav", "WAV", "PCM_U8"),
        ("a.wav", "WAV", "PCM_16"),
        ("a.wav", "WAV", "PCM_24"),
        ("a.wav", "WAV", "FLOAT"),
        ("a.wav", "WAV", "DOUBLE"),
        ("a.flac", "FLAC", "PCM_24"),
        ("a.ogg", "OGG", "VORBIS"),
        ("a.opus", "OGG", "OPUS"),
        ("a.mp3", "MP3", "MPEG_LAYER_III"),
        ("named after nothing", "FLAC", "PCM_16"),
        ("misnamed.raw", "WAV", "PCM_16"),
    ],
)
def test_formats_rates_and_channels(tmp_path, name, container, subtype):
    seconds = np.arange(2 * 48_000) / 48_000
    left, right = 0.3 * np.sin(2 * np.pi * 300 * seconds), 0.3 * np.sin(2 * np.pi * 500 * seconds)
    soundfile.write(tmp_path / name, np.stack([left, right], 1), 48_000, format=container, subtype=subtype)
    samples = read_audio(tmp_path / name)
    assert samples.shape == (32_000,)
    assert samples.dtype == np.float32
    expected = (left + right)[::3] / 2
    assert np.sqrt(np.mean((samples - expected)[500:-500] ** 2)) < 0.02


@pytest.mark.parametrize("rate", [8000, 22_050, 96_000, 192_000])
def test_rates_of_files(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", tone(rate), rate)
    assert len(read_audio(tmp_path / "a.wav")) == 16_000


def test_wav_whose_header_lies_is_read_to_its_end(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(), RATE)
    whole = path.read_bytes()
    for length in (10**9, 2**32 - 1):  # a recorder that was cut off; a pipe, which cannot go back to mend the header
        path.write_bytes(whole[:40] + length.to_bytes(4, "little") + whole[44:])
        assert len(read_audio(path)) == 10 * RATE


def test_flac_of_unknown_length_is_read_to_its_end(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, tone(), RATE)
    flac = bytearray(path.read_bytes())
    flac[21] &= 0xF0  # the lowest 36 bits of this field are the number of samples; 0 says unknown
    flac[22:26] = bytes(4)
    path.write_bytes(flac)
    assert len(read_audio(path)) == 10 * RATE
    path.write_bytes(flac[: len(flac) // 2])
    with pytest.raises(AudioError, match=r"only the first 4.* s can be read"):
        read_audio(path)


@pytest.mark.parametrize("name", BAD)
def test_bad_files_give_one_clear_line(tmp_path, name):
    make, message = BAD[name]
    path = make(tmp_path)
    with pytest.raises(AudioError) as caught:
        for found in find_audio(path):
            read_audio(found)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert message in said
    assert "\n" not in said


def test_a_directory_is_no_recording(tmp_path):
    with pytest.raises(AudioError, match="Is a directory"):
        read_audio(tmp_path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, which those of pytest are not."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_unreadable_file(open_folder):
    path = open_folder / "secret.wav"
    soundfile.write(path, tone(), RATE)
    with unreadable(path), pytest.raises(AudioError, match="Permission denied"):
        read_audio(path)


def test_unreadable_directory_is_told_and_not_skipped(open_folder):
    (open_folder / "secret").mkdir()
    soundfile.write(open_folder / "a.wav", tone(), RATE)
    with unreadable(open_folder / "secret"), pytest.raises(AudioError, match="Permission denied"):
        find_audio(open_folder)


def test_damage_says_how_much_was_whole(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, 10 * RATE), RATE)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(3000) + whole[len(whole) // 2 + 3000 :])
    with pytest.raises(AudioError, match=r"only the first 4.* s of 10.00 s can be read"):
        read_audio(path)


def test_what_was_whole_comes_before_the_error(tmp_path):
    blocks = []
    with pytest.raises(AudioError, match="truncated"):
        for block in stream_audio(BAD["truncated FLAC"][0](tmp_path), 0.1):
            blocks.append(block)
    samples = np.concatenate(blocks)
    assert len(samples) > 3 * RATE
    np.testing.assert_allclose(samples, tone()[: len(samples)], atol=1e-4)


def test_truncated_mp3(tmp_path):
    path = tmp_path / "a.mp3"
    soundfile.write(path, tone(), RATE, format="MP3")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(AudioError, match=r"s of 10.00 s can be read"):
        read_audio(path)


def test_blocks_of_a_long_file_are_short(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(30 * 44_100, np.int16), 44_100)
    sizes = [len(block) for block in stream_audio(tmp_path / "a.wav", 0.5)]
    assert sum(sizes) == 30 * RATE
    assert max(sizes) <= RATE
    shapes = {(block.shape, rate) for block, rate in read_blocks(tmp_path / "a.wav", 0.5)}
    assert shapes == {((22_050, 1), 44_100)}


def test_find_audio_walks_in_order(tmp_path):
    names = ["b/2.wav", "b/1.FLAC", "a/x/3.opus", "a.mp3", "c.ogg"]
    for name in [*names, "notes.txt", "b/.hidden.wav", "a/4.wav.part"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.wav").mkdir()
    assert find_audio(tmp_path) == sorted(tmp_path / name for name in names)
    assert find_audio(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]


# Media files


def write_media(path: Path, codec: str, rate: int, samples: np.ndarray) -> None:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = rate
        container.mux([*stream.encode(frame), *stream.encode(None)])


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [("a.m4a", "aac", 16_000), ("b.mp4", "aac", 44_100), ("c.webm", "libopus", 48_000), ("d.mka", "pcm_s16le", 8000)],
)
def test_media_files(tmp_path, name, codec, rate):
    tone = 0.3 * np.sin(2 * np.pi * 440 / rate * np.arange(3 * rate))
    write_media(tmp_path / name, codec, rate, tone)
    (tmp_path / name).rename(tmp_path / "renamed.wav")  # what is inside counts, not the name
    samples = read_audio(tmp_path / "renamed.wav")
    assert len(samples) == pytest.approx(48_000, abs=4000), "AAC begins with a lead-in"
    spectrum = np.abs(np.fft.rfft(samples[8000:40_000]))
    assert np.argmax(spectrum) * 16_000 / 32_000 == pytest.approx(440, abs=1)
    (tmp_path / "renamed.wav").rename(tmp_path / name)
    assert find_audio(tmp_path) == [tmp_path / name]


def test_media_file_that_is_cut_short(tmp_path):
    write_media(tmp_path / "a.m4a", "aac", 16_000, np.zeros(48_000))
    whole = (tmp_path / "a.m4a").read_bytes()
    (tmp_path / "a.m4a").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AudioError, match=r"a\.m4a: cannot be read to its end"):
        read_audio(tmp_path / "a.m4a")


def test_media_without_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.m4a").write_bytes(b"\0\0\0\x20ftypM4A \0\0\0\0")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(AudioError, match=r"pip install 'mocha-stream\[media\]'"):
        read_audio(tmp_path / "a.m4a")
