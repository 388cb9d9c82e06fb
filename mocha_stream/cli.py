"""The `mocha-stream` command. Imports here are cheap: torch loads only once a command needs the model.

Exit codes: 0; 1 when some files of several failed; 2 for a mistake of the user, told in one line; 130 for Ctrl-C.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import __version__
from .config import BeamConfig
from .errors import AudioError, ConfigError, DataError, MochaError, about
from .files import ENGINES, complain, transcribe_files
from .transcript import Event, Final, Overflow, Word, as_json
from .writers import FORMATS, write_whole

if TYPE_CHECKING:
    import numpy as np

    from .recognizer import Recognizer


def main(arguments: list[str] | None = None) -> int:
    """Runs a command, given the words after `mocha-stream` (default: those of this process); returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except MochaError as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        return 0


def transcribe(options: argparse.Namespace) -> int:
    """Each file on its own: one that cannot be used is reported, and the others go on."""
    return transcribe_files(
        options.files,
        options.output_dir,
        options.format,
        options.resume,
        options.model,
        options.latency_ms,
        options.jobs,
        options.batch_s,
        _beam(options),
        options.engine,
        options.ray_address,
    )


def stream(options: argparse.Namespace) -> int:
    """Hears a file, or raw samples from standard input, as a microphone would give them."""
    from .audio import check_sample_rate, read_blocks

    if options.file == "-":
        rate = options.sample_rate or 16_000
        check_sample_rate(rate)
        blocks = _raw_blocks(rate, options.block_ms / 1000)
    elif options.sample_rate:
        raise ConfigError("--sample-rate tells the rate of raw samples on standard input; a file says its own")
    else:
        blocks = read_blocks(options.file, options.block_ms / 1000)
        blocks = chain([next(blocks)], blocks)  # a bad file is told before the model is loaded

    session = _load(options).session(latency_ms=options.latency_ms)
    printer = EventPrinter(options.jsonl)
    try:
        for block, rate in _paced(blocks) if options.realtime else blocks:
            printer.show(session.feed(block, sample_rate=rate))
    except AudioError as error:
        printer.show(session.finish())
        raise about(options.file, error) from None
    printer.show(session.finish())
    return 0


def live(options: argparse.Namespace) -> int:
    """The microphone to text, until Ctrl-C."""
    from .live import run_live

    def load() -> "Recognizer":
        return _load(options)

    run_live(load, options.latency_ms, options.device, options.save, EventPrinter(options.jsonl).show)
    return 0


def devices(options: argparse.Namespace) -> int:
    from .microphone import list_devices

    print(list_devices())
    return 0


def evaluate(options: argparse.Namespace) -> int:
    if not options.data.exists():
        raise DataError(f"{options.data}: does not exist; expected a folder in LibriSpeech's layout or a manifest")
    if options.training_log and not options.report:
        raise ConfigError("--training-log draws the curves of a training run into a report; name its --report")
    log = None
    if options.report:
        from .report_page import check_page, write_page
        from .training.run_log import read_run_log

        check_page(options.report)
        log = read_run_log(options.training_log) if options.training_log else None
    from .evaluate import evaluate

    recognizer = _load(options)
    report = evaluate(recognizer, options.data, options.streaming, options.latency_ms, options.limit)
    print(report.to_text())
    if options.json:
        write_whole(options.json, report.to_json())
    if options.report:
        model = options.model.resolve().name if options.model else "the bundled model"
        write_page(options.report, report, recognizer, model, log)
    return 1 if report.failures else 0


def train(options: argparse.Namespace) -> int:
    from .training.recipe import read_recipe

    read_recipe(options.recipe, options.set)  # a mistake in it is told before torch is loaded
    from .training.trainer import train

    train(options.recipe, options.resume, options.set)
    return 0


def info(options: argparse.Namespace) -> int:
    """What is known of a model: its size, its latencies and its card."""
    from .recognizer import BUNDLED, Recognizer

    folder: Path = options.model or BUNDLED
    recognizer = Recognizer.load(folder)
    num_parameters = sum(parameter.numel() for parameter in recognizer.model.parameters())
    num_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    latencies = ", ".join(map(str, recognizer.latencies_ms))
    print(f"{folder}: {num_parameters / 1e6:.2f} million parameters, {num_bytes / 1e6:.1f} MB on disk")
    print(f"latencies: {latencies} ms, or the whole recording")
    card = folder / "README.md"
    print("", card.read_text(encoding="utf-8").rstrip() if card.is_file() else "no README.md in the folder", sep="\n")
    return 0


class EventPrinter:
    """Prints events as they come: as JSON lines, or as text that only grows, an utterance a line."""

    def __init__(self, jsonl: bool):
        self.jsonl = jsonl
        self.num_shown = 0
        """Words of the utterance that is being spoken."""

    def show(self, events: Iterable[Event]) -> None:
        for event in events:
            if self.jsonl:
                print(json.dumps(as_json(event), ensure_ascii=False), flush=True)
            elif isinstance(event, Overflow):
                complain(f"{event.lost_s:.2f} s of sound were lost at {event.at_s:.2f} s; this machine is too slow")
            elif isinstance(event, Final):
                self._append(event.words)
                if self.num_shown:
                    print(flush=True)
                self.num_shown = 0
            else:
                self._append(event.words[: event.num_committed])

    def _append(self, words: tuple[Word, ...]) -> None:
        for word in words[self.num_shown :]:
            print(" " if self.num_shown else "", word.word, sep="", end="", flush=True)
            self.num_shown += 1


def _load(options: argparse.Namespace) -> "Recognizer":
    beam = _beam(options)
    from .recognizer import Recognizer

    return Recognizer.load(options.model, beam)


def _beam(options: argparse.Namespace) -> BeamConfig | None:
    """None for the greedy search."""
    given = {"language_model": options.language_model, "language": options.lm_weight}
    if options.beam is None:
        if any(value is not None for value in given.values()):
            raise ConfigError("a language model joins in the beam search alone; name its size too, as in --beam 8")
        return None
    return BeamConfig(options.beam, **{name: value for name, value in given.items() if value is not None})


def _raw_blocks(sample_rate: int, block_s: float) -> Iterator[tuple["np.ndarray", int]]:
    """Standard input as (n,) int16 blocks with their rate; half a sample at its end is dropped."""
    import numpy as np

    num_bytes = 2 * max(1, round(sample_rate * block_s))
    num_read = 0
    while data := sys.stdin.buffer.read(num_bytes):
        num_read += len(data)
        yield np.frombuffer(data, "<i2", count=len(data) // 2), sample_rate
    if num_read < 2:
        raise AudioError("holds no samples; expected raw 16-bit mono samples on standard input")


def _paced(blocks: Iterable[tuple["np.ndarray", int]]) -> Iterator[tuple["np.ndarray", int]]:
    """The blocks, each once a microphone would have heard the whole of it."""
    due = time.monotonic()
    for block, rate in blocks:
        due += len(block) / rate
        time.sleep(max(0.0, due - time.monotonic()))
        yield block, rate


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, like any other."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="mocha-stream", description="Streaming speech to text, on your own machine.")
    parser.add_argument("--version", action="version", version=f"mocha-stream {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    model = _Parser(add_help=False)
    model.add_argument(
        "--model", type=Path, metavar="DIR", help="model folder (default: the English model that comes along)"
    )
    whole, live_latency = _Parser(add_help=False), _Parser(add_help=False)
    for parent, latency_ms, default in ((whole, None, "the whole recording"), (live_latency, 640, "640")):
        parent.add_argument(
            "--latency-ms",
            type=_positive,
            default=latency_ms,
            metavar="N",
            help=f"sound that the encoder waits for (default: {default}); `info` lists what the model was trained for",
        )
    search = _Parser(add_help=False)
    search.add_argument(
        "--beam", type=_positive, metavar="N", help="search with N hypotheses instead of greedily: slower, fewer errors"
    )
    search.add_argument(
        "--language-model", metavar="FILE", help="n-gram model over the units of the model, for --beam (extra lm)"
    )
    search.add_argument("--lm-weight", type=float, metavar="W", help=f"default: {BeamConfig.language}")
    jsonl = _Parser(add_help=False)
    jsonl.add_argument("--jsonl", action="store_true", help="print one event a line, as JSON")

    command = commands.add_parser("transcribe", parents=[model, search, whole], help="recordings to text")
    command.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="audio files, directories or quoted patterns of them, lists (JSON lines with a path, or LibriSpeech's "
        "*.trans.txt), URLs of the same but *.trans.txt (s3://, file://, ...), or - for audio on standard input",
    )
    command.add_argument(
        "--format",
        choices=[*FORMATS, "parquet"],
        default="txt",
        help="default: %(default)s; on the screen, path<TAB>text; parquet makes the --output-dir a data set with "
        "columns path, text, duration_s, words and error",
    )
    command.add_argument(
        "--output-dir", type=Path, metavar="DIR", help="write one file per recording instead of printing"
    )
    command.add_argument("--resume", action="store_true", help="leave out what is in the --output-dir already")
    command.add_argument(
        "--jobs", type=_positive, default=1, metavar="N", help="processes or actors side by side (default: %(default)s)"
    )
    command.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="what works: processes of this machine, or actors of Ray, which repeats the work of those that die "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="cluster for --engine ray, whose machines have this package, and the model and files under the same "
        "paths, or URLs (default: one on this machine, for as long as it takes)",
    )
    command.add_argument(
        "--batch-s",
        type=_positive,
        metavar="S",
        help="seconds of audio to decode together, 240 by default; it changes speed and memory, no result",
    )
    command.set_defaults(run=transcribe)

    command = commands.add_parser(
        "live", parents=[model, search, live_latency, jsonl], help="the microphone to text, until Ctrl-C"
    )
    command.add_argument("--device", metavar="D", help="number or name of an input device; `devices` lists them")
    command.add_argument("--save", type=Path, metavar="FILE.wav", help="keep what was heard")
    command.set_defaults(run=live)

    command = commands.add_parser("devices", help="list the input devices with their native rates")
    command.set_defaults(run=devices)

    command = commands.add_parser(
        "stream", parents=[model, search, live_latency, jsonl], help="a file, heard as a microphone would"
    )
    command.add_argument("file", metavar="FILE", help="audio file, or - for raw 16-bit mono samples on standard input")
    command.add_argument(
        "--block-ms", type=_positive, default=100, metavar="N", help="length of a block (default: %(default)s)"
    )
    command.add_argument("--realtime", action="store_true", help="no faster than it was spoken")
    command.add_argument("--sample-rate", type=_positive, metavar="HZ", help="of standard input (default: 16000)")
    command.set_defaults(run=stream)

    command = commands.add_parser(
        "evaluate", parents=[model, search, whole], help="word error rate, speed, delays and confidences on a corpus"
    )
    command.add_argument("data", type=Path, metavar="DATA", help="folder in LibriSpeech's layout, or a manifest")
    command.add_argument("--streaming", action="store_true", help="hear block by block instead of whole recordings")
    command.add_argument("--limit", type=_positive, metavar="N", help="only the first N utterances")
    command.add_argument("--json", type=Path, metavar="FILE", help="write all figures, recordings and words there")
    command.add_argument("--report", type=Path, metavar="FILE", help="write a page with pictures: .md or .html")
    command.add_argument(
        "--training-log", type=Path, metavar="DIR", help="folder of the model's training run, for curves in the report"
    )
    command.set_defaults(run=evaluate)

    command = commands.add_parser("train", help="train a model; under torchrun on several processes")
    command.add_argument("recipe", type=Path, metavar="RECIPE.toml", help="settings of the model, data and training")
    command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    command.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="other values, as training.epochs=10"
    )
    command.set_defaults(run=train)

    command = commands.add_parser("info", parents=[model], help="what the model is, its latencies and error rates")
    command.set_defaults(run=info)
    return parser
