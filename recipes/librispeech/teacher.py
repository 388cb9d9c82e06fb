"""Writes what moonshine tiny-en makes of each training recording, for `loss.teacher` (laptop-4.toml).

    pip install -c constraints.txt -e '.[teacher]'
    python recipes/librispeech/teacher.py FOLDER CORPUS...

FOLDER is the recipe's `data.teacher`; an hour of speech is 86 MB there and takes about 25 seconds on two cores. The
encoder of moonshine tiny-en (arXiv 2410.15608; MIT license) comes with the package moonshine-voice. Its frames are
384 samples apart, and its three convolutions hear 895 samples for each.
"""

import argparse
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mocha_stream.audio import read_audio
from mocha_stream.corpus import Utterance
from mocha_stream.errors import MissingExtraError, MochaError
from mocha_stream.training.data import corpus_name, write_cache
from mocha_stream.training.teacher import TeacherConfig, write_config

SAMPLE_RATE = 16_000
CONFIG = TeacherConfig("moonshine tiny-en 0.1.0", 288, 895 / 2 / SAMPLE_RATE, 384 / SAMPLE_RATE)


@cache
def session() -> Any:
    """The encoder, on one thread.

    Raises:
        MissingExtraError: a package of the extra is not installed.
    """
    try:
        import moonshine_voice
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed: pip install -c constraints.txt -e '.[teacher]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = Path(moonshine_voice.__file__).parent / "assets" / "tiny-en" / "encoder_model.ort"
    return onnxruntime.InferenceSession(path, options)


def hear(utterance: Utterance) -> np.ndarray:
    """The (T, 288) float16 frames of a recording."""
    samples = read_audio(utterance.path, SAMPLE_RATE)[None].astype(np.float32)
    inputs = {"input_values": samples, "attention_mask": np.ones(samples.shape, np.int64)}
    return session().run(None, inputs)[0][0].astype(np.float16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpora", type=Path, nargs="+", metavar="corpus", help="as in the recipe's data.train")
    options = parser.parse_args()
    try:
        session()
        write_config(options.folder, CONFIG)
        for corpus in options.corpora:
            stem = options.folder / corpus_name(corpus)
            write_cache(corpus, stem, hear, os.cpu_count() or 1)
            print(f"{stem}.f16", flush=True)
    except MochaError as error:
        print(f"teacher: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
