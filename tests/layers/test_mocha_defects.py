"""MoChA: energies, attention and decoder; test names give the defects of SPEC 8 that ours must not have."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mocha_stream.attention import (
    AdditiveEnergy,
    Mocha,
    hard_chunkwise,
    hard_monotonic,
    soft_chunkwise,
    soft_monotonic,
)
from mocha_stream.config import AttentionConfig, EncoderConfig, ModelConfig
from mocha_stream.errors import ConfigError
from mocha_stream.layers import MochaDecoder
from mocha_stream.model import MochaModel
from mocha_stream.search import SCAN_BLOCK, GreedySearch


def recursion(energy: Tensor, previous: Tensor, length: int | None = None) -> np.ndarray:
    """The exact alpha of SPEC 8.2 for energies (U, S), frame by frame in float64."""
    alpha, rows = previous.double().numpy(), []
    for energies in energy.detach().double().numpy():
        stop = 1 / (1 + np.exp(-energies))
        go = 1 / (1 + np.exp(energies))
        if length is not None:
            stop[length:], go[length:] = 0, 1
        arrived, row = 0.0, np.zeros_like(stop)
        for j in range(len(stop)):
            arrived = (go[j - 1] * arrived if j else 0.0) + alpha[j]
            row[j] = stop[j] * arrived
        alpha = row
        rows.append(row)
    return np.stack(rows)


def first_frame(size: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(0), size).double()


# ---------------------------------------------------------------- 8.1 energy


def test_defect_8_1_1_each_row_is_paired_with_its_own_state():
    energy = AdditiveEnergy(6, 5, 7)
    frames, states = torch.randn(3, 9, 6), torch.randn(3, 2, 5)
    together = energy(energy.query(states), energy.key(frames))
    for row in range(3):
        alone = energy(energy.query(states[row : row + 1]), energy.key(frames[row : row + 1]))
        torch.testing.assert_close(together[row : row + 1], alone)


@pytest.mark.parametrize(("enc_dim", "dec_dim", "att_dim"), [(6, 5, 7), (10, 12, 3), (1, 1, 1)])
def test_defect_8_1_2_and_8_1_3_any_width_has_gradients_for_all_parameters(enc_dim, dec_dim, att_dim):
    energy = AdditiveEnergy(enc_dim, dec_dim, att_dim)
    energy(energy.query(torch.randn(2, 3, dec_dim)), energy.key(torch.randn(2, 4, enc_dim))).square().sum().backward()
    for name, parameter in energy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.shape == parameter.shape, name


def test_defect_8_1_4_frames_need_not_be_contiguous():
    energy = AdditiveEnergy(6, 5, 7)
    frames, states = torch.randn(4, 3, 6).transpose(0, 1), torch.randn(2, 3, 5).transpose(0, 1)
    got = energy(energy.query(states), energy.key(frames))
    torch.testing.assert_close(got, energy(energy.query(states.contiguous()), energy.key(frames.contiguous())))


# ---------------------------------------------------------------- 8.2 soft monotonic


def test_defect_8_2_1_the_frame_itself_is_not_multiplied_in():
    alpha = soft_monotonic(torch.tensor([[[5.0, 0, 0, 0]]]))[0, 0]
    torch.testing.assert_close(alpha, torch.tensor([0.99331, 0.00335, 0.00167, 0.00084]), atol=1e-5, rtol=0)
    torch.testing.assert_close(soft_monotonic(torch.tensor([[[-99.0, 99, 99]]]))[0, 0], torch.tensor([0.0, 1, 0]))


def test_defect_8_2_2_the_first_step_looks_at_the_energies():
    energy = torch.randn(1, 1, 6)
    expected = recursion(energy[0], first_frame(6))
    np.testing.assert_allclose(soft_monotonic(energy)[0].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("level", "start"), [(-14.0, 0), (-14.0, 9000), (0.0, 9000), (14.0, 0), (14.0, 9000), (200.0, 0), (-200.0, 0)]
)
def test_defect_8_2_3_and_8_2_4_long_sequences_keep_all_probability_and_finite_gradients(level, start):
    size = 10_000
    energy = torch.full((1, 2, size), level) + 0.01 * torch.randn(1, 2, size)
    energy.requires_grad_()
    previous = torch.zeros(1, size)
    previous[0, start] = 1
    alpha = soft_monotonic(energy, previous=previous)
    expected = recursion(energy[0], previous[0])
    np.testing.assert_allclose(alpha[0].detach().numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(alpha[0].sum(-1).detach().numpy(), expected.sum(-1), atol=1e-5)
    (alpha * torch.randn_like(alpha)).sum().backward()
    assert energy.grad.isfinite().all()


def test_soft_attention_has_exact_gradients_with_saturated_and_padded_rows():
    energy = torch.randn(4, 3, 6, dtype=torch.float64)
    energy[1, :, ::2] = 40
    energy[2] = -40
    look = torch.randn(4, 3, 6, dtype=torch.float64) * 5
    lengths = torch.tensor([6, 6, 4, 0])
    previous = torch.rand(4, 6, dtype=torch.float64) / 6

    def attend(energy: Tensor, look: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        alpha = soft_monotonic(energy, lengths, previous)
        return alpha, soft_chunkwise(alpha, look, 3)

    given = [tensor.requires_grad_() for tensor in (energy, look, previous)]
    assert torch.autograd.gradcheck(attend, given)


def test_defect_8_2_5_noise_is_asked_for():
    mocha = Mocha(6, 5, 4)
    memory, states, lengths = mocha.remember(torch.randn(2, 7, 6)), torch.randn(2, 3, 5), torch.tensor([7, 4])
    assert torch.equal(mocha.expect(states, memory, lengths).alpha, mocha.expect(states, memory, lengths).alpha)
    noisy = mocha.expect(states, memory, lengths, noise=0.5).alpha
    assert not torch.equal(noisy, mocha.expect(states, memory, lengths, noise=0.5).alpha)


def test_defect_8_2_6_float64_stays_float64_without_any_device():
    alpha = soft_monotonic(torch.randn(1, 2, 5, dtype=torch.float64))
    assert alpha.dtype == torch.float64
    assert soft_chunkwise(alpha, torch.randn(1, 2, 5, dtype=torch.float64), 2).dtype == torch.float64


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=3), extra=st.integers(0, 3))
def test_defect_8_2_7_and_8_3_3_padding_is_never_attended_and_changes_nothing(lengths, extra):
    size = max(1, *lengths) + extra
    energy, look = torch.randn(len(lengths), 2, size), torch.randn(len(lengths), 2, size) * 5
    alpha = soft_monotonic(energy, torch.tensor(lengths))
    beta = soft_chunkwise(alpha, look, 3)
    for row, length in enumerate(lengths):
        assert (alpha[row, :, length:] == 0).all()
        assert (beta[row, :, length:] == 0).all()
        if length:
            alone = soft_monotonic(energy[row : row + 1, :, :length])
            torch.testing.assert_close(alpha[row, :, :length], alone[0])
            torch.testing.assert_close(
                beta[row, :, :length], soft_chunkwise(alone, look[row : row + 1, :, :length], 3)[0]
            )


# ---------------------------------------------------------------- 8.3 soft chunkwise


def test_defect_8_3_1_low_energies_beside_a_high_one_keep_their_weights():
    look = torch.tensor([[[0.0, -22, -23, -24]]])
    alpha = torch.tensor([[[0.0, 0, 0, 1]]])
    expected = torch.tensor([0, 0.66524, 0.24473, 0.09003])
    torch.testing.assert_close(soft_chunkwise(alpha, look, 3)[0, 0], expected, atol=1e-5, rtol=0)


def test_defect_8_3_2_energies_are_left_alone():
    alpha, look = torch.rand(1, 2, 5), torch.randn(1, 2, 5)
    kept = look.clone()
    soft_chunkwise(alpha, look, 3)
    assert torch.equal(look, kept)


@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_chunks_spread_all_of_the_attention(window):
    alpha, look = soft_monotonic(torch.randn(2, 3, 5)), torch.randn(2, 3, 5) * 20
    beta = soft_chunkwise(alpha, look, window)
    torch.testing.assert_close(beta.sum(-1), alpha.sum(-1))
    if window == 1:
        torch.testing.assert_close(beta, alpha)


# ---------------------------------------------------------------- 8.4 and 8.5 hard


@settings(deadline=None, max_examples=50)
@given(data=st.data(), size=st.integers(1, 8), num_steps=st.integers(1, 4), window=st.integers(1, 9))
def test_defect_8_4_1_soft_equals_hard_when_energies_are_certain_from_the_first_step_on(data, size, num_steps, window):
    signs = data.draw(
        st.lists(st.lists(st.booleans(), min_size=size, max_size=size), min_size=num_steps, max_size=num_steps)
    )
    energy = torch.where(torch.tensor(signs), 60.0, -60.0)
    look, length = torch.randn(num_steps, size) * 5, torch.tensor([data.draw(st.integers(1, size))])
    alpha = soft_monotonic(energy[None], length)
    beta = soft_chunkwise(alpha, look[None], window)
    position = torch.tensor([0])
    for step in range(num_steps):
        position = hard_monotonic(energy[step : step + 1], length, position)
        expected = torch.zeros(size)
        if position >= 0:
            expected[position] = 1
        torch.testing.assert_close(alpha[0, step], expected)
        torch.testing.assert_close(beta[0, step], hard_chunkwise(position, look[step : step + 1], window)[0])


def test_defect_8_4_2_a_miss_never_attends_padding():
    energy, lengths, start = torch.full((3, 6), -1.0), torch.tensor([6, 3, 1]), torch.zeros(3, dtype=torch.long)
    energy[1, 4] = 5  # beyond the end
    assert hard_monotonic(energy, lengths, start, "last").tolist() == [5, 2, 0]
    stopped = hard_monotonic(energy, lengths, start)
    assert stopped.tolist() == [-1, -1, -1]
    assert (hard_chunkwise(stopped, torch.randn(3, 6), 2) == 0).all()
    assert hard_monotonic(torch.ones(3, 6), lengths, stopped).tolist() == [-1, -1, -1]


def test_defect_8_4_3_the_threshold_is_strict_and_no_device_is_needed():
    energy = torch.tensor([[0.0, -1, 0, 1e-6]], dtype=torch.float64)
    stop = hard_monotonic(energy, torch.tensor([4]), torch.tensor([0]))
    assert stop.tolist() == [3]
    assert hard_chunkwise(stop, energy, 2).dtype == torch.float64


def test_defect_8_5_4_rows_without_attention_do_not_shift_the_others():
    look = torch.randn(2, 4)
    beta = hard_chunkwise(torch.tensor([-1, 1]), look, 2)
    assert beta.isfinite().all()
    assert (beta[0] == 0).all()
    torch.testing.assert_close(beta[1, :2], look[1, :2].softmax(0))
    assert (beta[1, 2:] == 0).all()


def test_defect_8_5_5_energies_are_left_alone():
    energy, look = torch.randn(2, 4), torch.randn(2, 4)
    kept = energy.clone(), look.clone()
    hard_chunkwise(hard_monotonic(energy, torch.tensor([4, 2]), torch.tensor([0, 1])), look, 2)
    assert torch.equal(energy, kept[0])
    assert torch.equal(look, kept[1])


@settings(deadline=None, max_examples=10)
@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_defect_8_5_6_each_frame_is_walked_about_once_however_frames_arrive(cuts):
    torch.manual_seed(1)
    config = ModelConfig(encoder=EncoderConfig(width=8, hidden=8, num_layers=1), attention=AttentionConfig(init_r=0.0))
    search, frames = GreedySearch(MochaModel(config).eval()), 3 * torch.randn(1, 60, 8)
    whole, state = search.step(frames, search.initial_state(1))
    assert len(whole.token) > 5
    assert 60 <= int(state.num_energies) <= 60 + SCAN_BLOCK * (len(whole.token) + 1)
    state, found = search.initial_state(1), []
    for start, end in pairwise([0, *sorted(cuts), 60]):
        tokens, state = search.step(frames[:, start:end], state)
        found.append(tokens)
    assert torch.cat([tokens.token for tokens in found]).tolist() == whole.token.tolist()
    assert torch.cat([tokens.stop for tokens in found]).tolist() == whole.stop.tolist()


# ---------------------------------------------------------------- 8.6 decoder


def decoder(**changes) -> MochaDecoder:
    torch.manual_seed(0)
    arguments = {"enc_dim": 6, "dec_dim": 12, "embedding_dim": 5, "att_dim": 7, "out_dim": 8, "vocab_size": 11}
    return MochaDecoder(**arguments | changes).eval()


def test_defect_8_6_calls_are_repeatable_and_widths_free():
    layer, frames, lengths = decoder(), torch.randn(2, 9, 6), torch.tensor([9, 5])
    targets = torch.randint(11, (2, 4))
    logits, alpha = layer(frames, lengths, targets)
    assert logits.shape == (2, 4, 11)
    assert torch.equal(logits, layer(frames, lengths, targets)[0])
    assert torch.equal(layer.greedy(frames, lengths, 4).logits, layer.greedy(frames, lengths, 4).logits)
    assert (alpha[1, :, 5:] == 0).all()


def test_defect_8_6_lengths_are_respected():
    layer, frames, lengths = decoder(init_r=0.0), torch.randn(3, 9, 6), torch.tensor([9, 5, 1])
    targets = torch.randint(11, (3, 4))
    logits, _ = layer(frames, lengths, targets)
    greedy = layer.greedy(frames, lengths, 4)
    for row, length in enumerate(lengths.tolist()):
        part = (frames[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(logits[row], layer(*part, targets[row : row + 1])[0][0])
        alone = layer.greedy(*part, 4)
        assert torch.equal(greedy.tokens[row], alone.tokens[0])
        assert torch.equal(greedy.positions[row], alone.positions[0])


def test_teacher_forcing_does_not_see_the_token_it_predicts():
    layer, frames, lengths = decoder(), torch.randn(1, 9, 6), torch.tensor([9])
    targets = torch.randint(11, (1, 4))
    changed = targets.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 11
    logits, other = layer(frames, lengths, targets)[0], layer(frames, lengths, changed)[0]
    torch.testing.assert_close(logits[:, :3], other[:, :3])
    assert not torch.allclose(logits[:, 3], other[:, 3])


@pytest.mark.parametrize(
    "changes", [{"dec_dim": 0}, {"sos_id": 11}, {"on_miss": "wait"}, {"chunk_size": 0}, {"vocab_size": 0}]
)
def test_settings_out_of_range_are_refused(changes):
    with pytest.raises(ConfigError):
        decoder(**changes)
