"""Recordings in, transcripts out: what `mocha-stream transcribe` does with files. Imports no torch.

A recording that cannot be used is told in a line and the others go on. A transcript is written to a temporary name
and renamed, so what is there under its own name is whole.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from .config import BeamConfig
from .corpus import is_list, read_paths
from .dataset import Dataset
from .errors import AudioError, ConfigError, about
from .sources import Source, fetched, find_remote, is_url, path_of, transcribe_sources
from .transcript import Transcript
from .writers import FORMATS, shown, write_whole

ENGINES = ("processes", "ray")


@dataclass(frozen=True)
class Recording:
    path: Source
    """Where it is read from."""
    name: Source
    """What it is called in messages and transcripts."""
    place: Path
    """Of its transcript in an output directory, without ending."""


def transcribe_files(
    given: Sequence[str],
    output_dir: Path | None = None,
    format: str = "txt",
    resume: bool = False,
    model: Path | None = None,
    latency_ms: int | None = None,
    jobs: int = 1,
    batch_s: float | None = None,
    beam: BeamConfig | None = None,
    engine: str = ENGINES[0],
    ray_address: str | None = None,
) -> int:
    """Transcribes all that is given; returns the exit code: 0, 1 if some failed, 2 if all did.

    Args:
        given: files, directories, patterns of them, lists as `corpus` reads them, URLs, or - for standard input
        output_dir: one file per recording there; None prints to standard output, in the order given
        format: one of `writers.FORMATS`; or parquet, for a `Dataset` in the output directory
        resume: leaves out recordings whose transcript is there already
        model, beam, latency_ms, batch_s: as `Recognizer.load` and `Recognizer.transcribe_many` take them
        jobs: processes, or actors, that work side by side
        engine: one of `ENGINES`
        ray_address: the cluster to use; None starts one on this machine

    Raises:
        MochaError: what cannot be done for any recording.
    """
    if resume and not output_dir:
        raise ConfigError("--resume looks for transcripts that are there already; name their --output-dir")
    if format == "parquet" and not output_dir:
        raise ConfigError("a Parquet data set is a directory; name it by --output-dir")
    if ray_address and engine != "ray":
        raise ConfigError("--ray-address names a cluster of Ray; use it with --engine ray")
    with _spooled(given) as standard_input:
        recordings, num_failed = find_recordings(given, standard_input)
        if not recordings:
            return 2
        if output_dir is None and format in ("srt", "vtt") and len(recordings) > 1:
            raise ConfigError(f"{format} of {len(recordings)} recordings is no one file; name an --output-dir")
        dataset = Dataset(output_dir, resume) if output_dir and format == "parquet" else None
        targets = _targets(recordings, output_dir, format) if output_dir and not dataset else {}
        todo = recordings
        if resume:
            todo = [
                item
                for item in recordings
                if not (shown(item.name) in dataset.done if dataset else targets[item].is_file())
            ]
        with Report(len(todo), len(recordings) - len(todo), num_failed) as report, dataset or nullcontext():
            texts: dict[int, str] = {}  # to be printed, of results that came before their turn
            turn = 0
            paths = [item.path for item in todo]
            for number, result in _results(paths, model, beam, latency_ms, jobs, batch_s, engine, ray_address):
                recording, texts[number] = todo[number], ""
                if isinstance(result, AudioError):
                    result = about(recording.name, result, recording.path)
                    report.failure(result)
                else:
                    report.success(result)
                    if targets:
                        write_whole(targets[recording], FORMATS[format](recording.name, result))
                    elif not dataset:
                        texts[number] = FORMATS["tsv" if format == "txt" else format](recording.name, result)
                if dataset:
                    dataset.add(shown(recording.name), result)
                while turn in texts:
                    report.print(texts.pop(turn))
                    turn += 1
        return report.exit_code


def _results(
    paths: list[Source],
    model: Path | None,
    beam: BeamConfig | None,
    latency_ms: int | None,
    jobs: int,
    batch_s: float | None,
    engine: str,
    ray_address: str | None,
) -> Iterator[tuple[int, Transcript | AudioError]]:
    """The place of each path in the list and its result, as they come."""
    from .segment import BATCH_S

    if not paths:
        return iter(())
    batch_s = batch_s or BATCH_S
    if engine == "ray":
        from .ray_engine import transcribe_with_ray

        return transcribe_with_ray(paths, jobs, model, latency_ms, batch_s, beam, ray_address)
    if jobs > 1:
        from .jobs import transcribe_in_processes

        return transcribe_in_processes(paths, jobs, model, latency_ms, batch_s, beam)
    from .recognizer import Recognizer

    return transcribe_sources(Recognizer.load(model, beam), enumerate(paths), latency_ms, batch_s)


# ---------------------------------------------------------------- what there is to do


def find_recordings(given: Iterable[str], standard_input: Path | None) -> tuple[list[Recording], int]:
    """The recordings that arguments name, and how many arguments name none, of which each is told."""
    recordings, num_failed = [], 0
    for argument in given:
        try:
            if standard_input and argument == "-":
                recordings.append(Recording(standard_input, Path("-"), Path("stdin")))
                continue
            if is_url(argument):
                recordings += _recordings(argument)
                continue
            path = Path(argument)
            matches = sorted(glob(argument, recursive=True)) if has_magic(argument) and not path.exists() else []
            for match in [Path(name) for name in matches] or [path]:
                recordings += _recordings(match)
        except AudioError as error:
            complain(error)
            num_failed += 1
    return recordings, num_failed


def _recordings(path: Source) -> Iterator[Recording]:
    """The recordings below a directory or in a list, with their places in it; or the one."""
    from . import media
    from .audio import EXTENSIONS, find_audio

    found: Sequence[Source]
    listed = is_list(path_of(path)) and (isinstance(path, str) or path.is_file())
    if isinstance(path, Path):
        found = read_paths(path) if listed else find_audio(path)
    elif listed:
        with fetched(path) as local:
            found = read_paths(local, path)
    else:
        found = find_remote(path, EXTENSIONS | media.EXTENSIONS)
    top = path_of(path).parent if listed or found == [path] else path_of(path)
    for each in found:
        place = path_of(each)
        place = place.relative_to(top if place.is_relative_to(top) else place.anchor)
        yield Recording(each, each, Path(*(part for part in place.with_suffix("").parts if part != "..")))


def _targets(recordings: list[Recording], directory: Path, ending: str) -> dict[Recording, Path]:
    """The file to write for each recording."""
    sources: dict[Path, Recording] = {}
    for recording in recordings:
        target = directory / recording.place.with_name(f"{recording.place.name}.{ending}")
        first = sources.setdefault(target, recording)
        if first != recording:
            raise ConfigError(
                f"{first.name} and {recording.name} would both be written to {target}; transcribe them apart"
            )
    return {recording: target for target, recording in sources.items()}


@contextmanager
def _spooled(given: Iterable[str]) -> Iterator[Path | None]:
    """Standard input as a file, if it is asked for: decoders have to seek."""
    if "-" not in given:
        yield None
        return
    with tempfile.NamedTemporaryFile(prefix="mocha-stream-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        yield Path(file.name)


# ---------------------------------------------------------------- what comes of it


class Report:
    """Tells on standard error how it goes: failures, a bar where a person sees it, and a last line about it all."""

    def __init__(self, num_todo: int, num_skipped: int, num_failed: int):
        from tqdm import tqdm

        self._num_all, self._num_skipped, self._num_failed = (
            num_todo + num_skipped + num_failed,
            num_skipped,
            num_failed,
        )
        self._num_done, self._audio_s, self._started = 0, 0.0, time.monotonic()
        self._bar = tqdm(total=num_todo, unit="file", disable=None, leave=False, dynamic_ncols=True)

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        if kind is None and self._num_all > 1:
            complain(self._summary())

    @property
    def exit_code(self) -> int:
        return 0 if not self._num_failed else 1 if self._num_done + self._num_skipped else 2

    def success(self, transcript: Transcript) -> None:
        self._num_done += 1
        self._audio_s += transcript.duration_s
        self._bar.set_postfix_str(f"{self._audio_s / 3600 / self._seconds():.3f} hours of audio/s", refresh=False)
        self._bar.update()

    def failure(self, error: AudioError) -> None:
        self._num_failed += 1
        self._bar.update()
        with self._bar.external_write_mode():
            complain(error)

    def print(self, text: str) -> None:
        if not text:
            return
        with self._bar.external_write_mode():
            sys.stdout.write(text)
            sys.stdout.flush()

    def _seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)

    def _summary(self) -> str:
        skipped = f", {self._num_skipped} done before" if self._num_skipped else ""
        failed = f", {self._num_failed} failed" if self._num_failed else ""
        minutes, seconds = self._audio_s / 60, self._seconds()
        return (
            f"{self._num_done} of {self._num_all} recordings transcribed{skipped}{failed}: {minutes:.1f} minutes of "
            f"audio in {seconds:.1f} s, {self._audio_s / seconds:.0f} times as fast as it was spoken"
        )


def complain(message: object) -> None:
    print(f"mocha-stream: {message}", file=sys.stderr, flush=True)
