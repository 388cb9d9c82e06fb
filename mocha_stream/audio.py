"""Sound as the model wants it: float32, one channel, one rate, however it comes. Imports no torch.

Files are read by libsndfile, and by PyAV those that it does not know, and resampled by soxr, which gives bit for bit
the same samples however they are cut.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr

from . import media
from .errors import AudioError

EXTENSIONS = {
    ".aif",
    ".aiff",
    ".au",
    ".caf",
    ".flac",
    ".mp3",
    ".oga",
    ".ogg",
    ".opus",
    ".sph",
    ".w64",
    ".wav",
}
"""Files that a walk through a directory takes for audio. A file that is named is read whatever its extension."""

MIN_RATE, MAX_RATE = 8000, 192_000
MAX_CHANNELS = 64
_FULL_SCALE = {"u1": 2.0**7, "i2": 2.0**15, "i4": 2.0**31}
"""By kind and bytes of the sample. Floating point is taken as it is."""
_MAX_FLOAT = 100.0
"""Lossy codecs overshoot 1 a little, and some recordings more; integers stored as floats go far beyond this."""
_LENGTH_TOLERANCE_S = 0.1
"""By which an MP3 header may promise more than there is."""
_UNKNOWN_LENGTH = 2**62
"""FLAC from a pipe does not know its length; libsndfile then says 2^63 - 1 samples."""


def check_sample_rate(sample_rate: float) -> None:
    """Raises `AudioError` unless speech at this rate, in Hz, can be recognised."""
    if not MIN_RATE <= sample_rate <= MAX_RATE:
        raise AudioError(f"sample rate is {sample_rate:g} Hz; expected {MIN_RATE} to {MAX_RATE} Hz")


class MonoStream:
    """Blocks of any kind and rate in, (n,) float32 samples of one channel at `target_rate` Hz out.

    What comes out, joined, depends only on the samples that went in, bit for bit, not on how they were cut.
    From N samples at a steady rate come round(N * target_rate / rate).
    """

    def __init__(self, target_rate: int = 16_000):
        self.target_rate = target_rate
        self._rate = 0.0
        self._resampler: soxr.ResampleStream | None = None
        self._num_heard = 0
        self._heard_s = 0.0

    def feed(self, block: np.ndarray, sample_rate: float) -> np.ndarray:
        """Hears the next samples, (n,) or (n, channels), and returns those that are ready at the target rate.

        Integers (uint8, int16, int32) are scaled to [-1, 1], floating point is taken as it is and channels are
        averaged. A change of `sample_rate` flushes what the old rate had left; a block of no samples does nothing.
        A block that is refused leaves the stream as it was.

        Raises:
            AudioError: a rate, shape or kind of sample that cannot be used, or samples that are not finite.
        """
        check_sample_rate(sample_rate)
        samples = _to_mono(np.asarray(block))
        self._check_values(samples, sample_rate)
        if not len(samples):
            return samples
        before = np.zeros(0, np.float32)
        if sample_rate != self._rate:
            before = self.finish()
            self._rate = sample_rate
            if sample_rate != self.target_rate:
                self._resampler = soxr.ResampleStream(sample_rate, self.target_rate, 1, dtype="float32")
        self._num_heard += len(samples)
        self._heard_s += len(samples) / sample_rate
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples)
        return np.concatenate([before, samples]) if len(before) else samples

    def finish(self) -> np.ndarray:
        """Ends the stream and returns the (n,) samples that the resampler had kept back."""
        resampler, self._resampler, self._rate = self._resampler, None, 0.0
        nothing = np.zeros(0, np.float32)
        return nothing if resampler is None else resampler.resample_chunk(nothing, last=True)

    def _check_values(self, samples: np.ndarray, sample_rate: float) -> None:
        largest = np.abs(samples).max(initial=0.0)
        if not np.isfinite(largest):
            first = int(np.argmin(np.isfinite(samples)))
            place = f"sample {self._num_heard + first} ({self._heard_s + first / sample_rate:.3f} s)"
            raise AudioError(f"{place} is {samples[first]}; expected finite numbers in [-1, 1]")
        if largest > _MAX_FLOAT:
            raise AudioError(
                f"floating-point samples reach {largest:g}; expected [-1, 1]; pass 16-bit ones as int16, or over 32768"
            )


def join_mono(blocks: Iterable[tuple[np.ndarray, float]], target_rate: int = 16_000) -> np.ndarray:
    """All that a `MonoStream` makes of blocks of (samples, rate). Raises AudioError as it does."""
    stream = MonoStream(target_rate)
    return np.concatenate([*(stream.feed(block, rate) for block, rate in blocks), stream.finish()])


def _to_mono(block: np.ndarray) -> np.ndarray:
    """A new (n,) float32 array from (n,) or (n, channels) samples of any kind; the channels are averaged."""
    columns = block[:, None] if block.ndim == 1 else block
    if columns.ndim != 2 or not 1 <= columns.shape[1] <= MAX_CHANNELS:
        raise AudioError(
            f"samples have shape {block.shape}; expected (n,) or (n, channels), up to {MAX_CHANNELS} channels"
        )
    kind = f"{block.dtype.kind}{block.dtype.itemsize}"
    if kind not in _FULL_SCALE and block.dtype.kind != "f":
        raise AudioError(f"samples are {block.dtype}; expected float32, float64, int16, int32 or uint8")
    # One channel after the other: the order of a numpy sum over an axis depends on how the block lies in memory.
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 becomes infinite and is refused
        mono = columns[:, 0].astype(np.float32)
        for channel in range(1, columns.shape[1]):
            mono += columns[:, channel].astype(np.float32)
    mono *= np.float32(1 / columns.shape[1])
    if kind == "u1":
        mono -= np.float32(_FULL_SCALE[kind])
    mono *= np.float32(1 / _FULL_SCALE.get(kind, 1.0))
    return mono


class _Reader(soundfile.SoundFile):
    """A file that is only read onwards: soundfile seeks after reading, which fails in a FLAC of unknown length."""

    def seekable(self) -> bool:
        return False


def read_blocks(path: str | Path, block_s: float) -> Iterator[tuple[np.ndarray, int]]:
    """The (n, channels) float32 blocks of a file as they are stored, each with the file's rate in Hz.

    Each lasts `block_s` seconds, the last one at most. The file is opened when the first one is asked for.

    Raises:
        AudioError: no such file, not audio, no samples, a rate out of range; after the readable blocks, a file that
            is truncated or damaged. (WAV and Ogg that end early cannot be told from shorter ones.)
    """
    try:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size == 0:
                raise AudioError(f"{path}: is empty (0 bytes); expected an audio file")
            if stat.S_ISREG(status.st_mode):
                if media.is_media(file.read(16)):
                    yield from media.read_media(path, block_s)
                    return
                file.seek(0)
            with _Reader(file.fileno(), closefd=False) as sound:
                yield from _blocks(path, sound, block_s)
    except OSError as error:
        raise _unreadable(path, error) from None
    except soundfile.LibsndfileError as error:
        reason = _reason(error)
        raise AudioError(
            f"{path}: is not audio that can be read ({reason}); expected wav, flac, ogg, opus, mp3 or the like"
        ) from None


def _blocks(path: str | Path, sound: soundfile.SoundFile, block_s: float) -> Iterator[tuple[np.ndarray, int]]:
    rate, num_read, reason = sound.samplerate, 0, ""
    try:
        check_sample_rate(rate)
    except AudioError as error:
        raise AudioError(f"{path}: {error}") from None
    while True:
        try:
            block = sound.read(max(1, round(block_s * rate)), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            num_read, reason = max(num_read, sound.tell()), f" ({_reason(error)})"
            break
        if not len(block):
            break
        num_read += len(block)
        yield block, rate
    if num_read == 0 and not reason:
        raise AudioError(f"{path}: holds no samples; expected some audio after the header")
    expected = sound.frames if sound.frames < _UNKNOWN_LENGTH else num_read
    if reason or num_read < expected - _LENGTH_TOLERANCE_S * rate:
        promised = f" of {expected / rate:.2f} s" if expected > num_read else ""
        raise AudioError(
            f"{path}: truncated or damaged: only the first {num_read / rate:.2f} s{promised} can be read{reason};"
            " copy it again from its source"
        )


def _reason(error: soundfile.LibsndfileError) -> str:
    return str(error.error_string).removeprefix("Error : ").rstrip(".")


def stream_audio(path: str | Path, block_s: float = 1.0, sample_rate: int = 16_000) -> Iterator[np.ndarray]:
    """The samples of `read_audio` in (n,) blocks of about `block_s` seconds: memory does not grow with the file.

    Raises:
        AudioError: as `read_audio`, after the blocks that could be read.
    """
    stream = MonoStream(sample_rate)
    for block, rate in read_blocks(path, block_s):
        try:
            yield stream.feed(block, rate)
        except AudioError as error:
            raise AudioError(f"{path}: {error}") from None
    yield stream.finish()


def read_audio(path: str | Path, sample_rate: int = 16_000) -> np.ndarray:
    """The whole of an audio file as (n,) float32 samples, nominally in [-1, 1], at `sample_rate` Hz.

    Channels are averaged. Nothing is clipped: lossy codecs and the resampler overshoot full scale a little.

    Raises:
        AudioError: no such file, not audio, no samples, a rate out of range, samples that are not finite, or a file
            that is truncated or damaged; one line that begins with the path.
    """
    return np.concatenate(list(stream_audio(path, sample_rate=sample_rate)))


def find_audio(path: str | Path) -> list[Path]:
    """The audio files of a directory and all below it, sorted; or, of a file, just that file.

    Raises:
        AudioError: no such path, a directory without audio, or one that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    path, found = Path(path), []
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        for folder, _, names in os.walk(path, onerror=refuse):
            found += [Path(folder, name) for name in names if not name.startswith(".")]
    except OSError as error:
        raise _unreadable(path, error) from None
    found = sorted(item for item in found if item.suffix.lower() in EXTENSIONS | media.EXTENSIONS)
    if not found:
        raise AudioError(f"{path}: no audio files in this directory; expected .wav, .flac, .opus, .mp3 or the like")
    return found


def _unreadable(path: str | Path, error: OSError) -> AudioError:
    return AudioError(f"{path}: cannot be read ({error.strerror}); expected audio files or directories of them")
