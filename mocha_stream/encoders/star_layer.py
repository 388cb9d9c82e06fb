"""A layer of the Star-Transformer, for chunks one by one and for all chunks of a sequence at once.

Everything is as of the end of a chunk; a sequence in one chunk gives the published layer.

Letters in shapes, beyond those of streaming.py: C chunks, K frames in a chunk, N heads, d width of a head.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..streaming import length_mask


class StarLayerState(NamedTuple):
    left_key: Tensor  # (B, N, d) of the last frame in the ring; zero before the first one
    left_value: Tensor  # (B, N, d)
    star_keys: Tensor  # (B, relay_memory, N, d) of the last frames, the newest at the end; none in the last layer
    star_values: Tensor  # (B, relay_memory, N, d)


def hear_chunks(
    layers: nn.ModuleList, embeddings: Tensor, lengths: Tensor, chunk: int, relay_memory: int | None
) -> tuple[Tensor, Tensor]:
    """All chunks of whole sequences at once. (B, S, D) -> nodes (B, S, D) and the relay of each chunk (B, C, D)

    The relays attend to a band of frames, at most `relay_memory` before the end of their chunk. So that no S x S
    scores are made, chunks that end within the same block of at least `relay_memory` frames are taken together:
    their bands lie in that block and the one before.
    """
    size = embeddings.shape[1]
    num_chunks = max(1, -(-size // chunk))
    per_block = num_chunks if relay_memory is None else min(num_chunks, -(-relay_memory // chunk))
    num_blocks = -(-num_chunks // per_block)
    num_chunks, block = num_blocks * per_block, per_block * chunk

    embeddings = F.pad(embeddings, (0, 0, 0, num_chunks * chunk - size))
    valid = length_mask(lengths, num_chunks * chunk)
    embeddings = embeddings.masked_fill(~valid[..., None], 0).unflatten(1, (num_chunks, chunk))
    valid = valid.unflatten(1, (num_chunks, chunk))
    ends = (torch.arange(num_chunks, device=lengths.device) + 1) * chunk
    ends = torch.minimum(ends, lengths[:, None])  # (B, C)

    sums = embeddings.sum(2, dtype=at_least_float32(embeddings.dtype)).cumsum(1)
    nodes, relay = embeddings, (sums / ends.clamp(min=1)[..., None]).to(embeddings.dtype)

    reach = block if num_blocks == 1 else 2 * block
    first = (torch.arange(num_blocks, device=lengths.device) + 1) * block - reach
    frame = (first[:, None] + torch.arange(reach, device=lengths.device))[:, None]  # (blocks, 1, reach)
    ends = ends.view(-1, num_blocks, per_block, 1)
    heard = (frame >= 0) & (frame < ends)
    if relay_memory is not None:
        heard = heard & (frame >= ends - relay_memory)

    for layer in layers:
        assert isinstance(layer, StarLayer)
        nodes, _ = layer.ring_step(nodes, embeddings, relay, valid=valid)
        if layer.star is None:
            break
        keys, values = (part.unflatten(1, (num_blocks, block)) for part in layer.star.keys_values(nodes.flatten(1, 2)))
        if num_blocks > 1:
            keys, values = (torch.cat([_shift(part, 1), part], 2) for part in (keys, values))
        relay = layer.star_step(relay.unflatten(1, (num_blocks, per_block)), keys, values, heard).flatten(1, 2)
    return nodes.flatten(1, 2)[:, :size], relay


class StarLayer(nn.Module):
    """A ring step, in which every node hears its neighbours, and a star step, in which the relay hears the nodes."""

    def __init__(self, width: int, num_heads: int, head_dim: int, has_star: bool = True):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.ring = Heads(width, num_heads, head_dim)
        self.star = Heads(width, num_heads, head_dim) if has_star else None

    def step(
        self,
        nodes: Tensor,
        embeddings: Tensor,
        relay: Tensor,
        state: StarLayerState,
        num_frames: Tensor,
        relay_memory: int | None,
    ) -> tuple[Tensor, Tensor, StarLayerState]:
        """One chunk: nodes and embeddings (B, 1, K, D), relay (B, 1, D), and the (B,) frames heard with it."""
        nodes, left = self.ring_step(nodes, embeddings, relay, (state.left_key, state.left_value))
        if self.star is None:
            return nodes, relay, StarLayerState(*left, state.star_keys, state.star_values)
        keys, values = self.star.keys_values(nodes[:, 0])
        keys = torch.cat([state.star_keys.to(keys.dtype), keys], 1)
        values = torch.cat([state.star_values.to(values.dtype), values], 1)
        if relay_memory is not None:
            keys, values = keys[:, -relay_memory:], values[:, -relay_memory:]
        heard = length_mask(num_frames, keys.shape[1]).flip(1)  # the memory may not be full yet
        relay = self.star_step(relay[:, None], keys[:, None], values[:, None], heard[:, None, None])[:, 0]
        return nodes, relay, StarLayerState(*left, keys, values)

    def ring_step(
        self,
        nodes: Tensor,
        embeddings: Tensor,
        relay: Tensor,
        before: tuple[Tensor, Tensor] | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Each node attends to its left and right neighbour, itself, its embedding and the relay of its chunk.

        nodes, embeddings (B, C, K, D), relay (B, C, D), `before`: key and value (B, N, d) of the frame before the
        first one, `valid` (B, C, K). Returns the new nodes, and key and value of the last frame. A neighbour that
        is missing is a zero key and value that stays in the softmax.
        """
        normed = self.norm(nodes)
        query = self.ring.queries(normed)
        keys, values = self.ring.keys_values(normed)
        if valid is not None:
            keys, values = (part.masked_fill(~valid[..., None, None], 0) for part in (keys, values))
        embedding_key, embedding_value = self.ring.keys_values(embeddings)
        relay_key, relay_value = self.ring.keys_values(relay[:, :, None])
        before_key, before_value = before or (None, None)

        seen = [_left(keys, before_key), keys, _shift(keys, -1, dim=2), embedding_key, relay_key]
        scores = torch.stack([(query * key).sum(-1) for key in seen], -1) * self.ring.head_dim**-0.5
        weights = scores.softmax(-1, dtype=at_least_float32(scores.dtype)).to(values.dtype)
        heard = [_left(values, before_value), values, _shift(values, -1, dim=2), embedding_value, relay_value]
        mixed = sum(weights[..., i, None] * value for i, value in enumerate(heard))
        assert isinstance(mixed, Tensor)
        nodes = self.ring.output(mixed)
        if valid is not None:
            nodes = nodes.masked_fill(~valid[..., None], 0)
        return nodes, (keys[:, -1, -1], values[:, -1, -1])

    def star_step(self, relay: Tensor, keys: Tensor, values: Tensor, heard: Tensor) -> Tensor:
        """Each relay attends to itself and to the nodes it has heard.

        For each of G groups of Q relays with F nodes in common: relay (B, G, Q, D), keys and values of the nodes
        (B, G, F, N, d), `heard` (B or 1, G, Q, F) -> (B, G, Q, D)
        """
        assert self.star is not None
        query = self.star.queries(relay)
        own_key, own_value = self.star.keys_values(relay)
        own_score = (query * own_key).sum(-1).mT[..., None]  # (B, G, N, Q, 1)
        scores = torch.einsum("bgqnd,bgfnd->bgnqf", query, keys).masked_fill(~heard[:, :, None], float("-inf"))
        scores = torch.cat([own_score, scores], -1) * self.star.head_dim**-0.5
        weights = scores.softmax(-1, dtype=at_least_float32(scores.dtype)).to(values.dtype)
        mixed = torch.einsum("bgnqf,bgfnd->bgqnd", weights[..., 1:], values)
        return self.star.output(mixed + weights[..., 0].mT[..., None] * own_value)


class Heads(nn.Module):
    """The four projections of an attention with several heads: D features to N heads of width d, and back."""

    def __init__(self, width: int, num_heads: int, head_dim: int):
        super().__init__()
        if min(width, num_heads, head_dim) < 1:
            raise ConfigError(f"width is {width}, heads {num_heads} of width {head_dim}; each has to be at least 1")
        self.q = nn.Linear(width, num_heads * head_dim)
        self.k = nn.Linear(width, num_heads * head_dim)
        self.v = nn.Linear(width, num_heads * head_dim)
        self.o = nn.Linear(num_heads * head_dim, width)
        self.num_heads, self.head_dim = num_heads, head_dim

    def queries(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., N, d)"""
        return self.q(x).unflatten(-1, (self.num_heads, self.head_dim))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(..., D) -> two of (..., N, d)"""
        heads = (self.num_heads, self.head_dim)
        return self.k(x).unflatten(-1, heads), self.v(x).unflatten(-1, heads)

    def output(self, x: Tensor) -> Tensor:
        """(..., N, d) -> (..., D)"""
        return F.leaky_relu(self.o(x.flatten(-2)), 0.01)


def _shift(x: Tensor, by: int, dim: int = 1) -> Tensor:
    """Moves x by one along `dim`, to the right (1) or left (-1); a zero moves in."""
    zero = torch.zeros_like(x.narrow(dim, 0, 1))
    rest = x.narrow(dim, 0 if by > 0 else 1, x.shape[dim] - 1)
    return torch.cat([zero, rest] if by > 0 else [rest, zero], dim)


def _left(x: Tensor, before: Tensor | None) -> Tensor:
    """What lies left of each frame of x (B, C, K, N, d), across chunks; `before` (B, N, d) left of the first one."""
    frames = x.flatten(1, 2)
    first = torch.zeros_like(frames[:, :1]) if before is None else before[:, None].to(x.dtype)
    return torch.cat([first, frames[:, :-1]], 1).unflatten(1, x.shape[1:3])


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
