"""One recogniser on some recordings, in a process of its own: python -m benchmarks.worker JOB.json

The job names the engine, its options, 16-bit mono WAV files at 16 kHz, and where to write the result. Every engine
hears blocks as a microphone gives them, and says after each what it shows. Nothing but numpy and the engine is
imported, so any interpreter that has these will do.

Audio is not waited for. A clock counts instead: a block is begun once its last sample has been spoken and the
blocks before it are done, and takes as long as its arithmetic took.
"""

import json
import os
import sys
import tempfile
import time
import wave
from pathlib import Path

import numpy as np

from .memory import peak_mib, resident_mib

RATE = 16_000


class MochaStream:
    def __init__(self, model: str | None, latency_ms: int | None):
        from mocha_stream import Final, Recognizer

        self._final, self._latency_ms = Final, latency_ms
        self._recognizer = Recognizer.load(model)

    def start(self) -> None:
        self._session = self._recognizer.session(latency_ms=self._latency_ms)
        self._done: list[str] = []
        self._open = ""

    def feed(self, samples: np.ndarray) -> str:
        return self._show(self._session.feed(samples, RATE))

    def finish(self) -> str:
        return self._show(self._session.finish())

    def _show(self, events: list) -> str:
        for event in events:
            if isinstance(event, self._final):
                self._done.append(event.text)
            self._open = "" if isinstance(event, self._final) else event.text
        return " ".join([*self._done, self._open]).strip()


class PocketSphinx:
    def __init__(self) -> None:
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=RATE, loglevel="FATAL")

    def start(self) -> None:
        self._decoder.start_utt()

    def feed(self, samples: np.ndarray) -> str:
        self._decoder.process_raw(samples.tobytes(), False, False)
        return self._text()

    def finish(self) -> str:
        self._decoder.end_utt()
        return self._text()

    def _text(self) -> str:
        found = self._decoder.hyp()
        return found.hypstr if found else ""


class Moonshine:
    """Tiny English, which comes inside the package; updates every half second, as is its default."""

    def __init__(self) -> None:
        from moonshine_voice import ModelArch, Transcriber, get_model_path

        self._transcriber = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)

    def start(self) -> None:
        self._lines: dict[int, str] = {}
        self._stream = self._transcriber.create_stream()
        self._stream.add_listener(self._hear)
        self._stream.start()

    def _hear(self, event: object) -> None:
        line = event.line  # type: ignore[attr-defined]
        self._lines[line.line_id] = line.text.strip()

    def feed(self, samples: np.ndarray) -> str:
        self._stream.add_audio((samples / 32768.0).tolist(), RATE)
        return " ".join(self._lines.values()).strip()

    def finish(self) -> str:
        self._stream.stop()
        text = " ".join(self._lines.values()).strip()
        self._stream.close()
        return text


class FasterWhisper:
    """Hears whole recordings only: everything is done after the last sample."""

    def __init__(self, model: str):
        from faster_whisper import WhisperModel

        self._model = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=1)

    def start(self) -> None:
        self._blocks: list[np.ndarray] = []

    def feed(self, samples: np.ndarray) -> str:
        self._blocks.append(samples)
        return ""

    def finish(self) -> str:
        samples = np.concatenate(self._blocks).astype(np.float32) / 32768
        segments, _ = self._model.transcribe(samples, language="en", **self._options(len(samples) / RATE))
        return " ".join(segment.text.strip() for segment in segments)

    def _options(self, duration_s: float) -> dict:
        return {}


class RandomWhisper(FasterWhisper):
    """The arithmetic of tiny.en without its weights: as many tokens as words are spoken, and a try at each segment."""

    TOKENS_PER_S = 3.0

    def __init__(self) -> None:
        from . import random_whisper

        with tempfile.TemporaryDirectory() as folder:
            random_whisper.write(Path(folder))
            super().__init__(folder)
        self._end = random_whisper.END

    def _options(self, duration_s: float) -> dict:
        num_tokens = max(2, round(self.TOKENS_PER_S * duration_s))
        # CTranslate2 halves the length that it is given, prompt included.
        length = {"max_new_tokens": 2 * num_tokens - 2, "suppress_tokens": [self._end]}
        return {**length, "temperature": 0.0, "without_timestamps": True, "condition_on_previous_text": False}


ENGINES = {
    "mocha-stream": MochaStream,
    "pocketsphinx": PocketSphinx,
    "moonshine": Moonshine,
    "faster-whisper": FasterWhisper,
    "random-whisper": RandomWhisper,
}


def recognise(engine, samples: np.ndarray, block: int) -> dict:
    """What (n,) int16 samples gave, in blocks of `block` samples."""
    clock = wall_s = cpu_s = 0.0
    text, updates = "", []
    engine.start()
    starts = [*range(0, len(samples), block), None]  # None: the end of the stream
    for start in starts:
        spoken = len(samples) if start is None else min(len(samples), start + block)
        began, cpu_began = time.perf_counter(), time.process_time()
        now = engine.finish() if start is None else engine.feed(samples[start:spoken])
        took = time.perf_counter() - began
        wall_s, cpu_s = wall_s + took, cpu_s + time.process_time() - cpu_began
        clock = max(clock, spoken / RATE) + took
        if now != text:
            text = now
            updates.append((clock, text))
    duration_s = len(samples) / RATE
    return {
        "text": text,
        "updates": updates,  # when what is shown changed, and to what
        "duration_s": duration_s,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "delay_s": clock - duration_s,  # of the final text, after the last sample
    }


def _read(path: str) -> np.ndarray:
    with wave.open(path) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2), path
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    if hasattr(os, "sched_setaffinity"):  # before any library counts the cores
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    engine = ENGINES[job["engine"]](**job["options"])
    block = round(job["block_s"] * RATE)
    recognise(engine, _read(job["recordings"][0]), block)  # the first use of anything is slow, and is not counted
    idle_mib = resident_mib()
    results = [recognise(engine, _read(path), block) for path in job["recordings"]]
    values = {"recordings": results, "peak_mib": peak_mib(), "idle_mib": idle_mib}
    Path(job["result"]).write_text(json.dumps(values))


if __name__ == "__main__":
    main(sys.argv[1])
