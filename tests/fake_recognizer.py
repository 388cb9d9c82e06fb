"""Takes the place of `mocha_stream.recognizer` where the command is tested, not the model: a word a second."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from mocha_stream.audio import MonoStream, read_audio
from mocha_stream.config import BeamConfig
from mocha_stream.errors import AudioError, ModelError
from mocha_stream.transcript import Event, Final, Partial, Transcript, Word

RATE = 16_000
WORDS_AN_UTTERANCE = 3


def words(num_samples: int) -> tuple[Word, ...]:
    return tuple(Word(f"WORD{i}", i + 0.25, i + 0.75, 0.5) for i in range(num_samples // RATE))


class Session:
    def __init__(self) -> None:
        self.stream = MonoStream(RATE)
        self.num_heard = 0
        self.num_final = 0

    def feed(self, block: np.ndarray, sample_rate: int = RATE) -> list[Event]:
        return list(self._hear(self.stream.feed(block, sample_rate)))

    def skip(self, lost_s: float) -> list[Event]:
        return self.feed(np.zeros(round(lost_s * RATE), np.float32))

    def finish(self) -> list[Event]:
        events = list(self._hear(self.stream.finish()))
        rest = words(self.num_heard)[self.num_final :]
        return [*events, self._final(rest)] if rest else events

    def _hear(self, samples: np.ndarray) -> Iterator[Event]:
        before, self.num_heard = self.num_heard // RATE, self.num_heard + len(samples)
        for num_words in range(before + 1, self.num_heard // RATE + 1):
            spoken = words(num_words * RATE)[self.num_final :]
            yield Partial(_text(spoken), spoken, float(num_words), len(spoken))
            if len(spoken) == WORDS_AN_UTTERANCE:
                yield self._final(spoken)

    def _final(self, spoken: tuple[Word, ...]) -> Final:
        self.num_final += len(spoken)
        return Final(_text(spoken), spoken, spoken[0].start_s, spoken[-1].end_s, self.num_heard / RATE)


class Recognizer:
    beam: BeamConfig | None = None
    """What the last one was loaded with."""

    @classmethod
    def load(cls, folder: Path | None = None, beam: BeamConfig | None = None) -> "Recognizer":
        cls.beam = beam
        if folder is not None:
            raise ModelError(f"{folder}: is no model folder; expected one")
        return cls()

    def transcribe_many(
        self, paths: Iterable[Path], latency_ms: int | None = None, batch_s: float = 1.0
    ) -> Iterator[Transcript | AudioError]:
        for path in paths:
            try:
                samples = read_audio(path)
            except AudioError as error:
                yield error
            else:
                yield Transcript(_text(words(len(samples))), words(len(samples)), len(samples) / RATE)

    def session(self, latency_ms: int = 640) -> Session:
        return Session()


def _text(spoken: tuple[Word, ...]) -> str:
    return " ".join(word.word for word in spoken)
