"""The sound of m4a, mp4, webm and other media files, by PyAV (the extra `media`). Imports no torch."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .errors import AudioError

EXTENSIONS = {".3gp", ".aac", ".m4a", ".m4b", ".mka", ".mkv", ".mov", ".mp4", ".webm", ".wma"}
"""Files that a walk through a directory takes for media."""


def is_media(head: bytes) -> bool:
    """Whether a file that begins so, with 8 bytes at least, is of a kind that FFmpeg reads and libsndfile does not."""
    return head[4:8] == b"ftyp" or head.startswith((b"\x1a\x45\xdf\xa3", b"\x30\x26\xb2\x75", b"\xff\xf1", b"\xff\xf9"))


def read_media(path: str | Path, block_s: float) -> Iterator[tuple[np.ndarray, int]]:
    """The (n, channels) float32 blocks of a file's first sound track, of about `block_s` seconds, and their rate in Hz.

    Raises:
        AudioError: PyAV is not installed, no sound in it, or, after the blocks that can be read, damage.
    """
    try:
        import av
    except ImportError:
        raise AudioError(f"{path}: is read by PyAV; install it with: pip install 'mocha-stream[media]'") from None
    try:
        with av.open(os.fspath(path)) as container:
            if not container.streams.audio:
                raise AudioError(f"{path}: has no sound track; expected one")
            waiting: list[np.ndarray] = []
            num_waiting = 0
            resampler = av.AudioResampler(format="fltp")
            for frame in container.decode(audio=0):
                for part in resampler.resample(frame):
                    waiting.append(part.to_ndarray().T)
                    num_waiting += part.samples
                    if num_waiting >= block_s * frame.sample_rate:
                        yield np.concatenate(waiting), frame.sample_rate
                        waiting, num_waiting = [], 0
            if waiting:
                yield np.concatenate(waiting), frame.sample_rate
    except (av.FFmpegError, ValueError) as error:
        raise AudioError(f"{path}: cannot be read to its end ({error}); copy it again from its source") from None
