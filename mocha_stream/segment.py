"""Cuts recordings of any length into segments that can be decoded whole, at the quietest places. Imports no torch.

Where a recording is cut depends on its features alone, never on how they arrive, and no more than one segment and one
block are held at a time.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

LONGEST_S = 30.0
"""A recording up to this length is one segment, and no segment is longer."""
SHORTEST_S = 10.0
"""A cut leaves at least so much before it."""
BATCH_S = 240.0
"""How much is decoded together, padding included."""
PAUSE_S = 0.3
"""Over which the energy is smoothed: a gap between words is quiet for so long, one between sounds is not."""


class Segment(NamedTuple):
    first: int  # feature frame of the recording that it begins at
    features: np.ndarray  # (T, M)


def cut(blocks: Iterable[np.ndarray], hop_s: float, stride: int) -> Iterator[Segment]:
    """The segments of a recording, in order; joined, they are its features.

    Args:
        blocks: (T, M) log-mel features, any number at a time
        hop_s: seconds per feature frame
        stride: segments begin at multiples of it, so that their encoder frames are counted through the recording
    """
    longest, shortest = (_whole(seconds / hop_s, stride) for seconds in (LONGEST_S, SHORTEST_S))
    width = max(1, round(PAUSE_S / hop_s))
    first, waiting = 0, np.zeros((0, 0), np.float32)
    for block in blocks:
        waiting = np.concatenate([waiting, block]) if len(waiting) else block
        while len(waiting) > longest:
            at = _quietest(waiting[:longest], shortest, width, stride)
            yield Segment(first, waiting[:at].copy())  # a view would keep all that is waiting
            first, waiting = first + at, waiting[at:]
    if len(waiting):
        yield Segment(first, waiting.copy())


def _whole(size: float, stride: int) -> int:
    """The nearest multiple of the stride, at least one."""
    return max(1, round(size / stride)) * stride


def _quietest(features: np.ndarray, shortest: int, width: int, stride: int) -> int:
    """The last of the quietest places in (T, M) features where a cut may be, a multiple of the stride."""
    energy = np.cumsum(np.concatenate([[0.0], features.mean(1, dtype=np.float64)]))
    places = np.arange(shortest, len(features) + 1, stride)
    before, after = np.maximum(places - width // 2, 0), np.minimum(places + (width + 1) // 2, len(features))
    smoothed = (energy[after] - energy[before]) / (after - before)
    return int(places[len(places) - 1 - np.argmin(smoothed[::-1])])
