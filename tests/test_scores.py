"""Word errors, confidences and times against references, on words made up so that the answer is known."""

import pytest

from mocha_stream.scores import (
    Errors,
    ScoredWord,
    Span,
    calibration_error,
    count_errors,
    matching_words,
    reliability,
    score_words,
    start_errors,
    summary,
)
from mocha_stream.transcript import Word


def said(text: str, confidence: float = 0.5) -> list[Word]:
    """Words that start each second and last half of one."""
    return [Word(word, float(i), i + 0.5, confidence) for i, word in enumerate(text.split())]


def guesses(confidence: float, num_correct: int, num_wrong: int) -> list[ScoredWord]:
    correct = [True] * num_correct + [False] * num_wrong
    return [ScoredWord("A", 0.0, 1.0, confidence, is_correct, None, None) for is_correct in correct]


@pytest.mark.parametrize(
    "reference, hypothesis, expected",
    [
        ("A B C D", "A B C D", Errors(4, 0, 0, 0)),
        ("A B C D", "A X C D E", Errors(4, 1, 0, 1)),
        ("A B C D", "A D", Errors(4, 0, 2, 0)),
        ("A B", "", Errors(2, 0, 2, 0)),
        ("", "A B", Errors(0, 0, 0, 2)),
        ("", "", Errors()),
    ],
)
def test_word_errors(reference, hypothesis, expected):
    assert count_errors(reference, hypothesis) == expected


def test_errors_add_up():
    total = Errors(4, 1, 0, 1) + Errors(6, 0, 2, 0)
    assert total == Errors(10, 1, 2, 1)
    assert total.wer == 40.0
    assert Errors(0, 0, 0, 2).wer is None


def test_matching_words():
    assert matching_words("THE FAT CAT SAT", ["THE", "CAT", "SAT"]) == [(0, 0), (2, 1), (3, 2)]
    assert matching_words("A B", ["C"]) == matching_words("", ["C"]) == matching_words("A", []) == []


def test_only_words_recognised_right_have_delays_and_start_errors():
    spans = [Span(0.25, 0.5), Span(0.75, 0.875), Span(1.5, 2.0), Span(2.0, 2.25)]
    words = score_words("THE FAT CAT SAT", said("THE RAT CAT SAT UP"), [1.0, 1.5, 3.0, 3.5, 4.0], spans)
    assert [word.is_correct for word in words] == [True, False, True, True, False]
    assert [word.delay_s for word in words] == [0.5, None, 1.0, 1.25, None]
    assert [word.start_error_s for word in words] == [-0.25, None, 0.5, 1.0, None]


def test_words_are_matched_by_place_when_some_are_missing():
    spans = [Span(float(i), i + 0.5) for i in range(4)]
    words = score_words("THE FAT CAT SAT", said("CAT SAT"), None, spans)
    assert [word.spoken for word in words] == spans[2:]
    assert [word.delay_s for word in words] == [None, None], "nobody was shown them"


def test_without_an_alignment_words_are_right_or_wrong_all_the_same():
    words = score_words("A B", said("A C"), [1.0, 2.0])
    assert [(word.is_correct, word.delay_s, word.start_error_s) for word in words] == [
        (True, None, None),
        (False, None, None),
    ]
    assert score_words("A B", []) == ()
    assert [word.is_correct for word in score_words("", said("A"))] == [False]


def test_words_are_spelt_as_the_reference():
    words = score_words("WELL KNOWN DON'T", said("well-known ... don’t"), [1.0, 2.0, 3.0])  # noqa: RUF001
    assert [(word.word, word.is_correct, word.shown_at_s) for word in words] == [
        ("WELL", True, 1.0),
        ("KNOWN", True, 1.0),
        ("DON'T", True, 3.0),
    ]


def test_start_errors():
    spans = [Span(at, 9.0) for at in (0.1, 0.8, 2.2, 3.4)]  # words start at 0, 1, 2 and 3
    errors = start_errors(score_words("A B C D", said("A B C D"), None, spans))
    assert errors == {
        "num_words": 4,
        "p50": pytest.approx(200.0),
        "p90": pytest.approx(340.0),
        "bias": pytest.approx(-150.0),
    }
    assert start_errors(score_words("A", said("B"), None, spans[:1])) is None


def test_confidences_that_hold_are_calibrated():
    words = guesses(0.25, 1, 3) + guesses(0.5, 4, 4) + guesses(1.0, 5, 0)
    bins = reliability(words)
    assert calibration_error(bins) == 0.0
    assert [(each.low, each.high, each.num_words) for each in bins] == [(0.2, 0.3, 4), (0.5, 0.6, 8), (0.9, 1.0, 5)]
    assert [(each.confidence, each.accuracy) for each in bins] == [(0.25, 0.25), (0.5, 0.5), (1.0, 1.0)]


def test_overconfidence_is_the_calibration_error():
    assert calibration_error(reliability(guesses(0.95, 3, 2))) == pytest.approx(0.35)
    # 0.45 too sure of 4 words, 0.75 too unsure of 2
    assert calibration_error(reliability(guesses(0.95, 2, 2) + guesses(0.25, 2, 0))) == pytest.approx(
        (4 * 0.45 + 2 * 0.75) / 6
    )


def test_errors_of_opposite_sign_cancel_within_a_bin_only():
    same, apart = guesses(0.5, 2, 0) + guesses(0.5, 0, 2), guesses(0.5, 2, 0) + guesses(0.625, 0, 2)
    assert calibration_error(reliability(same)) == 0.0
    assert calibration_error(reliability(apart)) == pytest.approx(0.5 * 0.5 + 0.5 * 0.625)
    assert calibration_error(reliability([])) is None


def test_summary():
    assert summary([]) is None
    assert summary([1.0, 2.0, 3.0]) == {"mean": 2.0, "p50": 2.0, "p95": pytest.approx(2.9), "max": 3.0}
