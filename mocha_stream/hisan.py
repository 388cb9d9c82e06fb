"""`MTHiSAN`, labels for finished transcripts: words attend within lines, lines within the document.

Gao et al. 2019, "Classifying cancer pathology reports with hierarchical self-attention networks" (Artificial
Intelligence in Medicine 101), here for several tasks at once.

Letters in shapes: B documents, L lines, w words in a line, E width of the table, N heads, d width of a head.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import ConfigError, DataError

Line = Sequence[int] | Tensor
Documents = Tensor | Sequence[Sequence[Line]]


class HisanState(NamedTuple):
    """Documents so far. Its size does not depend on how many lines they have."""

    lines: Tensor  # (B, max_lines, N * d) line vectors, zero where there is none
    exists: Tensor  # (B, max_lines) whether the line has words
    num_lines: Tensor  # (B,) lines so far, empty ones included
    word_sum: Tensor  # (B, E) of the table rows of all words
    num_words: Tensor  # (B,)


class MTHiSAN(nn.Module):
    """Hierarchical self-attention over documents, a classifier for each task. Documents -> list of (B, classes)

    Documents come as a padded matrix (B, W) of word numbers, cut into lines of `max_words_per_line`, or as ragged
    lists of lines of words, where a longer line goes on in the next one. Word 0 is "no word". There is no position
    information: empty lines and zero words drop out. Only the first `max_lines` lines count, except in the bag.

    Args:
        embedding_matrix: (V, E), copied; its columns are brought to mean 0 and standard deviation
            1 / embeddings_scale, row 0 to zero, and it is trained on
        num_classes: one number a task
        max_words_per_line, max_lines: limits of a document
        att_dim_per_head, att_heads: of both levels
        att_dropout: on word, line and document vectors, and on the attention weights
        bag_of_embeddings: appends tanh of an affine map of the mean word vector to the document vector

    Raises ConfigError for settings out of range, DataError for documents that are neither of the two forms.

    >>> model = MTHiSAN(np.random.randn(50, 8), [3, 2], max_words_per_line=5, max_lines=4).eval()
    >>> documents = [[[7, 2], [], [9, 3, 3]], [[4]]]
    >>> [logits.shape for logits in model(documents)]
    [torch.Size([2, 3]), torch.Size([2, 2])]

    Line by line, as finals arrive from a session:

    >>> state = model.initial_state(1)
    >>> for line in documents[0]:
    ...     labels, state = model.step([line], state)
    >>> torch.allclose(labels[0], model(documents[:1])[0], atol=1e-5)
    True
    """

    def __init__(
        self,
        embedding_matrix: np.ndarray | Tensor,
        num_classes: Sequence[int],
        max_words_per_line: int,
        max_lines: int,
        att_dim_per_head: int = 50,
        att_heads: int = 8,
        att_dropout: float = 0.1,
        bag_of_embeddings: bool = False,
        embeddings_scale: float = 2.5,
    ):
        super().__init__()
        if not num_classes or min(num_classes) < 1:
            raise ConfigError(
                f"num_classes is {list(num_classes)}; give one number of classes, at least 1, for each task"
            )
        if min(max_words_per_line, max_lines, att_dim_per_head, att_heads) < 1 or embeddings_scale <= 0:
            raise ConfigError(
                f"max_words_per_line {max_words_per_line}, max_lines {max_lines}, att_dim_per_head {att_dim_per_head} "
                f"and att_heads {att_heads} have to be at least 1, embeddings_scale {embeddings_scale} above 0"
            )
        table = _normalise(np.asarray(embedding_matrix), embeddings_scale).to(torch.get_default_dtype())
        self.embedding = nn.Embedding.from_pretrained(table, freeze=False, padding_idx=0)
        size, width = table.shape[1], att_heads * att_dim_per_head
        self.word_block = AttentionBlock(size, att_heads, att_dim_per_head, att_dropout)
        self.line_block = AttentionBlock(width, att_heads, att_dim_per_head, att_dropout)
        self.bag = nn.Linear(size, size) if bag_of_embeddings else None
        self.classify = nn.ModuleList(nn.Linear(width + size * bag_of_embeddings, number) for number in num_classes)
        for affine in (self.bag, *self.classify):
            if affine is not None:
                _draw_affine(affine)
        self.dropout, self.bag_dropout = nn.Dropout(att_dropout), nn.Dropout(0.5)
        self.max_words_per_line, self.max_lines = max_words_per_line, max_lines

    def forward(self, docs: Documents, return_embeds: bool = False) -> list[Tensor] | tuple[list[Tensor], Tensor]:
        """Logits (B, classes) of each task; with return_embeds also the document vectors (B, N * d [+ E])."""
        words = self._lines(docs)
        logits, embeds = self._classify(*self._encode_lines(words[:, : self.max_lines]), *self._count_words(words))
        return (logits, embeds) if return_embeds else logits

    def initial_state(self, batch: int) -> HisanState:
        """Documents without any line."""
        table, device = self.embedding.weight, self.embedding.weight.device
        lines = table.new_zeros(batch, self.max_lines, self.line_block.q.in_features)
        counts = torch.zeros(batch, dtype=torch.long, device=device)
        exists = torch.zeros(batch, self.max_lines, dtype=torch.bool, device=device)
        return HisanState(lines, exists, counts, table.new_zeros(batch, table.shape[1]), counts)

    def step(
        self, lines: Sequence[Line] | Tensor, state: HisanState, return_embeds: bool = False
    ) -> tuple[list[Tensor] | tuple[list[Tensor], Tensor], HisanState]:
        """Adds a line to each document: B sequences of word numbers, or (B, n) padded with 0.

        Returns what `forward` gives of the documents so far, and the next state.
        """
        pieces = [self._pieces([line]) for line in lines]
        if len(pieces) != len(state.num_lines):
            raise DataError(f"got {len(pieces)} lines for {len(state.num_lines)} documents; give one for each")
        device = state.num_lines.device
        words = self._pad(pieces)
        vectors, exists = self._encode_lines(words)
        counts = torch.tensor([len(piece) for piece in pieces], device=device)

        # Line p of a document becomes the piece p - num_lines that has just come, where there is such a one.
        source = torch.arange(self.max_lines, device=device) - state.num_lines[:, None]
        is_new = (source >= 0) & (source < counts[:, None])
        source = source.clamp(0, vectors.shape[1] - 1)
        new_vectors = vectors.gather(1, source[..., None].expand(-1, -1, vectors.shape[2]))
        word_sum, num_words = self._count_words(words)
        state = HisanState(
            torch.where(is_new[..., None], new_vectors.to(state.lines.dtype), state.lines),
            torch.where(is_new, exists.gather(1, source), state.exists),
            state.num_lines + counts,
            state.word_sum + word_sum,
            state.num_words + num_words,
        )
        logits, embeds = self._classify(state.lines, state.exists, state.word_sum, state.num_words)
        return ((logits, embeds) if return_embeds else logits), state

    def _encode_lines(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L, w) words -> the (B, L, N * d) line vectors and which lines exist (B, L)."""
        exists = words != 0
        return self.word_block(self.dropout(self.embedding(words)), exists), exists.any(-1)

    def _count_words(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the table rows of all words, and their number; row 0 of the table may not count."""
        exists = words.flatten(1) != 0
        rows = self.embedding(words.flatten(1)).masked_fill(~exists[..., None], 0)
        return rows.sum(1), exists.sum(1)

    def _classify(
        self, lines: Tensor, exists: Tensor, word_sum: Tensor, num_words: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        embeds = self.dropout(self.line_block(self.dropout(lines), exists))
        if self.bag is not None:
            mean = word_sum / num_words.clamp(min=1)[:, None]
            embeds = torch.cat([embeds, self.bag_dropout(torch.tanh(self.bag(mean)))], -1)
        return [affine(embeds) for affine in self.classify], embeds

    def _lines(self, docs: Documents) -> Tensor:
        """Documents of either form as (B, L, w), L at least 1."""
        if not isinstance(docs, Tensor):
            return self._pad([self._pieces(lines) for lines in docs])
        if docs.ndim != 2:
            raise DataError(f"docs have shape {tuple(docs.shape)}; a padded matrix has shape (documents, words)")
        missing = self.max_words_per_line if docs.shape[1] == 0 else -docs.shape[1] % self.max_words_per_line
        return F.pad(docs, (0, missing)).unflatten(1, (-1, self.max_words_per_line))

    def _pieces(self, lines: Sequence[Line]) -> list[Tensor]:
        """Cuts lines at max_words_per_line; an empty line is one piece."""
        if any(isinstance(line, int) for line in lines):
            raise DataError("a document is a plain list of words; give a list of lines, each a list of words")
        rows = [torch.as_tensor(line, dtype=torch.long) for line in lines]
        return [piece for row in rows for piece in row.split(self.max_words_per_line)]

    def _pad(self, documents: Sequence[Sequence[Tensor]]) -> Tensor:
        num_lines = max([1, *map(len, documents)])
        words = torch.zeros(len(documents), num_lines, self.max_words_per_line, dtype=torch.long)
        for row, pieces in zip(words, documents, strict=True):
            for line, piece in zip(row, pieces, strict=False):
                line[: len(piece)] = piece
        return words.to(self.embedding.weight.device)


class AttentionBlock(nn.Module):
    """Self-attention over a set, summed up by one learned query a head. (..., n, D), exists (..., n) -> (..., N * d)

    An empty set gives a zero vector.
    """

    def __init__(self, input_size: int, num_heads: int, head_dim: int, dropout: float):
        super().__init__()
        self.q = nn.Linear(input_size, num_heads * head_dim)
        self.k = nn.Linear(input_size, num_heads * head_dim)
        self.v = nn.Linear(input_size, num_heads * head_dim)
        self.target = nn.Parameter(torch.rand(num_heads * head_dim))
        for affine in (self.q, self.k, self.v):
            _draw_affine(affine)
        self.num_heads, self.head_dim = num_heads, head_dim
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, exists: Tensor) -> Tensor:
        query, key, value = (self._heads(F.elu(affine(x))) for affine in (self.q, self.k, self.v))
        exists = exists[..., None, None, :]  # heads and queries see the same set
        attended = self.dropout(self._weights(query @ key.mT, exists)) @ value
        target = self.target.view(self.num_heads, 1, self.head_dim)
        summary = self.dropout(self._weights((target * attended).sum(-1)[..., None, :], exists)) @ attended
        return summary.flatten(-3)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-2, -3)  # (..., N, n, d)

    def _weights(self, scores: Tensor, exists: Tensor) -> Tensor:
        """Softmax over what exists; where nothing does, zeros."""
        lowest = torch.finfo(scores.dtype).min
        weights = (scores * self.head_dim**-0.5).masked_fill(~exists, lowest).softmax(-1)
        return weights.masked_fill(~exists, 0)


def _normalise(matrix: np.ndarray, scale: float) -> Tensor:
    """A normalised copy of the table; a column that is constant becomes zero."""
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ConfigError(f"embedding_matrix has shape {matrix.shape}; it has to be (words, width), none of them 0")
    values = torch.tensor(matrix, dtype=torch.float64)
    if not values.isfinite().all():
        raise ConfigError("embedding_matrix has values that are not finite; mend or drop those rows")
    centred = values - values.mean(0)
    varies = values.amax(0) > values.amin(0)
    deviation = torch.where(varies, centred.pow(2).sum(0) / max(1, len(values) - 1), 1).sqrt()
    table = torch.where(varies, centred / (deviation * scale), 0)
    table[0] = 0
    return table


def _draw_affine(affine: nn.Linear) -> None:
    nn.init.xavier_uniform_(affine.weight)
    nn.init.zeros_(affine.bias)
