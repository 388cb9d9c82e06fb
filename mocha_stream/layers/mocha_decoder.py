"""The published MoChA decoder (Chiu and Raffel 2018, 1712.05382): an Elman cell, attention, and a projection.

The speech recogniser's own decoder is `mocha_stream.decoder`, and `mocha_stream.search` decodes streams with it.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..attention import AdditiveEnergy, Mocha, hard_chunkwise, hard_monotonic
from ..errors import ConfigError


class Decoded(NamedTuple):
    """What `MochaDecoder.greedy` finds."""

    tokens: Tensor  # (B, U)
    positions: Tensor  # (B, U) frame attended, -1 where none was
    logits: Tensor  # (B, U, V)


class MochaDecoder(nn.Module):
    """Encoder frames (B, S, enc_dim) and the tokens before to logits (B, U, V); the context does not enter the cell.

    Args:
        enc_dim, dec_dim, embedding_dim, att_dim, out_dim: widths of frames, states, token vectors, energies and of
            the combination of context and state
        vocab_size: V
        chunk_size: frames of the attention window
        sos_id: the token before the first one
        init_r: offset of the monotonic energy at the start of training
        on_miss: in `greedy`, without a frame to stop at, `stop` attends nothing from there on (the paper),
            `last` attends the last valid frame

    Raises ConfigError for settings out of range.

    >>> decoder = MochaDecoder(vocab_size=20)
    >>> frames, lengths = torch.randn(2, 12, 10), torch.tensor([12, 7])
    >>> logits, alpha = decoder(frames, lengths, torch.randint(20, (2, 5)))
    >>> logits.shape, alpha.shape
    (torch.Size([2, 5, 20]), torch.Size([2, 5, 12]))
    >>> decoder.greedy(frames, lengths, num_steps=4).tokens.shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        enc_dim: int = 10,
        dec_dim: int = 10,
        embedding_dim: int = 10,
        att_dim: int = 10,
        out_dim: int = 10,
        vocab_size: int = 100,
        chunk_size: int = 3,
        sos_id: int = 1,
        init_r: float = -4.0,
        on_miss: str = "stop",
    ):
        super().__init__()
        sizes = {"enc_dim": enc_dim, "dec_dim": dec_dim, "embedding_dim": embedding_dim, "att_dim": att_dim}
        for name, size in (sizes | {"out_dim": out_dim, "vocab_size": vocab_size}).items():
            if size < 1:
                raise ConfigError(f"{name} is {size}; it has to be at least 1")
        if not 0 <= sos_id < vocab_size:
            raise ConfigError(f"sos_id is {sos_id}; with {vocab_size} tokens it has to be from 0 to {vocab_size - 1}")
        if on_miss not in ("stop", "last"):
            raise ConfigError(f"on_miss is {on_miss!r}; expected stop or last")
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.rnn = nn.RNN(embedding_dim, dec_dim, batch_first=True)
        self.attention = Mocha(enc_dim, dec_dim, att_dim, chunk_size, init_r)
        self.combine = nn.Linear(enc_dim + dec_dim, out_dim, bias=False)
        self.vocab = nn.Linear(out_dim, vocab_size)
        self.sos_id, self.on_miss = sos_id, on_miss

    def forward(
        self, encoder: Tensor, lengths: Tensor, targets: Tensor, initial_state: Tensor | None = None, noise: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Teacher forcing with soft attention: logits of every step and the probabilities to stop (B, U, S).

        Step i sees the first i of the (B, U) `targets`. `initial_state` (B, dec_dim) is zero by default; `noise` is
        the standard deviation of that on the monotonic energies, for training.
        """
        start = torch.full_like(targets[:, :1], self.sos_id)
        states, _ = self.rnn(self.embedding(torch.cat([start, targets[:, :-1]], 1)), _first(initial_state))
        aligned = self.attention.expect(states, self.attention.remember(encoder), lengths, noise)
        return self._score(aligned.context, states), aligned.alpha

    @torch.no_grad()
    def greedy(self, encoder: Tensor, lengths: Tensor, num_steps: int, initial_state: Tensor | None = None) -> Decoded:
        """The most probable token of each of `num_steps` steps, with hard attention."""
        stop_energy = cast(AdditiveEnergy, self.attention.stop_energy)
        chunk_energy = cast(AdditiveEnergy, self.attention.chunk_energy)
        memory, state = self.attention.remember(encoder), _first(initial_state)
        token = torch.full((len(encoder),), self.sos_id, device=encoder.device)
        position, steps = torch.zeros_like(token), []
        for _ in range(num_steps):
            output, state = self.rnn(self.embedding(token)[:, None], state)
            stop = stop_energy(stop_energy.query(output), memory.stop_keys)
            chunk = chunk_energy(chunk_energy.query(output), memory.chunk_keys)
            position = hard_monotonic(stop[:, 0], lengths, position, self.on_miss)
            beta = hard_chunkwise(position, chunk[:, 0], self.attention.window)
            logits = self._score(beta[:, None] @ encoder, output)[:, 0]
            token = logits.argmax(-1)
            steps.append(Decoded(token, position, logits))
        return Decoded(*(torch.stack(parts, 1) for parts in zip(*steps, strict=True)))

    def _score(self, context: Tensor, states: Tensor) -> Tensor:
        return self.vocab(torch.tanh(self.combine(torch.cat([context, states], -1))))


def _first(initial_state: Tensor | None) -> Tensor | None:
    return None if initial_state is None else initial_state[None]
