"""Beam search in step with the stream: CTC proposes, and each hypothesis walks with MoChA by a pointer of its own.

Prefixes grow frame by frame as in the prefix search of CTC (Hannun et al. 2014, arXiv 1408.2873); what the decoder
says of each added token joins in as in frame-synchronous joint decoding (Moritz et al. 2019, "Streaming end-to-end
speech recognition with joint CTC-attention based models"). The attention of a hypothesis walks on from its last stop
as in `search.py`. Where it has not stopped by the frame at which CTC hears a token, it attends there.

CTC sums over all alignments of the frames heard so far, so hypotheses of different lengths compare fairly, and none
can skip or repeat what was said at no cost.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .attention import Memory
from .config import BeamConfig
from .decoder import DecoderState
from .language_model import LanguageModel
from .model import MochaModel
from .search import Tokens, look
from .streaming import map_state
from .tokenizer import Tokenizer

WAIT = 2
"""Frames that attention may stop after the frame at which CTC hears the token, and so the wait of this search."""
REACH = 8
"""Frames that attention may fall behind CTC."""
MAX_CANDIDATES = 16
LEAST_CANDIDATE = np.log(1e-3)
"""Tokens that CTC gives less are not proposed, nor more than so many of a frame."""
TYPICAL_NATS = float(np.log(32))
"""What a token costs a language model on the whole: counted off, it has no say in how many tokens there are."""
NEVER = -np.inf


class Place(NamedTuple):
    """Where attention was at a token, and how likely the token was there."""

    stop: int
    centre: float
    probability: float


class Speaking(NamedTuple):
    """What a hypothesis would say next, at the frame where its attention stops."""

    stop: int
    centre: float
    scores: np.ndarray  # (V,) log-probabilities


class Hypothesis(NamedTuple):
    tokens: tuple[int, ...]  # those that not all hypotheses share
    places: tuple[Place, ...]
    last: int  # the last token, shared or not; 0 at the start
    blank: float  # log-probability of CTC to be here after a blank
    nonblank: float  # the same after the last token
    score: float  # decoder, language model and bonus of all tokens, weighted
    language: Any  # state of the language model
    decoder: DecoderState  # (1, Q) each
    start: int  # the frame that its attention walks on from
    walked: int  # the first frame from there on that it has not examined
    next: Speaking | None  # once attention has stopped

    @property
    def ctc(self) -> float:
        return float(np.logaddexp(self.blank, self.nonblank))


class Row(NamedTuple):
    """One stream."""

    hypotheses: tuple[Hypothesis, ...]
    memory: Memory  # of the frames from `first` on
    ctc: Tensor  # (S, V) log-probabilities of the frames heard but not decided
    first: int
    num_decided: int
    num_energies: int


class BeamState(NamedTuple):
    rows: tuple[Row, ...]

    @property
    def num_energies(self) -> Tensor:
        return torch.tensor([row.num_energies for row in self.rows])

    @property
    def num_forced(self) -> Tensor:
        return torch.zeros(len(self.rows), dtype=torch.long)

    @property
    def holds_tokens(self) -> bool:
        """Whether there are tokens that wait for all hypotheses to agree."""
        return any(row.hypotheses[0].tokens for row in self.rows)


class BeamSearch:
    """Turns encoder frames into tokens as they come; a token comes out once all hypotheses agree on it.

    Drop-in for `GreedySearch`: the same steps, however the frames are cut, give the same tokens.
    """

    def __init__(self, model: MochaModel, beam: BeamConfig, language_model: LanguageModel | None = None):
        self.model, self.beam, self.language_model = model, beam, language_model
        self.window = model.attention.window

    @classmethod
    def load(cls, model: MochaModel, tokenizer: Tokenizer, beam: BeamConfig) -> "BeamSearch":
        """A search with the language model that `beam` names, if it does. Raises ModelError."""
        path = beam.language_model
        return cls(model, beam, LanguageModel(Path(path), tokenizer) if path else None)

    def initial_state(self, batch: int) -> BeamState:
        width = self.model.config.encoder.width
        frames = self.model.ctc.weight.new_zeros(1, 0, width)
        language = self.language_model.initial_state() if self.language_model else None
        decoder = self.model.decoder.initial_state(1)
        hypothesis = Hypothesis((), (), 0, 0.0, NEVER, 0.0, language, decoder, 0, 0, None)
        ctc = frames.new_zeros(0, self.model.config.vocab_size)
        return BeamState((Row((hypothesis,), self.model.attention.remember(frames), ctc, 0, 0, 0),) * batch)

    @torch.inference_mode()
    def step(self, frames: Tensor, state: BeamState, lengths: Tensor | None = None) -> tuple[Tokens, BeamState]:
        """Hears more encoder frames. (B, S, E), of which (B,) `lengths` are valid."""
        sizes = [frames.shape[1]] * len(frames) if lengths is None else lengths.tolist()
        found, rows = [], []
        for i, (row, size) in enumerate(zip(state.rows, sizes, strict=True)):
            row = self._hear(row, frames[i : i + 1, :size])
            row = self._decide(row, len(row.ctc) - WAIT)
            row, settled = _settle(row)
            rows.append(row)
            found += [(i, *token) for token in settled]
        return _tokens(found), BeamState(tuple(rows))

    @torch.inference_mode()
    def finish(self, state: BeamState) -> Tokens:
        """The rest of the best hypothesis of each stream, once all that was heard is decided."""
        found = []
        for i, row in enumerate(state.rows):
            best = self._decide(row, len(row.ctc)).hypotheses[0]
            found += [(i, token, *place) for token, place in zip(best.tokens, best.places, strict=True)]
        return _tokens(found)

    settle = finish

    def _hear(self, row: Row, frames: Tensor) -> Row:
        memory = map_state(lambda *t: torch.cat(t, 1), row.memory, self.model.attention.remember(frames))
        ctc = torch.cat([row.ctc, self.model.ctc(frames)[0].float().log_softmax(-1)])
        row = self._walk(row._replace(memory=Memory(*memory), ctc=ctc))
        # Those that are still walking have seen it all; those to come begin where the last ones may have stopped.
        kept = max(0, row.num_decided - REACH - self.window - row.first)
        return row._replace(memory=Memory(*(part[:, kept:] for part in row.memory)), first=row.first + kept)

    def _decide(self, row: Row, num_frames: int) -> Row:
        """Advances all hypotheses over the next frames."""
        for scores in row.ctc[: max(0, num_frames)].numpy():
            row = self._frame(row, scores)
        return row._replace(ctc=row.ctc[max(0, num_frames) :])

    def _frame(self, row: Row, ctc: np.ndarray) -> Row:
        """Stays, or adds a token, in every hypothesis; keeps the best of the outcomes, the very best first."""
        order = np.argsort(-ctc[1:], kind="stable")[:MAX_CANDIDATES] + 1
        candidates = [int(token) for token in order if ctc[token] > LEAST_CANDIDATE]
        speaking: list[Speaking] = []
        if candidates:
            row = self._walk(row)
            speaking = self._listen(row)
        stayed = {
            each.tokens: each._replace(
                blank=each.ctc + float(ctc[0]), nonblank=each.nonblank + float(ctc[each.last]) if each.last else NEVER
            )
            for each in row.hypotheses
        }
        grown: dict[tuple[int, ...], tuple[Hypothesis, Speaking, float, float, Any]] = {}
        for each, says in zip(row.hypotheses, speaking, strict=False):
            for token in candidates:
                arriving = (each.blank if token == each.last else each.ctc) + float(ctc[token])
                tokens = (*each.tokens, token)
                if arriving == NEVER:
                    continue
                if tokens in stayed:
                    other = stayed[tokens]
                    stayed[tokens] = other._replace(nonblank=float(np.logaddexp(other.nonblank, arriving)))
                    continue
                score = each.score + self.beam.attention * float(says.scores[token]) + self.beam.bonus
                language = None
                if self.language_model:
                    log, language = self.language_model.score(each.language, token)
                    score += self.beam.language * (log + TYPICAL_NATS)
                grown[tokens] = each, says, arriving, score, language
        share = 1 - self.beam.attention
        ranks = [(share * each.ctc + each.score, each.tokens) for each in stayed.values()]
        ranks += [(share * arriving + score, tokens) for tokens, (_, _, arriving, score, _) in grown.items()]
        best = [tokens for _, tokens in sorted(ranks, reverse=True)[: self.beam.size]]
        new = self._grow([(tokens[-1], *grown[tokens]) for tokens in best if tokens in grown], row.num_decided)
        hypotheses = tuple(stayed[tokens] if tokens in stayed else new[tokens] for tokens in best)
        return row._replace(hypotheses=hypotheses, num_decided=row.num_decided + 1)

    def _grow(
        self, grown: list[tuple[int, Hypothesis, Speaking, float, float, Any]], frame: int
    ) -> dict[tuple[int, ...], Hypothesis]:
        """The hypotheses with a token more, by their tokens."""
        if not grown:
            return {}
        before = DecoderState(*(torch.cat(parts) for parts in zip(*(item[1].decoder for item in grown), strict=True)))
        after = self.model.decoder.step(torch.tensor([token for token, *_ in grown]), before)
        new = {}
        for i, (token, parent, says, arriving, score, language) in enumerate(grown):
            place = Place(says.stop, says.centre, float(np.exp(says.scores[token])))
            tokens = (*parent.tokens, token)
            decoder = DecoderState(*(part[i : i + 1] for part in after))
            start = max(says.stop, frame - REACH)
            new[tokens] = Hypothesis(
                tokens, (*parent.places, place), token, NEVER, arriving, score, language, decoder, start, start, None
            )
        return new

    def _walk(self, row: Row) -> Row:
        """Walks every attention that has not stopped over all that is heard."""
        heard = row.first + row.memory.frames.shape[1]
        hypotheses = list(row.hypotheses)
        walking = [i for i, each in enumerate(hypotheses) if each.next is None and each.walked < heard]
        if not walking:
            return row
        first = min(hypotheses[i].walked for i in walking)
        queries = self.model.attention.stop_energy.query(torch.cat([hypotheses[i].decoder.output for i in walking]))
        keys = row.memory.stop_keys[:, first - row.first :].expand(len(walking), -1, -1)
        energy = self.model.attention.stop_energy(queries[:, None], keys)[:, 0]
        at = first + torch.arange(energy.shape[1])
        ahead = at >= torch.tensor([hypotheses[i].walked for i in walking])[:, None]
        accepted = (energy > 0) & ahead
        stops = accepted.any(1)
        stopped = [i for i, stop in zip(walking, stops.tolist(), strict=True) if stop]
        said = self._attend(row, [hypotheses[i] for i in stopped], (accepted.int().argmax(1) + first)[stops])
        for i in walking:
            hypotheses[i] = hypotheses[i]._replace(walked=heard)
        for i, speaking in zip(stopped, said, strict=True):
            hypotheses[i] = hypotheses[i]._replace(next=speaking)
        return row._replace(hypotheses=tuple(hypotheses), num_energies=row.num_energies + int(ahead.sum()))

    def _listen(self, row: Row) -> list[Speaking]:
        """What each hypothesis says where its attention stops, or at this frame if it stops too late."""
        frame = row.num_decided
        late = [i for i, each in enumerate(row.hypotheses) if each.next is None or each.next.stop > frame + WAIT]
        here = torch.tensor([max(frame, row.hypotheses[i].start) for i in late], dtype=torch.long)
        forced = dict(zip(late, self._attend(row, [row.hypotheses[i] for i in late], here), strict=True))
        return [forced.get(i, each.next) for i, each in enumerate(row.hypotheses)]  # type: ignore[misc]

    def _attend(self, row: Row, hypotheses: list[Hypothesis], stops: Tensor) -> list[Speaking]:
        """What each hypothesis says from the window that ends at its (N,) stop."""
        if not hypotheses:
            return []
        output = torch.cat([each.decoder.output for each in hypotheses])
        at = stops[:, None] + torch.arange(1 - self.window, 1)
        within, at = at >= 0, (at - row.first).clamp(min=0)
        weights, scores = look(self.model, output, row.memory.chunk_keys[0, at], row.memory.frames[0, at], within)
        centres = (weights * (at + row.first)).sum(1)
        logs = scores.log_softmax(-1).numpy()
        return [Speaking(*item) for item in zip(stops.tolist(), centres.tolist(), logs, strict=True)]


def _settle(row: Row) -> tuple[Row, list[tuple[int, int, float, float]]]:
    """Takes the tokens that all hypotheses share out of them."""
    first, *others = row.hypotheses
    num = 0
    while num < len(first.tokens) and all(each.tokens[num : num + 1] == first.tokens[num : num + 1] for each in others):
        num += 1
    # The places may differ; those of the best hypothesis are told.
    settled = [(token, *place) for token, place in zip(first.tokens[:num], first.places[:num], strict=True)]
    hypotheses = tuple(each._replace(tokens=each.tokens[num:], places=each.places[num:]) for each in row.hypotheses)
    return row._replace(hypotheses=hypotheses), settled


def _tokens(found: list[tuple[int, int, int, float, float]]) -> Tokens:
    row, token, stop, centre, probability = zip(*found, strict=True) if found else ((),) * 5
    integers = [torch.tensor(part, dtype=torch.long) for part in (row, token, stop)]
    return Tokens(*integers, *(torch.tensor(part, dtype=torch.float32) for part in (centre, probability)))
