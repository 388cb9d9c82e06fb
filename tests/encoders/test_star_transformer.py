"""The Star-Transformer, published and streaming; test names give the defects of SPEC 6 that ours must not have."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from mocha_stream.config import EncoderConfig, ModelConfig
from mocha_stream.encoders.star_transformer import StarTransformer, StreamingStarTransformer
from mocha_stream.errors import ConfigError
from mocha_stream.model import MochaModel
from mocha_stream.streaming import map_state, select

WIDTH = 8


def published(max_len: int | None = None) -> StarTransformer:
    torch.manual_seed(0)
    return StarTransformer(WIDTH, num_layers=3, num_head=2, head_dim=3, max_len=max_len).eval()


def encoder(relay_memory: int | None = 5, num_layers: int = 3, **changes) -> StreamingStarTransformer:
    torch.manual_seed(0)
    return StreamingStarTransformer(WIDTH, num_layers, num_heads=2, relay_memory=relay_memory, **changes).eval()


def prefix_mask(lengths: list[int], size: int) -> torch.Tensor:
    return torch.arange(size) < torch.tensor(lengths)[:, None]


# ---------------------------------------------------------------- published


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    extra=st.integers(0, 3),
    max_len=st.sampled_from([None, 9]),
)
def test_defect_6_1_and_6_2_valid_nodes_do_not_depend_on_padding(lengths, extra, max_len):
    layer, size = published(max_len), max(1, *lengths) + extra
    data = torch.randn(len(lengths), size, WIDTH)
    mask = prefix_mask(lengths, size)
    nodes, relay = layer(data.masked_fill(~mask[..., None], torch.nan), mask)
    assert (nodes[~mask] == 0).all()
    for row, length in enumerate(lengths):
        alone, relay_alone = layer(data[row : row + 1, :length], torch.ones(1, length))
        torch.testing.assert_close(nodes[row : row + 1, :length], alone)
        torch.testing.assert_close(relay[row : row + 1], relay_alone)


def test_defect_6_2_no_gradient_reaches_padding():
    data = torch.randn(2, 6, WIDTH, requires_grad=True)
    nodes, relay = published(9)(data, prefix_mask([6, 3], 6))
    (nodes.sum() + relay.sum()).backward()
    assert (data.grad[1, 3:] == 0).all()
    assert (data.grad[1, :3] != 0).any()


def test_padding_may_be_anywhere_in_a_row():
    layer, data = published(9), torch.randn(1, 6, WIDTH)
    mask = torch.tensor([[0, 1, 1, 0, 1, 0]])
    nodes, relay = layer(data, mask)
    alone, relay_alone = layer(data[:, mask[0].bool()], torch.ones(1, 3))
    torch.testing.assert_close(nodes[:, mask[0].bool()], alone)
    torch.testing.assert_close(relay, relay_alone)


def test_defect_6_3_rows_beyond_the_known_positions_are_refused_in_words():
    layer = published(max_len=4)
    data = torch.randn(2, 6, WIDTH)
    assert layer(data, prefix_mask([4, 2], 6))[0].shape == (2, 6, WIDTH)
    with pytest.raises(ConfigError, match="5 valid positions and max_len is 4"):
        layer(data, prefix_mask([5, 2], 6))


def test_defect_6_4_no_positions_at_all():
    nodes, relay = published()(torch.zeros(2, 0, WIDTH), torch.zeros(2, 0))
    assert nodes.shape == (2, 0, WIDTH)
    assert relay.isfinite().all()


def test_dropout_is_on_the_embeddings_only():
    layer = published().train()
    layer.dropout.p = 1.0
    data, mask = torch.randn(1, 4, WIDTH), torch.ones(1, 4)
    torch.testing.assert_close(layer(data, mask), layer.eval()(torch.zeros_like(data), mask))


# ---------------------------------------------------------------- streaming


def slow(layer: StreamingStarTransformer, x: torch.Tensor, chunk: int) -> torch.Tensor:
    """One sequence (S, D), frame by frame and relay by relay, as DESIGN 4 says it."""

    def attend(heads, query: torch.Tensor, keys: list, values: list) -> torch.Tensor:
        size, outputs = heads.head_dim, []
        for head in range(heads.num_heads):
            at = slice(head * size, (head + 1) * size)
            scores = torch.stack([query[at] @ key[at] for key in keys]) / size**0.5
            outputs.append(sum(w * value[at] for w, value in zip(scores.softmax(0), values, strict=True)))
        return functional.leaky_relu(heads.o(torch.cat(outputs)), 0.01)

    ends = [min(end, len(x)) for end in range(chunk, len(x) + chunk, chunk)]
    nodes, relays = x, [x[:end].mean(0) for end in ends]
    for part in layer.layers:
        normed, zero = part.norm(nodes), torch.zeros(part.ring.k.out_features)
        updated = []
        for i in range(len(x)):
            end, relay = ends[i // chunk], relays[i // chunk]
            seen = [normed[i - 1] if i > 0 else None, normed[i], normed[i + 1] if i + 1 < end else None, x[i], relay]
            keys = [zero if node is None else part.ring.k(node) for node in seen]
            values = [zero if node is None else part.ring.v(node) for node in seen]
            updated.append(attend(part.ring, part.ring.q(normed[i]), keys, values))
        nodes = torch.stack(updated)
        if part.star is not None:
            memory = layer.relay_memory or len(x)
            seen = [[relay, *nodes[max(0, end - memory) : end]] for end, relay in zip(ends, relays, strict=True)]
            relays = [
                attend(part.star, part.star.q(relay), [part.star.k(n) for n in heard], [part.star.v(n) for n in heard])
                for relay, heard in zip(relays, seen, strict=True)
            ]
    return nodes


@pytest.mark.parametrize("relay_memory", [1, 3, 4, 7, 50, None])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 13])
def test_all_chunks_at_once_equal_the_slow_formula(relay_memory, chunk):
    layer, x = encoder(relay_memory), torch.randn(13, WIDTH)
    torch.testing.assert_close(layer(x[None], torch.tensor([13]), chunk)[0], slow(layer, x, chunk))


@pytest.mark.parametrize(("relay_memory", "final_norm"), [(1, False), (5, False), (5, True), (None, False)])
@settings(deadline=None, max_examples=40)
@given(size=st.integers(0, 17), chunk=st.integers(1, 8) | st.none(), cuts=st.lists(st.integers(0, 17), max_size=6))
def test_the_streaming_law_holds_for_every_cut(relay_memory, final_norm, size, chunk, cuts):
    layer, x = encoder(relay_memory, final_norm=final_norm), torch.randn(2, size, WIDTH)
    state, pieces = layer.initial_state(2), []
    for start, end in pairwise([0, *sorted(min(cut, size) for cut in cuts), size]):
        kept = map_state(torch.clone, state)
        y, next_state = layer.step(x[:, start:end], state, chunk)
        map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), state, kept)
        state = next_state
        pieces.append(y)
    pieces.append(layer.finish(state, chunk))
    torch.testing.assert_close(torch.cat(pieces, 1), layer(x, torch.tensor([size, size]), chunk))


@pytest.mark.parametrize("chunk", [2, 4, None])
@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(0, 14), min_size=1, max_size=4))
def test_rows_do_not_see_each_other_or_their_padding(chunk, lengths):
    layer, size = encoder(), max(lengths) + 1
    x = torch.randn(len(lengths), size, WIDTH)
    mask = prefix_mask(lengths, size)
    y = layer(x.masked_fill(~mask[..., None], torch.nan), torch.tensor(lengths), chunk)
    assert (y[~mask] == 0).all()
    for row, length in enumerate(lengths):
        alone = layer(x[row : row + 1, :length], torch.tensor([length]), chunk)
        torch.testing.assert_close(y[row : row + 1, :length], alone)


def test_one_chunk_and_unbounded_memory_is_the_published_layer():
    layer, streaming, x = published(), encoder(None, head_dim=3), torch.randn(2, 9, WIDTH)
    streaming.layers.load_state_dict(layer.layers.state_dict(), strict=False)
    nodes, _ = layer(x, prefix_mask([9, 4], 9))
    torch.testing.assert_close(streaming(x, torch.tensor([9, 4])), nodes)


def test_the_state_does_not_grow():
    layer = encoder()
    with torch.no_grad():
        _, state = layer.step(torch.randn(1, 4, WIDTH), layer.initial_state(1), 4)
        sizes = map_state(lambda tensor: torch.tensor(tensor.shape), state)
        for _ in range(200):
            y, state = layer.step(torch.randn(1, 4, WIDTH), state, 4)
    assert y.isfinite().all()
    map_state(lambda size, tensor: torch.testing.assert_close(size, torch.tensor(tensor.shape)), sizes, state)


def test_a_state_may_be_forked_and_streams_dropped():
    layer, x = encoder(), torch.randn(3, 12, WIDTH)
    _, state = layer.step(x[:, :6], layer.initial_state(3), 4)
    rows = torch.tensor([2, 0, 0])
    whole, _ = layer.step(x[:, 6:], state, 4)
    forked, _ = layer.step(x[rows, 6:], select(state, rows), 4)
    torch.testing.assert_close(forked, whole[rows])


def test_every_parameter_learns_and_long_sequences_need_linear_memory():
    layer = encoder(relay_memory=16)
    x = torch.randn(1, 4000, WIDTH, requires_grad=True)
    made = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made.extend(
                part.numel() for part in torch.utils._pytree.tree_leaves(result) if isinstance(part, torch.Tensor)
            )
            return result

    with Watch():
        layer(x, torch.tensor([4000]), 4).square().sum().backward()
    assert max(made) < 4000 * 200
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_nothing_is_heard_before_it_has_come():
    layer, x = encoder(), torch.randn(1, 12, WIDTH, requires_grad=True)
    for frame in range(12):
        (grad,) = torch.autograd.grad(layer(x, torch.tensor([12]), 4)[0, frame].sum(), x)
        assert (grad[0, (frame // 4 + 1) * 4 :] == 0).all()


@pytest.mark.parametrize("chunk", [1, 4, None])
def test_gradients_are_exact(chunk):
    layer = encoder(relay_memory=3, num_layers=2).double()
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, torch.tensor([6, 3]), chunk), x, fast_mode=True)


def test_precision_of_the_state_under_autocast_and_float64():
    layer, x = encoder(), torch.randn(1, 8, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer.step(x, layer.initial_state(1), 4)
        again, _ = layer.step(x, state, 4)
    assert y.isfinite().all()
    assert again.isfinite().all()
    assert state.mean.dtype == torch.float32
    wide, _ = layer.double().step(x.double(), layer.initial_state(1), 4)
    assert wide.dtype == torch.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "divide"),
        ({"num_heads": 0}, "divide"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"relay_memory": 0}, "relay_memory 0"),
        ({"head_dim": -1}, "at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        StreamingStarTransformer(**{"width": 8, "num_layers": 2, "num_heads": 2, "relay_memory": 4} | changes)
    with pytest.raises(ConfigError, match="max_len 0"):
        StarTransformer(8, 1, 2, 4, max_len=0)


@settings(deadline=None, max_examples=10)
@given(cuts=st.lists(st.integers(0, 150), max_size=6), chunk=st.sampled_from([2, 4, None]))
def test_encoder_kind_makes_it_the_encoder_of_the_model(cuts, chunk):
    torch.manual_seed(0)
    config = EncoderConfig(kind="star_transformer", width=WIDTH, num_layers=2, num_heads=2, relay_memory=6)
    model = MochaModel(ModelConfig(encoder=config)).eval()
    assert isinstance(model.encoder.context, StreamingStarTransformer)
    features = torch.randn(1, 150, 80)
    whole, lengths = model.encoder(features, torch.tensor([150]), chunk)
    state, pieces = model.encoder.initial_state(1), []
    for start, end in pairwise([0, *sorted(cuts), 150]):
        y, state = model.encoder.step(features[:, start:end], state, chunk)
        pieces.append(y)
    pieces.append(model.encoder.finish(state, chunk))
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-4, rtol=1e-4)
    assert lengths.tolist() == [whole.shape[1]]


@pytest.mark.parametrize("changes", [{"num_heads": 3}, {"lookahead": 2}])
def test_settings_that_do_not_go_with_the_kind_are_refused(changes):
    with pytest.raises(ConfigError, match="encoder"):
        EncoderConfig(**{"kind": "star_transformer", "width": 8, "num_heads": 2} | changes)
