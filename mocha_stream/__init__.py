"""Streaming speech to text with Monotonic Chunkwise Attention.

from mocha_stream import Recognizer

recognizer = Recognizer.load()  # the bundled English model; or a folder
print(recognizer.transcribe("talk.flac").text)
"""

from typing import TYPE_CHECKING, Any

from .config import BeamConfig
from .errors import MochaError
from .transcript import Event, Final, Overflow, Partial, Transcript, Word

if TYPE_CHECKING:
    from .recognizer import Recognizer, Session

__version__ = "0.1.0"
__all__ = [
    "BeamConfig",
    "Event",
    "Final",
    "MochaError",
    "Overflow",
    "Partial",
    "Recognizer",
    "Session",
    "Transcript",
    "Word",
]


def __getattr__(name: str) -> Any:
    """Loads the recogniser, and torch with it, only once somebody asks for it."""
    if name in ("Recognizer", "Session"):
        from . import recognizer

        return getattr(recognizer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
