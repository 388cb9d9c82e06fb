"""New utterances out of old ones: cut between words and put together anew, for `data.splice`.

A model that hears the same sentences in each epoch learns which word follows which instead of how they sound. Lam et
al. 2021 (Aligned Data Augmentation, arXiv 2104.01393) put single words of any speaker into an utterance; here pieces
of one or more words are exchanged among the utterances of a speaker, so that nothing is heard more often than before.
When words are spoken is told by files that `recipes/librispeech/words.py` writes, in the form of `data.py`.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from .data import Example, read_beside

CUT = 0.3
"""Probability of a cut between two words."""
UNIT_S = 0.01
"""Of the times of words."""


def add_words(folder: Path, corpus: Path, examples: list[Example]) -> list[Example]:
    """The examples of a corpus, with when their words are spoken. Raises DataError where the folder lacks them."""
    words = read_beside(corpus, folder, 2, "words.py")
    return [replace(example, words=words[example.id]) for example in examples]


def splice(examples: list[Example], hop_s: float, random: np.random.Generator) -> list[list[Example]]:
    """As many utterances, each of as many pieces of the same speaker as the one in its place was cut into. The
    features are `hop_s` apart."""
    speakers: dict[str, list[list[Example]]] = {}
    for example in examples:
        speakers.setdefault(example.speaker, []).append(cut(example, hop_s, random))
    spliced = []
    for utterances in speakers.values():
        pieces = [piece for utterance in utterances for piece in utterance]
        order = iter(random.permutation(len(pieces)))
        spliced += [[pieces[next(order)] for _ in utterance] for utterance in utterances]
    return spliced


def cut(example: Example, hop_s: float, random: np.random.Generator) -> list[Example]:
    """An example in pieces of whole words, one after the other; itself, where it is not known when they are spoken."""
    assert example.words is not None
    words, spans = example.text.split(), example.words.load()
    if len(spans) != len(words):
        return [example]
    chosen = np.flatnonzero(random.random(len(words) - 1) < CUT)
    middles = (spans[chosen, 1] + spans[chosen + 1, 0]) / 2 * UNIT_S / hop_s / example.speed
    frames = [0, *np.clip(middles.round().astype(int), 0, example.num_frames).tolist(), example.num_frames]
    bounds = [0, *(chosen + 1).tolist(), len(words)]
    return [
        replace(
            example,
            text=" ".join(words[bounds[i] : bounds[i + 1]]),
            first=example.first + frames[i],
            num_frames=frames[i + 1] - frames[i],
        )
        for i in range(len(bounds) - 1)
    ]
