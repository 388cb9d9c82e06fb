"""Layers that lose no time on the single row and the few frames that a stream has at a time.

MKL multiplies a matrix by a vector up to three times as fast as by a matrix of one row, in the mode that `batch.py`
asks for; and `nn.LSTM` spends more time on rearranging its weights than on using them for a few frames.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_FRAMES = 32
"""Up to so many, an LSTM goes by hand."""


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`, as a product of a matrix and a vector where there is one row only."""
    if not x.shape[-1] == weight.shape[1] == x.numel():
        return F.linear(x, weight, bias)
    row = x.reshape(-1)
    product = torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)
    return product.view(*x.shape[:-1], -1)


class Linear(nn.Linear):
    """`nn.Linear`, by `affine` outside training and autocast."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training or torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return affine(x, self.weight, self.bias)


def run_lstm(lstm: nn.LSTM, x: Tensor, hidden: Tensor, cell: Tensor, kept: int) -> tuple[Tensor, Tensor, Tensor]:
    """What `lstm` gives for (B, S, D) frames from (B, H) states: outputs, and the states after `kept` frames."""
    if lstm.training or x.shape[1] > FEW_FRAMES or torch.is_autocast_enabled(x.device.type):
        output, (last_hidden, last_cell) = lstm(x[:, :kept], (hidden[None], cell[None]))
        if x.shape[1] > kept:
            output = torch.cat([output, lstm(x[:, kept:], (last_hidden, last_cell))[0]], 1)
        return output, last_hidden[0], last_cell[0]
    input_weight, hidden_weight, input_bias, hidden_bias = lstm.all_weights[0]
    is_single = len(x) == 1
    inputs = affine(x, input_weight, input_bias + hidden_bias)
    if is_single:
        inputs, hidden, cell = inputs[0], hidden[0], cell[0]
    outputs, cells, size = [hidden], [cell], lstm.hidden_size
    for frame in inputs.unbind(-2):
        if is_single:
            gates = torch.addmv(frame, hidden_weight, outputs[-1])
        else:
            gates = torch.addmm(frame, outputs[-1], hidden_weight.T)
        enter, forget, _, leave = torch.sigmoid(gates).chunk(4, -1)
        candidate = torch.tanh(gates[..., 2 * size : 3 * size])
        cells.append(torch.addcmul(forget * cells[-1], enter, candidate))
        outputs.append(leave * torch.tanh(cells[-1]))
    output = torch.stack(outputs[1:], -2).view(*x.shape[:2], size)
    return output, outputs[kept].view(-1, size), cells[kept].view(-1, size)
