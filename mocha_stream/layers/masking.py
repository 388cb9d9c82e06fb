"""`Masking`: overwrites what lies behind the end of each row, for instance scores that a softmax must not see."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..streaming import length_mask


class Masking(nn.Module):
    """Replaces the features of padded positions. (B, S, ..., H) or (S, B, ..., H) -> the same shape, a new tensor

    Behind the end of a row every feature becomes `mask`, except the highlighted ones (the pad class of a classifier,
    say), which become `highlighting_mask`, or stay as they are where that is None. The gradient passes unchanged
    where an element stays, and is zero where it is replaced.

    Args:
        input_size: H, the number of features
        indices_to_highlight: one index or several, negative ones from the end; None: no feature is highlighted
        batch_first: whether x comes as (B, S, ..., H); otherwise (S, B, ..., H)

    Raises ConfigError for an index outside the features.

    >>> masking = Masking(3, mask=-1.0, batch_first=True)
    >>> masking(torch.zeros(1, 2, 3), [1])
    tensor([[[ 0.,  0.,  0.],
             [-1., -1.,  1.]]])
    """

    is_masked: Tensor  # (H,)
    is_highlighted: Tensor  # (H,)

    def __init__(
        self,
        input_size: int,
        mask: float = float("-inf"),
        indices_to_highlight: int | Sequence[int] | None = -1,
        highlighting_mask: float | None = 1.0,
        batch_first: bool = False,
    ):
        super().__init__()
        if input_size < 1:
            raise ConfigError(f"input_size is {input_size}; it counts features, so it is at least 1")
        indices = [indices_to_highlight] if isinstance(indices_to_highlight, int) else indices_to_highlight or []
        highlighted = torch.zeros(input_size, dtype=torch.bool)
        for index in indices:
            if not -input_size <= index < input_size:
                raise ConfigError(
                    f"indices_to_highlight has {index}; with {input_size} features it has to be "
                    f"from {-input_size} to {input_size - 1}"
                )
            highlighted[index] = True
        self.register_buffer("is_masked", ~highlighted, persistent=False)
        self.register_buffer("is_highlighted", highlighted, persistent=False)
        self.mask, self.highlighting_mask, self.batch_first = mask, highlighting_mask, batch_first

    def forward(self, x: Tensor, lens: Tensor | Sequence[int]) -> Tensor:
        """Row b of x is valid for its first `lens[b]` positions; a length beyond S masks nothing."""
        lengths = torch.as_tensor(lens, device=x.device)
        padding = ~length_mask(lengths, x.shape[1 if self.batch_first else 0])
        if not self.batch_first:
            padding = padding.mT
        padding = padding.reshape(*padding.shape, *[1] * (x.ndim - 2))
        x = x.masked_fill(padding & self.is_masked, self.mask)
        if self.highlighting_mask is None:
            return x
        return x.masked_fill(padding & self.is_highlighted, self.highlighting_mask)
