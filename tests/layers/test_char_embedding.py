"""Character embeddings; test names give the defects of SPEC 4 and 5 that ours must not have."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mocha_stream.errors import ConfigError
from mocha_stream.layers import CharEmbeddingCNN, CharEmbeddingRNN

OUT_TYPES = CharEmbeddingRNN.out_types
ragged = st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=3)


def table(pad_row: float = 9.0) -> nn.Embedding:
    """A table whose padding row is not zero."""
    embedding = nn.Embedding(12, 6)
    nn.init.constant_(embedding.weight[0].data, pad_row)
    return embedding


def layers() -> list[nn.Module]:
    rnns = [CharEmbeddingRNN(12, table(), out_type=out_type) for out_type in OUT_TYPES]
    return [*rnns, CharEmbeddingCNN(12, table(), kernels=[2, 3, 5]).eval()]


def characters(lens: list[list[int]], width: int = 0) -> torch.Tensor:
    """Random characters, those beyond the words included."""
    num_words = max([0, *map(len, lens)])
    width = max([width, *(length for row in lens for length in row)])
    return torch.randint(1, 12, (len(lens), num_words, width))


def check_words_alone(layer: nn.Module, lens: list[list[int]], extra: int) -> None:
    x = characters(lens)
    x = torch.nn.functional.pad(x, (0, extra), value=5)
    y = layer(x, lens)
    assert y.shape == (*x.shape[:2], 6)
    for sentence, row in enumerate(lens):
        for word in range(x.shape[1]):
            length = row[word] if word < len(row) else 0
            if length == 0:
                assert (y[sentence, word] == 0).all()
            else:
                alone = layer(x[sentence, word, :length][None, None], [[length]])
                torch.testing.assert_close(y[sentence, word], alone[0, 0])


@pytest.mark.parametrize("index", range(5))
@settings(deadline=None, max_examples=20)
@given(lens=ragged, extra=st.integers(0, 3))
def test_words_do_not_depend_on_their_batch(index, lens, extra):
    check_words_alone(layers()[index], lens, extra)


def test_defect_4_1_means_divide_by_their_own_words_length():
    check_words_alone(CharEmbeddingRNN(12, table(), out_type="all_mean"), [[6, 1], [2, 0], [3, 5]], 0)


def test_defect_4_2_the_maximum_ignores_what_is_behind_a_word():
    layer = CharEmbeddingRNN(12, emb_dim=6, out_type="all_max")
    x = characters([[1, 9]])
    y = layer(x, [[1, 9]])
    assert (y[0, 0] < 0).any()  # outputs below zero stay
    torch.testing.assert_close(y[:, :1], layer(x[:, :1, :1], [[1]]))


@pytest.mark.parametrize("index", range(5))
def test_defect_4_3_empty_words_are_zero_whatever_the_padding_row(index):
    y = layers()[index](torch.zeros(2, 2, 4, dtype=torch.long), [[0, 0], [3, 0]])
    assert (y[0] == 0).all()
    assert (y[1, 1] == 0).all()
    assert (y[1, 0] != 0).any()


@pytest.mark.parametrize("out_type", OUT_TYPES)
def test_defect_4_4_padding_may_be_wider_than_the_longest_word(out_type):
    layer = CharEmbeddingRNN(12, emb_dim=6, out_type=out_type)
    x = characters([[3, 2]], width=9)
    torch.testing.assert_close(layer(x, [[3, 2]]), layer(x[..., :3], [[3, 2]]))


def test_defect_4_5_an_odd_width_is_refused_where_halves_are_joined():
    for out_type in ("final_concat", "all_mean", "all_max"):
        with pytest.raises(ConfigError, match="emb_dim is 5"):
            CharEmbeddingRNN(12, emb_dim=5, out_type=out_type)
    assert CharEmbeddingRNN(12, emb_dim=5, out_type="final_mean")(torch.ones(1, 1, 2).long(), [[2]]).shape == (1, 1, 5)


@pytest.mark.parametrize("index", range(5))
def test_defect_4_6_float64_batches_without_words_and_lengths_in_every_form(index):
    layer = layers()[index].double()
    x, lens = characters([[3, 2], [1]]), [[3, 2], [1]]
    y = layer(x, lens)
    assert y.dtype == torch.float64
    for same in (torch.tensor([[3, 2], [1, 0]]), [torch.tensor([3, 2]), torch.tensor([1])], [[3, 2], [1, 0]]):
        assert torch.equal(layer(x, same), y)
    assert (layer(x, torch.zeros(2, 2)) == 0).all()
    assert layer(x[:, :0], [[], []]).shape == (2, 0, 6)
    assert layer(x[:0], []).shape == (0, 2, 6)
    assert (layer(x[..., :0], [[0, 0], [0, 0]]) == 0).all()


def test_defect_4_6_an_unknown_output_type_is_named():
    with pytest.raises(ConfigError, match="out_type is 'sum'; it has to be one of final_concat"):
        CharEmbeddingRNN(12, out_type="sum")


def test_defect_4_7_lengths_are_not_read_back(monkeypatch):
    """On another device `.cpu()`, `.item()` and `.tolist()` wait for it; packing would even refuse."""
    layer, x, lens = CharEmbeddingRNN(12, emb_dim=6), characters([[3, 2]]), torch.tensor([[3, 2]])
    for name in ("cpu", "item", "tolist", "__bool__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("read back to the host"))
    y = layer(x, lens)
    monkeypatch.undo()
    assert y.isfinite().all()


def test_defect_5_1_padding_changes_no_word():
    layer = CharEmbeddingCNN(12, emb_dim=6, kernels=[3, 4, 5])
    x = characters([[4, 2]])
    wide = torch.nn.functional.pad(x, (0, 6), value=7)
    torch.testing.assert_close(layer(wide, [[4, 2]]), layer(x, [[4, 2]]))


def test_defect_5_2_words_may_be_shorter_than_every_kernel():
    layer = CharEmbeddingCNN(12, emb_dim=6, kernels=[4])
    x = characters([[2]])
    rows = torch.nn.functional.pad(layer.embedding(x[0]).mT, (0, 2))
    torch.testing.assert_close(layer(x, [[2]])[0], torch.relu(layer.convolutions[0](rows)[..., 0]))


def test_defect_5_3_the_padding_row_of_a_given_table_is_never_seen():
    layer = CharEmbeddingCNN(12, table(pad_row=100.0), kernels=[2, 3])
    x = characters([[3, 1]], width=5)
    y = layer(x, [[3, 1]])
    nn.init.zeros_(layer.embedding.weight[0].data)
    assert torch.equal(layer(x, [[3, 1]]), y)


def test_defect_5_4_the_multiplier_makes_independent_convolutions():
    layer = CharEmbeddingCNN(12, emb_dim=6, kernels=[2, 3], cnn_kernel_multiplier=2)
    assert len({conv.weight.data_ptr() for conv in layer.convolutions}) == 4
    first, second = (conv for conv in layer.convolutions if conv.kernel_size == (2,))
    assert not torch.equal(first.weight, second.weight)
    assert layer(characters([[3]]), [[3]]).shape == (1, 1, 6)


def test_defect_5_5_kernels_may_come_from_an_iterator():
    layer = CharEmbeddingCNN(12, emb_dim=6, kernels=iter([2, 3]))
    assert [conv.kernel_size for conv in layer.convolutions] == [(2,), (3,)]
    assert layer.double()(characters([[3]]), [[3]]).dtype == torch.float64
    with pytest.raises(ConfigError, match="at least one kernel"):
        CharEmbeddingCNN(12, kernels=[])


@pytest.mark.parametrize("kind", [CharEmbeddingRNN, CharEmbeddingCNN])
def test_a_new_table_has_a_zero_padding_row_and_a_given_one_its_width(kind):
    layer = kind(12, emb_dim=6, pad_idx=3)
    assert (layer.embedding.weight[3] == 0).all()
    given_table = table()
    layer = kind(12, given_table, emb_dim=300)
    assert layer.embedding is given_table
    assert layer(characters([[2]]), [[2]]).shape == (1, 1, 6)
    with pytest.raises(ConfigError, match="pad_idx 12"):
        kind(12, pad_idx=12)
