"""Beam search: against all texts there are, against the sums done anew, in any cutting; nothing shown is taken back."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MELS, cuts, hearing_model, noise, random_model, silence, tokenizer

from mocha_stream import beam as beam_module
from mocha_stream.attention import hard_chunkwise
from mocha_stream.beam import REACH, TYPICAL_NATS, WAIT, BeamSearch
from mocha_stream.config import BeamConfig
from mocha_stream.errors import ConfigError
from mocha_stream.recognizer import Recognizer
from mocha_stream.search import Tokens
from mocha_stream.transcript import Final


@torch.no_grad()
def frames(num_frames: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    features = torch.randn(batch, 8 * num_frames, MELS) * 3 - 5
    return random_model().encoder(features, torch.full((batch,), 8 * num_frames), 4)[0]


def join(parts: list[Tokens]) -> Tokens:
    return Tokens(*(torch.cat(part) for part in zip(*parts, strict=True)))


def run(search: BeamSearch, x: torch.Tensor, at: list[int] | None = None) -> Tokens:
    parts, state = [], search.initial_state(1)
    for start, end in pairwise(at or [0, x.shape[1]]):
        tokens, state = search.step(x[:, start:end], state)
        parts.append(tokens)
    return join([*parts, search.finish(state)])


class Bigram:
    """A language model of two tokens, made up: the state is the token before."""

    def initial_state(self) -> int:
        return 0

    def score(self, state: int, token: int) -> tuple[float, int]:
        return -((state * 7 + token * 3) % 11) / 2, token


def same(a: Tokens, b: Tokens) -> None:
    assert a.token.tolist() == b.token.tolist()
    assert a.stop.tolist() == b.stop.tolist()
    torch.testing.assert_close(a.centre, b.centre, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(a.probability, b.probability, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(at=cuts(40), size=st.integers(1, 6), language=st.booleans(), seed=st.integers(0, 3))
def test_however_the_frames_are_cut_the_tokens_are_the_same(at, size, language, seed):
    search = BeamSearch(random_model(), BeamConfig(size=size, bonus=3.0), Bigram() if language else None)
    x = frames(40, seed=seed)
    whole = run(search, x)
    assert len(whole.token) > 3
    same(run(search, x, at), whole)
    assert (whole.stop.diff() >= 0).all()


@torch.no_grad()
def test_long_pauses_may_be_cut_anywhere():
    model, sound = random_model(), frames(60)
    blankest = model.ctc(sound)[0].softmax(-1)[:, 0].argmax()
    model.ctc.weight.data[0] += (sound[0, blankest] - sound[0].mean(0)) * 0.5
    x = torch.cat([sound, sound[:, blankest : blankest + 1].expand(-1, 60, -1), frames(60, seed=1)], 1)
    search = BeamSearch(model, BeamConfig(size=4, bonus=3.0))
    whole = run(search, x)
    assert whole.stop.diff().max() > 2 * REACH
    for length in (1, 7, 40):
        same(run(search, x, [*range(0, 180, length), 180]), whole)


def test_a_batch_is_its_rows_one_by_one():
    search, x, lengths = BeamSearch(random_model(), BeamConfig(size=4)), frames(30, batch=3), torch.tensor([30, 11, 0])
    tokens, state = search.step(x, search.initial_state(3), lengths)
    tokens = join([tokens, search.finish(state)])
    for row, length in enumerate(lengths.tolist()):
        own = Tokens(*(part[tokens.row == row] for part in tokens))
        same(own, run(search, x[row : row + 1, :length]))
    assert (state.num_energies[:2] > 0).all()
    assert state.num_energies[2] == 0


def test_a_step_leaves_the_state_it_was_given_as_it_was():
    search, x = BeamSearch(random_model(), BeamConfig(size=3)), frames(24)
    _, state = search.step(x[:, :12], search.initial_state(1))
    first, second = (search.step(x[:, 12:], state)[0] for _ in range(2))
    same(first, second)


def test_no_frames_give_no_tokens():
    search = BeamSearch(random_model(), BeamConfig())
    assert len(run(search, frames(4)[:, :0]).token) == 0


def total_of_all_paths(log: np.ndarray, text: tuple[int, ...]) -> float:
    """The probability that CTC gives a text: the sum over every path that reads so."""
    total = 0.0
    for path in product(range(log.shape[1]), repeat=len(log)):
        kept = [token for token, before in zip(path, (None, *path), strict=False) if token != before]
        if tuple(token for token in kept if token) == text:
            total += float(np.exp(sum(row[token] for row, token in zip(log, path, strict=True))))
    return total


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_wide_beam_finds_the_text_that_ctc_holds_most_likely(seed, monkeypatch):
    monkeypatch.setattr(beam_module, "LEAST_CANDIDATE", -50.0)
    num_frames, num_tokens = 5, 3
    random = np.random.default_rng(seed)
    log = torch.from_numpy(random.normal(size=(num_frames, num_tokens)).astype(np.float32) * 1.5).log_softmax(-1)
    texts = [text for n in range(num_frames + 1) for text in product(range(1, num_tokens), repeat=n)]
    expected = max(texts, key=lambda text: total_of_all_paths(log.numpy(), text))
    search = BeamSearch(random_model(), BeamConfig(size=300, attention=0.0, bonus=0.0))
    row = search.initial_state(1).rows[0]
    row = search._hear(row, frames(num_frames))
    padded = torch.full((num_frames, len(tokenizer())), -1e4)
    padded[:, :num_tokens] = log
    row = search._decide(row._replace(ctc=padded), num_frames)
    best = row.hypotheses[0]
    assert best.tokens == expected
    assert np.exp(best.ctc) == pytest.approx(total_of_all_paths(log.numpy(), expected), rel=1e-4)


@pytest.mark.parametrize("language", [False, True])
@torch.no_grad()
def test_the_score_of_a_hypothesis_is_the_sum_of_its_parts_done_anew(language):
    """Each token from the walk, the window and the decoder by themselves, at the frames that the hypothesis tells."""
    model, x = random_model(), frames(30, seed=2)
    beam, bigram = BeamConfig(size=4, attention=0.4, language=0.7, bonus=3.0), Bigram()
    search = BeamSearch(model, beam, bigram if language else None)
    row = search._decide(search._hear(search.initial_state(1).rows[0], x), x.shape[1])
    best = row.hypotheses[0]
    assert len(best.tokens) > 4
    memory, decoder, expected, state, start = model.attention.remember(x), model.decoder.initial_state(1), 0.0, 0, 0
    num_walked = 0
    for token, place in zip(best.tokens, best.places, strict=True):
        energy = model.attention.stop_energy
        walk = energy(energy.query(decoder.output)[:, None], memory.stop_keys)[0, 0]
        stops = [s for s in range(start, len(walk)) if walk[s] > 0]
        if stops and stops[0] == place.stop:
            num_walked += 1
        else:  # attention had not stopped when CTC heard the token
            assert place.stop >= start
            assert not stops or stops[0] > place.stop or stops[0] < place.stop - REACH
        chunk = model.attention.chunk_energy
        weights = hard_chunkwise(
            torch.tensor([place.stop]),
            chunk(chunk.query(decoder.output)[:, None], memory.chunk_keys)[:, 0],
            model.attention.window,
        )
        scores = model.decoder.score((weights[:, None] @ x)[:, 0], decoder.output)[0]
        scores[0] = -torch.inf
        log = scores.log_softmax(0)[token]
        assert place.probability == pytest.approx(float(log.exp()), rel=1e-4)
        expected += beam.attention * float(log) + beam.bonus
        if language:
            log, state = bigram.score(state, token)
            expected += beam.language * (log + TYPICAL_NATS)
        decoder, start = model.decoder.step(torch.tensor([token]), decoder), place.stop
    assert num_walked > 2
    assert best.score == pytest.approx(expected, rel=1e-4)


def test_a_language_model_changes_what_is_heard():
    x = frames(60)
    plain = run(BeamSearch(random_model(), BeamConfig(size=8)), x)
    told = run(BeamSearch(random_model(), BeamConfig(size=8, language=1.0), Bigram()), x)
    bonus = run(BeamSearch(random_model(), BeamConfig(size=8, bonus=5.0)), x)
    assert told.token.tolist() != plain.token.tolist()
    assert len(bonus.token) > len(plain.token)


def test_a_stream_is_held_in_bounded_memory():
    search, state, sizes = BeamSearch(random_model(), BeamConfig(size=4)), None, []
    state = search.initial_state(1)
    for number in range(12):
        _, state = search.step(frames(40, seed=number), state)
        row = state.rows[0]
        sizes.append((row.memory.frames.shape[1], len(row.ctc), max(len(each.tokens) for each in row.hypotheses)))
    assert max(sizes)[0] <= REACH + WAIT + search.window + 40
    assert sizes[-1][1] == WAIT


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"beam\.size is 0"):
        BeamConfig(size=0)
    with pytest.raises(ConfigError, match=r"beam\.attention is 2"):
        BeamConfig(attention=2.0)


# ---------------------------------------------------------------- from samples to words


@settings(deadline=None, max_examples=6)
@given(data=st.data(), latency_ms=st.sampled_from([160, None]))
def test_a_session_gives_the_same_words_however_the_samples_are_cut_and_takes_none_back(data, latency_ms):
    samples = np.concatenate([noise(2), silence(1.5), noise(1.5, 1), silence(0.5)])
    engine = Recognizer(random_model(), tokenizer(), BeamConfig(size=3, bonus=3.0))
    found = []
    for at in ([0, len(samples)], data.draw(cuts(len(samples)))):
        session, events = engine.session(latency_ms), []
        for start, end in pairwise(at):
            events += session.feed(samples[start:end])
        events += session.finish()
        shown: tuple = ()
        for event in events:
            assert event.words[: len(shown)] == shown
            shown = () if isinstance(event, Final) else event.words
        finals = [event for event in events if isinstance(event, Final)]
        found.append([word for event in finals for word in event.words])
    assert found[0] == found[1]
    assert len(found[0]) > 4


def test_a_pause_ends_an_utterance_on_which_the_hypotheses_do_not_agree():
    """Whatever waits for agreement is out within a moment of silence, not when the next word is spoken."""
    engine = Recognizer(hearing_model(2), tokenizer(), BeamConfig(size=6, attention=0.4, bonus=1.0))
    session, events = engine.session(160), []
    for part in (silence(0.5), noise(1.5), silence(4.0)):
        events += session.feed(part)
    finals = [event for event in events if isinstance(event, Final)]
    assert finals
    assert finals[-1].end_s < 2.6
    assert not session.finish()


def test_many_recordings_give_what_each_gives_alone():
    engine = Recognizer(random_model(), tokenizer(), BeamConfig(size=3, bonus=3.0))
    sounds = [noise(seconds, number) for number, seconds in enumerate((2.0, 0.7, 3.1, 0.0, 1.2))]
    together = list(engine.transcribe_many(sounds))
    assert together == [engine.transcribe(sound) for sound in sounds]
    assert sum(len(result.words) for result in together) > 4
