"""Trains one model for each line of the tables below, measures it on a sixth of dev-clean, and prints Markdown.

    python recipes/librispeech/ablation.py FOLDER DEV [--jobs 2] [--only TABLE] [--set KEY=VALUE...]

The first table begins with the model of laptop-5.toml. Each job is one process of one thread; `--set` changes what a
row does not. Rows whose result is in FOLDER are not done again, so after a stop the same command does the rest. `mass`
is what alpha sums to for a token in training, which StableEmit and DeCoT take from. See "What each part is worth" in
README.md.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mocha_stream.corpus import read_corpus
from mocha_stream.errors import MochaError
from mocha_stream.model_folder import load_model, save_model
from mocha_stream.training.data import read_examples
from mocha_stream.training.recipe import read_recipe
from mocha_stream.training.run_log import read_run_log
from mocha_stream.training.trainer import average_weights

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
    "no teacher": "loss.teacher=0",
    "half of the utterances spliced": "data.splice=0.5",
    "two views that agree": "loss.consistency=0.2 training.batch_s=280",
    "no dropout": "model.encoder.dropout=0 model.decoder.dropout=0",
    "nothing masked or warped": "augment.warp=0 augment.frequency_masks=0 augment.time_masks_per_s=0",
    "chunks of 4 only": "model.encoder.chunks=[4]",
    "window of 1": "model.attention.window=1",
    "window of 2": "model.attention.window=2",
    "window of 8": "model.attention.window=8",
}
"""Of ablation.toml."""

NEW_CHANGES = {
    "as it is": "",
    "as it is, second seed": "training.seed=2",
    "as it is, third seed": "training.seed=3",
    "no teacher": "loss.teacher=0",
    "masks from the start": "augment.warp=0.1 augment.frequency_masks=2 augment.time_masks_per_s=0.7",
    "masks in the second half": (
        "augment.start=0.5 augment.warp=0.1 augment.frequency_masks=2 augment.time_masks_per_s=0.7"
    ),
    "additive energies": "model.attention.energy=additive",
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


def run(row: Row, folder: Path, dev: Path, common: list[str]) -> dict[str, Any]:
    """Trains and measures one row, unless its result is there.

    Raises:
        MochaError: a command fails, or the result is of other settings.
    """
    place = folder / row.folder
    result, settings = place / "result.json", [*common, *row.changes]
    if result.exists():
        values = json.loads(result.read_text())
        if values["settings"] != settings:
            raise MochaError(f"{result}: is of {values['settings']}, not {settings}; choose another folder")
        return values
    place.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    recipe, where = RECIPES / f"{row.recipe}.toml", f'run="{place.resolve() / "run"}"'
    command("train", str(recipe), "--set", where, *settings, log=place / "train.log")
    minutes = (time.perf_counter() - started) / 60
    log = read_run_log(place / "run")
    mass = statistics.fmean(step["mass"] for step in log.steps[-100:])
    values = measure(place / "run" / "model", place, dev)
    values |= {"settings": settings, "mass": mass, "minutes": minutes}
    result.write_text(json.dumps(values, indent=1) + "\n")
    return values


def measure(model: Path, place: Path, dev: Path) -> dict[str, Any]:
    """Word error rates, their parts and delays; reports and logs are left in `place`."""
    reports = []
    for name, options in {"whole": [], "stream": ["--streaming", "--latency-ms", "640"]}.items():
        output = place / f"{name}.json"
        command("evaluate", str(dev), "--model", str(model), "--json", str(output), *options, log=place / f"{name}.log")
        reports.append(json.loads(output.read_text()))
    whole, stream = reports
    delay = stream["emission_delay_s"] or {"p50": math.nan, "p95": math.nan}  # no word is right
    return {
        "whole": whole["wer"],
        "stream": stream["wer"],
        "deletions": 100 * stream["deletions"] / stream["num_words"],
        "insertions": 100 * stream["insertions"] / stream["num_words"],
        "delay_p50": delay["p50"],
        "delay_p95": delay["p95"],
    }


def measure_once(model: Path, place: Path, dev: Path) -> dict[str, Any]:
    """A row of a model that is not trained here, unless its result is there."""
    result = place / "result.json"
    if not result.exists():
        place.mkdir(exist_ok=True)
        result.write_text(json.dumps(measure(model, place, dev), indent=1) + "\n")
    return json.loads(result.read_text())


def write_mean(models: list[Path], folder: Path) -> None:
    """The model whose weights are the mean of those of others (Wortsman et al. 2022, arXiv 2203.05482)."""
    model, tokenizer = load_model(models[0])
    model.load_state_dict(average_weights([each / "model.safetensors" for each in models]))
    save_model(model, tokenizer, folder, "", torch.float16)


def command(*arguments: str, log: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        whole = [sys.executable, "-m", "mocha_stream", *arguments]
        code = subprocess.run(whole, stdout=file, stderr=file, env=environment).returncode
    if code:
        raise MochaError(f"{shlex.join(whole)} ended with code {code}; see {log}")


def compute_features(recipes: list[str], common: list[str]) -> None:
    """Of all corpora, before the rows ask for them at the same time."""
    for name in recipes:
        recipe, processes = read_recipe(RECIPES / f"{name}.toml", common), os.cpu_count() or 1
        data, cache = recipe.data, RECIPES / recipe.data.cache
        read_examples([RECIPES / corpus for corpus in data.train], recipe.model.features, data.speeds, cache, processes)
        read_examples([RECIPES / data.dev], recipe.model.features, (1.0,), cache, processes)


def describe(row: Row, values: dict[str, Any]) -> list[str]:
    places = {"whole": 1, "stream": 1, "deletions": 1, "insertions": 1}
    places |= {"delay_p50": 2, "delay_p95": 2, "mass": 2, "minutes": 0}
    numbers = [f"{values[name]:.{n}f}" if name in values else "" for name, n in places.items()]
    changes = f"`{' '.join(row.changes)}`" if row.changes else ""
    return [row.name, changes, *numbers]


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
        compute_features(options.only, options.set)
        lines = [{"path": str(u.path.resolve()), "text": u.text, "speaker": u.speaker} for u in utterances]
        dev.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(lambda row: run(row, options.folder, dev, options.set), rows))
        if "ablation" in options.only:
            # Models of other settings have other weights to the same end, so they are left out of the mean.
            alike = [row for row in rows if row.recipe == "ablation" and "model." not in " ".join(row.changes)]
            mean, start = options.folder / "mean", RECIPES / read_recipe(RECIPES / "ablation.toml", options.set).init
            write_mean([options.folder / row.folder / "run" / "model" for row in alike], mean / "model")
            rows.append(Row("ablation", "the mean of the weights of all with the same model", []))
            results.append(measure_once(mean / "model", mean, dev))
            rows.insert(0, Row("ablation", "the model that all begin with", []))
            results.insert(0, measure_once(start, options.folder / "start", dev))
    except MochaError as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 2
    header = ["changes", "whole", "640 ms", "deleted", "inserted", "delay p50", "p95", "mass", "minutes"]
    for recipe in options.only:
        chosen = [describe(row, values) for row, values in zip(rows, results, strict=True) if row.recipe == recipe]
        cells = [[f"`{recipe}.toml`", *header], ["---"] * (1 + len(header)), *chosen]
        print(*("| " + " | ".join(line) + " |" for line in cells), "", sep="\n")
    return 0


def _split(changes: dict[str, str]) -> list[tuple[str, list[str]]]:
    return [(name, settings.split()) for name, settings in changes.items()]


if __name__ == "__main__":
    sys.exit(main())
