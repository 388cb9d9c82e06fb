"""How much audio a training step of a recipe gets through in a second, in one process on torch's threads."""

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mocha_stream.training.recipe import read_recipe
from mocha_stream.training.trainer import Trainer

WARM_UP = 2


class _Enough(Exception):
    """Ends the epoch once enough steps have been seen."""


class _Watch:
    """Takes the place of the training log."""

    def __init__(self, num_steps: int):
        self.num_steps = num_steps
        self.seen: list[dict[str, Any]] = []

    def step(self, values: dict[str, Any], *_: Any) -> None:
        self.seen.append(values)
        if len(self.seen) == WARM_UP + self.num_steps:
            raise _Enough


def run(recipe_path: Path, num_steps: int, assignments: list[str]) -> None:
    """Trains from scratch for a few steps in a temporary folder and prints their speed."""
    recipe = read_recipe(recipe_path, assignments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(replace(recipe, run=folder), recipe_path.parent, 0, 1, device)
        watch = _Watch(num_steps)
        with suppress(_Enough):
            trainer._run_epoch(watch)  # type: ignore[arg-type]
    print(describe(watch.seen[WARM_UP:], f"{recipe_path}, {device.type}, threads: {torch.get_num_threads()}"))


def describe(steps: list[dict[str, Any]], what: str) -> str:
    """One line for some steps of the log."""
    if not steps:
        return f"{what}: the epoch has no more than {WARM_UP} steps; nothing measured"
    audio_s, seconds = sum(step["audio_s"] for step in steps), sum(step["seconds"] for step in steps)
    return (
        f"{what}: {len(steps)} steps of {audio_s / len(steps):.0f} s of audio in {seconds / len(steps):.2f} s each, "
        f"{audio_s / seconds:.0f} s of audio per second"
    )
