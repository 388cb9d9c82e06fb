"""Many files to text: this package in batches and on several processes, beside one by one and other recognisers."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import soundfile
import torch

from mocha_stream.corpus import read_corpus
from mocha_stream.errors import ModelError
from mocha_stream.jobs import transcribe_in_processes
from mocha_stream.recognizer import Recognizer
from mocha_stream.segment import BATCH_S
from mocha_stream.table import table

from .speech import PEERS, Engine, choose, convert, work

NAMES = ("pocketsphinx", "faster-whisper tiny.en")
OTHERS = (
    *(engine for engine in PEERS if engine.name in NAMES),
    Engine("faster-whisper, sizes of tiny.en, random weights", "random-whisper", {}),
)
"""Those that work on files by the thousand."""


def run(data: Path, limit: int, peer_limit: int, jobs: int, model: Path | None, python: str) -> None:
    """Prints the table."""
    paths = [utterance.path for utterance in choose(read_corpus(data), limit)]
    audio_s = sum(soundfile.info(path).duration for path in paths)
    rows: dict[str, Cost | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        wavs = [convert(path, Path(folder) / f"{i}.wav") for i, path in enumerate(paths[:peer_limit])]
        for engine in OTHERS:
            print(f"{engine.name} ...", file=sys.stderr, flush=True)
            answer = work(engine, wavs, python, Path(folder))
            rows[engine.name] = answer if isinstance(answer, str) else cost_of(answer)
    try:
        rows.update(measure(paths, audio_s, jobs, model))
    except ModelError as error:
        rows["mocha-stream"] = f"not run: {error}"
    print(
        f"{len(paths)} recordings, {audio_s / 3600:.2f} hours; load of the machine {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores\n\n{describe(rows)}\n\n"
        f"Other recognisers: the first {len(wavs)} recordings, on one core, reading not counted."
    )


class Cost(NamedTuple):
    """Of a second of audio, in seconds."""

    wall: float
    cpu: float  # of all processes, which other programs on the machine do not lengthen


def cost_of(answer: dict[str, Any]) -> Cost:
    """What a worker measured."""
    total = {key: sum(item[key] for item in answer["recordings"]) for key in ("duration_s", "wall_s", "cpu_s")}
    return Cost(total["wall_s"] / total["duration_s"], total["cpu_s"] / total["duration_s"])


@contextmanager
def clocks(audio_s: float) -> Iterator[list[Cost]]:
    """Afterwards the list holds the cost of what was done, child processes that have ended included."""
    result: list[Cost] = []
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    yield result
    result.append(Cost((time.perf_counter() - wall) / audio_s, (sum(os.times()[:4]) - cpu) / audio_s))


def measure(paths: Sequence[Path], audio_s: float, jobs: int, model: Path | None) -> Iterator[tuple[str, Cost]]:
    """Our own ways, from the file to the text."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    recognizer = Recognizer.load(model)
    recognizer.transcribe(paths[0])  # the first use of anything is slow, and is not counted
    with clocks(audio_s) as cost:
        one_by_one = [recognizer.transcribe(path) for path in paths]
    yield "mocha-stream, one by one", cost[0]
    with clocks(audio_s) as cost:
        in_batches = list(recognizer.transcribe_many(paths))
    yield "mocha-stream, batches", cost[0]
    with clocks(audio_s) as cost:
        on_processes = dict(transcribe_in_processes(paths, jobs, model, None, BATCH_S))
    yield f"mocha-stream, {jobs} processes and their start", cost[0]
    torch.set_num_threads(threads)
    assert one_by_one == in_batches == [on_processes[i] for i in range(len(paths))], "a result depends on its batch"


def describe(rows: dict[str, Cost | str]) -> str:
    """Costs, and how many times as much processor time each way takes as batches do."""
    batches = rows.get("mocha-stream, batches")
    lines = []
    for name, cost in rows.items():
        if isinstance(cost, str):
            lines.append([f"{name}: {cost}"])
            continue
        ratio = f"{cost.cpu / batches.cpu:.1f}" if isinstance(batches, Cost) else "-"
        lines.append([name, f"{1 / cost.wall / 60:.2f}", f"{cost.wall:.5f}", f"{cost.cpu:.5f}", ratio])
    return table(["", "hours a minute", "RTF", "RTF of CPU", "CPU / that of batches"], lines)
