"""Builds an n-gram language model over the units of a model, for its beam search, from plain text.

    python language_model.py MODEL_FOLDER OUTPUT TEXT [TEXT ...]

TEXT holds a sentence a line, plain or .xz. The counting is done by `lmplz` and the packing by `build_binary`, both of
kenlm (https://github.com/kpu/kenlm; its source, also in the archive that pip downloads, builds with cmake and Boost).
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mocha_stream.corpus import normalise, read_lines
from mocha_stream.errors import MochaError, ModelError
from mocha_stream.tokenizer import Tokenizer


def build(
    model: Path, output: Path, texts: list[Path], order: int, prune: list[str], memory: str, kenlm: Path | None
) -> None:
    """Tokenizes, counts and packs.

    Raises:
        MochaError: kenlm's programs are not there or fail, or a file cannot be read.
    """
    lmplz, build_binary = (shutil.which(name, path=kenlm) for name in ("lmplz", "build_binary"))
    if not lmplz or not build_binary:
        where = kenlm or "the PATH"
        raise MochaError(f"no lmplz and build_binary in {where}; build kenlm and name its bin folder with --kenlm")
    path = model / "tokenizer.model"
    if not path.is_file():
        raise ModelError(f"{path}: no such file; expected the tokenizer of a model folder")
    tokenizer = Tokenizer.load(path)
    with tempfile.TemporaryDirectory() as folder:
        arpa = Path(folder) / "model.arpa"
        count = [lmplz, "-o", str(order), "-S", memory, "-T", folder, "--discount_fallback", "--prune", *prune]
        with arpa.open("wb") as file, subprocess.Popen(count, stdin=subprocess.PIPE, stdout=file) as counting:
            assert counting.stdin
            for text in texts:
                for line in read_lines(text):
                    pieces = [tokenizer.pieces[token] for token in tokenizer.encode(normalise(line))]
                    counting.stdin.write((" ".join(pieces) + "\n").encode())
        if counting.returncode:
            raise MochaError(f"lmplz ended with code {counting.returncode}; its reason stands above")
        # As a trie of probabilities in 8 bits.
        pack = [build_binary, "-q", "8", "-b", "8", "-a", "22", "trie", str(arpa), str(output)]
        if code := subprocess.run(pack).returncode:
            raise MochaError(f"build_binary ended with code {code}; its reason stands above")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder with the tokenizer.model that the search will use")
    parser.add_argument("output", type=Path, help="file to write")
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--order", type=int, default=6, help="units of an n-gram (default 6)")
    parser.add_argument("--prune", nargs="+", default=["0", "0", "1"], help="as lmplz takes it (default 0 0 1)")
    parser.add_argument("--memory", default="2G", help="of lmplz (default 2G)")
    parser.add_argument("--kenlm", type=Path, help="folder of lmplz and build_binary; by default they are in the PATH")
    o = parser.parse_args()
    try:
        build(o.model, o.output, o.text, o.order, o.prune, o.memory, o.kenlm)
    except MochaError as error:
        print(f"language_model: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
