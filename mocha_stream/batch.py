"""Whole recordings to text, many at a time: what `Recognizer.transcribe` and `transcribe_many` run on.

Recordings are read and cut into segments as they are needed; segments of like length go through the encoder and the
search together. Which ones do changes no bit of any result: rows do not see each other, and shapes are kept to those
for which the libraries under torch add up every row in the same order (see `_pad`).
"""

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import AudioError
from .features import FeatureStream
from .model import MochaModel
from .search import Search, Tokens
from .segment import BATCH_S, Segment, cut
from .streaming import length_mask
from .tokenizer import Tokenizer
from .transcript import Transcript
from .utterance import Utterance

# Of MKL: a row of a matrix product is the same whatever rows are beside it. Read by it at the first product; other
# libraries and processors ignore it, and there `_pad` alone has to do.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
# Of oneDNN: it compiles kernels for each shape of a batch and keeps those of the last 1024, over 100 MB in a recording
# of hours. Fewer take no more time. Read at the first use too.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")

READ_AHEAD = 8
"""Batches that are read before they are sorted by length and decoded."""
MIN_ROWS, MIN_SEARCH_ROWS = 2, 16
MIN_FEATURES, RUNG = 512, 256
"""Features that a segment is padded to: so many, or a multiple above it."""


class Recognised(NamedTuple):
    """What one recording gave, and what it took."""

    transcript: Transcript
    num_frames: int  # encoder frames
    num_tokens: int
    num_energies: int  # that the search evaluated
    num_forced: int  # times that the guard against loops pushed the attention on


class _Heard(NamedTuple):
    """What one segment gave."""

    first: int  # encoder frame of the recording that it begins at
    tokens: Tokens
    num_frames: int
    num_energies: int
    num_forced: int


class _Recording:
    """A recording that is being read or decoded."""

    def __init__(self) -> None:
        self.heard: list[_Heard] = []
        self.num_samples = 0
        self.is_read = False
        self.error: AudioError | None = None

    def result(self, tokenizer: Tokenizer, sample_rate: int, frame_s: float) -> Recognised | AudioError:
        if self.error:
            return self.error
        utterance, duration_s = Utterance(tokenizer, frame_s), self.num_samples / sample_rate
        for segment in self.heard:
            utterance.add(segment.tokens, segment.first, duration_s)
            utterance.end_word(duration_s)
        final = utterance.close(duration_s)
        transcript = Transcript(final.text, final.words, duration_s) if final else Transcript("", (), duration_s)
        return Recognised(
            transcript,
            sum(segment.num_frames for segment in self.heard),
            sum(len(segment.tokens.token) for segment in self.heard),
            sum(segment.num_energies for segment in self.heard),
            sum(segment.num_forced for segment in self.heard),
        )


def recognise(
    search: Search,
    tokenizer: Tokenizer,
    recordings: Iterable[Iterable[np.ndarray]],
    batch_s: float = BATCH_S,
) -> Iterator[Recognised | AudioError]:
    """The result of each recording, or why there is none, in the order given.

    Args:
        recordings: each as blocks of (n,) float32 samples at the model's rate; a block is drawn only when it is
            needed, and an `AudioError` that drawing one raises is that recording's result
        batch_s: seconds of audio to decode together, and a measure of the memory this takes; it changes no result
    """
    model = search.model
    config, stride = model.config.features, model.encoder.frontend.stride
    frame_s, num_features = config.hop_s * stride, round(batch_s / config.hop_s)
    waiting: deque[_Recording] = deque()  # in the order given
    pool: list[tuple[_Recording, Segment]] = []
    size = 0  # of the pool, in features

    def decode_pool() -> None:
        # The order in the pool is that of each recording, and a recording has to have its segments in order.
        decoded = dict(_decode_all(search, [segment for _, segment in pool], num_features))
        for i, (recording, _) in enumerate(pool):
            recording.heard.append(decoded[i])
        pool.clear()

    def results() -> Iterator[Recognised | AudioError]:
        """Of all recordings that are read, once nothing of them is in the pool."""
        while waiting and waiting[0].is_read:
            yield waiting.popleft().result(tokenizer, config.sample_rate, frame_s)

    for blocks in recordings:
        recording = _Recording()
        waiting.append(recording)
        try:
            for segment in cut(_features(blocks, model, recording), config.hop_s, stride):
                pool.append((recording, segment))
                size += len(segment.features)
                if size >= READ_AHEAD * num_features:
                    decode_pool()
                    size = 0
                    yield from results()
        except AudioError as error:
            recording.error = error
        recording.is_read = True
        if not pool:
            yield from results()
    decode_pool()
    yield from results()


def _features(blocks: Iterable[np.ndarray], model: MochaModel, recording: _Recording) -> Iterator[np.ndarray]:
    stream = FeatureStream(model.config.features)
    for block in blocks:
        recording.num_samples += len(block)
        yield stream.feed(block)
    yield stream.finish()


def _decode_all(search: Search, segments: list[Segment], num_features: int) -> Iterator[tuple[int, _Heard]]:
    """What each segment gives, with its place in the list: in batches of one padded length, the longest first."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, segment in enumerate(segments):
        by_length[_padded(len(segment.features))].append(i)
    for length, places in sorted(by_length.items(), reverse=True):
        num_rows = max(1, num_features // length)
        for start in range(0, len(places), num_rows):
            rows = places[start : start + num_rows]
            yield from zip(rows, _decode(search, [segments[i] for i in rows]), strict=True)


@torch.inference_mode()
def _decode(search: Search, segments: list[Segment]) -> list[_Heard]:
    """What each segment of one batch gives."""
    model, stride = search.model, search.model.encoder.frontend.stride
    features, lengths = _pad([torch.from_numpy(segment.features) for segment in segments])
    frames, lengths = model.encoder(features, lengths)
    missing = max(0, MIN_SEARCH_ROWS - len(segments))
    frames = F.pad(frames[: len(segments)], (0, 0, 0, 0, 0, missing))
    lengths = F.pad(lengths[: len(segments)], (0, missing))
    found, state = search.step(frames, search.initial_state(len(frames)), lengths)
    last = search.finish(state)
    if len(last.token):  # of the rows that are not silent
        sounds = (model.ctc(frames).argmax(-1) != 0) & length_mask(lengths, frames.shape[1])
        heard = sounds.any(1).index_fill(0, found.row, True)
        last = Tokens(*(part[heard[last.row]] for part in last))
    tokens = Tokens(*(torch.cat(parts) for parts in zip(found, last, strict=True)))
    return [
        _Heard(segment.first // stride, *parts)
        for segment, *parts in zip(
            segments,
            _by_row(tokens, len(frames)),
            lengths.tolist(),
            state.num_energies.tolist(),
            state.num_forced.tolist(),
            strict=False,  # rows of padding are left out
        )
    ]


def _padded(num_features: int) -> int:
    """The length that a segment is padded to, which depends on nothing but its own."""
    return max(MIN_FEATURES, -(-num_features // RUNG) * RUNG)


def _pad(features: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Segments of one padded length as a (B, T, M) batch and their (B,) lengths.

    A row has the same bits in every such batch of two rows or more: one row alone is multiplied by other kernels,
    which add in another order, and so are sequences of another length.
    """
    features = features + features[-1:] * (MIN_ROWS - len(features))
    lengths = torch.tensor([len(row) for row in features])
    batch = features[0].new_zeros(len(features), _padded(int(lengths.max())), features[0].shape[1])
    for row, each in zip(batch, features, strict=True):
        row[: len(each)] = each
    return batch, lengths


def _by_row(tokens: Tokens, num_rows: int) -> list[Tokens]:
    """The tokens of each row, in the order found."""
    order = torch.argsort(tokens.row, stable=True)
    counts = torch.bincount(tokens.row, minlength=num_rows).tolist()
    return [Tokens(*parts) for parts in zip(*(part[order].split(counts) for part in tokens), strict=True)]
