"""Trains one model for each line of the tables below, measures it on a sixth of dev-clean, and prints a table.

    python recipes/librispeech/ablation.py FOLDER DEV [--jobs 2] [--only TABLE] [--set KEY=VALUE...]

Each job is one process of one thread; `--set` changes all of them. What FOLDER already holds is not done again, so a
run that was stopped goes on.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mocha_stream.corpus import read_corpus
from mocha_stream.errors import MochaError
from mocha_stream.table import table

RECIPES = Path(__file__).parent
EVERY = 6
"""Of the utterances of DEV, one in so many is measured."""

CHANGES = {
    "as it is": "",
    "as it is, second seed": "training.seed=2",
    "as it is, third seed": "training.seed=3",
    "no quantity loss": "loss.quantity=0",
    "no synchrony with CTC": "loss.synchrony=0",
    "neither of both": "loss.quantity=0 loss.synchrony=0",
    "StableEmit .1 for synchrony": "loss.synchrony=0 loss.discount=0.1",
    "DeCoT, 2 frames, for synchrony": "loss.synchrony=0 loss.delay_limit=2",
    "no noise on energies": "loss.noise=0",
    "noise that rises": "loss.noise_rise=1.0",
    "no text for the decoder": "loss.text=0",
    "two views that agree": "loss.consistency=0.2 training.batch_s=280",
    "no dropout": "model.encoder.dropout=0 model.decoder.dropout=0",
    "nothing masked or warped": "augment.warp=0 augment.frequency_masks=0 augment.time_masks_per_s=0",
    "chunks of 4 only": "model.encoder.chunks=[4]",
    "both epochs averaged": "training.average=2",
}
"""Of ablation.toml."""

NEW_CHANGES = {
    "as it is": "",
    "as it is, second seed": "training.seed=2",
    "as it is, third seed": "training.seed=3",
    "masks from the start": "augment.warp=0.1 augment.frequency_masks=2 augment.time_masks_per_s=0.5",
    "masks in the second half": (
        "augment.start=0.5 augment.warp=0.1 augment.frequency_masks=2 augment.time_masks_per_s=0.5"
    ),
    "additive energies": "model.attention.energy=additive",
    "window of 1": "model.attention.window=1",
    "window of 2": "model.attention.window=2",
    "window of 8": "model.attention.window=8",
    "64 units": "model.vocab_size=64",
    "512 units": "model.vocab_size=512",
    "Star-Transformer": (
        "model.encoder.kind=star_transformer model.encoder.num_layers=5 model.encoder.lookahead=0 "
        "model.encoder.chunks=[4,8,16]"
    ),
}
"""Of ablation-new.toml."""

TABLES = {"ablation": CHANGES, "ablation-new": NEW_CHANGES}


class Row(NamedTuple):
    recipe: str
    name: str
    changes: list[str]

    @property
    def folder(self) -> str:
        return f"{self.recipe}-{''.join(c if c.isalnum() else '-' for c in self.name)}"


def run(row: Row, folder: Path, dev: Path, common: list[str]) -> dict[str, float]:
    """Trains and measures one row, unless its result is there. Raises MochaError where a command fails."""
    place = folder / row.folder
    result = place / "result.json"
    if not result.exists():
        place.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        recipe = RECIPES / f"{row.recipe}.toml"
        settings = [f'run="{place.resolve() / "run"}"', *common, *row.changes]
        command("train", str(recipe), "--set", *settings, log=place / "train.log")
        minutes = (time.perf_counter() - started) / 60
        model = ["--model", str(place / "run" / "model")]
        command("evaluate", str(dev), *model, "--json", str(place / "whole.json"), log=place / "whole.log")
        stream = ["--streaming", "--latency-ms", "640", "--json", str(place / "stream.json")]
        command("evaluate", str(dev), *model, *stream, log=place / "stream.log")
        whole, streamed = (json.loads((place / f"{name}.json").read_text()) for name in ("whole", "stream"))
        epoch = json.loads((place / "run" / "epochs.jsonl").read_text().splitlines()[-1])
        steps = [json.loads(line) for line in (place / "run" / "log.jsonl").read_text().splitlines()]
        delay = streamed["emission_delay_s"] or {"p50": math.nan, "p95": math.nan}  # no word is right
        values = {
            "whole": whole["wer"],
            "stream": streamed["wer"],
            "deletions": 100 * streamed["deletions"] / streamed["num_words"],
            "insertions": 100 * streamed["insertions"] / streamed["num_words"],
            "ctc": epoch["wer_ctc_whole"],
            "delay_p50": delay["p50"],
            "delay_p95": delay["p95"],
            "mass": sum(step["mass"] for step in steps[-100:]) / len(steps[-100:]),
            "minutes": minutes,
        }
        result.write_text(json.dumps(values, indent=1) + "\n")
    return json.loads(result.read_text())


def command(*arguments: str, log: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        whole = [sys.executable, "-m", "mocha_stream", *arguments]
        code = subprocess.run(whole, stdout=file, stderr=file, env=environment).returncode
    if code:
        raise MochaError(f"{shlex.join(whole)} ended with code {code}; see {log}")


def describe(row: Row, values: dict[str, float]) -> list[str]:
    numbers = [f"{values[name]:.1f}" for name in ("whole", "stream", "deletions", "insertions", "ctc")]
    delays = [f"{values[name]:.2f}" for name in ("delay_p50", "delay_p95", "mass")]
    return [row.name, *numbers, *delays, f"{values['minutes']:.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for runs, logs and results")
    parser.add_argument("dev", type=Path, help="corpus to measure on")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), help="tables (default: both)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for all rows, as in `train`")
    options = parser.parse_args()
    rows = [Row(recipe, *each) for recipe in options.only for each in _split(TABLES[recipe])]
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        dev = options.folder / "dev.jsonl"
        utterances = read_corpus(options.dev)[::EVERY]
        lines = [{"path": str(u.path.resolve()), "text": u.text, "speaker": u.speaker} for u in utterances]
        dev.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(lambda row: run(row, options.folder, dev, options.set), rows))
    except MochaError as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 2
    header = ["whole", "640 ms", "deleted", "inserted", "CTC", "delay p50", "p95", "mass", "minutes"]
    for recipe in options.only:
        chosen = [describe(row, values) for row, values in zip(rows, results, strict=True) if row.recipe == recipe]
        print(table([f"{recipe}.toml", *header], chosen), "\n")
    return 0


def _split(changes: dict[str, str]) -> list[tuple[str, list[str]]]:
    return [(name, settings.split()) for name, settings in changes.items()]


if __name__ == "__main__":
    sys.exit(main())
