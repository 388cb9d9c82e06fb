"""Small models that do something: one that emits plenty of tokens, and one that does so only where there is sound."""

import random as pseudo_random
from copy import deepcopy
from functools import cache

import numpy as np
import torch
from hypothesis import strategies as st

from mocha_stream.config import AttentionConfig, DecoderConfig, EncoderConfig, FeatureConfig, ModelConfig
from mocha_stream.features import log_mel
from mocha_stream.model import MochaModel
from mocha_stream.tokenizer import Tokenizer

RATE = 16_000
MELS = 16
TEXT = """THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG
PACK MY BOX WITH FIVE DOZEN LIQUOR JUGS
IT'S A QUARTER TO TEN AND THE SHIP HASN'T COME IN
HOW VEXINGLY QUICK DAFT ZEBRAS JUMP""".splitlines()


def cuts(total: int, most: int = 8) -> st.SearchStrategy[list[int]]:
    """Ways to cut `total` into pieces, pieces of nothing and of one among them."""
    near = st.lists(st.integers(0, min(total, 4)), max_size=3)
    return st.tuples(st.lists(st.integers(0, total), max_size=most), near).map(
        lambda at: [0, *sorted(at[0] + at[1]), total]
    )


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXT, 40)


def config(
    energy: str = "dot", window: int = 3, on_miss: str = "stop", kind: str = "highway_bilstm", lookahead: int = 0
) -> ModelConfig:
    return ModelConfig(
        features=FeatureConfig(num_mels=MELS),
        encoder=EncoderConfig(
            kind=kind,
            width=12,
            hidden=10,
            num_layers=2,
            chunks=(2, 4),
            lookahead=lookahead,
            num_heads=2,
            relay_memory=6,
        ),
        attention=AttentionConfig(energy=energy, width=8, window=window, on_miss=on_miss),
        decoder=DecoderConfig(width=9, embedding=7),
        vocab_size=len(tokenizer()),
    )


def random_model(seed: int = 1, **changes) -> MochaModel:
    """A model whose stops, tokens and silences depend strongly on what it hears."""
    return deepcopy(_random_model(seed, **changes))


def hearing_model(seed: int = 1, **changes) -> MochaModel:
    """A model that hears whether there is sound: neither head does anything in silence (below about -70 dB)."""
    return deepcopy(_hearing_model(seed, **changes))


@cache
@torch.no_grad()
def _random_model(seed: int, **changes) -> MochaModel:
    torch.manual_seed(seed)
    model = MochaModel(config(**changes)).eval()
    model.encoder.frontend.set_statistics(torch.linspace(-7, -3, MELS), torch.linspace(2, 4, MELS))
    for lstm in (module for module in model.modules() if isinstance(module, torch.nn.LSTM)):
        for parameter in lstm.parameters():
            parameter *= 2
    model.decoder.embed.weight *= 2
    # Untrained layers give nearly the same for every frame and state; centred and scaled, they tell them apart.
    features = torch.randn(1, 1600, MELS) * 3 - 5
    frames, _ = model.encoder(features, torch.tensor([1600]), 4)
    states = model.decoder(torch.randint(1, len(tokenizer()), (1, 199)))
    attention, decoder = model.attention, model.decoder
    for layer, inputs in (
        (attention.stop_energy.key, frames),
        (attention.stop_energy.query, states),
        (attention.chunk_energy.key, frames),
        (attention.chunk_energy.query, states),
        (model.ctc, frames),
        (decoder.combine, torch.cat([frames, states], -1)),
        (decoder.output, torch.tanh(decoder.combine(torch.cat([frames, states], -1)))),
    ):
        scores = inputs[0] @ layer.weight.T
        layer.weight /= scores.std(0)[:, None]
        if layer.bias is not None:
            layer.bias.copy_(-inputs[0].mean(0) @ layer.weight.T)
    model.ctc.bias[0] += 2
    attention.stop_energy.query.weight *= 2 if attention.stop_energy.query.bias is not None else 0.5
    attention.stop_energy.r.fill_(-0.3)
    if hasattr(attention.stop_energy, "g"):
        attention.stop_energy.g.fill_(3.0)
    return model


@cache
@torch.no_grad()
def _hearing_model(seed: int, **changes) -> MochaModel:
    model = _random_model.__wrapped__(seed, **changes)  # made anew, so that chance goes on from there
    frontend, attention, half = model.encoder.frontend, model.attention, 6
    frontend.set_statistics(torch.full((MELS,), -8.0), torch.ones(MELS))
    for number, layer in enumerate(frontend.convs):
        layer.conv.weight.zero_()
        layer.conv.bias.zero_()
        last_tap = torch.rand(half, MELS) ** 4 if number == 0 else torch.eye(half, 12)
        layer.conv.weight[:half, :, -1] = last_tap
    frontend.output.bias.zero_()
    frontend.output.weight.copy_(torch.cat([torch.eye(half, 12), -torch.eye(half, 12)]))
    for layer in model.encoder.context.layers:
        layer.project.weight.zero_()
        layer.project.bias.zero_()
    # A frame is now (x, -x), x >= 0 the loudness of some bands, normalised: zeros in silence.
    model.ctc.weight.zero_()
    model.ctc.bias.zero_()
    model.ctc.bias[0] = 1.0
    model.ctc.weight[5, :half] = 1.0
    features = torch.from_numpy(log_mel(noise(20), model.config.features))[None]
    frames, _ = model.encoder(features, torch.tensor([features.shape[1]]), 4)
    mean, key = frames[0].mean(0), attention.stop_energy.key
    key.weight -= torch.outer(key.weight @ mean, mean) / mean.square().sum()
    key.weight /= (frames[0] @ key.weight.T).std(0)[:, None]
    key.bias.zero_()
    return model


def noise(seconds: float, seed: int = 0, amplitude: float = 0.1) -> np.ndarray:
    """(n,) float32 samples of noise that changes its colour and loudness every 60 ms or so."""
    random = np.random.default_rng(seed)
    samples = random.standard_normal(round(seconds * RATE)).astype(np.float32)
    for start in range(0, len(samples), 1000):
        part = samples[start : start + 1000]
        width = int(random.integers(1, 12))
        part[:] = np.convolve(part, np.ones(width) / width, "same")[: len(part)] * random.uniform(0.1, 1)
    return samples * np.float32(amplitude)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


def sentences(count: int, seed: int = 0) -> list[str]:
    """Lines of words from `TEXT`, at random."""
    random = pseudo_random.Random(seed)
    words = " ".join(TEXT).split()
    return [" ".join(random.choices(words, k=random.randint(1, 6))) for _ in range(count)]
