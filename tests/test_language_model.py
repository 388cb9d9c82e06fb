"""An n-gram model over a tokenizer's units, written by hand: its numbers come back, what does not fit is refused."""

import os
import sys

import numpy as np
import pytest
from tiny import noise, random_model, tokenizer

from mocha_stream.config import BeamConfig
from mocha_stream.errors import MissingExtraError, ModelError
from mocha_stream.language_model import LanguageModel
from mocha_stream.recognizer import Recognizer

try:
    import kenlm  # noqa: F401
except ImportError:
    if "CI" in os.environ:
        raise
    pytest.skip("kenlm is not installed (extra lm)", allow_module_level=True)

SECOND_AFTER_FIRST, SECOND_AT_START = -0.25, -3.0


def write_arpa(path, pieces: list[str]):
    """Two bigrams of unit 2, and units that are more or less likely elsewhere, the first a tenth."""
    unigrams = [f"{-1 - number % 5}\t{piece}\t-0.5" for number, piece in enumerate(pieces)]
    lines = ["\\data\\", f"ngram 1={len(unigrams) + 3}", "ngram 2=2", "", "\\1-grams:", "-9\t<unk>", "-9\t<s>\t-0.5"]
    lines += ["-9\t</s>", *unigrams, "", "\\2-grams:", f"{SECOND_AFTER_FIRST}\t{pieces[0]} {pieces[1]}"]
    lines += [f"{SECOND_AT_START}\t<s> {pieces[1]}", "", "\\end\\", ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_numbers_of_the_file_come_back_as_natural_logarithms(tmp_path):
    model = LanguageModel(write_arpa(tmp_path / "a.arpa", tokenizer().pieces[1:]), tokenizer())
    start = model.initial_state()
    first, after_first = model.score(start, 1)
    assert first == pytest.approx((-1 - 0.5) * np.log(10), rel=1e-4)  # backs off from the start
    second, _ = model.score(after_first, 2)
    assert second == pytest.approx(SECOND_AFTER_FIRST * np.log(10), rel=1e-4)
    again, _ = model.score(start, 2)
    assert again == pytest.approx(SECOND_AT_START * np.log(10), rel=1e-4)
    assert model.score(after_first, 2)[0] == second, "a state is not used up"


def test_texts_are_more_likely_with_the_model_than_without(tmp_path):
    path = write_arpa(tmp_path / "a.arpa", tokenizer().pieces[1:])
    model = LanguageModel(path, tokenizer())

    def mean(beam: BeamConfig) -> float:
        text = Recognizer(random_model(), tokenizer(), beam).transcribe(noise(3)).text
        state, scores = model.initial_state(), []
        for token in tokenizer().encode(text):
            score, state = model.score(state, token)
            scores.append(score)
        assert len(scores) > 5
        return float(np.mean(scores))

    assert mean(BeamConfig(language_model=str(path), language=1.0)) > mean(BeamConfig()) + 0.5


def test_what_does_not_fit_is_told_in_a_line(tmp_path, monkeypatch):
    other = write_arpa(tmp_path / "words.arpa", ["SOME", "OTHER", "WORDS"])
    broken = tmp_path / "broken.arpa"
    broken.write_text("nothing of the kind")
    for path, message in (
        (other, "knows 0 of the model's"),
        (broken, "is no language model that kenlm can read"),
        (tmp_path / "missing.arpa", "is no language model that kenlm can read"),
    ):
        with pytest.raises(ModelError) as caught:
            Recognizer(random_model(), tokenizer(), BeamConfig(language_model=str(path)))
        assert str(caught.value).startswith(f"{path}: {message}")
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(MissingExtraError, match=r"need kenlm; pip install 'mocha-stream\[lm\]'"):
        LanguageModel(other, tokenizer())
