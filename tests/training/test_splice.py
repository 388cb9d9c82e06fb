"""Utterances cut between words and put together anew: nothing is lost, and words keep their sound and their teacher."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from mocha_stream.errors import DataError
from mocha_stream.training.data import Example
from mocha_stream.training.splice import UNIT_S, add_words, cut, splice
from mocha_stream.training.teacher import Teacher, TeacherConfig, write_config
from mocha_stream.word_times import SAMPLE_RATE

HOP_S = 0.01
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "mocha_stream" / "pretrained" / "examples" / "237-134500-0039.flac"
SAID = "THAT WON'T LAST IT WILL GO AWAY AND THINGS WILL BE JUST AS THEY USED TO"


def utterance(words: list[int], speaker: str = "a", speed: float = 1.0, hop_s: float = HOP_S) -> Example:
    """One whose word W lasts W * 10 ms at speed 1, each of its features W; 50 ms of silence, 0, around each word."""
    features, spans = [0] * 5, []
    for word in words:
        spans.append((len(features), len(features) + word))
        features += [word] * word + [0] * 5
    step = speed * hop_s / UNIT_S
    at = np.minimum((np.arange(round(len(features) / step)) * step).astype(int), len(features) - 1)
    heard = np.array(features, np.float16)[at, None]
    times = Example("id", "", speaker, 1.0, len(spans), 0, np.array(spans, np.float16))
    return Example("id", " ".join(map(str, words)), speaker, speed, len(heard), 0, heard, words=times)


@pytest.mark.parametrize("hop_s", [HOP_S, 0.016])
@pytest.mark.parametrize("speed", [0.9, 1.0, 1.1])
def test_pieces_are_whole_words_and_all_of_the_utterance(speed, hop_s):
    example = utterance([7, 9, 8, 12, 30, 11, 10, 13], speed=speed, hop_s=hop_s)
    counts = set()
    for seed in range(20):
        pieces = cut(example, hop_s, np.random.default_rng(seed))
        counts.add(len(pieces))
        assert " ".join(piece.text for piece in pieces) == example.text
        np.testing.assert_array_equal(np.concatenate([piece.load() for piece in pieces]), example.load())
        for piece in pieces:
            heard = piece.load()[:, 0]
            assert heard[0] == heard[-1] == 0  # cut in silence
            assert sorted({str(int(word)) for word in heard if word}) == sorted(piece.text.split())
    assert len(counts) > 3


@pytest.mark.parametrize("spans", [0, 3])
def test_an_utterance_whose_words_are_not_known_stays_whole(spans):
    example = utterance([7, 9, 8, 12])
    example = replace(example, words=replace(example.words, num_frames=spans))
    assert cut(example, HOP_S, np.random.default_rng(1)) == [example]


def test_one_word_is_one_piece():
    assert len(cut(utterance([7]), HOP_S, np.random.default_rng(1))) == 1


def test_speakers_keep_their_words_and_no_sentence_stays_as_it_was():
    random = np.random.default_rng(3)
    examples = [utterance(random.integers(5, 40, 12).tolist(), speaker) for speaker in "abab" * 5]
    spliced = splice(examples, HOP_S, np.random.default_rng(1))
    assert len(spliced) == len(examples)
    for speaker in "ab":
        before = [word for example in examples if example.speaker == speaker for word in example.text.split()]
        after = [word for item in spliced for piece in item if piece.speaker == speaker for word in piece.text.split()]
        assert Counter(before) == Counter(after)
    assert all(len({piece.speaker for piece in item}) == 1 for item in spliced)
    texts = {" ".join(piece.text for piece in item) for item in spliced}
    assert len(texts & {example.text for example in examples}) < 3
    again = splice(examples, HOP_S, np.random.default_rng(1))
    assert [[piece.text for piece in item] for item in again] == [[piece.text for piece in item] for item in spliced]


@pytest.mark.parametrize("hop_s", [HOP_S, 0.016])
def test_a_piece_has_its_own_part_of_the_teacher(tmp_path, hop_s):
    write_config(tmp_path, TeacherConfig("a clock", 1, 0.0, 0.01))
    clock = Example("id", "", "a", 1.0, 600, 0, (np.arange(600) / 100).astype(np.float16)[:, None])
    example = Example("id", "A B", "a", 1.1, 300, 0, np.zeros((300, 3), np.float16), clock, first=50)
    told = Teacher(tmp_path, hop_s).targets([example]).reshape(-1)
    np.testing.assert_allclose(told[:100], (50 + (np.arange(100) + 0.5) * 8 / 3) * hop_s * 1.1, atol=3e-3)


def test_times_that_are_not_there_are_told(tmp_path):
    with pytest.raises(DataError, match=r"some-corpus\.jsonl: not there; run recipes/librispeech/words\.py"):
        add_words(tmp_path, tmp_path / "some" / "corpus", [])


# ---------------------------------------------------------------- the recipe's script


def test_the_script_finds_the_words_of_a_recording(monkeypatch):
    """Against the energy: between the first and the last word there is more of it than before and after."""
    monkeypatch.syspath_prepend(REPOSITORY / "recipes" / "librispeech")
    monkeypatch.delitem(sys.modules, "words", raising=False)
    import words as script

    spans = script.spans(SimpleNamespace(path=EXAMPLE, text=SAID))
    assert spans.shape == (len(SAID.split()), 2) and spans.dtype == np.float16
    assert (spans[:, 0] < spans[:, 1]).all() and (spans[1:, 0] >= spans[:-1, 1]).all()
    samples, rate = soundfile.read(EXAMPLE)
    assert rate == SAMPLE_RATE
    power = samples[: len(samples) // 160 * 160].reshape(-1, 160).std(1)
    start, end = int(spans[0, 0]), int(spans[-1, 1])
    assert power[start:end].mean() > 3 * np.concatenate([power[:start], power[end:]]).mean()
    assert script.spans(SimpleNamespace(path=EXAMPLE, text="XQZWV")).shape == (0, 2)
