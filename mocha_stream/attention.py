"""Monotonic chunkwise attention (MoChA): its energies, its expectation for training, its walk for decoding.

Monotonic attention is from Raffel et al. 2017 (arXiv 1704.00784), the chunkwise form from Chiu and Raffel 2018
(arXiv 1712.05382). Letters as in `streaming.py`; E is the width of encoder frames, Q that of decoder states.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import ConfigError
from .few_rows import Linear
from .streaming import length_mask


class AdditiveEnergy(nn.Module):
    """The published energy, g v/|v| . tanh(W frame + V state + b) + r (arXiv 1704.00784, 1712.05382).

    Args:
        enc_dim: E, width of the encoder frames
        dec_dim: Q, width of the decoder states
        att_dim: A, width of the comparison
        init_r: r at the start; sigmoid(r) is the chance to stop at a frame

    >>> energy = AdditiveEnergy(enc_dim=8, dec_dim=6, att_dim=4)
    >>> energy(energy.query(torch.randn(2, 5, 6)), energy.key(torch.randn(2, 20, 8))).shape
    torch.Size([2, 5, 20])
    """

    def __init__(self, enc_dim: int, dec_dim: int, att_dim: int, init_r: float = -4.0):
        super().__init__()
        self.key = nn.Linear(enc_dim, att_dim)
        self.query = Linear(dec_dim, att_dim, bias=False)
        self.v = nn.Parameter(nn.Linear(att_dim, 1).weight[0].detach().clone())
        self.g = nn.Parameter(torch.tensor(att_dim**-0.5))
        self.r = nn.Parameter(torch.tensor(float(init_r)))
        nn.init.zeros_(self.key.bias)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies from projected states and frames. (B, U, A), (B, S, A) -> (B, U, S)"""
        direction = self.g * self.v / self.v.norm()
        return torch.tanh(queries[:, :, None] + keys[:, None]) @ direction + self.r


class DotEnergy(nn.Module):
    """Scaled dot product, (V state + c) . (W frame + b) / sqrt(A) + r. Arguments as for `AdditiveEnergy`.

    >>> energy = DotEnergy(enc_dim=8, dec_dim=6, att_dim=4)
    >>> energy(energy.query(torch.randn(2, 5, 6)), energy.key(torch.randn(2, 20, 8))).shape
    torch.Size([2, 5, 20])
    """

    def __init__(self, enc_dim: int, dec_dim: int, att_dim: int, init_r: float = -4.0):
        super().__init__()
        self.key = nn.Linear(enc_dim, att_dim)
        self.query = Linear(dec_dim, att_dim)
        self.r = nn.Parameter(torch.tensor(float(init_r)))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies from projected states and frames. (B, U, A), (B, S, A) -> (B, U, S)"""
        return torch.baddbmm(self.r, queries, keys.mT, alpha=queries.shape[-1] ** -0.5)


ENERGIES: dict[str, type[AdditiveEnergy] | type[DotEnergy]] = {"additive": AdditiveEnergy, "dot": DotEnergy}


# ---------------------------------------------------------------- soft: training


class _MonotonicRecursion(torch.autograd.Function):
    """alpha[u, j] = p[u, j] q[u, j],  q[u, j] = (1 - p[u, j-1]) q[u, j-1] + alpha[u-1, j].

    The recursion runs along anti-diagonals d = u + j: everything on one depends only on the one before, so S + U
    steps of two operations do the work of S x U, without any division or logarithm. The backward pass walks the
    same diagonals in reverse. Tensors are skewed, (diagonals, U + 1, B), row 0 being the attention before the first
    step, so that a diagonal, with or without its first or last row, is one piece of memory.
    """

    @staticmethod
    def forward(ctx: Any, stop: Tensor, go: Tensor, before: Tensor) -> Tensor:
        num_rows, size = stop.shape[1:]
        stop, go = _skew(stop), _skew(go)
        arrived, alpha = torch.zeros_like(stop), torch.zeros_like(stop)
        alpha[:size, 0] = before.T
        p, rest, q, here = (x[:, 1:].unbind(0) for x in (stop, go, arrived, alpha))
        above = alpha[:, :-1].unbind(0)
        for d in range(1, size + num_rows):
            torch.addcmul(above[d - 1], rest[d - 1], q[d - 1], out=q[d])
            torch.mul(p[d], q[d], out=here[d])
        ctx.save_for_backward(stop, go, arrived)
        return _unskew(alpha, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stop, go, arrived = ctx.saved_tensors
        num_rows, size = grad.shape[1:]
        to_alpha, to_arrived = _skew(grad), torch.zeros_like(stop)
        p, rest, to_q, here = (x[:, 1:].unbind(0) for x in (stop, go, to_arrived, to_alpha))
        above = to_alpha[:, :-1].unbind(0)
        for d in range(size + num_rows - 1, 0, -1):
            if d + 1 < size + num_rows:
                torch.mul(rest[d], to_q[d + 1], out=to_q[d])
            to_q[d].addcmul_(p[d], here[d])
            above[d - 1].add_(to_q[d])
        to_go = torch.zeros_like(stop)
        torch.mul(to_arrived[1:], arrived[:-1], out=to_go[:-1])
        return _unskew(to_alpha * arrived, size), _unskew(to_go, size), to_alpha[:size, 0].T


def _skew(x: Tensor) -> Tensor:
    """(B, U, S) -> (S + U, U + 1, B): entry [u + 1 + j, u + 1, b] is x[b, u, j], all others 0."""
    batch, num_rows, size = x.shape
    # A row of width S + U + 1 read as rows of width S + U moves each next row one further to the right.
    padded = x.new_zeros(batch, num_rows + 1, size + num_rows + 1)
    padded[:, 1:, :size] = x
    skewed = padded.reshape(batch, -1)[:, : (num_rows + 1) * (size + num_rows)]
    return skewed.reshape(batch, num_rows + 1, size + num_rows).permute(2, 1, 0).contiguous()


def _unskew(x: Tensor, size: int) -> Tensor:
    """The inverse of `_skew`, without the row before the first step."""
    total, rows, batch = x.shape
    flat = F.pad(x.permute(2, 1, 0).reshape(batch, -1), (0, rows))
    return flat.reshape(batch, rows, total + 1)[:, 1:, :size]


def soft_monotonic(
    energy: Tensor,
    lengths: Tensor | None = None,
    previous: Tensor | None = None,
    discount: float = 0.0,
    latest: Tensor | None = None,
) -> Tensor:
    """Probability that each output step stops at each frame, exact (SPEC 8.2; Raffel et al., equation 10).

    Args:
        energy: (B, U, S); a step stops at a frame with probability sigmoid(energy)
        lengths: (B,) valid frames; padded ones are never stopped at
        previous: (B, S) attention before the first of the U steps; by default all of it on frame 0
        discount: share that is taken off every probability to stop (Inaguma and Kawahara 2021, "StableEmit", arXiv
            2107.00635): to lose no mass in training, energies rise, and in decoding stops come earlier
        latest: (B, U) last frame that each step may stop at (Inaguma et al. 2020, "DeCoT", arXiv 2004.05009)

    Returns:
        (B, U, S). The scan of each step starts at the frame of the step before, that one included. What a row lacks
        to 1 is the probability that its step stops nowhere. Computed in float32 at least.
    """
    energy = energy.float() if energy.dtype in (torch.float16, torch.bfloat16) else energy
    batch, _, size = energy.shape
    stop, go = torch.sigmoid(energy), torch.sigmoid(-energy)
    if discount:
        go, stop = go + discount * stop, (1 - discount) * stop
    if lengths is not None:
        valid = length_mask(lengths, size)[:, None]
        stop, go = stop.masked_fill(~valid, 0.0), go.masked_fill(~valid, 1.0)
    if latest is not None:
        late = torch.arange(size, device=energy.device) > latest[..., None]
        stop, go = stop.masked_fill(late, 0.0), go.masked_fill(late, 1.0)
    if previous is None:
        previous = F.one_hot(torch.zeros(batch, dtype=torch.long, device=energy.device), size)
    return _MonotonicRecursion.apply(stop, go, previous.to(stop.dtype))


def soft_chunkwise(alpha: Tensor, energy: Tensor, window: int) -> Tensor:
    """Spreads each stop over the window that ends there, by softmax (SPEC 8.3; Chiu and Raffel, equation 14).

    Args:
        alpha: (B, U, S) from `soft_monotonic`
        energy: (B, U, S) chunk energies; those at padded frames do not count, their alpha being 0
        window: W >= 1, frames up to and with the one stopped at; cut at the start of the sequence

    Returns:
        (B, U, S), each row with the sum that it has in alpha. Each window has its own maximum taken out.
    """
    size = energy.shape[-1]
    window = min(window, size)
    padded = F.pad(energy.to(alpha.dtype), (window - 1, 0), value=-torch.inf)
    windows = torch.stack([padded[..., first : first + size] for first in range(window)])
    spread = windows.softmax(0) * alpha  # entry [k, ..., j] falls on frame j - (window - 1 - k)
    beta = spread[-1]
    for back in range(1, window):
        beta = beta + F.pad(spread[-1 - back, ..., back:], (0, back))
    return beta


# ---------------------------------------------------------------- hard: decoding


def hard_monotonic(energy: Tensor, lengths: Tensor, start: Tensor, on_miss: str = "stop") -> Tensor:
    """The frame that one output step stops at, from energies of all frames (SPEC 8.4). For tests and analysis.

    Decoding itself never has those energies: see `search.py`, which walks and evaluates each once.

    Args:
        energy: (B, S)
        lengths: (B,) valid frames
        start: (B,) frame of the step before, itself examined again; 0 for the first step, -1 after a miss
        on_miss: without any energy > 0 in reach, `stop` gives -1 and `last` the last valid frame

    Returns:
        (B,) frames, -1 where the step stops nowhere.
    """
    if on_miss not in ("stop", "last"):
        raise ConfigError(f"on_miss is {on_miss!r}; expected stop or last")
    at = torch.arange(energy.shape[1], device=energy.device)
    chosen = (energy > 0) & (at >= start[:, None]) & length_mask(lengths, energy.shape[1])
    missed = torch.full_like(start, -1) if on_miss == "stop" else lengths - 1
    stop = torch.where(chosen.any(1), chosen.int().argmax(1), missed)
    return torch.where(start < 0, torch.full_like(stop, -1), stop)


def hard_chunkwise(stop: Tensor, energy: Tensor, window: int) -> Tensor:
    """Softmax of the (B, S) chunk energies over the window that ends at (B,) `stop`; zeros where that is -1."""
    at = torch.arange(energy.shape[1], device=energy.device)
    inside = (at <= stop[:, None]) & (at > stop[:, None] - window)
    weights = energy.masked_fill(~inside, -torch.inf).softmax(1)
    return torch.where(inside, weights, torch.zeros_like(weights))


# ---------------------------------------------------------------- the module


class Memory(NamedTuple):
    """Encoder frames with what the attention needs of each, computed once per frame."""

    frames: Tensor  # (B, S, E)
    stop_keys: Tensor  # (B, S, A)
    chunk_keys: Tensor  # (B, S, A)


class Alignment(NamedTuple):
    """What soft attention gives for all output steps at once."""

    context: Tensor  # (B, U, E)
    alpha: Tensor  # (B, U, S) probability to stop
    beta: Tensor  # (B, U, S) probability to attend


class Mocha(nn.Module):
    """Two energies, one to stop and one to weigh the window, and both ways to use them.

    Args:
        enc_dim, dec_dim, att_dim: E, Q and A
        window: W, frames that a step attends to
        init_r: offset of the stop energy; about -ln(frames per token)
        energy: `additive` or `dot`

    Raises:
        ConfigError: an unknown energy, or a window below 1.

    >>> mocha = Mocha(enc_dim=8, dec_dim=6, att_dim=4, window=3)
    >>> memory = mocha.remember(torch.randn(2, 20, 8))
    >>> mocha.expect(torch.randn(2, 5, 6), memory, lengths=torch.tensor([20, 12])).context.shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self, enc_dim: int, dec_dim: int, att_dim: int, window: int = 3, init_r: float = -4.0, energy: str = "additive"
    ):
        super().__init__()
        if energy not in ENERGIES:
            raise ConfigError(f"energy is {energy!r}; expected one of {', '.join(ENERGIES)}")
        if window < 1:
            raise ConfigError(f"window is {window}; it counts frames, so it is 1 or more")
        self.window = window
        self.stop_energy = ENERGIES[energy](enc_dim, dec_dim, att_dim, init_r)
        self.chunk_energy = ENERGIES[energy](enc_dim, dec_dim, att_dim, 0.0)
        self.chunk_energy.r.requires_grad_(False)  # an offset cancels in the softmax

    def remember(self, frames: Tensor) -> Memory:
        """The keys of (B, S, E) frames."""
        return Memory(frames, self.stop_energy.key(frames), self.chunk_energy.key(frames))

    def expect(
        self,
        states: Tensor,
        memory: Memory,
        lengths: Tensor,
        noise: float = 0.0,
        discount: float = 0.0,
        latest: Tensor | None = None,
    ) -> Alignment:
        """Soft attention of all output steps, for training.

        Args:
            states: (B, U, Q) decoder states
            memory: of S frames, (B,) `lengths` of them valid
            noise: standard deviation of the Gaussian noise on the stop energies, which teaches them to be decided
            discount, latest: as for `soft_monotonic`
        """
        stop = self.stop_energy(self.stop_energy.query(states), memory.stop_keys)
        chunk = self.chunk_energy(self.chunk_energy.query(states), memory.chunk_keys)
        if noise > 0:
            stop = stop + noise * torch.randn_like(stop)
        alpha = soft_monotonic(stop, lengths, discount=discount, latest=latest)
        beta = soft_chunkwise(alpha, chunk, self.window)
        return Alignment(beta.to(memory.frames.dtype) @ memory.frames, alpha, beta)
