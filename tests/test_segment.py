"""Long recordings are cut at quiet places, the same way however their features arrive."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import cuts

from mocha_stream.segment import LONGEST_S, SHORTEST_S, cut

HOP_S, STRIDE, MELS = 0.1, 8, 2
LONGEST, SHORTEST = (round(seconds / HOP_S / STRIDE) * STRIDE for seconds in (LONGEST_S, SHORTEST_S))


def features(num_frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_frames, MELS)).astype(np.float32)


@settings(deadline=None, max_examples=50)
@given(st.data(), st.integers(0, 5 * LONGEST))
def test_segments_are_the_recording_however_it_arrives(data, num_frames):
    whole = features(num_frames)
    segments = list(cut([whole], HOP_S, STRIDE))
    assert [segment.first for segment in segments] == np.cumsum([0, *(len(s.features) for s in segments)])[:-1].tolist()
    assert all(segment.first % STRIDE == 0 for segment in segments)
    assert all(SHORTEST <= len(segment.features) <= LONGEST for segment in segments[:-1])
    np.testing.assert_array_equal(np.concatenate([whole[:0], *(s.features for s in segments)]), whole)

    at = data.draw(cuts(num_frames))
    again = list(cut((whole[start:end] for start, end in pairwise(at)), HOP_S, STRIDE))
    assert [segment.first for segment in again] == [segment.first for segment in segments]
    np.testing.assert_array_equal(np.concatenate([whole[:0], *(s.features for s in again)]), whole)


def test_a_recording_of_the_longest_length_is_one_segment():
    assert len(list(cut([features(LONGEST)], HOP_S, STRIDE))) == 1
    assert len(list(cut([features(LONGEST + 1)], HOP_S, STRIDE))) == 2


def test_cuts_lie_in_pauses():
    sound = features(2 * LONGEST)
    pauses = [SHORTEST + 5 * STRIDE, LONGEST + 12 * STRIDE]
    for start in pauses:
        sound[start - 4 : start + 4] -= 10
    assert [segment.first for segment in cut([sound], HOP_S, STRIDE)][1:3] == pauses


def test_silence_is_cut_as_late_as_can_be():
    silence = np.zeros((2 * LONGEST + 1, MELS), np.float32)
    assert [len(segment.features) for segment in cut([silence], HOP_S, STRIDE)] == [LONGEST, LONGEST, 1]


def test_no_more_is_read_than_a_segment_needs():
    num_read = 0

    def blocks():
        nonlocal num_read
        while True:
            num_read += 100
            yield features(100)

    next(cut(blocks(), HOP_S, STRIDE))
    assert num_read <= LONGEST + 100
