"""Where a model hears the tokens of one recording, for a picture of it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .audio import read_audio
from .errors import ConfigError
from .features import log_mel
from .recognizer import Recognizer
from .search import GreedySearch, Tokens

LONGEST_S = 60.0
"""Recordings up to here fit into a picture."""


@dataclass(frozen=True)
class HardAlignment:
    """U tokens on T feature frames."""

    features: np.ndarray
    """(T, M) log-mel."""
    duration_s: float
    pieces: list[str]
    """(U,) what each token writes."""
    starts_s: np.ndarray
    """(U,) begin of the attention window of each token, seconds."""
    centres_s: np.ndarray
    """(U,) expected place within the window, seconds."""
    stops_s: np.ndarray
    """(U,) end of the frame that the walk stopped at, seconds."""
    text: str


@torch.inference_mode()
def hard_alignment(path: Path, recognizer: Recognizer, latency_ms: int | None) -> HardAlignment:
    """Greedy search over a recording in one piece.

    Raises:
        AudioError: a recording that cannot be read.
        ConfigError: one longer than `LONGEST_S`, or a latency that the model was not trained for.
    """
    model, tokenizer, frame_s = recognizer.model, recognizer.tokenizer, recognizer.frame_s
    config = model.config.features
    samples = read_audio(path, config.sample_rate)
    duration_s = len(samples) / config.sample_rate
    if duration_s > LONGEST_S:
        raise ConfigError(f"{path}: lasts {duration_s:.0f} s; a picture holds {LONGEST_S:.0f} s, cut it first")
    chunk = recognizer.chunk(latency_ms)
    features = log_mel(samples, config)
    frames, _ = model.encoder(torch.from_numpy(features)[None], torch.tensor([len(features)]), chunk)
    search = GreedySearch(model)
    found, state = search.step(frames, search.initial_state(1))
    tokens = Tokens(*(torch.cat(parts) for parts in zip(found, search.finish(state), strict=True)))
    stops = tokens.stop.numpy() + 1
    return HardAlignment(
        features,
        len(features) * config.hop_s,
        [tokenizer.pieces[token] for token in tokens.token.tolist()],
        np.maximum(stops - search.window, 0) * frame_s,
        (tokens.centre.numpy() + 0.5) * frame_s,
        stops * frame_s,
        tokenizer.decode(tokens.token.tolist()),
    )
