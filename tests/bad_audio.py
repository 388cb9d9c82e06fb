"""Files that cannot be transcribed, for the tests of the reader and of the command."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile

RATE = 16_000


def tone(num_samples: int = 10 * RATE) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * 440 / RATE * np.arange(num_samples))


def missing(folder: Path) -> Path:
    return folder / "missing.wav"


def silent_directory(folder: Path) -> Path:
    (folder / "notes").mkdir()
    (folder / "notes" / "todo.txt").write_text("no sound here")
    return folder / "notes"


def empty(folder: Path) -> Path:
    (folder / "empty.wav").touch()
    return folder / "empty.wav"


def no_samples(folder: Path) -> Path:
    soundfile.write(folder / "header.wav", np.zeros(0), RATE)
    return folder / "header.wav"


def truncated_flac(folder: Path) -> Path:
    path = folder / "cut.flac"
    soundfile.write(path, tone(), RATE)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def text(folder: Path) -> Path:
    (folder / "text.wav").write_text("Call me Ishmael.\n" * 100)
    return folder / "text.wav"


def not_a_number(folder: Path) -> Path:
    samples = tone()
    samples[24_000] = np.nan
    soundfile.write(folder / "nan.wav", samples, RATE, subtype="FLOAT")
    return folder / "nan.wav"


def one_kilohertz(folder: Path) -> Path:
    soundfile.write(folder / "slow.wav", tone(5000), 1000)
    return folder / "slow.wav"


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing file": (missing, "No such file"),
    "directory without audio": (silent_directory, "no audio files"),
    "empty file": (empty, "is empty (0 bytes)"),
    "zero-length audio": (no_samples, "holds no samples"),
    "truncated FLAC": (truncated_flac, "s of 10.00 s can be read"),
    "text renamed .wav": (text, "is not audio"),
    "NaN samples": (not_a_number, "sample 24000 (1.500 s) is nan"),
    "1 kHz audio": (one_kilohertz, "sample rate is 1000 Hz; expected 8000 to 192000 Hz"),
}
"""How each is made in a folder, and what has to be said of it."""


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Takes away the right to read the file, from root too, who is let be nobody meanwhile."""
    path.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        path.chmod(0o700)
