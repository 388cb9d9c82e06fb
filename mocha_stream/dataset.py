"""Transcripts as a Parquet data set: a directory of part files, a row a recording. Imports no torch."""

import io
import time
from pathlib import Path
from typing import Any

from .errors import AudioError, ConfigError, MissingExtraError, MochaError
from .transcript import Transcript, as_json
from .writers import write_whole

ROWS_PER_PART = 10_000
MAX_WAIT_S = 60.0
"""From one part to the next, so that a run that is killed loses no more."""


class Dataset:
    """Columns path, text, duration_s, words (a list of word, start_s, end_s, confidence) and error.

    A recording that failed has an error and nothing else. Use it in `with`: rows may wait for the end.

    Args:
        directory: holds the parts
        resume: adds to the parts that are there, rather than refuse to; recordings that failed before are taken out

    Raises:
        MissingExtraError: pyarrow is not installed.
        ConfigError: parts are there already.
        MochaError: parts that cannot be read or written.
    """

    def __init__(self, directory: Path, resume: bool):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtraError("--format parquet needs pyarrow: pip install 'mocha-stream[ray]'") from None
        self._arrow, self._directory = pyarrow, directory
        word = {"word": pyarrow.string()} | dict.fromkeys(("start_s", "end_s", "confidence"), pyarrow.float64())
        words = pyarrow.list_(pyarrow.struct(list(word.items())))
        text, number = pyarrow.string(), pyarrow.float64()
        columns = {"path": text, "text": text, "duration_s": number, "words": words, "error": text}
        self._schema = pyarrow.schema(list(columns.items()))
        self._rows: list[dict[str, Any]] = []
        self._written = time.monotonic()
        self.done: set[str] = set()
        """Paths that have a transcript."""
        parts = sorted(directory.glob("part-*.parquet"))
        if parts and not resume:
            raise ConfigError(f"{directory}: holds a data set already; add to it by --resume, or name another place")
        self._num_parts = 1 + max((int(part.stem[5:]) for part in parts), default=-1)
        for part in parts:
            self._read(part)

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()

    def add(self, path: str, result: Transcript | AudioError) -> None:
        values = {"error": str(result)} if isinstance(result, AudioError) else as_json(result)
        self._rows.append({"path": path, **values})
        if len(self._rows) >= ROWS_PER_PART or time.monotonic() - self._written > MAX_WAIT_S:
            self._flush()

    def _read(self, part: Path) -> None:
        try:
            table = self._arrow.parquet.read_table(part, schema=self._schema)
        except (OSError, self._arrow.ArrowException) as error:
            raise MochaError(f"{part}: cannot be read ({error}); remove it, and its recordings are done anew") from None
        good = table.filter(self._arrow.compute.field("error").is_null())
        if len(good) < len(table):
            self._write(part, good)
        self.done.update(good["path"].to_pylist())

    def _flush(self) -> None:
        if self._rows:
            table = self._arrow.Table.from_pylist(self._rows, self._schema)
            self._write(self._directory / f"part-{self._num_parts:05}.parquet", table)
            self._num_parts += 1
        self._rows, self._written = [], time.monotonic()

    def _write(self, part: Path, table: Any) -> None:
        buffer = io.BytesIO()
        self._arrow.parquet.write_table(table, buffer)
        write_whole(part, buffer.getvalue())
