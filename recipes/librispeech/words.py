"""Writes when each word of the training recordings is spoken, for `data.splice`.

    pip install -c constraints.txt -e '.[bench]'
    python recipes/librispeech/words.py FOLDER CORPUS...

FOLDER is the recipe's `data.words`. Each word is told by the numbers of its first 10 ms and of the first after it; an
utterance that pocketsphinx cannot align, most often for a name that its dictionary lacks, has none.
"""

import argparse
import os
import sys
from functools import cache
from pathlib import Path

import numpy as np

from mocha_stream.audio import read_audio
from mocha_stream.corpus import Utterance
from mocha_stream.errors import MochaError
from mocha_stream.training.data import corpus_name, read_cache, write_cache
from mocha_stream.word_times import SAMPLE_RATE, WordAligner


@cache
def aligner() -> WordAligner:
    return WordAligner()


def spans(utterance: Utterance) -> np.ndarray:
    """The (W, 2) float16 bounds of the words; no rows where they are not found."""
    found = aligner()(read_audio(utterance.path, SAMPLE_RATE), utterance.text) or []
    return np.array([(100 * span.start_s, 100 * span.end_s) for span in found], np.float16).reshape(-1, 2).round()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpora", type=Path, nargs="+", metavar="corpus", help="as in the recipe's data.train")
    options = parser.parse_args()
    try:
        aligner()
        for corpus in options.corpora:
            stem = options.folder / corpus_name(corpus)
            write_cache(corpus, stem, spans, os.cpu_count() or 1)
            examples = read_cache(corpus, stem, 2, 1.0)
            aligned = sum(example.num_frames > 0 for example in examples)
            print(f"{stem}.f16: {aligned} of {len(examples)} utterances aligned", flush=True)
    except MochaError as error:
        print(f"words: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
