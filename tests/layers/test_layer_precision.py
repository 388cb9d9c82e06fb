"""Every layer in float64, under bfloat16 and half autocast, and without writing into what it is given."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mocha_stream.encoders.star_transformer import StarTransformer, StreamingStarTransformer
from mocha_stream.hisan import MTHiSAN
from mocha_stream.layers import CharEmbeddingCNN, CharEmbeddingRNN, HighwayBiLSTM, HighwayNetwork, Masking, MochaDecoder

LENGTHS = torch.tensor([5, 2, 0])
MASK = torch.arange(5) < LENGTHS[:, None]
CHARACTERS = torch.tensor([[[1, 2, 3], [4, 0, 0]], [[5, 6, 0], [0, 0, 0]]])
WORD_LENGTHS = torch.tensor([[3, 1], [2, 0]])
DOCUMENTS = torch.tensor([[1, 2, 0, 3, 0, 0], [0, 0, 0, 0, 0, 0]])
TOKENS = torch.tensor([[2, 3], [4, 5], [6, 7]])

Call = Callable[[nn.Module, Tensor], Tensor]


def highway_network() -> tuple[nn.Module, Call]:
    layer = HighwayNetwork(6, U_layer=nn.Linear(6, 6), gate_type="independent", num_layers=2)
    return layer, lambda layer, x: layer(x, x.flip(0))


def highway_bilstm() -> tuple[nn.Module, Call]:
    return HighwayBiLSTM(2, 4, 2, 6, 6), lambda layer, x: layer(x, LENGTHS)


def masking() -> tuple[nn.Module, Call]:
    return Masking(6, mask=-1.0, batch_first=True), lambda layer, x: layer(x, LENGTHS)


def char_embedding_rnn() -> tuple[nn.Module, Call]:
    return CharEmbeddingRNN(8, emb_dim=6, out_type="all_max"), lambda layer, x: layer(CHARACTERS, WORD_LENGTHS)


def char_embedding_cnn() -> tuple[nn.Module, Call]:
    return CharEmbeddingCNN(8, emb_dim=6), lambda layer, x: layer(CHARACTERS, WORD_LENGTHS)


def star_transformer() -> tuple[nn.Module, Call]:
    return StarTransformer(6, 2, 2, 3), lambda layer, x: torch.cat([layer(x, MASK)[0], layer(x, MASK)[1][:, None]], 1)


def streaming_star_transformer() -> tuple[nn.Module, Call]:
    return StreamingStarTransformer(6, 2, 2, relay_memory=3), lambda layer, x: layer(x, LENGTHS, 2)


def mthisan() -> tuple[nn.Module, Call]:
    layer = MTHiSAN(np.random.randn(8, 6), [3, 2], 2, 3, 4, 2, bag_of_embeddings=True)
    return layer, lambda layer, x: torch.cat(layer(DOCUMENTS), 1)


def mocha_decoder() -> tuple[nn.Module, Call]:
    return MochaDecoder(6, vocab_size=9), lambda layer, x: layer(x, LENGTHS, TOKENS)[0]


LAYERS = [
    highway_network,
    highway_bilstm,
    masking,
    char_embedding_rnn,
    char_embedding_cnn,
    star_transformer,
    streaming_star_transformer,
    mthisan,
    mocha_decoder,
]
layers = pytest.mark.parametrize("make", LAYERS, ids=lambda make: make.__name__)


@layers
def test_float64_in_float64_out(make):
    layer, call = make()
    x = torch.randn(3, 5, 6)
    narrow, wide = call(layer.eval(), x), call(layer.double(), x.double())
    assert wide.dtype == torch.float64
    torch.testing.assert_close(narrow.double(), wide, atol=1e-5, rtol=1e-5)


@layers
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_finite_values_and_gradients(make, dtype):
    layer, call = make()
    x = torch.randn(3, 5, 6, requires_grad=True)
    exact = call(layer.eval(), x)
    with torch.autocast("cpu", dtype):
        y = call(layer, x)
    assert y.isfinite().all()
    torch.testing.assert_close(y.float(), exact, atol=0.1, rtol=0.1)
    y.float().square().sum().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@layers
def test_inputs_are_not_written(make):
    layer, call = make()
    x = torch.randn(3, 5, 6)
    given = (x, LENGTHS, MASK, CHARACTERS, WORD_LENGTHS, DOCUMENTS, TOKENS)
    kept = [tensor.clone() for tensor in given]
    call(layer, x)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(given, kept, strict=True))


@layers
def test_the_same_call_gives_the_same_result(make):
    layer, call = make()
    x = torch.randn(3, 5, 6)
    assert torch.equal(call(layer.eval(), x), call(layer, x))
