"""What recognition gives: words with times, whole transcripts, and the events of a live stream. Imports no torch."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Word:
    word: str
    start_s: float
    """From the start of the recording or stream, like every time here."""
    end_s: float
    confidence: float
    """Geometric mean of the probabilities of the word's tokens, in [0, 1]."""


@dataclass(frozen=True)
class Transcript:
    """The text of one recording."""

    text: str
    words: tuple[Word, ...]
    duration_s: float


@dataclass(frozen=True)
class Partial:
    """The words of the utterance that is being spoken."""

    text: str
    words: tuple[Word, ...]
    at_s: float
    """How much audio had been heard."""
    num_committed: int
    """Words at the front that will not change any more; with greedy search, all of them."""


@dataclass(frozen=True)
class Final:
    """An utterance that has ended, at a pause or with the stream. The finals joined by spaces are the transcript."""

    text: str
    words: tuple[Word, ...]
    start_s: float
    end_s: float
    at_s: float


@dataclass(frozen=True)
class Overflow:
    """Audio that was lost before it could be heard; the times after it count the gap."""

    lost_s: float
    at_s: float


Event = Partial | Final | Overflow


def as_json(item: Word | Transcript | Event) -> dict[str, Any]:
    """The item as plain values for JSON; an event says which it is under `event`. Times have millisecond digits."""
    values = {key: _rounded(value) for key, value in asdict(item).items()}
    return values if isinstance(item, Word | Transcript) else {"event": type(item).__name__.lower(), **values}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
