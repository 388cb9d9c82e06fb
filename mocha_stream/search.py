"""The incremental hard-attention state machine: greedy search that walks each encoder frame about once.

For each token the head walks on from the frame where it last stopped, that one included, and stops at the first
frame whose energy is above 0 (SPEC 8.4). A walk that has seen all frames heard so far waits for more. Between
steps, then, every stream has walked everything, so its state needs no position: the next frames begin where its
walk goes on, and of the past only the attention window can matter again.
"""

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Memory
from .decoder import DecoderState
from .model import MochaModel
from .streaming import map_state

SCAN_BLOCK = 8
"""K: frames whose energies are evaluated at once; a token costs at most so many evaluations over the walk itself."""

MAX_TOKENS_PER_FRAME = 4
"""A head that stops here so often is in a loop, and is pushed on by a frame."""


class SearchState(NamedTuple):
    memory: Memory  # of the last W frames, zeros before the first one
    decoder: DecoderState  # what asks for the next token
    num_heard: Tensor  # (B,) frames so far
    num_energies: Tensor  # (B,) energies evaluated so far
    num_forced: Tensor  # (B,) times that the loop guard pushed the head on

    @property
    def holds_tokens(self) -> bool:
        """Whether there are tokens that are not out yet: never."""
        return False


class Tokens(NamedTuple):
    """The tokens that one step settles for a batch of streams, in the order found."""

    row: Tensor  # (N,) stream
    token: Tensor  # (N,)
    stop: Tensor  # (N,) frame stopped at, counted from the start of the stream
    centre: Tensor  # (N,) expected frame within the attention window
    probability: Tensor  # (N,) of the token


class Search(Protocol):
    """What turns encoder frames into tokens: `GreedySearch`, or `beam.BeamSearch`. Both have states of their own.

    A state tells by `holds_tokens` whether there are tokens that only `settle` or `finish` give, and by
    `num_energies` and `num_forced`, (B,) each, what the search has cost.
    """

    model: MochaModel

    def initial_state(self, batch: int) -> Any: ...

    def step(self, frames: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tokens, Any]: ...

    def settle(self, state: Any) -> Tokens: ...

    def finish(self, state: Any) -> Tokens: ...


class GreedySearch:
    """Turns encoder frames into tokens as they come, for a batch of independent streams."""

    def __init__(self, model: MochaModel):
        self.model = model
        self.window = model.attention.window

    def initial_state(self, batch: int) -> SearchState:
        past = self.model.ctc.weight.new_zeros(batch, self.window, self.model.config.encoder.width)
        zeros = torch.zeros(batch, dtype=torch.long, device=past.device)
        decoder = self.model.decoder.initial_state(batch)
        return SearchState(self.model.attention.remember(past), decoder, zeros, zeros, zeros)

    @torch.inference_mode()
    def step(self, frames: Tensor, state: SearchState, lengths: Tensor | None = None) -> tuple[Tokens, SearchState]:
        """Hears more encoder frames. (B, S, E), of which (B,) `lengths` are valid.

        Rows of different lengths end with this step: what follows a shorter row's end is not theirs.
        """
        batch, size, _ = frames.shape
        lengths = torch.full((batch,), size, device=frames.device) if lengths is None else lengths
        memory = map_state(lambda *t: torch.cat(t, 1), state.memory, self.model.attention.remember(frames))
        memory = Memory(*memory)
        ends = self.window + lengths
        position = torch.full((batch,), self.window, device=frames.device)
        decoder, here = state.decoder, torch.zeros_like(state.num_heard)  # tokens at the position
        num_energies, num_forced = state.num_energies, state.num_forced
        rows = torch.arange(batch, device=frames.device)
        block = torch.arange(min(SCAN_BLOCK, size), device=frames.device)
        offset = state.num_heard - self.window
        found = []

        while bool((position < ends).any()):
            at = position[:, None] + block
            inside = at < ends[:, None]
            keys = _frames_at(memory.stop_keys, at.clamp(max=self.window + size - 1))
            query = self.model.attention.stop_energy.query(decoder.output)[:, None]
            energy = self.model.attention.stop_energy(query, keys)[:, 0]
            num_energies = num_energies + inside.sum(1)
            accepted = (energy > 0) & inside
            stops = accepted.any(1)
            walked = torch.where(stops, accepted.int().argmax(1), inside.sum(1))
            here = torch.where(walked > 0, torch.zeros_like(here), here)
            position = position + walked
            if not bool(stops.any()):
                continue
            tokens, decoder = self._attend(memory, position, stops, offset, decoder, rows)
            found.append(tokens)
            here = here + stops
            forced = here >= MAX_TOKENS_PER_FRAME
            num_forced, position = num_forced + forced, position + forced
            here = torch.where(forced, torch.zeros_like(here), here)

        kept = rows[:, None], ends[:, None] - self.window + torch.arange(self.window, device=frames.device)
        memory = Memory(*(t[kept] for t in memory))
        tokens = Tokens(*(torch.cat(parts) for parts in zip(_none(frames.device), *found, strict=True)))
        heard = state.num_heard + lengths
        return tokens, SearchState(memory, decoder, heard, num_energies, num_forced)

    def settle(self, state: SearchState) -> Tokens:
        """What the end of an utterance settles, while the stream goes on: nothing that is not out."""
        return _none(state.num_heard.device)

    @torch.inference_mode()
    def finish(self, state: SearchState) -> Tokens:
        """What the end of the streams still gives: under `on_miss = "last"` one token at each last frame, else none."""
        rows = torch.arange(len(state.num_heard), device=state.num_heard.device)
        last = torch.full_like(state.num_heard, self.window - 1)
        stops = (state.num_heard > 0) & (self.model.config.attention.on_miss == "last")
        offset = state.num_heard - self.window
        return self._attend(state.memory, last, stops, offset, state.decoder, rows)[0]

    def _attend(
        self, memory: Memory, position: Tensor, stops: Tensor, offset: Tensor, decoder: DecoderState, rows: Tensor
    ) -> tuple[Tokens, DecoderState]:
        """The next token of the rows in `stops`, each from the window that ends at its position."""
        model = self.model
        at = position[:, None] + torch.arange(1 - self.window, 1, device=position.device)
        within = (at + offset[:, None] >= 0) & (at >= 0)
        at = at.clamp(min=0, max=memory.frames.shape[1] - 1)
        keys, frames = _frames_at(memory.chunk_keys, at), _frames_at(memory.frames, at)
        weights, scores = look(model, decoder.output, keys, frames, within)
        probability, token = scores.softmax(-1).max(-1)
        following = model.decoder.step(token, decoder)
        decoder = DecoderState(
            *(torch.where(stops[:, None], new, old) for new, old in zip(following, decoder, strict=True))
        )
        centre = (weights * (at + offset[:, None])).sum(1)
        chosen = stops.nonzero()[:, 0]
        tokens = Tokens(rows, token, position + offset, centre, probability)
        return Tokens(*(part[chosen] for part in tokens)), decoder


def look(model: MochaModel, output: Tensor, keys: Tensor, frames: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """What decoders say of their attention windows.

    Args:
        output: (N, Q) states of the decoders
        keys, frames: (N, W, A) and (N, W, E), the chunk keys and the frames of each window
        within: (N, W), false for places before the first frame

    Returns:
        The (N, W) weights within each window, and (N, V) scores of tokens.
    """
    energy = model.attention.chunk_energy(model.attention.chunk_energy.query(output)[:, None], keys)[:, 0]
    weights = energy.masked_fill(~within, -torch.inf).softmax(1)
    scores = model.decoder.score((weights[:, None] @ frames)[:, 0], output).float()
    scores[:, 0] = -torch.inf  # START is no token of text
    return weights, scores


def _none(device: torch.device) -> Tokens:
    empty = torch.zeros(0, device=device)
    return Tokens(empty.long(), empty.long(), empty.long(), empty, empty)


def _frames_at(frames: Tensor, at: Tensor) -> Tensor:
    """The frames of each row at its places: whole rows are copied, much faster than by indexing. (B, N) -> (B, N, D)"""
    starts = frames.shape[1] * torch.arange(len(frames), device=frames.device)
    return F.embedding(at + starts[:, None], frames.flatten(0, 1))


def token_lists(tokens: Tokens, batch: int) -> list[list[int]]:
    """The tokens of each stream."""
    lists: list[list[int]] = [[] for _ in range(batch)]
    for row, token in zip(tokens.row.tolist(), tokens.token.tolist(), strict=True):
        lists[row].append(token)
    return lists
