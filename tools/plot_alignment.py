"""Draws where a model hears the tokens of a recording: python tools/plot_alignment.py FILE [--output PNG].

Above, the recording as the model gets it, with the frame that each token stops at; below, for each token, the frames
that its attention window weighs.
"""

import argparse
import sys
from pathlib import Path

from mocha_stream.errors import MochaError
from mocha_stream.hard_alignment import LONGEST_S, hard_alignment
from mocha_stream.pictures import draw_alignment
from mocha_stream.recognizer import Recognizer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws where a model hears the tokens of a recording.")
    parser.add_argument("file", type=Path, metavar="FILE", help=f"recording of at most {LONGEST_S:.0f} s")
    parser.add_argument("--model", type=Path, metavar="DIR", help="model folder (default: the bundled model)")
    parser.add_argument("--latency-ms", type=int, metavar="N", help="of the encoder (default: the whole recording)")
    parser.add_argument("--output", type=Path, metavar="PNG", help="default: FILE with the ending .png, here")
    options = parser.parse_args(arguments)
    try:
        target = options.output or Path(options.file.with_suffix(".png").name)
        print(f"{target}: {plot(options.file, Recognizer.load(options.model), options.latency_ms, target)}")
    except MochaError as error:
        print(f"plot_alignment: {error}", file=sys.stderr)
        return 2
    return 0


def plot(path: Path, recognizer: Recognizer, latency_ms: int | None, target: Path) -> str:
    """Writes the picture and returns the text.

    Raises:
        AudioError, ConfigError: a recording that cannot be read or is too long, or an unknown latency.
        MissingExtraError: matplotlib is not installed.
    """
    alignment = hard_alignment(path, recognizer, latency_ms)
    heard = "whole recording" if latency_ms is None else f"latency {latency_ms} ms"
    draw_alignment(alignment, f"{path.name}, {heard}").savefig(target, dpi=110)
    return alignment.text


if __name__ == "__main__":
    sys.exit(main())
