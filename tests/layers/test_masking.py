"""Masking; test names give the defects of SPEC 3 that ours must not have."""

import pytest
import torch

from mocha_stream.errors import ConfigError
from mocha_stream.layers import Masking

INF = float("inf")


def test_defect_3_1_the_callers_tensor_is_left_alone():
    x = torch.randn(2, 4, 3, requires_grad=True)
    kept = x.detach().clone()
    y = Masking(3, mask=0.0, batch_first=True)(x, [4, 1])
    y.sum().backward()
    assert torch.equal(x.detach(), kept)
    assert (x.grad[0] == 1).all()
    assert (x.grad[1, 1:] == 0).all()


@pytest.mark.parametrize("highlighting_mask", [1.0, None])
def test_defect_3_2_no_indices_means_every_feature_is_masked(highlighting_mask):
    masking = Masking(3, mask=-INF, indices_to_highlight=None, highlighting_mask=highlighting_mask, batch_first=True)
    y = masking(torch.zeros(1, 3, 3), [1])
    assert (y[0, 1:] == -INF).all()
    assert (y[0, 0] == 0).all()


def test_defect_3_3_whole_numbers_may_be_given():
    y = Masking(2, mask=4, highlighting_mask=0.5, batch_first=True)(torch.zeros(1, 2, 2), [1])
    assert y.tolist() == [[[0, 0], [4, 0.5]]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_defect_3_4_every_precision(dtype):
    y = Masking(2, batch_first=True)(torch.zeros(1, 2, 2, dtype=dtype), [1])
    assert y.dtype == dtype
    assert y.tolist() == [[[0, 0], [-INF, 1]]]


def test_defect_3_5_whatever_lies_in_the_padding_is_replaced():
    x = torch.tensor([[[1.0, 2.0], [INF, torch.nan], [torch.nan, -INF]]])
    y = Masking(2, mask=0.0, highlighting_mask=None, batch_first=True)(x, [1])
    assert y[0, :, 0].tolist() == [1, 0, 0]
    assert y[0, 1, 1].isnan()
    assert y[0, 2, 1] == -INF


def test_both_layouts_agree_with_dimensions_between():
    x = torch.randn(3, 5, 2, 4)
    first = Masking(4, indices_to_highlight=[0, -2], batch_first=True)(x, torch.tensor([5, 0, 9]))
    second = Masking(4, indices_to_highlight=(0, 2))(x.transpose(0, 1), torch.tensor([5, 0, 9]))
    assert torch.equal(first, second.transpose(0, 1))
    assert torch.equal(first[2], x[2])
    assert (first[1, ..., [0, 2]] == 1).all()


def test_no_indices_at_all_highlight_nothing():
    y = Masking(2, mask=7.0, indices_to_highlight=[], batch_first=True)(torch.zeros(1, 2, 2), [1])
    assert y.tolist() == [[[0, 0], [7, 7]]]


@pytest.mark.parametrize("index", [3, -4])
def test_indices_outside_are_refused(index):
    with pytest.raises(ConfigError, match="from -3 to 2"):
        Masking(3, indices_to_highlight=index)
    with pytest.raises(ConfigError, match="at least 1"):
        Masking(0)
