"""Tokens to words with their times and confidences: one utterance, or one recording. Imports no torch."""

from typing import TYPE_CHECKING

import numpy as np

from .tokenizer import Tokenizer
from .transcript import Final, Partial, Word

if TYPE_CHECKING:
    from .search import Tokens


class Utterance:
    """Words put together from the tokens of one stream."""

    def __init__(self, tokenizer: Tokenizer, frame_s: float):
        self._tokenizer, self._frame_s = tokenizer, frame_s
        self._words: list[Word] = []
        self._num_shown = 0
        self.first_frame = 0  # where its first token stopped
        self._open: list[tuple[int, int, float, float]] = []  # token, frame stopped at, centre, probability

    @property
    def is_empty(self) -> bool:
        return not self._words and not self._open

    def add(self, tokens: "Tokens", first_frame: int, heard_s: float) -> None:
        """Hears the tokens of one stream; their frames count from `first_frame`. No word ends after `heard_s`."""
        for _, token, stop, centre, probability in zip(*(part.tolist() for part in tokens), strict=True):
            if self.is_empty:
                self.first_frame = stop + first_frame
            self._open.append((token, stop + first_frame, centre + first_frame, probability))
            if self._tokenizer.ends_word(token):
                self.end_word(heard_s)

    def partial(self, at_s: float) -> Partial | None:
        """The words so far, if there are new ones since the last time."""
        if self._num_shown == len(self._words):
            return None
        self._num_shown = len(self._words)
        return Partial(self._text(), tuple(self._words), at_s, len(self._words))

    def close(self, at_s: float) -> Final | None:
        """All words, the last one whole as it stands; None without any."""
        self.end_word(at_s)
        if not self._words:
            return None
        return Final(self._text(), tuple(self._words), self._words[0].start_s, self._words[-1].end_s, at_s)

    def _text(self) -> str:
        return " ".join(word.word for word in self._words)

    def end_word(self, heard_s: float) -> None:
        """The open word, if there is one, is whole as it stands; it does not end after `heard_s`."""
        text = self._tokenizer.decode(token for token, *_ in self._open)
        if text:
            start_s = max((self._open[0][2] - 1) * self._frame_s, self._words[-1].end_s if self._words else 0.0)
            end_s = max(min((self._open[-1][1] + 1) * self._frame_s, heard_s), start_s)
            confidence = float(np.exp(np.mean([np.log(max(probability, 1e-10)) for *_, probability in self._open])))
            self._words.append(Word(text, start_s, end_s, confidence))
        self._open = []
