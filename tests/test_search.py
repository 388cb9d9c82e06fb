"""Greedy search: against a slow search that has all energies, in any cutting, in any batch, and what it costs."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MELS, cuts, hearing_model, random_model, tokenizer

from mocha_stream import search as search_module
from mocha_stream.attention import hard_chunkwise, hard_monotonic
from mocha_stream.model import MochaModel
from mocha_stream.search import MAX_TOKENS_PER_FRAME, SCAN_BLOCK, GreedySearch, SearchState, Tokens, token_lists
from mocha_stream.streaming import map_state, select

KINDS = st.fixed_dictionaries(
    {
        "energy": st.sampled_from(["dot", "additive"]),
        "window": st.sampled_from([1, 2, 3, 7]),
        "on_miss": st.sampled_from(["stop", "last"]),
    }
)


@torch.no_grad()
def frames(num_frames: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    features = torch.randn(batch, 8 * num_frames, MELS) * 3 - 5
    return random_model().encoder(features, torch.full((batch,), 8 * num_frames), 4)[0].double()


def join(parts: list[Tokens]) -> Tokens:
    return Tokens(*(torch.cat(part) for part in zip(*parts, strict=True)))


def run(model: MochaModel, x: torch.Tensor, at: list[int] | None = None) -> tuple[Tokens, SearchState]:
    search, parts = GreedySearch(model), []
    state = search.initial_state(len(x))
    for start, end in pairwise(at or [0, x.shape[1]]):
        kept = map_state(torch.clone, state)
        tokens, following = search.step(x[:, start:end], state)
        map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), state, kept)
        state = following
        parts.append(tokens)
    return join([*parts, search.finish(state)]), state


@torch.no_grad()
def slow(model: MochaModel, x: torch.Tensor) -> list[tuple[int, int, float, float, torch.Tensor]]:
    """(token, stop, centre, probability, logits) of one stream, (1, S, E): token by token, from energies of all frames.

    As SPEC 8.4 has it, with the two rules of ours: the loop guard, and `last` only once, at the end.
    """
    attention, decoder, lengths = model.attention, model.decoder, torch.tensor([x.shape[1]])
    memory, state, found, here = attention.remember(x), decoder.initial_state(1), [], 0
    head, at_end = torch.tensor([0]), x.shape[1] == 0
    while not at_end:
        energy = attention.stop_energy(attention.stop_energy.query(state.output)[:, None], memory.stop_keys)[:, 0]
        stop = hard_monotonic(energy, lengths, head)
        if stop < 0:
            at_end = True
            stop = hard_monotonic(energy * 0 - 1, lengths, head, model.config.attention.on_miss)
            if stop < 0:
                break
        energy = attention.chunk_energy(attention.chunk_energy.query(state.output)[:, None], memory.chunk_keys)[:, 0]
        weights = hard_chunkwise(stop, energy, attention.window)
        logits = decoder.score((weights[:, None] @ x)[:, 0], state.output)[0]
        probability, token = logits.float().index_fill(0, torch.tensor([0]), -torch.inf).softmax(0).max(0)
        centre = float((weights * torch.arange(x.shape[1])).sum())
        found.append((int(token), int(stop), centre, float(probability), logits))
        state = decoder.step(token[None], state)
        here = here + 1 if stop == head else 1
        head = stop
        if here == MAX_TOKENS_PER_FRAME:
            head, here = stop + 1, 0
    return found


def assert_same(tokens: Tokens, expected: Tokens | list) -> None:
    if isinstance(expected, list):
        token, stop, centre, probability = zip(*(item[:4] for item in expected), strict=True) if expected else [()] * 4
        expected = Tokens(tokens.row, *map(torch.tensor, (token, stop, centre, probability)))
    assert tokens.token.tolist() == expected.token.tolist()
    assert tokens.stop.tolist() == expected.stop.tolist()
    torch.testing.assert_close(tokens.centre.double(), expected.centre.double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(tokens.probability.double(), expected.probability.double(), rtol=0, atol=1e-5)


# ---------------------------------------------------------------- what it finds


@settings(deadline=None, max_examples=25)
@given(size=st.integers(0, 30), kind=KINDS, seed=st.integers(0, 5))
def test_equals_a_slow_search_that_has_all_energies(size, kind, seed):
    model, x = random_model(**kind).double(), frames(size, seed=seed)
    assert_same(run(model, x)[0], slow(model, x))


@pytest.mark.parametrize("block", [1, 3, SCAN_BLOCK])
@settings(deadline=None, max_examples=20)
@given(data=st.data(), size=st.integers(0, 30), kind=KINDS)
def test_any_cutting_gives_the_same(block, data, size, kind):
    model, x = random_model(**kind).double(), frames(size, seed=size)
    whole, whole_state = run(model, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "SCAN_BLOCK", block)
        tokens, state = run(model, x, data.draw(cuts(size)))
    assert_same(tokens, whole)
    assert state.num_heard.tolist() == [size]
    assert state.num_forced.tolist() == whole_state.num_forced.tolist()
    for part, expected in zip(state.memory, whole_state.memory, strict=True):
        torch.testing.assert_close(part, expected)
    torch.testing.assert_close(state.decoder.output, whole_state.decoder.output)


def test_the_models_of_these_tests_have_much_to_say():
    for energy in ("dot", "additive"):
        tokens, state = run(random_model(energy=energy).double(), frames(100))
        assert len(tokens.token) > 50
        assert len(tokens.token.unique()) > 5
        assert len(tokens.stop.unique()) > 20
        assert (state.num_forced > 0).all()
        assert (tokens.stop.diff() >= 0).all()
        assert (tokens.token != 0).all()


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=5), extra=st.integers(0, 4), kind=KINDS)
def test_a_batch_is_its_rows_one_by_one(lengths, extra, kind):
    model = random_model(**kind).double()
    x, search = frames(max(lengths) + extra, len(lengths)), GreedySearch(model)
    for row, length in enumerate(lengths):
        x[row, length:] = 1e4
    found, state = search.step(x, search.initial_state(len(x)), torch.tensor(lengths))
    found = join([found, search.finish(state)])
    for row, length in enumerate(lengths):
        alone, alone_state = run(model, x[row : row + 1, :length])
        mine = Tokens(*(part[found.row == row] for part in found))
        assert_same(mine, alone)
        assert int(state.num_energies[row]) == int(alone_state.num_energies)
        assert int(state.num_forced[row]) == int(alone_state.num_forced)
    assert token_lists(found, len(x)) == [found.token[found.row == row].tolist() for row in range(len(x))]


def test_rows_of_a_batch_go_on_and_may_be_forked():
    model, x = random_model().double(), frames(30, 3)
    search, rows = GreedySearch(model), torch.tensor([2, 0, 2])
    _, state = search.step(x[:, :13], search.initial_state(3))
    whole, _ = search.step(x[:, 13:], state)
    forked, _ = search.step(x[rows, 13:], select(state, rows))
    assert token_lists(forked, 3) == [token_lists(whole, 3)[row] for row in rows]
    assert len(whole.token) > 20


@settings(deadline=None, max_examples=15)
@given(data=st.data(), chunk=st.sampled_from([1, 2, 4]), seed=st.integers(1, 4))
def test_logits_of_steps_are_those_of_the_whole_to_1e_4(data, chunk, seed):
    """In float32, from features to logits: `forward` and the slow search against `step` and the search itself."""
    model = random_model(seed)
    features = torch.randn(1, 200, MELS, generator=torch.Generator().manual_seed(seed)) * 3 - 5
    whole, _ = model.encoder(features, torch.tensor([200]), chunk)
    expected = slow(model, whole)

    logits, score = [], model.decoder.score
    model.decoder.score = lambda *inputs: logits.append(score(*inputs)[0]) or score(*inputs)
    search = GreedySearch(model)
    state, walk, parts = model.encoder.initial_state(1), search.initial_state(1), []
    with torch.no_grad():
        for start, end in pairwise(data.draw(cuts(200))):
            x, state = model.encoder.step(features[:, start:end], state, chunk)
            tokens, walk = search.step(x, walk)
            parts.append(tokens)
        tokens, walk = search.step(model.encoder.finish(state, chunk), walk)
    assert_same(join([*parts, tokens]), expected)
    assert len(expected) > 5
    torch.testing.assert_close(torch.stack(logits), torch.stack([item[4] for item in expected]), rtol=0, atol=1e-4)


# ---------------------------------------------------------------- the end of a stream


def test_on_miss_last_gives_one_more_token_at_the_last_frame_and_stop_none():
    x = frames(20)
    stopped, state = run(random_model(on_miss="stop").double(), x)
    last, _ = run(random_model(on_miss="last").double(), x)
    assert last.token.tolist()[:-1] == stopped.token.tolist()
    assert last.stop.tolist() == [*stopped.stop.tolist(), 19]
    assert state.num_heard.tolist() == [20]


@pytest.mark.parametrize("on_miss", ["stop", "last"])
def test_a_stream_without_frames_gives_nothing(on_miss):
    tokens, state = run(random_model(on_miss=on_miss), torch.zeros(3, 0, 12))
    assert len(tokens.token) == 0
    assert state.num_energies.tolist() == [0, 0, 0]


# ---------------------------------------------------------------- what it costs


@pytest.mark.parametrize("block", [1, 4, SCAN_BLOCK])
@settings(deadline=None, max_examples=25)
@given(data=st.data(), size=st.integers(0, 60), kind=KINDS, seed=st.integers(0, 3))
def test_energies_are_at_most_frames_and_a_block_a_token(block, data, size, kind, seed):
    model, x, counted = random_model(**kind).double(), frames(size, seed=seed), []
    energy = model.attention.stop_energy
    energy.register_forward_hook(lambda module, inputs, output: counted.append(output.numel()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "SCAN_BLOCK", block)
        tokens, state = run(model, x, data.draw(cuts(size)))
    num_tokens = len(tokens.token) - (model.config.attention.on_miss == "last" and size > 0)
    assert int(state.num_energies) <= size + block * num_tokens
    if block == 1:
        assert int(state.num_energies) == size - int(state.num_forced) + num_tokens
        assert sum(counted) == int(state.num_energies)
    # The evaluations that a block makes beyond the end of what was heard are not counted, and are few.
    assert sum(counted) <= int(state.num_energies) + block * len(counted)


def test_the_block_is_within_the_bound_that_is_promised():
    assert SCAN_BLOCK <= 16


def count_steps(model: MochaModel) -> list[int]:
    """The decoder steps that a model makes from now on, one entry each."""
    steps, step = [], model.decoder.step
    model.decoder.step = lambda *inputs: steps.append(1) or step(*inputs)
    return steps


def test_silence_costs_one_energy_a_frame_and_no_decoder_step():
    model = hearing_model().double()
    with torch.no_grad():
        quiet, _ = model.encoder(torch.full((1, 8 * 200, MELS), -15.9).double(), torch.tensor([1600]), 4)
    search = GreedySearch(model)
    state = search.initial_state(1)
    steps = count_steps(model)
    tokens, state = search.step(quiet, state)
    assert len(tokens.token) == len(steps) == 0
    assert state.num_energies.tolist() == [200]
    with torch.no_grad():
        loud, _ = model.encoder(torch.randn(1, 400, MELS).double() * 2, torch.tensor([400]), 4)
    search.step(loud, state)
    assert len(steps) > 10


def test_a_head_that_never_moves_is_pushed_on_by_the_loop_guard():
    model, x = random_model().double(), frames(11)
    with torch.no_grad():
        model.attention.stop_energy.r.fill_(1000.0)
    tokens, state = run(model, x, [0, 3, 4, 11])
    assert tokens.stop.tolist() == [frame for frame in range(11) for _ in range(MAX_TOKENS_PER_FRAME)]
    assert state.num_forced.tolist() == [11]
    assert_same(tokens, slow(model, x))


def test_the_state_does_not_grow():
    model = random_model()
    search, sizes = GreedySearch(model), set()
    state = search.initial_state(2)
    for number in range(100):
        _, state = search.step(frames(number % 7, 2, number).float(), state)
        sizes.add(tuple(tensor.shape for part in state for tensor in (part if isinstance(part, tuple) else (part,))))
        storages = {t.untyped_storage().nbytes() for t in (*state.memory, *state.decoder)}
    assert len(sizes) == 1
    assert max(storages) <= 2 * model.attention.window * 12 * 4
    assert int(state.num_heard[0]) == sum(number % 7 for number in range(100))


def test_tokens_of_the_model_are_those_of_its_tokenizer():
    assert random_model().config.vocab_size == len(tokenizer())
