"""What is done by hand for few rows and frames is what torch's own layers do."""

import pytest
import torch
from torch import nn

from mocha_stream.few_rows import FEW_FRAMES, Linear, run_lstm


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("size", "kept"), [(1, 1), (7, 7), (7, 3), (FEW_FRAMES + 5, 20)])
@torch.inference_mode()
def test_an_lstm_by_hand_is_that_of_torch(rows, size, kept):
    torch.manual_seed(0)
    lstm = nn.LSTM(5, 6, batch_first=True).double().eval()
    x, hidden, cell = (torch.randn(*shape).double() for shape in ((rows, size, 5), (rows, 6), (rows, 6)))
    output, *state = run_lstm(lstm, x, hidden, cell, kept)
    torch.testing.assert_close(output, lstm(x, (hidden[None], cell[None]))[0])
    _, expected = lstm(x[:, :kept], (hidden[None], cell[None]))
    torch.testing.assert_close(state, [part[0] for part in expected])


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 1, 5), (2, 5), (0, 5), (1, 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_of_one_row_is_that_of_torch(shape, bias):
    torch.manual_seed(0)
    layer = Linear(5, 4, bias).double().eval()
    x = torch.randn(*shape).double().requires_grad_()
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert torch.autograd.gradcheck(layer, x)


@torch.inference_mode()
def test_autocast_and_no_rows_go_the_way_of_torch():
    lstm, layer = nn.LSTM(5, 6, batch_first=True).eval(), Linear(5, 4).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(1, 5)).dtype == torch.bfloat16
        run_lstm(lstm, torch.randn(1, 3, 5), torch.zeros(1, 6), torch.zeros(1, 6), 2)
    assert run_lstm(lstm, torch.zeros(0, 3, 5), torch.zeros(0, 6), torch.zeros(0, 6), 2)[0].shape == (0, 3, 6)
    with pytest.raises(RuntimeError):
        layer(torch.randn(5, 1))
