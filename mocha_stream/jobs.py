"""Transcribes many files on several processes, each with a model of its own and one thread. Imports no torch.

A process asks for the next file when it can use one, so nobody waits for the longest of them.
"""

import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from .config import BeamConfig
from .errors import AudioError, MochaError
from .sources import Source, transcribe_sources
from .transcript import Transcript


def transcribe_in_processes(
    files: Sequence[Source],
    num_processes: int,
    model: Path | None,
    latency_ms: int | None,
    batch_s: float,
    beam: BeamConfig | None = None,
) -> Iterator[tuple[int, Transcript | AudioError]]:
    """The place of each file in the list and its result, as they come.

    The arguments are those of `Recognizer.load` and `Recognizer.transcribe_many`. Files that a process was at when it
    died, for want of memory for instance, are among the failed; the others go on.

    Raises:
        MochaError: a model that cannot be loaded, a latency that it was not trained for.
    """
    context = get_context("spawn")  # the only kind that is safe with threads, and the same on every system
    waiting = deque(range(len(files)))
    processes, at_work = {}, {}
    try:
        for _ in range(min(num_processes, len(files))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, model, beam, latency_ms, batch_s), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            processes[ours], at_work[ours] = process, list[int]()
        while processes:
            for connection in wait(list(processes)):
                assert isinstance(connection, Connection)
                try:
                    message = connection.recv()
                    if message is None:
                        number = waiting.popleft() if waiting else None
                        at_work[connection] += [] if number is None else [number]
                        connection.send(None if number is None else (number, files[number]))
                        continue
                except (EOFError, ConnectionError):
                    process = processes.pop(connection)
                    process.join()
                    for number in at_work[connection]:
                        yield number, AudioError(f"{files[number]}: {_end_of(process.exitcode)}")
                    continue
                if isinstance(message, MochaError):
                    raise message
                at_work[connection].remove(message[0])
                yield message
        for number in waiting:
            yield number, AudioError(f"{files[number]}: no process is left to read it; try fewer --jobs")
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()


def _end_of(exit_code: int | None) -> str:
    how = f"by signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"with code {exit_code}"
    return f"the process that had it ended {how}; try it alone, or with fewer --jobs"


def _work(
    connection: Connection, model: Path | None, beam: BeamConfig | None, latency_ms: int | None, batch_s: float
) -> None:
    """What each process does: None on the pipe asks for a file, a pair is a result, an error is the end of all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with suppress(EOFError, ConnectionError):  # the parent is gone
        import torch

        from .recognizer import Recognizer

        torch.set_num_threads(1)

        def drawn() -> Iterator[tuple[int, Source]]:
            while True:
                connection.send(None)
                item = connection.recv()
                if item is None:
                    return
                yield item

        try:
            for message in transcribe_sources(Recognizer.load(model, beam), drawn(), latency_ms, batch_s):
                connection.send(message)
        except MochaError as error:
            connection.send(error)
