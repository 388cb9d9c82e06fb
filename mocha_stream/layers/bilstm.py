"""A bidirectional LSTM over ragged batches that needs no packing: lengths stay on their device."""

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..streaming import length_mask


class BiLSTM(nn.Module):
    """Stacked bidirectional LSTM layers from zero states. (B, S, D) -> (B, S, 2 * hidden), forward half first.

    The forward direction never sees padding on the right. The backward direction reads each row with its valid
    frames reversed in front, so it starts at the row's own last frame. Rows of length zero are allowed, results
    at padding are 0, and nothing is read back to the host.

    >>> lstm = BiLSTM(input_size=3, hidden_size=4, num_layers=2)
    >>> lstm(torch.randn(2, 5, 3), torch.tensor([5, 0])).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, dropout: float = 0.0):
        super().__init__()
        if min(input_size, hidden_size, num_layers) < 1:
            raise ConfigError(
                f"BiLSTM got input_size {input_size}, hidden_size {hidden_size}, num_layers {num_layers}; "
                "each has to be at least 1"
            )
        widths = [input_size] + [2 * hidden_size] * (num_layers - 1)
        self.ahead = nn.ModuleList(nn.LSTM(width, hidden_size, batch_first=True) for width in widths)
        self.back = nn.ModuleList(nn.LSTM(width, hidden_size, batch_first=True) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.hidden_size = hidden_size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Reads the first `lengths` (B,) frames of every row; a length beyond S counts as S."""
        if x.numel() == 0:
            return x.new_zeros(*x.shape[:2], 2 * self.hidden_size)
        valid = length_mask(lengths, x.shape[1])[..., None]
        x = x.masked_fill(~valid, 0)
        for depth, (ahead, back) in enumerate(zip(self.ahead, self.back, strict=True)):
            if depth:
                x = self.dropout(x)
            reverse = reverse_valid(_run(back, reverse_valid(x, lengths)), lengths)
            x = torch.cat([_run(ahead, x), reverse], dim=-1).masked_fill(~valid, 0)
        return x


def _run(lstm: nn.Module, x: Tensor) -> Tensor:
    if x.device.type == "cpu":  # it has no LSTM in half precision, so autocast may not ask for one
        with torch.autocast("cpu", enabled=False):
            return lstm(x.to(next(lstm.parameters()).dtype))[0]
    return lstm(x)[0]


def reverse_valid(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverses the first `lengths` (B,) frames of each row of x (B, S, D) and leaves the rest where it is."""
    position = torch.arange(x.shape[1], device=x.device)
    last = lengths.clamp(max=x.shape[1])[:, None] - 1
    source = torch.where(position <= last, last - position, position)
    return x.gather(1, source[..., None].expand_as(x))
