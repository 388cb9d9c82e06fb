"""Text to tokens and back: byte-pair units by sentencepiece.

The space belongs to the end of a unit, so a word is whole, and can be shown for good, the moment its last token
is known. Token 0 stands for no text: it is the decoder's start and the blank of CTC.
"""

import io
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from .errors import ConfigError, ModelError

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Tokenizer:
    """Units of a trained model; `tokens` are their numbers.

    Raises:
        ModelError: `serialized` is no sentencepiece model.
    """

    def __init__(self, serialized: bytes, source: str = "tokenizer.model"):
        self.serialized = serialized
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(serialized)
        except RuntimeError:
            raise ModelError(f"{source}: is not a sentencepiece model; copy the file anew or train it again") from None
        self.pieces = [self._processor.IdToPiece(i) for i in range(self._processor.GetPieceSize())]

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        return cls(path.read_bytes(), str(path))

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learns `vocab_size` units, token 0 included, from lines of text.

        Raises:
            ConfigError: more units than the text has, or fewer than it has characters.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                vocab_size=vocab_size,
                model_type="bpe",
                character_coverage=1.0,
                treat_whitespace_as_suffix=True,
                unk_id=0,
                bos_id=-1,
                eos_id=-1,
                pad_id=-1,
                minloglevel=2,
                num_threads=1,
            )
        except (RuntimeError, OSError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise ConfigError(f"vocab_size is {vocab_size}; the text cannot give that many units ({reason})") from None
        return cls(model.getvalue())

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        return self._processor.EncodeAsIds(text)

    def ends_word(self, token: int) -> bool:
        """Whether the word that the token belongs to is whole with it."""
        return self.pieces[token].endswith(SPACE)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the tokens: single spaces, between words only. Token 0 has none."""
        joined = "".join(self.pieces[token] for token in tokens if token)
        return " ".join(joined.replace(SPACE, " ").split())
