"""Builds an n-gram language model over the units of a model, for its beam search, from plain text.

    python language_model.py MODEL_FOLDER OUTPUT TEXT [TEXT ...]

TEXT holds a sentence a line, plain or .xz. The counting is done by `lmplz` and the packing by `build_binary`, both of
kenlm (https://github.com/kpu/kenlm; its source, also in the archive that pip downloads, builds with cmake and Boost).
"""

import argparse
import lzma
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mocha_stream.corpus import normalise
from mocha_stream.tokenizer import Tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder with the tokenizer.model that the search will use")
    parser.add_argument("output", type=Path, help="file to write")
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--order", type=int, default=6, help="units of an n-gram (default 6)")
    parser.add_argument(
        "--prune", nargs="+", default=["0", "0", "1"], help="lmplz's: leave out n-grams as rare as this"
    )
    parser.add_argument("--memory", default="2G", help="of lmplz (default 2G)")
    parser.add_argument("--kenlm", type=Path, help="folder of lmplz and build_binary; by default they are in the PATH")
    options = parser.parse_args()
    programs = [shutil.which(name, path=options.kenlm) for name in ("lmplz", "build_binary")]
    if None in programs:
        where = options.kenlm or "the PATH"
        print(f"language_model.py: no lmplz and build_binary in {where}; build kenlm and name its bin folder with "
              "--kenlm", file=sys.stderr)  # fmt: skip
        return 2
    lmplz, build_binary = programs
    tokenizer = Tokenizer.load(options.model / "tokenizer.model")
    with tempfile.TemporaryDirectory() as folder:
        arpa = Path(folder) / "model.arpa"
        command = [lmplz, "-o", str(options.order), "-S", options.memory, "-T", folder, "--prune", *options.prune]
        with arpa.open("wb") as output:
            counting = subprocess.Popen([*command, "--discount_fallback"], stdin=subprocess.PIPE, stdout=output)
            assert counting.stdin
            for path in options.text:
                opener = lzma.open if path.suffix == ".xz" else open
                with opener(path, "rt", encoding="utf-8") as file:
                    for line in file:
                        pieces = [tokenizer.pieces[token] for token in tokenizer.encode(normalise(line))]
                        counting.stdin.write((" ".join(pieces) + "\n").encode())
            counting.stdin.close()
            if counting.wait() != 0:
                return 1
        # A trie of probabilities in 8 bits: a quarter of the size, for a difference in the third decimal.
        packed = [build_binary, "-q", "8", "-b", "8", "-a", "22", "trie", str(arpa), str(options.output)]
        return subprocess.run(packed).returncode


if __name__ == "__main__":
    sys.exit(main())
