"""Word vectors from characters, by a bidirectional LSTM or by convolutions.

Ling et al. 2015, "Finding Function in Form" (1508.02096); Kim 2014, "Convolutional Neural Networks for Sentence
Classification" (1408.5882). Words are independent of each other and of how much they are padded.

Letters in shapes: N sentences, S words, C characters, E width.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ConfigError
from ..streaming import length_mask
from .bilstm import BiLSTM

WordLengths = Tensor | Sequence[Tensor] | Sequence[Sequence[int]]


class CharEmbeddingRNN(nn.Module):
    """A bidirectional LSTM over the characters of each word. (N, S, C) integers -> (N, S, E), 0 for empty words

    From outputs y_1 .. y_n of a word, and the final states hf (after its last character) and hb (after its first):

        final_concat  [hf; hb]              final_mean  (hf + hb) / 2
        all_mean      mean of y_1 .. y_n    all_max     elementwise maximum of y_1 .. y_n

    Args:
        alphabet_size: rows of the character table
        emb_layer: a ready table, which then decides E; None: a new one of width `emb_dim`
        pad_idx: the character that stands for none; its row in a new table is zero
        out_type: one of the four above

    Raises ConfigError for an unknown out_type, and for an odd width where two halves are joined.

    >>> layer = CharEmbeddingRNN(alphabet_size=30, emb_dim=6)
    >>> layer(torch.randint(1, 30, (2, 3, 5)), [[5, 2, 1], [4]]).shape
    torch.Size([2, 3, 6])
    """

    out_types = ("final_concat", "final_mean", "all_mean", "all_max")

    def __init__(
        self,
        alphabet_size: int,
        emb_layer: nn.Embedding | None = None,
        emb_dim: int = 300,
        pad_idx: int = 0,
        out_type: str = "final_concat",
    ):
        super().__init__()
        if out_type not in self.out_types:
            raise ConfigError(f"out_type is {out_type!r}; it has to be one of {', '.join(self.out_types)}")
        self.embedding = _character_table(alphabet_size, emb_layer, emb_dim, pad_idx)
        width = self.embedding.embedding_dim
        if out_type != "final_mean" and width % 2:
            raise ConfigError(
                f"emb_dim is {width}; out_type {out_type} joins two directions of equal width, so it has to be even"
            )
        self.lstm = BiLSTM(width, width if out_type == "final_mean" else width // 2)
        self.pad_idx, self.out_type = pad_idx, out_type

    def forward(self, x: Tensor, lens: WordLengths) -> Tensor:
        """`lens`: characters of each word, (N, S) or one row a sentence; 0 or left out: no such word."""
        lengths = _word_lengths(lens, x).flatten()
        x = functional.pad(x, (0, max(0, 1 - x.shape[2])))
        valid = length_mask(lengths, x.shape[2])
        characters = x.flatten(0, 1).masked_fill(~valid, self.pad_idx)
        states = self.lstm(self.embedding(characters), lengths)  # (N * S, C, 2 * hidden), 0 behind the end
        vectors = self._pool(states, lengths[:, None]).masked_fill((lengths == 0)[:, None], 0)
        return vectors.reshape(*x.shape[:2], self.embedding.embedding_dim)

    def _pool(self, states: Tensor, lengths: Tensor) -> Tensor:
        if self.out_type == "all_mean":
            return states.sum(1) / lengths.clamp(min=1)
        if self.out_type == "all_max":
            behind = ~length_mask(lengths[:, 0], states.shape[1])
            return states.masked_fill(behind[..., None], float("-inf")).max(1).values
        ahead, back = states.chunk(2, dim=-1)
        last = (lengths[..., None] - 1).clamp(min=0).expand(-1, 1, ahead.shape[2])
        final_ahead, final_back = ahead.gather(1, last)[:, 0], back[:, 0]
        if self.out_type == "final_mean":
            return (final_ahead + final_back) / 2
        return torch.cat([final_ahead, final_back], dim=-1)


class CharEmbeddingCNN(nn.Module):
    """The maximum of convolutions over the characters of each word. (N, S, C) integers -> (N, S, E), 0 for empty words

    For each kernel width k the word is extended by zero rows to at least k characters; the result is the relu of
    the maximum over all windows of all kernels. A kernel wider than the word therefore has exactly one window.

    Args:
        alphabet_size: rows of the character table
        emb_layer: a ready table, which then decides E; None: a new one of width `emb_dim`
        emb_dropout: on the character vectors
        pad_idx: the character that stands for none; its row in a new table is zero
        kernels: widths in characters
        cnn_kernel_multiplier: how many independent convolutions there are of each width

    Raises ConfigError for no kernels, and for sizes below 1.

    >>> layer = CharEmbeddingCNN(alphabet_size=30, emb_dim=6, kernels=[2, 3])
    >>> layer(torch.randint(1, 30, (2, 3, 5)), [[5, 2, 1], [4]]).shape
    torch.Size([2, 3, 6])
    """

    def __init__(
        self,
        alphabet_size: int,
        emb_layer: nn.Embedding | None = None,
        emb_dim: int = 300,
        emb_dropout: float = 0.0,
        pad_idx: int = 0,
        kernels: Iterable[int] = (3, 4, 5),
        cnn_kernel_multiplier: int = 1,
    ):
        super().__init__()
        kernels = tuple(kernels)
        if not kernels or min(kernels) < 1 or cnn_kernel_multiplier < 1:
            raise ConfigError(
                f"kernels are {list(kernels)}, cnn_kernel_multiplier is {cnn_kernel_multiplier}; "
                "at least one kernel is needed, and all of these have to be at least 1"
            )
        self.embedding = _character_table(alphabet_size, emb_layer, emb_dim, pad_idx)
        width = self.embedding.embedding_dim
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, k) for k in kernels * cnn_kernel_multiplier)
        self.dropout = nn.Dropout(emb_dropout)
        self.pad_idx, self.max_kernel = pad_idx, max(kernels)

    def forward(self, x: Tensor, lens: WordLengths) -> Tensor:
        """`lens`: characters of each word, (N, S) or one row a sentence; 0 or left out: no such word."""
        lengths = _word_lengths(lens, x).flatten()
        valid = length_mask(lengths, x.shape[2])
        characters = x.flatten(0, 1).masked_fill(~valid, self.pad_idx)
        rows = self.dropout(self.embedding(characters)).masked_fill(~valid[..., None], 0)
        rows = functional.pad(rows.mT, (0, max(0, self.max_kernel - x.shape[2])))  # (N * S, E, C)
        best = torch.stack([self._best_window(conv, rows, lengths) for conv in self.convolutions]).max(0).values
        vectors = torch.relu(best).masked_fill((lengths == 0)[:, None], 0)
        return vectors.reshape(*x.shape[:2], self.embedding.embedding_dim)

    @staticmethod
    def _best_window(convolution: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
        windows = convolution(rows)
        width = rows.shape[2] - windows.shape[2] + 1
        num_windows = lengths.clamp(min=width) - width + 1
        return windows.masked_fill(~length_mask(num_windows, windows.shape[2])[:, None], float("-inf")).max(2).values


def _character_table(alphabet_size: int, emb_layer: nn.Embedding | None, emb_dim: int, pad_idx: int) -> nn.Embedding:
    if emb_layer is not None:
        return emb_layer
    if alphabet_size < 1 or emb_dim < 1 or not 0 <= pad_idx < alphabet_size:
        raise ConfigError(
            f"alphabet_size is {alphabet_size}, emb_dim {emb_dim}, pad_idx {pad_idx}; sizes are at least 1, "
            "and pad_idx is one of the characters"
        )
    return nn.Embedding(alphabet_size, emb_dim, padding_idx=pad_idx)


def _word_lengths(lens: WordLengths, x: Tensor) -> Tensor:
    """Lengths in any accepted form as a padded (N, S) tensor beside x (N, S, C)."""
    if not isinstance(lens, Tensor):
        rows = [torch.as_tensor(row, dtype=torch.long, device=x.device) for row in lens]
        lens = nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 0)
    lens = lens.to(x.device, torch.long)
    return functional.pad(lens, (0, x.shape[1] - lens.shape[1])).clamp(0, x.shape[2])
