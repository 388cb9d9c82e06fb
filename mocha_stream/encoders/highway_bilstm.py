"""The streaming HighwayBiLSTM: bidirectional LSTM layers on a highway, whose backward direction works inside chunks.

Highway LSTMs and the latency-controlled bidirectional LSTM are from Zhang et al. 2016, "Highway long short-term
memory RNNs for distant speech recognition" (arXiv 1510.08983). Here each layer carries its input unchanged
and adds a gated update: y = x + T(n) * U(n), n = LayerNorm(x).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..few_rows import run_lstm
from .frontend import chunk_bounds


class HighwayBiLSTMState(NamedTuple):
    waiting: Tensor  # (B, < chunk + lookahead, D) frames whose chunk or its look ahead is not complete
    hidden: Tensor  # (B, layers, H) of the forward LSTMs, after the last frame of the last chunk
    cell: Tensor  # (B, layers, H)


def _reverse_within(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with their first `valid` frames in reverse order, and the index that does and undoes it."""
    at = torch.arange(x.shape[1], device=x.device)[None]
    index = torch.where(at < valid[:, None], valid[:, None] - 1 - at, at)[..., None]
    return x.gather(1, index.expand(-1, -1, x.shape[2])), index


class HighwayLayer(nn.Module):
    """One layer: both LSTMs, their projection, and the gate. (B, S, D) -> (B, S, D)"""

    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.forward_lstm = nn.LSTM(width, hidden, batch_first=True)
        self.backward_lstm = nn.LSTM(width, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(2 * hidden, width)
        self.gate = nn.Linear(width, width)

    def backward_direction(self, normed: Tensor, valid: Tensor) -> Tensor:
        """The backward LSTM over the first `valid` frames of each row, from the last one to the first."""
        reverse, index = _reverse_within(normed, valid)
        zeros = normed.new_zeros(len(normed), self.backward_lstm.hidden_size)
        output, _, _ = run_lstm(self.backward_lstm, reverse, zeros, zeros, reverse.shape[1])
        return output.gather(1, index.expand(-1, -1, output.shape[2]))

    def combine(self, x: Tensor, normed: Tensor, ahead: Tensor, back: Tensor) -> Tensor:
        update = self.dropout(self.project(torch.cat([ahead, back], -1)))
        return x + torch.sigmoid(self.gate(normed)) * update

    def forward(self, x: Tensor, lengths: Tensor, chunk: int | None) -> Tensor:
        """Whole sequences without look ahead: one forward LSTM, and all chunks at once in one backward LSTM."""
        batch, size, width = x.shape
        normed = self.norm(x)
        ahead, _ = self.forward_lstm(normed)
        chunk = min(chunk or size, size)
        chunks = F.pad(normed, (0, 0, 0, -size % chunk)).reshape(-1, chunk, width)
        starts = torch.arange(0, size, chunk, device=x.device)
        valid = (lengths[:, None] - starts).clamp(0, chunk).reshape(-1)
        back = self.backward_direction(chunks, valid).reshape(batch, -1, ahead.shape[2])[:, :size]
        return self.combine(x, normed, ahead, back)

    def block(
        self, x: Tensor, valid: Tensor, chunk: int, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A chunk and its look ahead, from the (B, H) state before it; the state returned is that after the chunk."""
        normed = self.norm(x)
        ahead, hidden, cell = run_lstm(self.forward_lstm, normed, hidden, cell, chunk)
        return self.combine(x, normed, ahead, self.backward_direction(normed, valid)), hidden, cell


class HighwayBiLSTM(nn.Module):
    """Encoder frames with their context. (B, S, D) -> (B, S, D)

    Args:
        width: D, the features of a frame
        hidden: cells of each LSTM
        num_layers: highway layers
        lookahead: frames after its end that a chunk also hears, in every layer; no more than it has itself
        dropout: of each layer's update, in training

    The forward LSTMs carry their state for ever; the backward LSTMs hear the chunk and its look ahead. `chunk` is
    given with each call, so one set of weights serves every latency; None is one chunk as long as the sequence.

    >>> encoder = HighwayBiLSTM(width=8, hidden=6, num_layers=2)
    >>> frames, state = encoder.step(torch.randn(1, 5, 8), encoder.initial_state(1), chunk=4)
    >>> frames.shape, encoder.finish(state, chunk=4).shape
    (torch.Size([1, 4, 8]), torch.Size([1, 1, 8]))
    """

    def __init__(self, width: int, hidden: int, num_layers: int, lookahead: int = 0, dropout: float = 0.0):
        super().__init__()
        self.lookahead = lookahead
        self.layers = nn.ModuleList([HighwayLayer(width, hidden, dropout) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(width)

    def initial_state(self, batch: int) -> HighwayBiLSTMState:
        weight = self.norm.weight
        layer: HighwayLayer = self.layers[0]  # type: ignore[assignment]
        zeros = weight.new_zeros(batch, len(self.layers), layer.forward_lstm.hidden_size)
        return HighwayBiLSTMState(weight.new_zeros(batch, 0, len(weight)), zeros, zeros)

    def forward(self, x: Tensor, lengths: Tensor, chunk: int | None = None) -> Tensor:
        """Whole sequences of (B,) lengths; what comes out past a row's end is of no meaning.

        In training, a chunk and its look ahead are one chunk: that takes no loop, and what it teaches serves chunks
        that overlap as well.
        """
        if x.shape[1] == 0:  # an LSTM refuses no frames
            return x
        ahead = self._ahead(chunk)
        if self.training and chunk is not None:
            chunk += ahead
        elif ahead:
            return self._run(x, lengths, self.initial_state(len(x)), chunk_bounds(x.shape[1], chunk), ahead)[0]
        for layer in self.layers:
            x = layer(x, lengths, chunk)
        return self.norm(x)

    def step(self, x: Tensor, state: HighwayBiLSTMState, chunk: int | None = None) -> tuple[Tensor, HighwayBiLSTMState]:
        """Hears the next (B, S, D) frames, any number of them; returns the chunks that are complete."""
        x, ahead = torch.cat([state.waiting, x], 1), self._ahead(chunk)
        ready = 0 if chunk is None else max(0, (x.shape[1] - ahead) // chunk)
        bounds = [(i * chunk, (i + 1) * chunk) for i in range(ready)] if chunk else []
        return self._run(x, torch.full((len(x),), x.shape[1], device=x.device), state, bounds, ahead)

    def finish(self, state: HighwayBiLSTMState, chunk: int | None = None) -> Tensor:
        """The frames that were waiting for their chunk or its look ahead."""
        x = state.waiting
        lengths = torch.full((len(x),), x.shape[1], device=x.device)
        return self._run(x, lengths, state, chunk_bounds(x.shape[1], chunk), self._ahead(chunk))[0]

    def _ahead(self, chunk: int | None) -> int:
        return min(self.lookahead, chunk or 0)

    def _run(
        self, x: Tensor, lengths: Tensor, state: HighwayBiLSTMState, bounds: list[tuple[int, int]], ahead: int
    ) -> tuple[Tensor, HighwayBiLSTMState]:
        """Runs the chunks of `x` that `bounds` names, one after the other, through all layers."""
        hidden, cell = list(state.hidden.unbind(1)), list(state.cell.unbind(1))
        outputs = [x[:, :0]]
        for start, end in bounds:
            y = x[:, start : end + ahead]
            valid = (lengths - start).clamp(0, y.shape[1])
            for i, layer in enumerate(self.layers):
                y, hidden[i], cell[i] = layer.block(y, valid, end - start, hidden[i], cell[i])  # type: ignore[operator]
            outputs.append(self.norm(y[:, : end - start]))
        waiting = x[:, bounds[-1][1] :] if bounds else x
        return torch.cat(outputs, 1), HighwayBiLSTMState(waiting, torch.stack(hidden, 1), torch.stack(cell, 1))
