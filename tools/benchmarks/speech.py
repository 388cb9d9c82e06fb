"""This package beside other recognisers: the same recordings, each engine in a process of its own on one core."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import soundfile

from mocha_stream.audio import read_audio, read_blocks
from mocha_stream.corpus import Utterance, normalise, read_corpus
from mocha_stream.errors import ConfigError, ModelError
from mocha_stream.evaluate import STREAM_BLOCK_S, word_aligner
from mocha_stream.recognizer import Recognizer
from mocha_stream.scores import Errors, count_errors, matching_words
from mocha_stream.table import table

TOOLS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Engine:
    name: str
    kind: str
    """A key of `worker.ENGINES`."""
    options: dict[str, Any]


PEERS = (
    Engine("pocketsphinx", "pocketsphinx", {}),
    Engine("moonshine tiny-en", "moonshine", {}),
    Engine("faster-whisper tiny.en", "faster-whisper", {"model": "tiny.en"}),
    Engine("faster-whisper base", "faster-whisper", {"model": "base"}),
)
PACKAGES = {"pocketsphinx": "pocketsphinx==5.1.1", "moonshine_voice": "moonshine-voice==0.1.0"}


@dataclass(frozen=True)
class Result:
    """The figures of one engine over all recordings; times in seconds."""

    errors: Errors
    real_time_factor: float
    """Wall clock of arithmetic per second of audio."""
    cpu_factor: float
    """The same in processor time, which other programs on the machine do not lengthen."""
    peak_mib: float
    rewriting: float | None
    """Share of changes of the text that change a word already shown, in percent; None where only the end shows text."""
    delays_s: list[float]
    """Of the final text, after the last sample of each recording."""
    commits_s: list[float]
    """Of each word recognised right: when it is shown for good, less where it ends."""


def run(data: Path, limit: int, model: Path | None, python: str, ratio_to: str) -> None:
    """Prints the table."""
    utterances = choose(read_corpus(data), limit)
    ours, align = [], None
    notes: tuple[str, ...] = ("without a model of ours, no word ends are known: no word delays",)
    try:
        recognizer = Recognizer.load(model)
        align, notes = word_aligner(recognizer)
        options = {"model": str(model) if model else None}
        ours = [Engine("mocha-stream, whole recording", "mocha-stream", {**options, "latency_ms": None})]
        for latency in reversed(recognizer.latencies_ms):
            ours.append(Engine(f"mocha-stream {latency} ms", "mocha-stream", {**options, "latency_ms": latency}))
    except ModelError as error:
        print(f"mocha-stream: not run: {error}")
    engines = [*ours, *PEERS]
    if ratio_to not in [engine.name for engine in engines]:
        names = ", ".join(repr(engine.name) for engine in engines)
        raise ConfigError(f"--ratio-to {ratio_to!r}; expected one of {names}")

    results: dict[str, Result | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [convert(utterance.path, Path(folder) / f"{i}.wav") for i, utterance in enumerate(utterances)]
        spans = [align(list(read_blocks(u.path, STREAM_BLOCK_S)), u.text) if align else None for u in utterances]
        ends = [None if words is None else [word.end_s for word in words] for words in spans]
        for engine in engines:
            print(f"{engine.name} ...", file=sys.stderr, flush=True)
            answer = work(engine, paths, sys.executable if engine in ours else python, Path(folder))
            results[engine.name] = answer if isinstance(answer, str) else judge(answer, utterances, ends)
    audio_s = sum(soundfile.info(utterance.path).duration for utterance in utterances)
    print(
        f"{len(utterances)} recordings of {len({u.speaker for u in utterances})} speakers, {audio_s:.0f} s; one core, "
        f"blocks of {1000 * STREAM_BLOCK_S:.0f} ms; load of the machine {os.getloadavg()[0]:.1f} "
        f"on {os.cpu_count()} cores\n"
    )
    print(describe(results, ratio_to))
    print("\n".join(f"note: {note}" for note in notes))


def choose(utterances: Sequence[Utterance], limit: int) -> list[Utterance]:
    """At most `limit` of them: one of each speaker first, then a second one of each, and so on."""
    speakers: dict[str, list[Utterance]] = {}
    for utterance in utterances:
        speakers.setdefault(utterance.speaker, []).append(utterance)
    rounds = zip_longest(*speakers.values())
    return [utterance for turn in rounds for utterance in turn if utterance is not None][:limit]


def work(engine: Engine, paths: list[Path], python: str, folder: Path) -> dict[str, Any] | str:
    """What the worker measured, or in a line why there is nothing."""
    job, result = folder / "job.json", folder / "result.json"
    result.unlink(missing_ok=True)
    values = {"engine": engine.kind, "options": engine.options, "recordings": [str(path) for path in paths]}
    job.write_text(json.dumps({**values, "block_s": STREAM_BLOCK_S, "result": str(result)}))
    path = os.pathsep.join([str(TOOLS), str(TOOLS.parent), os.environ.get("PYTHONPATH", "")])
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [python, "-m", "benchmarks.worker", str(job)]
    done = subprocess.run(command, env={**os.environ, **one, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(result.read_text())
        return answer
    last = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
    missing = re.search(r"No module named '(\w+)'", last)
    if missing:
        name = missing[1]
        return f"not installed; pip install {PACKAGES.get(name, name.replace('_', '-'))}, or name its --python"
    return f"not run: {shorten(last, 120)}"


def judge(answer: dict[str, Any], utterances: Sequence[Utterance], ends: Sequence[list[float] | None]) -> Result:
    """The figures of a worker's answer. `ends` has the time at which each word of an utterance ends."""
    errors, commits, num_updates, num_rewriting = Errors(), [], 0, 0
    for item, utterance, word_ends in zip(answer["recordings"], utterances, ends, strict=True):
        reference, words = spell(utterance.text), spell(item["text"]).split()
        errors += count_errors(reference, " ".join(words))
        updates = [(at_s, spell(text).split()) for at_s, text in item["updates"]]
        num_updates += len(updates)
        num_rewriting += sum(now[: len(before)] != before for before, now in pairwise([words for _, words in updates]))
        if word_ends is not None and reference == utterance.text:
            times = commit_times(updates, words)
            commits += [times[j] - word_ends[i] for i, j in matching_words(reference, words)]
    recordings = answer["recordings"]
    audio_s = sum(item["duration_s"] for item in recordings)
    live = num_updates > len(recordings)
    return Result(
        errors,
        sum(item["wall_s"] for item in recordings) / audio_s,
        sum(item["cpu_s"] for item in recordings) / audio_s,
        answer["peak_mib"],
        100 * num_rewriting / num_updates if live else None,
        [item["delay_s"] for item in recordings],
        commits,
    )


def commit_times(updates: Sequence[tuple[float, list[str]]], words: Sequence[str]) -> list[float]:
    """For each of the final words, the time from which on it was shown in its place and never changed."""
    times = [updates[-1][0] if updates else 0.0] * len(words)
    settled = [True] * len(words)
    for at_s, shown in reversed(updates):
        for i, word in enumerate(words):
            settled[i] = settled[i] and i < len(shown) and shown[i] == word
            if settled[i]:
                times[i] = at_s
    return times


# ---------------------------------------------------------------- spelling

TITLES = {"MR": "MISTER", "MRS": "MISSUS", "DR": "DOCTOR"}
ONES = (
    *("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE", "TEN", "ELEVEN", "TWELVE"),
    *("THIRTEEN", "FOURTEEN", "FIFTEEN", "SIXTEEN", "SEVENTEEN", "EIGHTEEN", "NINETEEN"),
)
TENS = ("TWENTY", "THIRTY", "FORTY", "FIFTY", "SIXTY", "SEVENTY", "EIGHTY", "NINETY")


def spell(text: str) -> str:
    """In the spelling of the references, so that no engine is charged for writing `Mr.` or `25`."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"\d+", lambda found: f" {number(int(found[0]))} ", text)
    return " ".join(TITLES.get(word, word) for word in normalise(text).split())


def number(value: int) -> str:
    """A whole number in words: 1984 is ONE THOUSAND NINE HUNDRED AND EIGHTY FOUR."""
    for unit, name in ((1_000_000, "MILLION"), (1000, "THOUSAND"), (100, "HUNDRED")):
        if value >= unit:
            rest = value % unit
            joint = " AND " if 0 < rest < 100 else " "
            return f"{number(value // unit)} {name}" + (f"{joint}{number(rest)}" if rest else "")
    if value < 20:
        return ONES[value]
    return TENS[value // 10 - 2] + (f" {ONES[value % 10]}" if value % 10 else "")


# ---------------------------------------------------------------- the tables


LEGEND = """

RTF: seconds of arithmetic per second of audio. rewriting: changes of the text that change a word already shown.
final text: seconds after the last sample. word: seconds from the end of a word recognised right until it stays shown.
"""


def describe(results: dict[str, Result | str], ratio_to: str) -> str:
    """Figures and ratios, a row an engine."""
    header = ["", "WER %", "RTF", "RTF of CPU", "peak MiB", "rewriting %", "final text p50", "p95", "word p50", "p95"]
    rows, ratios = [], []
    base = results[ratio_to]
    for name, result in results.items():
        if isinstance(result, str):
            rows.append([f"{name}: {result}"])
            continue
        values = figures(result)
        rows.append(
            [name, *(_cell(value, digits) for value, digits in zip(values, (2, 3, 3, 0, 1, 3, 3, 2, 2), strict=True))]
        )
        if not isinstance(base, str):
            pairs = zip(values, figures(base), strict=True)
            ratios.append([name, *(_cell(a / b, 3) if a is not None and b else "-" for a, b in pairs)])
    text = table(header, rows)
    text += LEGEND
    if ratios:
        text += f"\nDivided by those of {ratio_to}:\n{table(header, ratios)}"
    return text


def figures(result: Result) -> list[float | None]:
    """The columns of the table."""
    delays = np.percentile(result.delays_s, (50, 95))
    commits = np.percentile(result.commits_s, (50, 95)) if result.commits_s else (None, None)
    values = (result.errors.wer, result.real_time_factor, result.cpu_factor, result.peak_mib, result.rewriting)
    return [*values, *delays, *commits]


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def convert(source: Path, target: Path) -> Path:
    """The recording as a 16-bit mono WAV file at 16 kHz, which every engine reads."""
    samples = np.clip(np.round(read_audio(source) * 32768), -32768, 32767).astype(np.int16)
    soundfile.write(target, samples, 16_000, subtype="PCM_16")
    return target
