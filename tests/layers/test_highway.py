"""HighwayNetwork and published HighwayBiLSTM; test names give the defects of SPEC 1 and 2 that ours must not have."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mocha_stream.errors import ConfigError
from mocha_stream.layers import BiLSTM, HighwayBiLSTM, HighwayNetwork
from mocha_stream.layers.highway import GATE_TYPES


def affine() -> nn.Module:
    return nn.Linear(6, 6)


# ---------------------------------------------------------------- HighwayNetwork


def test_defect_1_1_independent_applies_the_carry_gate():
    layer = HighwayNetwork(6, gate_type="independent")
    x = torch.randn(3, 6)
    expected = torch.relu(layer.H[0](x)) * layer.T[0](x).sigmoid() + x * layer.C[0](x).sigmoid()
    torch.testing.assert_close(layer(x), expected)
    layer(x).sum().backward()
    assert layer.C[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("gate_type", GATE_TYPES)
def test_defect_1_2_each_chained_layer_carries_the_output_of_the_one_before(gate_type):
    layer = HighwayNetwork(6, gate_type=gate_type, num_layers=3)
    x = torch.randn(3, 6)
    y = x
    for index in range(3):
        transform = layer.T[index](y).sigmoid() if layer.T else 1
        carry = layer.C[index](y).sigmoid() if layer.C else 1 - transform if gate_type == "generic" else 1
        y = torch.relu(layer.H[index](y)) * transform + y * carry
    torch.testing.assert_close(layer(x), y)


@pytest.mark.parametrize("gate_type", GATE_TYPES)
@pytest.mark.parametrize("global_input", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_defect_1_3_gradients_flow_for_every_gate(gate_type, global_input, num_layers):
    layer = HighwayNetwork(
        6, None, affine, gate_type=gate_type, global_highway_input=global_input, num_layers=num_layers
    )
    x, x_hw = (torch.randn(2, 4, 6, requires_grad=True) for _ in range(2))
    layer(x, x_hw).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
    assert x.grad.abs().sum() > 0
    assert x_hw.grad.abs().sum() > 0


@pytest.mark.parametrize("gate_type", ["none", "C_only"])
@pytest.mark.parametrize("activation", [None, nn.ReLU(inplace=True), torch.relu])
def test_defect_1_4_the_callers_tensors_are_left_alone(gate_type, activation):
    layer = HighwayNetwork(6, H_features=0, H_activation=activation, gate_type=gate_type, num_layers=2)
    x, x_hw = torch.randn(3, 6), torch.randn(3, 6)
    kept, kept_hw = x.clone(), x_hw.clone()
    layer(x, x_hw)
    assert torch.equal(x, kept)
    assert torch.equal(x_hw, kept_hw)


def test_defect_1_5_a_module_or_a_factory_makes_one_layer_each():
    module = affine()
    copied = HighwayNetwork(6, U_layer=module, num_layers=2)
    assert torch.equal(copied.U[0].weight, copied.U[1].weight)
    assert copied.U[0] is not copied.U[1]
    assert copied.U[0] is not module
    made = HighwayNetwork(6, U_layer=affine, num_layers=2)
    assert not torch.equal(made.U[0].weight, made.U[1].weight)
    with pytest.raises(ConfigError, match="module"):
        HighwayNetwork(6, U_layer=lambda: 3)


def test_defect_1_6_the_initialiser_is_given_every_made_module():
    seen = []
    layer = HighwayNetwork(6, U_layer=affine, U_init_=seen.append, num_layers=3)
    assert seen == list(layer.U)


@pytest.mark.parametrize("gate_type", GATE_TYPES)
@pytest.mark.parametrize("global_input", [False, True])
def test_defect_1_7_other_output_widths_project_what_is_carried(gate_type, global_input):
    layer = HighwayNetwork(6, 4, gate_type=gate_type, global_highway_input=global_input, num_layers=2)
    assert layer(torch.randn(2, 3, 6)).shape == (2, 3, 4)
    with pytest.raises(ConfigError, match="H_features"):
        HighwayNetwork(6, 4, H_features=0)


def test_defect_1_8_the_highway_input_is_optional_and_the_gate_type_is_checked():
    layer = HighwayNetwork(6)
    x = torch.randn(3, 6)
    torch.testing.assert_close(layer(x), layer(x, x))
    with pytest.raises(ConfigError, match="gate_type is 'both'; it has to be one of generic"):
        HighwayNetwork(6, gate_type="both")


def test_defect_1_9_dropout_works_without_activation():
    layer = HighwayNetwork(6, H_activation=None, H_dropout=1.0, gate_type="none")
    x = torch.randn(3, 6)
    torch.testing.assert_close(layer(x), x)


def test_gates_start_by_carrying():
    layer = HighwayNetwork(6, gate_type="independent", num_layers=2)
    assert all((gate.bias == -1).all() for gate in layer.T)
    assert all((gate.bias == 1).all() for gate in layer.C)


def test_further_arguments_go_to_the_users_layer():
    class Scale(nn.Module):
        def forward(self, x, factor, shift=0.0):
            return x * factor + shift

    layer = HighwayNetwork(6, U_layer=Scale, H_features=0, H_activation=None, gate_type="none", num_layers=2)
    x, zero = torch.randn(3, 6), torch.zeros(3, 6)
    torch.testing.assert_close(layer(x, zero, 3, shift=1.0), 4 * (3 * x + 1) + 1)


def test_leading_dimensions_may_be_any():
    layer = HighwayNetwork(6, num_layers=2)
    x = torch.randn(2, 3, 4, 6)
    torch.testing.assert_close(layer(x)[1, 2], layer(x[1, 2]))
    assert layer(x[0, 0, 0]).shape == (6,)


def test_the_users_layer_may_change_the_width_between():
    layer = HighwayNetwork(6, U_layer=lambda: nn.Linear(6, 9), H_features=9)
    assert layer(torch.randn(3, 6)).shape == (3, 6)
    with pytest.raises(ConfigError, match="H_features is 9"):
        HighwayNetwork(6, H_features=9)


# ---------------------------------------------------------------- HighwayBiLSTM


def highway_bilstm(**changes) -> HighwayBiLSTM:
    arguments = {"hw_num_layers": 2, "lstm_hidden_dim": 5, "lstm_num_layers": 2, "in_features": 6, "out_features": 4}
    return HighwayBiLSTM(**arguments | changes)


def test_defect_2_1_initial_values_follow_the_arguments():
    def spread(**changes):
        return highway_bilstm(lstm_hidden_dim=50, in_features=60, **changes).lstm[0].ahead[0].weight_ih_l0.std().item()

    assert spread(init_weight_value=8.0) == pytest.approx(2 * spread(init_weight_value=2.0), rel=0.1)
    assert spread(init_weight=False) == pytest.approx(50**-0.5 / 3**0.5, rel=0.1)
    wide = highway_bilstm(lstm_hidden_dim=50, in_features=5).lstm[0].ahead[0].bias_ih_l0
    assert 0.9 < wide.abs().max() <= 1  # sqrt(6 / (5 + 1)): the width of the input, and no constant


def test_defect_2_2_every_lstm_layer_is_drawn_alike():
    torch.manual_seed(0)
    layer = highway_bilstm(lstm_hidden_dim=40, lstm_num_layers=3)
    bound = (2 * 6 / (160 + 40)) ** 0.5
    for stack in layer.lstm:
        for part in (*stack.ahead, *stack.back):
            assert 0.95 * bound < part.weight_hh_l0.abs().max() <= bound
    assert layer.output.bias.abs().max() <= 6**-0.5


def test_defect_2_3_there_are_no_dead_parameters():
    layer = highway_bilstm()
    layer(torch.randn(2, 7, 6), [7, 3]).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_defect_2_4_sequence_first_with_fewer_frames_than_rows():
    torch.manual_seed(0)
    batch_first = highway_bilstm().eval()
    seq_first = highway_bilstm(batch_first=False).eval()
    seq_first.load_state_dict(batch_first.state_dict())
    x, lengths = torch.randn(5, 3, 6), [3, 2, 1, 3, 2]
    torch.testing.assert_close(seq_first(x.transpose(0, 1), lengths), batch_first(x, lengths))


def test_defect_2_5_short_batches_and_empty_rows():
    layer = highway_bilstm().eval()
    x = torch.randn(3, 9, 6)
    y = layer(x, torch.tensor([4, 0, 2]))
    assert y.shape == (3, 9, 4)
    assert (y[1] == 0).all()
    assert (y[0, 4:] == 0).all()
    torch.testing.assert_close(y[:, :4], layer(x[:, :4], [4, 0, 2]))
    assert layer(x[:, :0], [0, 0, 0]).shape == (3, 0, 4)
    assert (layer(x, [0, 0, 0]) == 0).all()


def test_defect_2_6_float64():
    layer = highway_bilstm().double()
    assert layer(torch.randn(2, 4, 6, dtype=torch.float64), [4, 2]).dtype == torch.float64


def test_defect_2_7_nothing_is_kept_between_calls():
    layer = highway_bilstm().eval()
    x = torch.randn(2, 4, 6)
    before = set(vars(layer))
    first = layer(x, [4, 3])
    layer(torch.randn(5, 8, 6), [8] * 5)
    torch.testing.assert_close(layer(x, [4, 3]), first)
    assert set(vars(layer)) == before


def test_published_padding_does_not_reach_valid_frames():
    layer = highway_bilstm().eval()
    x, lengths = torch.randn(3, 8, 6), torch.tensor([8, 5, 2])
    y = layer(x, lengths)
    x[1, 5:] = float("nan")
    x[2, 2:] = float("inf")
    x.requires_grad_()
    again = layer(x, lengths)
    torch.testing.assert_close(again, y)
    again.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert (x.grad[1, 5:] == 0).all()


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5), num_layers=st.integers(1, 2))
def test_bilstm_equals_packed_rows(lengths, num_layers):
    ours = BiLSTM(3, 4, num_layers)
    theirs = nn.LSTM(3, 4, num_layers, batch_first=True, bidirectional=True)
    for depth in range(num_layers):
        for name in ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l"):
            getattr(ours.ahead[depth], f"{name}0").data = getattr(theirs, f"{name}{depth}").data
            getattr(ours.back[depth], f"{name}0").data = getattr(theirs, f"{name}{depth}_reverse").data
    x = torch.randn(len(lengths), 6, 3)
    y = ours(x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        assert (y[row, length:] == 0).all()
        if length:
            torch.testing.assert_close(y[row : row + 1, :length], theirs(x[row : row + 1, :length])[0])


@pytest.mark.parametrize("name", ["hw_num_layers", "lstm_hidden_dim", "lstm_num_layers", "in_features", "out_features"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ConfigError, match="at least 1"):
        highway_bilstm(**{name: 0})
