"""What every streaming module offers, and what every state supports.

    forward(x, lengths)    whole sequences, in parallel          (training, offline)
    initial_state(batch)   the state before the first frame
    step(x, state)         the next frames                       -> (y, next state)
    finish(state)          what was held back for want of a look ahead, where there is such a thing

One law binds them, and the tests hold every module to it: however the input is cut, stepping through
the pieces gives `forward` of the whole.

A state is a NamedTuple of tensors with the batch in dim 0. `step` never writes into the state it is
given, so a caller may keep a state, fork it, or go back to it.

Letters in shapes:  B streams   T feature frames (10 ms)   S encoder frames (80 ms)   U tokens
                    M mel bands   D model width   A attention width   V vocabulary   W attention window
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def map_state(fn: Callable[..., Tensor], *states: Any) -> Any:
    """Applies `fn` to the matching tensors of states of one kind."""
    if isinstance(states[0], Tensor):
        return fn(*states)
    parts = [map_state(fn, *fields) for fields in zip(*states, strict=True)]
    return type(states[0])(*parts) if hasattr(states[0], "_fields") else type(states[0])(parts)


def select(state: Any, rows: Tensor) -> Any:
    """Keeps the streams in `rows`, in that order: reorders beams, drops finished streams."""
    return map_state(lambda tensor: tensor[rows], state)


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """True where a position belongs to its row. (B,) -> (B, size)"""
    return torch.arange(size, device=lengths.device) < lengths[:, None]
