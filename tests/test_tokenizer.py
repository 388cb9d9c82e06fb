"""Text to tokens and back, word ends, and files that are no tokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXT, tokenizer

from mocha_stream.errors import ConfigError, ModelError
from mocha_stream.tokenizer import SPACE, Tokenizer

LETTERS = sorted({letter for line in TEXT for letter in line} - {" "})
WORDS = st.text(LETTERS, min_size=1, max_size=12)


@settings(deadline=None)
@given(words=st.lists(WORDS, max_size=8))
def test_text_comes_back_and_words_end_where_they_say(words):
    units = tokenizer()
    tokens = units.encode(" ".join(words))
    assert units.decode(tokens) == " ".join(words)
    assert 0 not in tokens
    assert sum(units.ends_word(token) for token in tokens) == len(words)
    found, word = [], []
    for token in tokens:
        word.append(token)
        if units.ends_word(token):
            found.append(units.decode(word))
            word = []
    assert found == words
    assert not word


@settings(deadline=None)
@given(tokens=st.lists(st.integers(0, 39), max_size=30))
def test_text_of_any_tokens_has_single_spaces_between_words_only(tokens):
    text = tokenizer().decode(tokens)
    assert text == " ".join(text.split())
    assert SPACE not in text
    assert "unk" not in text


def test_letters_that_were_not_in_the_text_are_token_0():
    assert 0 in tokenizer().encode("caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    assert tokenizer().decode([0]) == ""


def test_sizes():
    units = tokenizer()
    assert len(units) == len(units.pieces) == 40
    assert len(set(units.pieces)) == 40


def test_training_gives_the_same_units_each_time_and_survives_its_bytes():
    again = Tokenizer.train(TEXT, 40)
    assert again.serialized == tokenizer().serialized
    assert Tokenizer(again.serialized).pieces == tokenizer().pieces


@pytest.mark.parametrize(("lines", "size"), [(TEXT, 10_000), (TEXT, 5), ([], 40), (["A"], 40), ([""], 10)], ids=str)
def test_sizes_that_the_text_cannot_give_are_told_in_one_line(lines, size):
    with pytest.raises(ConfigError, match=f"vocab_size is {size}") as caught:
        Tokenizer.train(lines, size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"Call me Ishmael.", bytes(100), b"\xff" * 50], ids=repr)
def test_files_that_are_no_tokenizer(tmp_path, content):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(f"{path}: is not a sentencepiece model")
    assert "\n" not in str(caught.value)


def test_truncated_file(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer().serialized[:-7])
    with pytest.raises(ModelError, match=r"tokenizer\.model"):
        Tokenizer.load(path)
