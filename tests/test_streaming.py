"""The streaming law: however the input is cut, `step` after `step` and `finish` give `forward` of the whole."""

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MELS, config, cuts, random_model
from torch import Tensor

from mocha_stream.encoders.frontend import Frontend, chunk_bounds
from mocha_stream.encoders.highway_bilstm import HighwayBiLSTM
from mocha_stream.model import Encoder
from mocha_stream.streaming import length_mask, map_state, select

CHUNKS = st.integers(1, 9) | st.none()


def frontend() -> Frontend:
    torch.manual_seed(0)
    module = Frontend(MELS, 12)
    module.set_statistics(torch.randn(MELS), torch.rand(MELS) + 0.5)
    return module.double().eval()


def highway(lookahead: int) -> HighwayBiLSTM:
    torch.manual_seed(0)
    module = HighwayBiLSTM(6, 5, num_layers=3, lookahead=lookahead).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.7)
    return module


def encoder(kind: str = "highway_bilstm", lookahead: int = 0) -> Encoder:
    return random_model(kind=kind, lookahead=lookahead).encoder.double()


def equal(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def run(module, x: Tensor, at: list[int], *chunk: int | None) -> Tensor:
    """Steps through the pieces, and finds out whether any step writes into the state it was given."""
    state, pieces = module.initial_state(len(x)), []
    for start, end in pairwise(at):
        kept = map_state(torch.clone, state)
        y, following = module.step(x[:, start:end], state, *chunk)
        map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), state, kept)
        state = following
        pieces.append(y)
    kept = map_state(torch.clone, state)
    pieces.append(module.finish(state, *chunk))
    map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), state, kept)
    return torch.cat(pieces, 1)


# ---------------------------------------------------------------- the law


@settings(deadline=None, max_examples=60)
@given(data=st.data(), size=st.integers(0, 45))
@torch.no_grad()
def test_frontend(data, size):
    module, x = frontend(), torch.randn(2, size, MELS).double()
    whole = module(x, torch.tensor([size, size]))
    assert whole.shape == (2, -(-size // 8), 12)
    equal(run(module, x, data.draw(cuts(size))), whole)


@pytest.mark.parametrize("lookahead", [0, 1, 4, 11])
@settings(deadline=None, max_examples=40)
@given(data=st.data(), size=st.integers(0, 20), chunk=CHUNKS)
@torch.no_grad()
def test_highway_bilstm(lookahead, data, size, chunk):
    module, x = highway(lookahead), torch.randn(2, size, 6).double()
    equal(run(module, x, data.draw(cuts(size)), chunk), module(x, torch.tensor([size, size]), chunk))


@pytest.mark.parametrize(("kind", "lookahead"), [("highway_bilstm", 0), ("highway_bilstm", 3), ("star_transformer", 0)])
@settings(deadline=None, max_examples=25)
@given(data=st.data(), size=st.integers(0, 130), chunk=CHUNKS)
@torch.no_grad()
def test_whole_encoder(kind, lookahead, data, size, chunk):
    module, x = encoder(kind, lookahead), torch.randn(2, size, MELS).double()
    whole, lengths = module(x, torch.tensor([size, size]), chunk)
    assert lengths.tolist() == [whole.shape[1]] * 2
    equal(run(module, x, data.draw(cuts(size)), chunk), whole)


@pytest.mark.parametrize("lookahead", [0, 3])
@torch.no_grad()
def test_a_chunk_as_long_as_the_sequence_is_the_whole(lookahead):
    module, x = highway(lookahead), torch.randn(1, 12, 6).double()
    for chunk in (12, 13, 1000):
        equal(module(x, torch.tensor([12]), chunk), module(x, torch.tensor([12])))


def test_both_ways_to_train_agree():
    """Without look ahead all chunks are folded into the batch; the loop over chunks has to give the same."""
    folded, x, lengths = highway(0), torch.randn(3, 14, 6).double(), torch.tensor([14, 9, 3])
    for chunk in (1, 4, 14, None):
        looped, _ = folded._run(x, lengths, folded.initial_state(3), chunk_bounds(14, chunk), 0)
        mask = length_mask(lengths, 14)
        equal(looped[mask], folded(x, lengths, chunk)[mask])


def test_in_training_a_chunk_and_its_look_ahead_are_one_chunk():
    plain, ahead, x, lengths = highway(0), highway(2), torch.randn(3, 14, 6).double(), torch.tensor([14, 9, 3])
    ahead.load_state_dict(plain.state_dict())
    for chunk in (1, 4, None):
        equal(ahead.train()(x, lengths, chunk), plain(x, lengths, chunk and chunk + min(chunk, 2)))
    assert not torch.allclose(ahead.eval()(x, lengths, 4), plain(x, lengths, 6))


# ---------------------------------------------------------------- what must not be seen


@pytest.mark.parametrize("lookahead", [0, 2])
def test_nothing_is_heard_before_it_has_come(lookahead):
    module = highway(lookahead)
    x = torch.randn(1, 12, 6).double().requires_grad_()
    y = module(x, torch.tensor([12]), 4)
    for frame in range(12):
        (grad,) = torch.autograd.grad(y[0, frame].sum(), x, retain_graph=True)
        end = (frame // 4 + 1) * 4 + lookahead
        assert (grad[0, end:] == 0).all()
        assert (grad[0, : min(end, 12)] != 0).any(1).all()


def test_an_encoder_frame_depends_on_no_later_features():
    module, x = frontend(), torch.randn(1, 40, MELS).double().requires_grad_()
    y = module(x, torch.tensor([40]))
    for frame in range(5):
        (grad,) = torch.autograd.grad(y[0, frame].sum(), x, retain_graph=True)
        assert (grad[0, 8 * frame + 8 :] == 0).all()
        assert (grad[0, 8 * frame + 7] != 0).any()


@pytest.mark.parametrize(("kind", "lookahead"), [("highway_bilstm", 0), ("highway_bilstm", 2), ("star_transformer", 0)])
@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(0, 60), min_size=1, max_size=4), extra=st.integers(0, 20), chunk=CHUNKS)
@torch.no_grad()
def test_rows_see_neither_each_other_nor_their_padding(kind, lookahead, lengths, extra, chunk):
    module, size = encoder(kind, lookahead), max(lengths) + extra
    x = torch.randn(len(lengths), size, MELS).double()
    x[~length_mask(torch.tensor(lengths), size)] = torch.nan
    y, sizes = module(x, torch.tensor(lengths), chunk)
    for row, (length, frames) in enumerate(zip(lengths, sizes.tolist(), strict=True)):
        alone, _ = module(x[row : row + 1, :length], torch.tensor([length]), chunk)
        assert alone.shape[1] == frames
        equal(y[row : row + 1, :frames], alone)


@pytest.mark.parametrize("lookahead", [0, 2])
def test_padding_has_no_gradient(lookahead):
    module, x = highway(lookahead), torch.randn(2, 10, 6).double().requires_grad_()
    lengths = torch.tensor([10, 3])
    module(x, lengths, 4)[length_mask(lengths, 10)].sum().backward()
    assert (x.grad[1, 3:] == 0).all()
    assert (x.grad[1, :3] != 0).any(1).all()


# ---------------------------------------------------------------- states


@pytest.mark.parametrize(("kind", "lookahead"), [("highway_bilstm", 0), ("highway_bilstm", 3), ("star_transformer", 0)])
@torch.no_grad()
def test_the_state_does_not_grow(kind, lookahead):
    module, sizes = encoder(kind, lookahead), []
    state = module.initial_state(1)
    for _ in range(120):
        y, state = module.step(torch.randn(1, 37, MELS).double(), state, 4)
        sizes.append(num_bytes(state))
    assert y.isfinite().all()
    assert max(sizes[60:]) <= max(sizes[:60])


def num_bytes(state) -> int:
    """Of the storage that a state keeps alive, which may be more than its tensors show."""
    storages = {}

    def note(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    map_state(note, state)
    return sum(storages.values())


@torch.no_grad()
def test_a_state_may_be_forked_and_streams_dropped():
    module, x = encoder(), torch.randn(3, 80, MELS).double()
    _, state = module.step(x[:, :35], module.initial_state(3), 2)
    rows = torch.tensor([2, 0, 2])
    whole, _ = module.step(x[:, 35:], state, 2)
    forked, _ = module.step(x[rows, 35:], select(state, rows), 2)
    assert whole.shape[1]
    equal(forked, whole[rows])


@pytest.mark.parametrize("chunk", [1, 4, None])
@pytest.mark.parametrize("lookahead", [0, 2])
def test_gradients_are_exact(lookahead, chunk):
    module = highway(lookahead)
    x = torch.randn(2, 6, 6).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: module(x, torch.tensor([6, 3]), chunk)[:, :3], x, fast_mode=True)


def test_every_parameter_of_the_encoder_learns():
    module = Encoder(config()).train()
    y, _ = module(torch.randn(2, 64, MELS), torch.tensor([64, 30]), 2)
    y.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


# ---------------------------------------------------------------- the tools


class Inner(NamedTuple):
    a: Tensor
    b: tuple[Tensor, ...]


def test_map_state_keeps_the_kind_and_refuses_states_of_other_shape():
    state = Inner(torch.ones(2), (torch.zeros(2), torch.ones(2)))
    doubled = map_state(lambda tensor: tensor * 2, state)
    assert isinstance(doubled, Inner)
    assert isinstance(doubled.b, tuple)
    assert doubled.b[1].tolist() == [2, 2]
    with pytest.raises(ValueError, match="zip"):
        map_state(lambda a, b: a + b, state, Inner(torch.ones(2), (torch.zeros(2),)))


@given(size=st.integers(0, 30), chunk=st.integers(1, 40) | st.none())
def test_chunk_bounds_cover_the_sequence(size, chunk):
    bounds = chunk_bounds(size, chunk)
    assert [frame for start, end in bounds for frame in range(start, end)] == list(range(size))
    assert all(end - start <= (chunk or size) for start, end in bounds)
