"""Alignment pictures: where each token is expected to stop, during training."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import MissingExtraError
from ..model import MochaModel
from ..pictures import new_figure
from ..tokenizer import Tokenizer
from .data import Example


@torch.no_grad()
def expected_alignment(model: MochaModel, features: np.ndarray, tokens: list[int], chunk: int | None) -> np.ndarray:
    """Probability that each token, and the query after the last, stops at each frame. (T, M) -> (U + 1, S)"""
    device = model.ctc.weight.device
    x, length = torch.from_numpy(features)[None].to(device), torch.tensor([len(features)], device=device)
    frames, lengths = model.encoder(x, length, chunk)
    states = model.decoder(torch.tensor([tokens], dtype=torch.long, device=device))
    return model.attention.expect(states, model.attention.remember(frames), lengths).alpha[0].float().cpu().numpy()


def draw(model: MochaModel, tokenizer: Tokenizer, examples: list[Example], chunk: int | None) -> Any:
    """A figure with the alignment of each example; None where matplotlib is not installed."""
    try:
        figure = new_figure(10, 3.5 * len(examples))
    except MissingExtraError:
        return None
    for i, example in enumerate(examples):
        tokens = tokenizer.encode(example.text)
        alpha = expected_alignment(model, example.load(), tokens, chunk)
        axes = figure.add_subplot(len(examples), 1, i + 1)
        axes.imshow(alpha, aspect="auto", origin="lower", interpolation="nearest", vmin=0, vmax=1, cmap="magma")
        axes.set_title(f"{example.id}: {alpha[:-1].sum():.1f} of {len(tokens)} tokens stop", fontsize=9)
        axes.set_xlabel("encoder frame")
        axes.set_ylabel("token")
    return figure


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
