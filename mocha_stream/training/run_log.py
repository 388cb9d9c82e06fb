"""What a training run writes of itself: a JSON line a step and one an epoch. Imports no torch."""

import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError


@dataclass(frozen=True)
class RunLog:
    """The values of each update and of each epoch, by name; both have the number of the update under `step`."""

    steps: list[dict[str, float]]
    epochs: list[dict[str, float]]


def read_run_log(folder: Path) -> RunLog:
    """`log.jsonl` and, once an epoch is over, `epochs.jsonl` in the folder of a run.

    Raises:
        DataError: no log in the folder, or a line that is none of a log.
    """
    steps = _values(folder / "log.jsonl")
    if not steps:
        raise DataError(f"{folder}: no log.jsonl with a line in it; expected the folder of a training run")
    return RunLog(steps, _values(folder / "epochs.jsonl"))


def whole_lines(path: Path) -> list[str]:
    """The whole lines of a log; one cut short by a crash is left out."""
    if not path.exists():
        return []
    return [
        line.rstrip("\n") for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")
    ]


def _values(path: Path) -> list[dict[str, float]]:
    try:
        lines = whole_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected the log of a training run") from None
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            values.append({name: float(value) for name, value in json.loads(line).items()})
            values[-1]["step"]  # no curve without it
        except (ValueError, TypeError, AttributeError, KeyError):
            raise DataError(f'{path}:{number}: {line[:60]!r}; expected {{"step": ..., "loss": ...}}') from None
    return values
