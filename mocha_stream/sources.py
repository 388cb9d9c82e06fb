"""Recordings by path or by URL, and what becomes of each, whichever engine has it. Imports no torch.

A URL is whatever fsspec knows, as s3://bucket/talk.flac or file:///data/talk.flac. Decoders have to seek, so what it
names is fetched to a temporary file for as long as it is read.
"""

import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import AudioError, about
from .transcript import Transcript

if TYPE_CHECKING:
    from .recognizer import Recognizer

Source = Path | str
"""A path, or a URL as text."""


def is_url(name: object) -> bool:
    return isinstance(name, str) and "://" in name


def path_of(source: Source) -> Path:
    """The path itself, or what a URL has after its scheme, as a relative path."""
    return Path(source.rpartition("://")[2].lstrip("/") if isinstance(source, str) else source)


def find_remote(url: str, endings: Iterable[str]) -> list[str]:
    """The files with these endings below a remote directory, or that match a pattern, sorted; or else just the URL.

    Raises:
        AudioError: nothing there, or a place that cannot be reached.
    """
    import fsspec

    if path_of(url).suffix.lower() in endings and "*" not in url:
        return [url]
    try:
        system, path = fsspec.core.url_to_fs(url)
        if "*" not in url and (url.startswith("http") or not system.isdir(path)):  # the web has no directories
            return [url]
        names = system.glob(path) if "*" in url else system.find(path)
        found = sorted(name for name in names if path_of(name).suffix.lower() in endings)
    except Exception as error:  # file systems raise what their libraries do
        raise _unfetched(url, error) from None
    if not found:
        raise AudioError(f"{url}: no audio files there; expected .wav, .flac, .opus, .mp3 or the like")
    return [system.unstrip_protocol(name) for name in found]


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """A local copy of a remote file. Raises AudioError."""
    import fsspec

    with tempfile.NamedTemporaryFile(prefix="mocha-stream-") as file:
        try:
            with fsspec.open(url, "rb") as remote:
                shutil.copyfileobj(remote, file)
            file.flush()
        except Exception as error:  # file systems raise what their libraries do
            raise _unfetched(url, error) from None
        yield Path(file.name)


def _unfetched(url: str, error: Exception) -> AudioError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return AudioError(f"{url}: cannot be fetched ({reason}); expected a URL that fsspec can open")


def transcribe_sources(
    recognizer: "Recognizer", sources: Iterable[tuple[int, Source]], latency_ms: int | None, batch_s: float
) -> Iterator[tuple[int, Transcript | AudioError]]:
    """The number of each source and its result, as they come. Sources are drawn as they are needed.

    The other arguments and the errors are those of `Recognizer.transcribe_many`.
    """
    reading: deque[tuple[int, Source, Path]] = deque()
    failed: deque[tuple[int, AudioError]] = deque()

    def paths() -> Iterator[Path]:
        for number, source in sources:
            if not isinstance(source, str):
                reading.append((number, source, source))
                yield source
                continue
            try:
                with fetched(source) as path:
                    reading.append((number, source, path))
                    yield path
            except AudioError as error:
                failed.append((number, error))

    for result in recognizer.transcribe_many(paths(), latency_ms, batch_s=batch_s):
        number, source, path = reading.popleft()
        yield number, about(source, result, path) if isinstance(result, AudioError) else result
        while failed:
            yield failed.popleft()
    yield from failed
