"""MTHiSAN: padded, ragged and line by line; test names give the defects of SPEC 7 that ours must not have."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mocha_stream.errors import ConfigError, DataError
from mocha_stream.hisan import MTHiSAN
from mocha_stream.streaming import map_state, select

WORDS, LINES = 4, 3
lines = st.lists(st.integers(0, 19), max_size=6)
documents = st.lists(st.lists(lines, max_size=5), min_size=1, max_size=3)


def model(bag: bool = False, **changes) -> MTHiSAN:
    torch.manual_seed(0)
    matrix = np.random.default_rng(0).normal(size=(20, 6))
    arguments = {"num_classes": [3, 2], "max_words_per_line": WORDS, "max_lines": LINES, "att_dim_per_head": 5}
    return MTHiSAN(matrix, **arguments | {"att_heads": 2, "bag_of_embeddings": bag} | changes).eval()


def slow(layer: MTHiSAN, document: list[list[int]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """One document, word by word, as SPEC 7 writes it."""

    def block(rows: torch.Tensor, part) -> torch.Tensor:
        heads = []
        for head in range(part.num_heads):
            at = slice(head * part.head_dim, (head + 1) * part.head_dim)
            q, k, v = (torch.nn.functional.elu(affine(rows))[:, at] for affine in (part.q, part.k, part.v))
            y = (q @ k.T / part.head_dim**0.5).softmax(-1) @ v
            heads.append((y @ part.target[at] / part.head_dim**0.5).softmax(0) @ y)
        return torch.cat(heads)

    table = layer.embedding.weight
    pieces = [line[at : at + WORDS] for line in document for at in range(0, max(1, len(line)), WORDS)]
    kept = [[word for word in piece if word] for piece in pieces[:LINES]]
    vectors = [block(table[piece], layer.word_block) for piece in kept if piece]
    size = layer.line_block.num_heads * layer.line_block.head_dim
    embeds = block(torch.stack(vectors), layer.line_block) if vectors else torch.zeros(size)
    if layer.bag is not None:
        words = [word for line in document for word in line if word]
        mean = table[words].mean(0) if words else torch.zeros(table.shape[1])
        embeds = torch.cat([embeds, torch.tanh(layer.bag(mean))])
    return [affine(embeds) for affine in layer.classify], embeds


def check_row(layer: MTHiSAN, result, row: int, document: list[list[int]]) -> None:
    logits, embeds = slow(layer, document)
    torch.testing.assert_close(result[1][row], embeds, atol=1e-5, rtol=1e-5)
    for got, want in zip(result[0], logits, strict=True):
        torch.testing.assert_close(got[row], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bag", [False, True])
@settings(deadline=None, max_examples=40)
@given(docs=documents)
def test_ragged_documents_equal_the_slow_formula(bag, docs):
    layer = model(bag)
    result = layer(docs, return_embeds=True)
    for row, document in enumerate(docs):
        check_row(layer, result, row, document)


@pytest.mark.parametrize("bag", [False, True])
@settings(deadline=None, max_examples=40)
@given(docs=documents)
def test_line_by_line_equals_the_whole_document_at_every_line(bag, docs):
    layer = model(bag)
    num_lines = max(map(len, docs))
    docs = [document + [[]] * (num_lines - len(document)) for document in docs]
    state = layer.initial_state(len(docs))
    sizes = map_state(lambda tensor: torch.tensor(tensor.shape), state)
    for end in range(1, num_lines + 1):
        before = map_state(torch.clone, state)
        result, next_state = layer.step([document[end - 1] for document in docs], state, return_embeds=True)
        map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), state, before)
        state = next_state
        torch.testing.assert_close(result, layer([document[:end] for document in docs], return_embeds=True))
    map_state(lambda size, tensor: torch.testing.assert_close(size, torch.tensor(tensor.shape)), sizes, state)


def test_line_by_line_for_empty_lines_empty_documents_and_one_word():
    layer = model(bag=True)
    docs = [[[], [], [5], []], [[], [], [], []], [[7], [], [], []]]
    state = layer.initial_state(3)
    for line in zip(*docs, strict=True):
        labels, state = layer.step(line, state)
    torch.testing.assert_close(labels, layer(docs))
    # [] goes on from any document that is selected, and a line may be a tensor
    labels, _ = layer.step([torch.tensor([3, 2])], select(state, torch.tensor([2])))
    torch.testing.assert_close(labels, layer([[*docs[2], [3, 2]]]))


def test_a_matrix_of_lines_may_be_stepped():
    layer = model()
    state = layer.initial_state(2)
    _, state = layer.step(torch.tensor([[3, 0, 4], [1, 0, 0]]), state)
    labels, _ = layer.step(torch.tensor([[0, 0, 0], [2, 2, 2]]), state)
    torch.testing.assert_close(labels, layer([[[3, 4], []], [[1], [2, 2, 2]]]))


@settings(deadline=None, max_examples=30)
@given(rows=st.lists(st.lists(st.integers(0, 19), min_size=7, max_size=7), min_size=1, max_size=3))
def test_a_padded_matrix_is_cut_into_lines(rows):
    layer = model(bag=True)
    cut = [[row[:4], row[4:]] for row in rows]
    torch.testing.assert_close(layer(torch.tensor(rows)), layer(cut))


# ---------------------------------------------------------------- defects of the original


def test_defect_7_1_the_callers_matrix_is_copied_and_may_be_of_any_kind():
    matrix = np.arange(12).reshape(4, 3)
    matrix[:, 1] = 7
    matrix.setflags(write=False)
    table = MTHiSAN(matrix, [2], 3, 2).embedding.weight.detach()
    assert (matrix[:, 1] == 7).all()
    assert table.isfinite().all()
    assert (table[:, 1] == 0).all()
    assert (table[0] == 0).all()
    varied = (matrix[:, 0] - matrix[:, 0].mean()) / (matrix[:, 0].std(ddof=1) * 2.5)
    np.testing.assert_allclose(table[1:, 0], varied[1:], rtol=1e-6)
    assert MTHiSAN(torch.rand(4, 3), [2], 3, 2).embedding.weight.requires_grad


@pytest.mark.parametrize("bag", [False, True])
def test_defect_7_2_and_7_3_no_word_is_lost_to_empty_lines_or_zeros(bag):
    layer = model(bag)
    docs = torch.tensor([[0, 0, 0, 0, 5, 0, 0, 6, 7, 0, 8, 9], [1, 0, 2, 0, 0, 0, 0, 0, 3, 4, 0, 0]])
    result = layer(docs, return_embeds=True)
    for row, document in enumerate(docs.view(2, 3, 4).tolist()):
        check_row(layer, result, row, document)


def test_defect_7_4_an_empty_document_has_an_empty_bag():
    layer = model(bag=True)
    _, embeds = layer(torch.zeros(1, 12, dtype=torch.long), return_embeds=True)
    assert (embeds[0, :10] == 0).all()
    torch.testing.assert_close(embeds[0, 10:], torch.tanh(layer.bag.bias))


@pytest.mark.parametrize("bag", [False, True])
@pytest.mark.parametrize("docs", [torch.zeros(2, 12).long(), torch.zeros(2, 0).long(), [[], [[]]]])
def test_defect_7_5_batches_of_empty_documents(bag, docs):
    layer = model(bag)
    result = layer(docs, return_embeds=True)
    check_row(layer, result, 0, [])
    check_row(layer, result, 1, [])
    sum(logits.sum() for logits in result[0]).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_defect_7_6_narrow_rows_are_padded_and_never_merged():
    layer = model()
    docs = torch.randint(1, 20, (4, 6))
    for width in (1, 4, 6):
        logits = layer(docs[:, :width])
        assert logits[0].shape == (4, 3)
        torch.testing.assert_close(logits, layer(torch.nn.functional.pad(docs[:, :width], (0, 12 - width))))


def test_defect_7_7_words_beyond_the_limit_count_in_the_bag_only():
    docs = torch.randint(1, 20, (2, 17))
    plain, bag = model(), model(bag=True)
    torch.testing.assert_close(plain(docs), plain(docs[:, :12]))
    _, embeds = bag(docs, return_embeds=True)
    torch.testing.assert_close(embeds[:, 10:], torch.tanh(bag.bag(bag.embedding(docs).mean(1))))


def test_defect_7_8_sizes_are_not_read_back(monkeypatch):
    """On another device `.cpu()`, `.item()` and `.tolist()` wait for it."""
    layer, docs = model(bag=True), torch.randint(0, 20, (3, 12))
    for name in ("cpu", "item", "tolist", "__bool__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("read back to the host"))
    logits = layer(docs)
    monkeypatch.undo()
    assert logits[0].isfinite().all()


# ---------------------------------------------------------------- the rest


def test_documents_do_not_see_each_other():
    layer = model(bag=True)
    docs = [[[1, 2, 3, 4, 5]], [[6], [], [7, 8]], [[]]]
    together = layer(docs)
    for row, document in enumerate(docs):
        alone = layer([document])
        for got, want in zip(together, alone, strict=True):
            torch.testing.assert_close(got[row : row + 1], want)


def test_it_learns_and_the_padding_row_stays_zero():
    layer = model(bag=True).train()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    docs = [[[1, 2], [3]], [[4, 5, 6]], [[7], [8]], [[9, 10]]]
    labels = torch.tensor([0, 1, 2, 0])
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(docs)[0], labels).backward()
        optimizer.step()
    assert (layer.eval()(docs)[0].argmax(1) == labels).all()
    assert (layer.embedding.weight[0] == 0).all()


def test_settings_and_documents_that_do_not_fit_are_refused():
    matrix = np.random.randn(5, 3)
    with pytest.raises(ConfigError, match="num_classes"):
        MTHiSAN(matrix, [], 3, 2)
    with pytest.raises(ConfigError, match="max_lines 0"):
        MTHiSAN(matrix, [2], 3, 0)
    with pytest.raises(ConfigError, match="shape"):
        MTHiSAN(matrix[0], [2], 3, 2)
    with pytest.raises(ConfigError, match="not finite"):
        MTHiSAN(matrix * np.nan, [2], 3, 2)
    layer = model()
    with pytest.raises(DataError, match="list of lines"):
        layer([[1, 2, 3]])
    with pytest.raises(DataError, match="padded matrix"):
        layer(torch.ones(2, 3, 4).long())
    with pytest.raises(DataError, match="one for each"):
        layer.step([[1], [2]], layer.initial_state(1))
