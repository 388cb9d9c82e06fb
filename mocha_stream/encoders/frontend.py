"""The causal front end: normalised log-mel frames to an eighth as many, by three strided convolutions over time."""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..streaming import length_mask


class CausalConv(nn.Module):
    """A strided convolution over time that never looks right. (B, T, D) -> (B, T / stride, width)"""

    def __init__(self, input_size: int, width: int, kernel: int = 5, stride: int = 2):
        super().__init__()
        self.conv = nn.Conv1d(input_size, width, kernel, stride)
        self.stride, self.num_past = stride, kernel - stride

    def initial_state(self, batch: int) -> Tensor:
        """The (B, kernel - stride, D) frames to the left of the first one: silence."""
        return self.conv.weight.new_zeros(batch, self.num_past, self.conv.in_channels)

    def step(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Convolves the next T frames, T a multiple of the stride."""
        x = torch.cat([past.to(x.dtype), x], dim=1)
        return self.conv(x.mT).mT, x[:, x.shape[1] - self.num_past :]


class FrontendState(NamedTuple):
    waiting: Tensor  # (B, < 8, M) normalised frames that do not fill an encoder frame yet
    pasts: tuple[Tensor, ...]  # of each convolution, the (B, kernel - stride, D) frames before the next one


class Frontend(nn.Module):
    """Log-mel frames to encoder frames, eight to one. (B, T, M) -> (B, ceil(T / 8), D)

    Encoder frame s depends on no feature after frame 8 s + 7. The features of a row end in silence (zeros after
    normalisation) that fills its last encoder frame.

    >>> Frontend(num_mels=80, width=16)(torch.randn(1, 20, 80), torch.tensor([20])).shape
    torch.Size([1, 3, 16])
    """

    stride = 8
    mean: Tensor
    deviation: Tensor

    def __init__(self, num_mels: int, width: int):
        super().__init__()
        self.convs = nn.ModuleList([CausalConv(size, width) for size in (num_mels, width, width)])
        self.output = nn.Linear(width, width)
        self.register_buffer("mean", torch.zeros(num_mels))
        self.register_buffer("deviation", torch.ones(num_mels))

    def set_statistics(self, mean: Tensor, deviation: Tensor) -> None:
        """Fixes the (M,) mean and standard deviation that features are normalised with."""
        self.mean.copy_(mean)
        self.deviation.copy_(deviation)

    def num_frames(self, lengths: Tensor) -> Tensor:
        """Encoder frames of rows of so many features."""
        return (lengths + self.stride - 1) // self.stride

    def initial_state(self, batch: int) -> FrontendState:
        waiting = self.mean.new_zeros(batch, 0, len(self.mean))
        return FrontendState(waiting, tuple(conv.initial_state(batch) for conv in self.convs))  # type: ignore[operator]

    def step(self, features: Tensor, state: FrontendState) -> tuple[Tensor, FrontendState]:
        """Hears the next (B, T, M) features, any number of them; returns the encoder frames they complete."""
        return self._advance(torch.cat([state.waiting, self._normalise(features)], 1), state.pasts)

    def finish(self, state: FrontendState) -> Tensor:
        """The (B, 0 or 1, D) encoder frame that was waiting to be filled."""
        return self._advance(F.pad(state.waiting, (0, 0, 0, -state.waiting.shape[1] % self.stride)), state.pasts)[0]

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Whole utterances of (B,) lengths; frames past a row's end are of no meaning."""
        padding = ~length_mask(lengths, features.shape[1])[..., None]
        x = self._normalise(features).masked_fill(padding, 0.0)
        x = F.pad(x, (0, 0, 0, -x.shape[1] % self.stride))
        return self._advance(x, self.initial_state(len(x)).pasts)[0]

    def _normalise(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.deviation

    def _advance(self, x: Tensor, pasts: tuple[Tensor, ...]) -> tuple[Tensor, FrontendState]:
        whole = x.shape[1] - x.shape[1] % self.stride
        x, waiting = x[:, :whole], x[:, whole:]
        if whole == 0:
            return x.new_zeros(len(x), 0, self.output.out_features), FrontendState(waiting, pasts)
        next_pasts = []
        for conv, past in zip(self.convs, pasts, strict=True):
            x, past = conv.step(x, past)  # type: ignore[operator]
            x = F.relu(x)
            next_pasts.append(past)
        return self.output(x), FrontendState(waiting, tuple(next_pasts))


def chunk_bounds(num_frames: int, chunk: int | None) -> list[tuple[int, int]]:
    """Start and end of the chunks of a sequence; None is one chunk as long as the sequence."""
    chunk = chunk or max(1, num_frames)
    return list(pairwise([*range(0, num_frames, chunk), num_frames]))
