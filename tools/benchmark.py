"""Measures this package, and what one could use instead: python tools/benchmark.py COMMAND.

    speech      speed, memory, delay and word errors beside other recognisers, each alone on one core
    batch       hours of audio that become text in a minute: in batches, on processes, one by one, and by others
    times       when words are said to start, and when they are shown, against an alignment by pocketsphinx
    soak        an hour or more of continuous speech through one session
    long        recordings joined to lengths that training never had, against their parts
    attention   soft alignment against its usual closed form; hard decoding against looking at everything
    training    seconds of audio that a training step of a recipe gets through in a second

Everything is measured when it is run, on the machine it is run on; nothing is read from a table.
"""

import argparse
import os
import sys
from pathlib import Path

from mocha_stream.errors import MochaError


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except MochaError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    return 0


def speech(options: argparse.Namespace) -> None:
    from benchmarks.speech import run

    run(options.data, options.limit, options.model, options.python, options.ratio_to)


def batch(options: argparse.Namespace) -> None:
    from benchmarks.batch import run

    run(options.data, options.limit, options.peer_limit, options.jobs, options.model, options.python)


def times(options: argparse.Namespace) -> None:
    from benchmarks.times import run

    run(options.data, options.limit, options.model)


def soak(options: argparse.Namespace) -> None:
    from benchmarks.soak import run

    run(options.data, options.hours, options.latency_ms, options.model)


def long(options: argparse.Namespace) -> None:
    from benchmarks.long import run

    run(options.data, options.minutes, options.latency_ms, options.model)


def attention(options: argparse.Namespace) -> None:
    from benchmarks.attention import run

    run(options.longest_soft, options.longest_hard)


def training(options: argparse.Namespace) -> None:
    from benchmarks.training import run

    run(options.recipe, options.steps, options.set)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measures this package beside its alternatives.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    corpus = argparse.ArgumentParser(add_help=False)
    corpus.add_argument("data", type=Path, metavar="DATA", help="folder in LibriSpeech's layout, or a manifest")
    corpus.add_argument("--model", type=Path, metavar="DIR", help="model folder (default: the bundled model)")

    command = commands.add_parser("speech", parents=[corpus], help="beside other recognisers, one core each")
    command.add_argument("--limit", type=int, default=40, metavar="N", help="recordings, one per speaker first (40)")
    command.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="interpreter that has the other recognisers"
    )
    command.add_argument(
        "--ratio-to", default="pocketsphinx", metavar="NAME", help="row that the others are compared with"
    )
    command.set_defaults(run=speech)

    command = commands.add_parser("batch", parents=[corpus], help="many files: hours of audio per minute")
    command.add_argument("--limit", type=int, default=2000, metavar="N", help="recordings (2000)")
    command.add_argument(
        "--peer-limit", type=int, default=20, metavar="N", help="recordings for other recognisers (20)"
    )
    command.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes (one per core)")
    command.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="interpreter that has the other recognisers"
    )
    command.set_defaults(run=batch)

    command = commands.add_parser("times", parents=[corpus], help="word times against forced alignment")
    command.add_argument("--limit", type=int, default=200, metavar="N", help="recordings (200)")
    command.set_defaults(run=times)

    command = commands.add_parser("soak", parents=[corpus], help="continuous speech through one session")
    command.add_argument("--hours", type=float, default=1.0, metavar="H", help="of audio (1)")
    command.add_argument("--latency-ms", type=int, default=640, metavar="N", help="of the session (640)")
    command.set_defaults(run=soak)

    command = commands.add_parser("long", parents=[corpus], help="recordings far longer than in training")
    command.add_argument("--minutes", type=float, default=2.0, metavar="M", help="of a joined recording (2)")
    command.add_argument("--latency-ms", type=int, default=640, metavar="N", help="of chunks and stream (640)")
    command.set_defaults(run=long)

    command = commands.add_parser("attention", help="soft alignment and hard decoding by length")
    command.add_argument("--longest-soft", type=int, default=10_000, metavar="T", help="frames (10000)")
    command.add_argument("--longest-hard", type=int, default=100_000, metavar="T", help="frames (100000)")
    command.set_defaults(run=attention)

    command = commands.add_parser("training", help="audio per second of a recipe's training step")
    command.add_argument("recipe", type=Path, metavar="RECIPE.toml")
    command.add_argument("--steps", type=int, default=10, metavar="N", help="that are measured, after 2 others (10)")
    command.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="other settings")
    command.set_defaults(run=training)
    return parser


if __name__ == "__main__":
    sys.exit(main())
