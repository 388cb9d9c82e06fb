"""A WAV file that is whole at any moment, so that it outlives the program that writes it. Imports no torch."""

import os
import struct
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from .errors import MochaError

_HEADER = struct.Struct("<4sI4s 4sIQQQI 4sIHHIIHH 4sI")
_MAX_32 = 2**32 - 1


class WavRecorder:
    """Keeps sound as 16-bit PCM, one channel, at `sample_rate` Hz. Beyond 4 GiB the file becomes an RF64.

    Whatever ends the program, the file holds all but the last second; once a second it survives a power cut too.

    Raises:
        MochaError: the file cannot be written, at once or later.
    """

    def __init__(self, path: Path, sample_rate: int):
        self._path, self._sample_rate, self._num_bytes = path, sample_rate, 0
        try:
            self._file = path.open("wb")
            self._sync()
        except OSError as error:
            raise self._unwritable(error) from None

    def write(self, samples: np.ndarray) -> None:
        """Adds (n, channels) float32 samples in [-1, 1]; channels are averaged, what is louder is clipped."""
        pcm = np.clip(np.rint(32768 * samples.mean(1)), -32768, 32767).astype("<i2")
        try:
            self._file.write(pcm)
            self._num_bytes += pcm.nbytes
            if time.monotonic() >= self._sync_due:
                self._sync()
        except OSError as error:
            raise self._unwritable(error) from None

    def write_silence(self, duration_s: float) -> None:
        """Adds zeros, in place of sound that was lost."""
        for num_samples in _pieces(round(duration_s * self._sample_rate), self._sample_rate):
            self.write(np.zeros((num_samples, 1), np.float32))

    def _sync(self) -> None:
        """First the sound reaches the disk, then the header that tells of it."""
        self._file.flush()
        self._file.seek(0)
        self._file.write(_header(self._sample_rate, self._num_bytes))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0, os.SEEK_END)
        self._sync_due = time.monotonic() + 1.0

    def _unwritable(self, error: OSError) -> MochaError:
        return MochaError(f"{self._path}: cannot be written ({error.strerror}); choose another place")

    def __enter__(self) -> "WavRecorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            with self._file:
                self._sync()
        except OSError as failure:
            if error is None:
                raise self._unwritable(failure) from None


def _header(sample_rate: int, num_bytes: int) -> bytes:
    """80 bytes: RIFF; or, where 32-bit sizes do not suffice, RF64 with a chunk of 64-bit ones, junk to a RIFF."""
    riff_bytes = _HEADER.size - 8 + num_bytes
    is_large = riff_bytes > _MAX_32
    return _HEADER.pack(
        *(b"RF64" if is_large else b"RIFF", min(riff_bytes, _MAX_32), b"WAVE"),
        *(b"ds64" if is_large else b"JUNK", 28, riff_bytes, num_bytes, num_bytes // 2, 0),
        *(b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16),
        *(b"data", _MAX_32 if is_large else num_bytes),
    )


def _pieces(total: int, size: int) -> list[int]:
    return [size] * (total // size) + [total % size]
