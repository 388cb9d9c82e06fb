"""Losses: a batch is its rows one by one, the counts count, and the expectation is that of many hard walks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MELS, random_model

from mocha_stream.attention import hard_monotonic, soft_monotonic
from mocha_stream.training.losses import (
    Batch,
    Conditions,
    compute,
    consistency_loss,
    ctc_spans,
    ctc_stops,
    quantity_loss,
    synchrony_loss,
    text_loss,
)


def batch(sizes: list[tuple[int, int]], extra: int = 0, padding: float = 1e4) -> Batch:
    """Rows of so many features and tokens, and `extra` more of both as padding."""
    torch.manual_seed(0)
    lengths, counts = (torch.tensor(part) for part in zip(*sizes, strict=True))
    features = torch.randn(len(sizes), int(lengths.max()) + extra, MELS).double() * 3 - 5
    tokens = torch.randint(1, 40, (len(sizes), int(counts.max()) + extra))
    for row, (length, count) in enumerate(sizes):
        features[row, length:], tokens[row, count:] = padding, 0
    return Batch(features, lengths, tokens, counts)


def losses(model, items: Batch, imitate: torch.nn.Linear | None = None, **changes):
    return compute(model, items, Conditions(**{"chunk": 2, "smoothing": 0.1, "synchronous": True} | changes), imitate)


@settings(deadline=None, max_examples=15)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 6)), min_size=1, max_size=4),
    extra=st.integers(0, 9),
    energy=st.sampled_from(["dot", "additive"]),
    chunk=st.sampled_from([1, 2, None]),
    discount=st.sampled_from([0.0, 0.2]),
    delay_limit=st.sampled_from([None, 0, 2]),
)
@torch.no_grad()
def test_a_batch_is_its_rows_one_by_one(sizes, extra, energy, chunk, discount, delay_limit):
    model, items = random_model(energy=energy).double(), batch(sizes, extra)
    imitate = torch.nn.Linear(model.config.encoder.width, 3).double()
    items = items._replace(teacher=torch.randn(len(sizes), -(-items.features.shape[1] // 8), 3).double())
    how = {"imitate": imitate, "chunk": chunk, "discount": discount, "delay_limit": delay_limit}
    whole, diagnosis, _ = losses(model, items, **how)
    total, seen = torch.zeros(len(whole)).double(), torch.zeros(len(diagnosis)).double()
    for row, (length, count) in enumerate(sizes):
        alone = Batch(
            items.features[row : row + 1, :length],
            items.feature_lengths[row : row + 1],
            items.tokens[row : row + 1, :count],
            items.token_lengths[row : row + 1],
            items.teacher[row : row + 1, : -(-length // 8)],
        )
        parts, counts, _ = losses(model, alone, **how)
        total += torch.stack([part.double() for part in parts])
        seen += torch.stack([part.double() for part in counts])
    torch.testing.assert_close(torch.stack([part.double() for part in whole]), total, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(torch.stack([part.double() for part in diagnosis]), seen, rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_text_is_scored_token_by_token_without_a_context():
    model = random_model().double()
    tokens, counts = torch.tensor([[3, 9, 4, 1], [7, 2, 0, 0]]), torch.tensor([4, 2])
    expected = torch.zeros(()).double()
    for row, count in zip(tokens, counts, strict=True):
        state = model.decoder.initial_state(1)
        for token in row[:count]:
            scores = model.decoder.score(torch.zeros(1, model.config.encoder.width).double(), state.output)
            expected -= scores.log_softmax(-1)[0, token]
            state = model.decoder.step(token[None], state)
    torch.testing.assert_close(text_loss(model, tokens, counts).double(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_batch_are_those_of_its_rows():
    sizes = [(80, 5), (33, 2), (8, 1)]
    model, items = random_model().double(), batch(sizes, 3)

    def gradient(rows: slice, length: int | None, count: int | None) -> torch.Tensor:
        part = Batch(
            items.features[rows, :length],
            items.feature_lengths[rows],
            items.tokens[rows, :count],
            items.token_lengths[rows],
        )
        model.zero_grad()
        sum(losses(model, part)[0]).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    whole = gradient(slice(None), None, None)
    alone = sum(gradient(slice(i, i + 1), length, count) for i, (length, count) in enumerate(sizes))
    assert whole.abs().max() > 0.1
    torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-4)


def test_losses_are_finite_and_zero_where_nothing_can_be_aligned():
    """More tokens than frames: CTC has no path, and the batch has to survive it."""
    model, items = random_model(), batch([(8, 6), (80, 2), (1, 1)])
    items = items._replace(features=items.features.float())
    parts, diagnosis, alignment = losses(model, items)
    sum(parts).backward()
    assert all(torch.isfinite(part) for part in (*parts, *diagnosis))
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert alignment.alpha.shape == (3, 7, 10)


@pytest.mark.parametrize("r", [-1000.0, 1000.0])
def test_saturated_energies_have_finite_gradients(r):
    model, items = random_model(), batch([(80, 5), (33, 2)])
    with torch.no_grad():
        model.attention.stop_energy.r.fill_(r)
    parts, diagnosis, _ = losses(model, items._replace(features=items.features.float()))
    sum(parts).backward()
    assert all(torch.isfinite(part) for part in parts)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    # All 7 tokens stop or none does; the query after the last token should not.
    assert float(diagnosis.mass) == pytest.approx(7 if r > 0 else 0)
    assert parts.quantity.item() == pytest.approx(2 if r > 0 else 7)


def test_quantity_counts_missing_stops_and_those_after_the_end():
    alpha = torch.zeros(2, 4, 5)
    alpha[0, 0, 1] = 1.0
    alpha[0, 1, 2], alpha[0, 1, 3] = 0.25, 0.5
    alpha[0, 3, 4] = 0.125  # the query after the three tokens of row 0
    alpha[1, 0, 0] = 1.0
    alpha[1, 1, 2] = 0.5  # the query after the one token of row 1
    alpha[1, 2:, 3] = 1.0  # padding
    expected = (0 + 0.25 + 1) + 0.125 + 0 + 0.5
    assert float(quantity_loss(alpha, torch.tensor([3, 1]))) == pytest.approx(expected)


def test_synchrony_measures_frames_between_expected_stops_and_ctc():
    labels = [0, 3, 3, 0, 4, 4, 0, 4]
    log = torch.full((1, 8, 6), -20.0)
    log[0, range(8), labels] = 0.0
    tokens = torch.tensor([[3, 4, 4]])
    stops = ctc_stops(log, tokens, torch.tensor([8]), torch.tensor([3]))
    assert stops.tolist() == [[2, 5, 7]]
    assert ctc_spans(log[0], tokens[0]).tolist() == [[1, 2], [4, 5], [7, 7]]
    alpha = torch.zeros(1, 4, 8)
    alpha[0, 0, 2] = 1.0
    alpha[0, 1, 4], alpha[0, 1, 7] = 0.5, 0.5  # expected at 5.5
    alpha[0, 2, 4] = 0.5  # three frames early, half there
    absolute, signed = synchrony_loss(alpha, stops)
    assert float(absolute) == pytest.approx(0 + 0.5 + 1.5)
    assert float(signed) == pytest.approx(0 + 0.5 - 1.5)


def test_synchrony_is_as_exact_under_autocast():
    """As bfloat16, frame 301 is 302 and a stop on it would be one frame late."""
    stops = torch.tensor([[301.0, 403.0, 497.0]])
    alpha = torch.zeros(1, 4, 500)
    alpha[0, [0, 1, 2], [301, 403, 497]] = 1.0
    with torch.autocast("cpu", torch.bfloat16):
        assert [float(part) for part in synchrony_loss(alpha, stops)] == [0, 0]


def test_consistency_is_the_divergence_between_the_halves_of_a_batch():
    """Summed over frames and both directions; frames after the end of a row do not count."""
    log = torch.tensor([[[0.5, 0.5], [0.9, 0.1]], [[0.25, 0.75], [0.2, 0.8]]]).log().requires_grad_()
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    loss = consistency_loss(log, torch.tensor([1, 1]))
    assert loss.item() == pytest.approx(float((p * (p / q).log()).sum() + (q * (q / p).log()).sum()))
    loss.backward()  # each view learns from the other one, as if that were the truth
    torch.testing.assert_close(log.grad[:, 0], torch.stack([-q, -p]))
    assert not log.grad[:, 1].any()
    assert float(consistency_loss(log[:1].detach().repeat(2, 1, 1), torch.tensor([2, 2]))) == pytest.approx(0, abs=1e-6)


def test_views_are_compared_where_the_batch_has_them():
    model, items = random_model().eval(), batch([(80, 5), (80, 5)])
    items = items._replace(features=items.features.float(), tokens=items.tokens[:1].repeat(2, 1))
    parts = [compute(model, items, Conditions(2, paired=paired))[0] for paired in (False, True)]
    assert parts[0].consistency == 0 < parts[1].consistency
    assert parts[0][:4] == parts[1][:4]


def test_ctc_stops_where_there_is_no_path():
    log = torch.zeros(4, 3, 6).log_softmax(-1)
    tokens = torch.tensor([[1, 1, 0], [1, 1, 2], [0, 0, 0], [1, 2, 0]])
    stops = ctc_stops(log, tokens, torch.tensor([3, 3, 3, 1]), torch.tensor([2, 3, 0, 2]))
    assert stops.isfinite().tolist() == [[True, True, False], *[[False] * 3] * 3]


def test_label_smoothing_and_noise_reach_their_losses():
    model, items = random_model(), batch([(80, 5)])
    items = items._replace(features=items.features.float())
    plain = losses(model, items, smoothing=0.0)[0]
    smooth = losses(model, items, smoothing=0.5)[0]
    assert plain.token != smooth.token
    assert torch.equal(plain.ctc, smooth.ctc)
    noisy = [compute(model, items, Conditions(2, noise=1.0))[0] for _ in range(2)]
    assert noisy[0].quantity != noisy[1].quantity
    assert noisy[0].synchrony == 0


@torch.no_grad()
def test_no_token_stops_later_than_ctc_and_the_limit_allow():
    model, items = random_model().double(), batch([(200, 3), (90, 2), (8, 6)])
    with torch.no_grad():
        model.attention.stop_energy.r.fill_(-3.0)  # so that stops are late
    frames, lengths = model.encoder(items.features, items.feature_lengths, 2)
    ctc_log = model.ctc(frames).log_softmax(-1)
    stops = ctc_stops(ctc_log, items.tokens, lengths, items.token_lengths)
    assert stops[:2].isfinite().sum() == 5 and not stops[2].isfinite().any()
    free = losses(model, items)[2].alpha
    for limit in (0, 3):
        alpha = losses(model, items, delay_limit=limit)[2].alpha
        at = torch.arange(alpha.shape[-1])
        late = at > (stops + limit)[..., None]
        assert not alpha[:, :-1][late].any() and free[:, :-1][late].any()
        assert alpha[0, -1].any()  # the query after the last token may stop anywhere
        torch.testing.assert_close(alpha[2], free[2])  # nor is a row limited that CTC cannot align


@pytest.mark.parametrize(("discount", "limit"), [(0.0, None), (0.3, None), (0.3, 5)])
def test_soft_attention_is_the_share_of_hard_walks_that_stop_there(discount, limit):
    """Drawn 4000 times: each energy plus logistic noise is above 0 with probability sigmoid(energy)."""
    torch.manual_seed(0)
    energy, draws = torch.randn(1, 4, 9), 4000
    latest = torch.full((1, 4), 9.0 if limit is None else limit)
    soft = soft_monotonic(energy, discount=discount, latest=latest)[0]
    head, counts = torch.zeros(draws, dtype=torch.long), torch.zeros(4, 9)
    lengths = torch.full((draws,), 9)
    for step in range(4):
        chance = (1 - discount) * torch.sigmoid(energy[:, step]) * (torch.arange(9) <= latest[0, step])
        drawn = (torch.rand(draws, 9) < chance).float() - 0.5
        head = hard_monotonic(drawn, lengths, head)
        counts[step] = torch.bincount(head[head >= 0], minlength=9)
    torch.testing.assert_close(soft, counts / draws, rtol=0, atol=0.03)
