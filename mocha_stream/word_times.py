"""When each word of a known text is spoken, by pocketsphinx (extra `bench`), which knows nothing of our models."""

import re
from typing import Any

import numpy as np

from .errors import MissingExtraError
from .scores import Span

SAMPLE_RATE = 16_000


class WordAligner:
    """Forced alignment by the hidden Markov model of pocketsphinx for English, good to 10 ms on clean recordings.

    Raises:
        MissingExtraError: pocketsphinx is not installed.
    """

    def __init__(self) -> None:
        try:
            from pocketsphinx import Config, Decoder
        except ImportError:
            raise MissingExtraError("alignment needs pocketsphinx; pip install 'mocha-stream[bench]'") from None
        self._decoder: Any = Decoder(Config(lm=None, loglevel="FATAL"))

    def __call__(self, samples: np.ndarray, text: str) -> list[Span] | None:
        """Spans of the words in (N,) samples at `SAMPLE_RATE`; None where a word has no pronunciation or the search
        fails."""
        try:
            self._decoder.set_align_text(text.lower())
            self._decoder.start_utt()
            self._decoder.process_raw((samples * 32_767).astype(np.int16).tobytes(), full_utt=True)
            self._decoder.end_utt()
        except RuntimeError:
            return None
        spans = [
            Span(part.start_frame / 100, (part.end_frame + 1) / 100)
            for part in self._decoder.seg() or ()
            if not re.fullmatch(r"<.*>|\[.*\]", part.word)
        ]
        return spans if len(spans) == len(text.split()) else None
