"""The Star-Transformer (Guo et al. 2019, 1902.09113): neighbours attend to each other, and a relay node to them all.

`StarTransformer` is the published layer; `StreamingStarTransformer` is the speech encoder, which works chunk by chunk.
Both run the layers of `star_layer.py`: the published layer is the case of one chunk as long as the sequence.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .star_layer import Heads, StarLayer, StarLayerState, at_least_float32, hear_chunks


class StarTransformer(nn.Module):
    """The published Star-Transformer, untouched by padding. (B, S, H) -> nodes (B, S, H) and relay (B, H)

    Args:
        hidden_size: H
        num_layers: pairs of a ring and a star step
        num_head, head_dim: their product need not be H
        dropout: on the embeddings (data and position) only
        max_len: how many positions have an embedding; None: no position embeddings

    Raises ConfigError for sizes below 1, and in `forward` for a row with more than max_len valid positions.

    >>> layer = StarTransformer(hidden_size=8, num_layers=2, num_head=2, head_dim=4).eval()
    >>> nodes, relay = layer(torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]))
    >>> nodes.shape, relay.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        hidden_size: int,
        num_layers: int,
        num_head: int,
        head_dim: int,
        dropout: float = 0.1,
        max_len: int | None = None,
    ):
        super().__init__()
        if min(num_layers, 1 if max_len is None else max_len) < 1:
            raise ConfigError(f"num_layers is {num_layers} and max_len {max_len}; both have to be at least 1")
        self.layers = nn.ModuleList(StarLayer(hidden_size, num_head, head_dim) for _ in range(num_layers))
        self.position = nn.Embedding(max_len, hidden_size) if max_len is not None else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, data: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """`mask` (B, S) is true where `data` is valid, anywhere in the row. Nodes elsewhere are 0."""
        mask = mask.bool()
        order = mask.int().argsort(dim=1, descending=True, stable=True)[..., None].expand_as(data)
        lengths = mask.sum(1)
        embeddings = data.gather(1, order)  # valid positions first
        if self.position is not None:
            embeddings = embeddings + self._positions(lengths, data.shape[1])
        embeddings = self.dropout(embeddings)
        nodes, relay = hear_chunks(self.layers, embeddings, lengths, max(1, data.shape[1]), None)
        return torch.zeros_like(nodes).scatter(1, order, nodes), relay[:, -1]

    def _positions(self, lengths: Tensor, size: int) -> Tensor:
        assert self.position is not None
        known = self.position.num_embeddings
        if size > known and int(lengths.max()) > known:
            raise ConfigError(
                f"a row has {int(lengths.max())} valid positions and max_len is {known}; cut it or raise max_len"
            )
        return self.position(torch.arange(size, device=lengths.device).clamp(max=known - 1))


class StreamingStarTransformerState(NamedTuple):
    waiting: Tensor  # (B, < chunk, D) frames whose chunk is not complete
    mean: Tensor  # (B, D) of all frames before the chunk
    num_frames: Tensor  # (B,) that the mean is of
    layers: tuple[StarLayerState, ...]


class StreamingStarTransformer(nn.Module):
    """The Star-Transformer as a speech encoder: everything as of the end of a chunk. (B, S, D) -> (B, S, D)

    The relay starts from the running mean of all frames up to the end of the chunk, and attends to the last
    `relay_memory` frames; the ring hears its right neighbour only inside the chunk. `chunk` is given with each call,
    so one set of weights serves every latency; None is one chunk as long as the sequence. With that and
    relay_memory None it is the published layer, but for the last star step: only the nodes come out, so there is
    none. relay_memory None also means a state that grows with the stream.

    Args:
        width: D, the features of a frame
        num_layers: pairs of a ring and a star step
        num_heads, head_dim: of both steps; head_dim None is width / num_heads
        relay_memory: frames that the relay attends to; None: all
        dropout: of the incoming frames, in training
        final_norm: normalises what comes out, which the published layer does not; attention and CTC heads then
            learn faster

    Raises ConfigError for sizes below 1, and for a width that does not divide among the heads.

    >>> encoder = StreamingStarTransformer(width=8, num_layers=2, num_heads=2, relay_memory=6).eval()
    >>> x, state = torch.randn(1, 10, 8), encoder.initial_state(1)
    >>> first, state = encoder.step(x[:, :7], state, chunk=4)
    >>> second, state = encoder.step(x[:, 7:], state, chunk=4)
    >>> last = encoder.finish(state, chunk=4)
    >>> first.shape[1], second.shape[1], last.shape[1]
    (4, 4, 2)
    >>> torch.allclose(torch.cat([first, second, last], 1), encoder(x, torch.tensor([10]), chunk=4), atol=1e-5)
    True
    """

    def __init__(
        self,
        width: int,
        num_layers: int,
        num_heads: int,
        head_dim: int | None = None,
        relay_memory: int | None = 128,
        dropout: float = 0.0,
        final_norm: bool = False,
    ):
        super().__init__()
        if head_dim is None and (num_heads < 1 or width % num_heads):
            raise ConfigError(f"width is {width} and num_heads {num_heads}; the heads have to divide the width")
        if min(num_layers, 1 if relay_memory is None else relay_memory) < 1:
            raise ConfigError(f"num_layers is {num_layers}, relay_memory {relay_memory}; both have to be at least 1")
        head_dim = head_dim or width // num_heads
        self.layers = nn.ModuleList(
            StarLayer(width, num_heads, head_dim, has_star=index + 1 < num_layers) for index in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width) if final_norm else nn.Identity()
        self.relay_memory = relay_memory

    def forward(self, x: Tensor, lengths: Tensor, chunk: int | None = None) -> Tensor:
        """Whole sequences of (B,) lengths; what comes out past a row's end is of no meaning."""
        chunk = min(chunk or x.shape[1], x.shape[1])
        return self.norm(hear_chunks(self.layers, self.dropout(x), lengths, max(1, chunk), self.relay_memory)[0])

    def initial_state(self, batch: int) -> StreamingStarTransformerState:
        """Before the first frame: nothing to the left, nothing in memory."""
        ring: Heads = self.layers[0].ring  # type: ignore[assignment]
        weight = ring.q.weight
        left = weight.new_zeros(batch, ring.num_heads, ring.head_dim)
        none = weight.new_zeros(batch, 0, ring.num_heads, ring.head_dim)
        empty = weight.new_zeros(batch, self.relay_memory or 0, ring.num_heads, ring.head_dim)
        memories = [empty] * (len(self.layers) - 1) + [none]
        return StreamingStarTransformerState(
            waiting=weight.new_zeros(batch, 0, ring.q.in_features),
            mean=weight.new_zeros(batch, ring.q.in_features, dtype=at_least_float32(weight.dtype)),
            num_frames=torch.zeros(batch, dtype=torch.long, device=weight.device),
            layers=tuple(StarLayerState(left, left, memory, memory) for memory in memories),
        )

    def step(
        self, x: Tensor, state: StreamingStarTransformerState, chunk: int | None = None
    ) -> tuple[Tensor, StreamingStarTransformerState]:
        """Hears the next (B, S, D) frames, any number of them; returns the chunks that are complete."""
        x = torch.cat([state.waiting, x], 1)
        outputs = [x[:, :0]]
        while chunk is not None and x.shape[1] >= chunk:
            y, state = self._hear_chunk(x[:, :chunk], state)
            outputs.append(y)
            x = x[:, chunk:]
        return torch.cat(outputs, 1), state._replace(waiting=x)

    def finish(self, state: StreamingStarTransformerState, chunk: int | None = None) -> Tensor:
        """The frames that were waiting for the rest of their chunk."""
        return self._hear_chunk(state.waiting, state)[0] if state.waiting.shape[1] else state.waiting

    def _hear_chunk(
        self, x: Tensor, state: StreamingStarTransformerState
    ) -> tuple[Tensor, StreamingStarTransformerState]:
        embeddings = self.dropout(x)[:, None]  # (B, 1, K, D): one chunk
        num_frames = state.num_frames + x.shape[1]
        deviation = (embeddings[:, 0].to(state.mean.dtype) - state.mean[:, None]).sum(1)
        mean = state.mean + deviation / num_frames[:, None]

        nodes, relay, states = embeddings, mean[:, None].to(x.dtype), []
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            assert isinstance(layer, StarLayer)
            nodes, relay, layer_state = layer.step(nodes, embeddings, relay, layer_state, num_frames, self.relay_memory)
            states.append(layer_state)
        return self.norm(nodes[:, 0]), StreamingStarTransformerState(
            state.waiting[:, :0], mean, num_frames, tuple(states)
        )
