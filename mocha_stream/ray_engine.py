"""Transcribes many files with Ray Data, here or on a cluster, on actors that each have a model and one thread.

A task is a few files. Ray starts an actor that has died anew and repeats its task; where that is of no use, its files
are tried once more each on its own, so that only those that kill whoever reads them have no transcript. Imports no
torch.
"""

import logging
import os
import pickle
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import BeamConfig
from .errors import AudioError, ConfigError, MissingExtraError, MochaError, about
from .sources import Source, is_url, transcribe_sources
from .transcript import Transcript

if TYPE_CHECKING:
    import pyarrow

    from .recognizer import Recognizer

MAX_FILES_PER_TASK, TASKS_PER_ACTOR = 16, 4
"""Many files make full batches; many tasks share the work evenly and lose little when an actor dies."""
MAX_ATTEMPTS = 2
CONNECT_S = 10.0
OBJECT_STORE_BYTES = 100_000_000
"""Of a local cluster: only names and texts pass through it."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Ray reads these when it is imported: no statistics to its makers, and no lines of its workers among the results."""


def transcribe_with_ray(
    files: Sequence[Source],
    num_actors: int,
    model: Path | None,
    latency_ms: int | None,
    batch_s: float,
    beam: BeamConfig | None = None,
    address: str | None = None,
) -> Iterator[tuple[int, Transcript | AudioError]]:
    """The place of each file in the list and its result, as they come.

    The arguments are those of `Recognizer.load` and `Recognizer.transcribe_many`, and the address of a Ray cluster;
    None starts one on this machine, for as long as it takes. Every machine of a cluster needs this package, the model
    and the files under the same paths, or URLs.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no cluster at the address.
        MochaError: a model that cannot be loaded, a latency that it was not trained for.
    """
    ray = _import_ray()
    num_actors = min(num_actors, len(files))
    _connect(ray, address, num_actors)
    if beam and beam.language_model:
        beam = replace(beam, language_model=os.path.abspath(beam.language_model))
    arguments = (model and model.absolute(), beam, latency_ms, batch_s)
    waiting = {number: file if is_url(file) else Path(file).absolute() for number, file in enumerate(files)}
    most = -(-len(files) // (TASKS_PER_ACTOR * num_actors))
    try:
        for num_files in (min(most, MAX_FILES_PER_TASK), 1):
            for number, result in _run(ray, list(waiting.items()), num_files, num_actors, arguments):
                file = waiting.pop(number)
                yield number, about(files[number], result, file) if isinstance(result, AudioError) else result
        ended = "the actor that had it ended every time; try it alone, or with fewer --jobs"
        for number in waiting:
            yield number, AudioError(f"{files[number]}: {ended}")
    finally:
        ray.shutdown()


def _import_ray() -> Any:
    os.environ.update(QUIET)
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtraError("--engine ray needs Ray: pip install 'mocha-stream[ray]'") from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return ray


def _connect(ray: Any, address: str | None, num_cpus: int) -> None:
    local = {"num_cpus": num_cpus, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    try:
        if port.isdecimal():  # Ray would try for minutes
            socket.create_connection((host, int(port)), CONNECT_S).close()
        with _silence():
            ray.init(
                address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **({} if address else local)
            )
    except Exception as error:  # Ray has no class for it
        reason = str(error.__cause__ or error).strip().rpartition("\n")[2]  # above it may be a traceback
        if address:
            raise ConfigError(f"no Ray cluster at {address} ({reason}); expected HOST:PORT of its head") from None
        raise ConfigError(f"Ray cannot start ({reason}); try when this machine is less busy, or --jobs alone") from None


@contextmanager
def _silence() -> Iterator[None]:
    """No standard error, on which the C++ part of Ray tells what it was asked not to."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _run(
    ray: Any, files: list[tuple[int, Source]], num_files: int, num_actors: int, arguments: tuple
) -> Iterator[tuple[int, Transcript | AudioError]]:
    """The results of files by number, so many a task; none of tasks that are given up."""
    if not files:
        return
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = context.print_on_execution_start = False
    attempts = ray.remote(num_cpus=0)(_Attempts).remote()
    with ray.data.DataContext.current(context):
        tasks = ray.data.from_arrow([_table(files[i : i + num_files]) for i in range(0, len(files), num_files)])
        done = tasks.map_batches(
            _Transcriber,
            fn_constructor_args=(attempts, *arguments),
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=num_actors, max_tasks_in_flight_per_actor=1),
            num_cpus=1,
        )
        for table in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for number, result in _rows(table):
                if isinstance(result, MochaError) and not isinstance(result, AudioError):
                    raise result
                yield number, result


class _Attempts:
    """An actor that counts how often each task was begun: Ray repeats those of dead actors without end."""

    def __init__(self) -> None:
        self.counts = Counter[int]()

    def begin(self, task: int) -> int:
        self.counts[task] += 1
        return self.counts[task]


class _Transcriber:
    """What each actor does with tasks: a table of files to a table of results, or of an error that ends all."""

    def __init__(
        self, attempts: Any, model: Path | None, beam: BeamConfig | None, latency_ms: int | None, batch_s: float
    ):
        import torch

        torch.set_num_threads(1)
        self.attempts, self.model, self.beam, self.latency_ms, self.batch_s = attempts, model, beam, latency_ms, batch_s

    @cached_property
    def recognizer(self) -> "Recognizer":
        from .recognizer import Recognizer

        return Recognizer.load(self.model, self.beam)

    def __call__(self, table: "pyarrow.Table") -> "pyarrow.Table":
        import ray

        files = _rows(table)
        if ray.get(self.attempts.begin.remote(files[0][0])) > MAX_ATTEMPTS:
            return _table([])
        try:
            return _table(transcribe_sources(self.recognizer, files, self.latency_ms, self.batch_s))
        except MochaError as error:
            return _table([(files[0][0], error)])


def _table(rows: Iterable[tuple[int, Any]]) -> "pyarrow.Table":
    """Numbered objects as Ray Data passes them on."""
    import pyarrow

    numbers, values = zip(*rows, strict=True) if (rows := list(rows)) else ((), ())
    columns = {"number": pyarrow.array(numbers, pyarrow.int64())}
    return pyarrow.table(columns | {"pickled": pyarrow.array(map(pickle.dumps, values), pyarrow.binary())})


def _rows(table: "pyarrow.Table") -> list[tuple[int, Any]]:
    pickled = table["pickled"].to_pylist()
    return list(zip(table["number"].to_pylist(), map(pickle.loads, pickled), strict=True))
