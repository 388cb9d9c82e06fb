"""An n-gram language model over tokens, for the beam search: read and asked by kenlm (extra `lm`)."""

from pathlib import Path
from typing import Any

import numpy as np

from .errors import MissingExtraError, ModelError
from .tokenizer import Tokenizer


class LanguageModel:
    """A model that kenlm can read (ARPA or binary), whose words are the units of a tokenizer.

    Raises:
        MissingExtraError: kenlm is not installed.
        ModelError: the file cannot be read, or it lacks most of the units.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer):
        try:
            import kenlm
        except ImportError:
            raise MissingExtraError("language models need kenlm; pip install 'mocha-stream[lm]'") from None
        try:
            self._model = kenlm.Model(str(path))
        except OSError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ModelError(f"{path}: is no language model that kenlm can read ({reason:.120})") from None
        self._new_state = kenlm.State
        self._pieces = tokenizer.pieces
        known = sum(piece in self._model for piece in self._pieces[1:])
        if known < len(self._pieces) / 2:
            raise ModelError(
                f"{path}: knows {known} of the model's {len(self._pieces) - 1} units; expected a language model over "
                "them, built with this model's tokenizer"
            )

    def initial_state(self) -> Any:
        """The state at the start of a sentence."""
        state = self._new_state()
        self._model.BeginSentenceWrite(state)
        return state

    def score(self, state: Any, token: int) -> tuple[float, Any]:
        """The natural logarithm of the probability of a token, and the state after it."""
        following = self._new_state()
        return self._model.BaseScore(state, self._pieces[token], following) * np.log(10), following
