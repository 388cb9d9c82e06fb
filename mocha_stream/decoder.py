"""The decoder: an LSTM over the tokens so far, which asks the attention where the next one is and what is there.

As in the published decoder the context is not fed back into the cell, so the states of all output steps, and with
them all energies, are known at once in training.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .few_rows import Linear, run_lstm

START = 0
"""The token before the first one. It is the blank of the CTC head, and no token of text."""


class DecoderState(NamedTuple):
    output: Tensor  # (B, Q) what the attention is asked with
    cell: Tensor  # (B, Q)


class Decoder(nn.Module):
    """Tokens and contexts to scores of the next token.

    Args:
        vocab_size: V, the tokens, `START` included
        embedding: width of a token's embedding
        width: Q, cells of the LSTM
        context: E, width of the attention's contexts
        dropout: of embeddings and states, in training

    >>> decoder = Decoder(vocab_size=10, embedding=4, width=6, context=8)
    >>> decoder(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 4, 6])
    """

    def __init__(self, vocab_size: int, embedding: int, width: int, context: int, dropout: float = 0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embedding)
        self.lstm = nn.LSTM(embedding, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.combine = Linear(context + width, width)
        self.output = Linear(width, vocab_size)

    def initial_state(self, batch: int) -> DecoderState:
        """The state after `START`: what asks for the first token."""
        zeros = self.output.weight.new_zeros(batch, self.lstm.hidden_size)
        tokens = torch.full((batch,), START, device=zeros.device)
        return self.step(tokens, DecoderState(zeros, zeros))

    def step(self, tokens: Tensor, state: DecoderState) -> DecoderState:
        """The state after one more token of each stream, (B,)."""
        embedded = self.embed(tokens)
        if len(tokens) == 1:
            return DecoderState(*run_lstm(self.lstm, embedded[:, None], *state, 1)[1:])
        return DecoderState(*torch.lstm_cell(embedded, state, *self.lstm.all_weights[0]))

    def forward(self, tokens: Tensor) -> Tensor:
        """States before each token and after the last. (B, U) -> (B, U + 1, Q)"""
        start = torch.full((len(tokens), 1), START, dtype=tokens.dtype, device=tokens.device)
        embedded = self.dropout(self.embed(torch.cat([start, tokens], 1)))
        return self.dropout(self.lstm(embedded)[0])

    def score(self, context: Tensor, states: Tensor) -> Tensor:
        """Logits of the next token. (B, ..., E), (B, ..., Q) -> (B, ..., V)"""
        return self.output(self.dropout(torch.tanh(self.combine(torch.cat([context, states], -1)))))
