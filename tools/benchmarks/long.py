"""Recordings far longer than any in training: word errors of recordings joined, against those of their parts.

The recordings of a speaker are joined, end to end without a pause, until they are long enough. Both are heard in
four ways: by encoder and attention in one piece, whole and in chunks; in segments cut at quiet places; as a stream.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from mocha_stream.audio import read_audio
from mocha_stream.corpus import Utterance, normalise, read_corpus
from mocha_stream.errors import DataError
from mocha_stream.features import log_mel
from mocha_stream.recognizer import Recognizer
from mocha_stream.scores import Errors, count_errors
from mocha_stream.search import GreedySearch, token_lists
from mocha_stream.table import table

RATE = 16_000
HEADER = ("", "WER joined", "WER of the parts", "inserted joined", "inserted in parts", "loop guard")


class InOnePiece:
    """Hears a recording of any length with one call of the encoder and one walk; counts what the guard did."""

    def __init__(self, recognizer: Recognizer, chunk: int | None):
        self.recognizer, self.chunk, self.num_forced = recognizer, chunk, 0

    @torch.inference_mode()
    def __call__(self, samples: np.ndarray) -> str:
        model, search = self.recognizer.model, GreedySearch(self.recognizer.model)
        features = torch.from_numpy(log_mel(samples, model.config.features))[None]
        frames, lengths = model.encoder(features, torch.tensor([features.shape[1]]), self.chunk)
        tokens, state = search.step(frames, search.initial_state(1), lengths)
        self.num_forced += int(state.num_forced)
        found, last = (token_lists(part, 1)[0] for part in (tokens, search.finish(state)))
        return self.recognizer.tokenizer.decode(found + last)


def run(data: Path, minutes: float, latency_ms: int, model: Path | None) -> None:
    """Prints a row for each way of hearing."""
    torch.set_num_threads(1)
    recognizer = Recognizer.load(model)
    whole, chunks = InOnePiece(recognizer, None), InOnePiece(recognizer, recognizer.chunk(latency_ms))
    joined = list(join(read_corpus(data), minutes * 60))
    if not joined:
        raise DataError(f"{data}: no speaker has {minutes:g} minutes of recordings; choose fewer --minutes")
    ways: list[tuple[str, Callable[[np.ndarray], str]]] = [
        ("in one piece", whole),
        (f"in one piece, chunks of {latency_ms} ms", chunks),
        ("cut at quiet places", lambda samples: recognizer.transcribe(samples).text),
        (f"as a stream, {latency_ms} ms", lambda samples: recognizer.transcribe(samples, latency_ms).text),
    ]
    rows = []
    for name, hear in ways:
        long, short = score(hear, joined)
        forced = str(hear.num_forced) if isinstance(hear, InOnePiece) else ""
        errors = [f"{part.wer or 0:.2f}%" for part in (long, short)]
        rows.append([name, *errors, str(long.insertions), str(short.insertions), forced])
    print(table(HEADER, rows))
    print(f"{len(joined)} joined recordings of {minutes:g} minutes at least, from {sum(map(len, joined))} parts")


def join(utterances: Sequence[Utterance], shortest_s: float) -> Iterator[list[tuple[Utterance, np.ndarray]]]:
    """Recordings of one speaker that last so long together; what is left of a speaker is left out."""
    for _, group in groupby(sorted(utterances, key=lambda item: (item.speaker, item.id)), lambda item: item.speaker):
        parts: list[tuple[Utterance, np.ndarray]] = []
        for utterance in group:
            parts.append((utterance, read_audio(utterance.path)))
            if sum(len(samples) for _, samples in parts) >= shortest_s * RATE:
                yield parts
                parts = []


def score(
    hear: Callable[[np.ndarray], str], joined: Sequence[Sequence[tuple[Utterance, np.ndarray]]]
) -> tuple[Errors, Errors]:
    """The errors in the joined recordings, and those in their parts."""
    long, short = Errors(), Errors()
    for parts in tqdm(joined, "recordings", leave=False, disable=None):
        reference = " ".join(utterance.text for utterance, _ in parts)
        long += count_errors(reference, normalise(hear(np.concatenate([samples for _, samples in parts]))))
        for utterance, samples in parts:
            short += count_errors(utterance.text, normalise(hear(samples)))
    return long, short
