"""Brings LibriSpeech into place: takes the splits that are there, downloads the others, and checks them all.

    python recipes/librispeech/prepare.py ROOT train-clean-100 dev-clean test-clean

ROOT is the folder that holds, or will hold, `LibriSpeech/<split>`. A split of the official corpus is 0.3 GB
(dev-clean) to 30 GB (train-other-500). Features are computed by the first training run.
"""

import argparse
import sys
from pathlib import Path
from urllib.error import URLError

from mocha_stream.corpus import read_corpus
from mocha_stream.errors import DataError, MochaError

SPLITS = (
    "train-clean-100",
    "train-clean-360",
    "train-other-500",
    "dev-clean",
    "dev-other",
    "test-clean",
    "test-other",
)


def prepare(root: Path, split: str) -> str:
    """Makes sure of one split; returns a line about it.

    Raises:
        DataError: the split is not there and cannot be downloaded, or it is not whole.
    """
    folder = root / "LibriSpeech" / split
    if not folder.is_dir():
        download(root, split)
    utterances = read_corpus(folder)
    empty = [utterance.path for utterance in utterances if utterance.path.stat().st_size == 0]
    if empty:
        raise DataError(f"{folder}: {len(empty)} empty recordings, the first {empty[0]}; delete them and start again")
    speakers = len({utterance.speaker for utterance in utterances})
    return f"{folder}: {len(utterances)} utterances of {speakers} speakers"


def download(root: Path, split: str) -> None:
    """Fetches and unpacks an official split through torchaudio, which checks its digest."""
    from torchaudio.datasets import LIBRISPEECH

    root.mkdir(parents=True, exist_ok=True)
    print(f"downloading {split} to {root}", flush=True)
    try:
        LIBRISPEECH(str(root), url=split, download=True)
    except (URLError, OSError, RuntimeError) as error:
        raise DataError(
            f"{root / 'LibriSpeech' / split}: not there, and the download failed ({error}); "
            "name the folder that holds LibriSpeech/, or try again with a network"
        ) from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("splits", nargs="+", choices=SPLITS, metavar="SPLIT", help=", ".join(SPLITS))
    options = parser.parse_args()
    try:
        for split in options.splits:
            print(prepare(options.root, split), flush=True)
    except MochaError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
