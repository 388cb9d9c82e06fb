"""Transcribed recordings, from a folder or a manifest. Imports no torch.

Three layouts are read, wherever they lie below the folder given:

    LibriSpeech      <speaker>/<chapter>/<speaker>-<chapter>.trans.txt, "UTTERANCE TEXT" a line
    transcripts.tsv  "UTTERANCE <tab> SPEAKER <tab> SECONDS <tab> TEXT" a line
    *.jsonl          {"path": ..., "text": ..., "speaker": ...} a line, paths from the manifest's folder

In the first two the recording lies beside the list, `UTTERANCE` with one of `EXTENSIONS`.
"""

import json
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

from .errors import DataError
from .sources import Source, is_url

EXTENSIONS = (".flac", ".wav", ".opus", ".ogg", ".mp3")


@dataclass(frozen=True)
class Utterance:
    id: str
    path: Path
    text: str
    """Upper-case words of A-Z and apostrophes, one space between."""
    speaker: str


def normalise(text: str) -> str:
    """The spelling of LibriSpeech: upper case, only A-Z, apostrophe and single spaces."""
    text = text.upper().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return " ".join(re.sub(r"[^A-Z' ]+", " ", text).split())


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or .xz. Raises DataError where it cannot be read."""
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            yield from file
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a text file, plain or .xz") from None


def read_corpus(path: Path) -> list[Utterance]:
    """All utterances below a folder, or of one manifest, sorted by id.

    Raises:
        DataError: nothing there, a malformed line, or a listed recording that does not exist.
    """
    if path.is_dir():
        lists = sorted([*path.rglob("*.trans.txt"), *path.rglob("transcripts.tsv"), *path.rglob("*.jsonl")])
    else:
        lists = [path]
    if not path.exists() or not lists:
        raise DataError(
            f"{path}: {'holds no transcripts' if path.exists() else 'does not exist'}; expected a folder in "
            "LibriSpeech's layout, one with transcripts.tsv, or a manifest of JSON lines"
        )
    utterances = [utterance for item in lists for utterance in _read_list(item)]
    if not utterances:
        raise DataError(f"{path}: its transcripts list no utterance")
    utterances.sort(key=lambda utterance: utterance.id)
    for first, second in pairwise(utterances):
        if first.id == second.id:
            raise DataError(f"{path}: lists {first.id!r} twice ({first.path}, {second.path}); give each its own name")
    return utterances


def is_list(path: PurePath) -> bool:
    """Whether the name is that of a list of recordings, in one of the three layouts."""
    return path.suffix == ".jsonl" or path.name == "transcripts.tsv" or path.name.endswith(".trans.txt")


def read_paths(path: Path, url: str | None = None) -> list[Source]:
    """The recordings that a list names, in its order. In JSON lines, "path" is enough, and they need not exist.

    There, it may be a URL. A list that was fetched from a `url` has its relative paths from there.

    Raises:
        DataError: no such list, a malformed line, or no recording at all.
    """
    paths: list[Source]
    try:
        if path.suffix == ".jsonl" or url:
            lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
            paths = [
                _listed_path(line, url or path, f"{url or path}:{number}") for number, line in lines if line.strip()
            ]
        else:
            paths = [utterance.path for utterance in _read_list(path)]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected a list of recordings") from None
    if not paths:
        raise DataError(f"{path}: lists no recording")
    return paths


def _listed_path(line: str, listed_in: Source, where: str) -> Source:
    try:
        path = json.loads(line)["path"]
        if is_url(path):
            return path
        if isinstance(listed_in, Path):
            return listed_in.parent / path
        return Path(path) if path.startswith("/") else f"{listed_in.rpartition('/')[0]}/{path}"
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise DataError(f'{where}: {line[:60]!r}; expected {{"path": ...}}') from None


def _read_list(path: Path) -> Iterator[Utterance]:
    present = {}
    if path.suffix != ".jsonl":
        present = {item.stem: item for item in path.parent.iterdir() if item.suffix.lower() in EXTENSIONS}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not text that can be read ({error}); expected a list of transcripts") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        if path.suffix == ".jsonl":
            yield _manifest_entry(line, path, where)
            continue
        if path.suffix == ".tsv":
            parts = line.split("\t")
            if len(parts) != 4:
                raise DataError(f"{where}: {len(parts)} columns; expected utterance, speaker, seconds and text")
            name, speaker, _, text = parts
        else:
            name, _, text = line.partition(" ")
            speaker = name.split("-")[0]
        if name not in present:
            raise DataError(f"{where}: no recording {name} beside it; expected one of {' '.join(EXTENSIONS)}")
        yield Utterance(name, present[name], normalise(text), speaker)


def _manifest_entry(line: str, path: Path, where: str) -> Utterance:
    try:
        entry = json.loads(line)
        recording, text = path.parent / entry["path"], entry["text"]
        # The id is the path without its ending: names alone repeat from folder to folder.
        name = entry.get("id", str(Path(entry["path"]).with_suffix("")))
        if not (isinstance(text, str) and isinstance(name, str)):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f'{where}: {line[:60]!r}; expected {{"path": ..., "text": ...}}') from None
    if not recording.is_file():
        found = "is no file" if recording.exists() else "does not exist"
        raise DataError(f"{where}: {recording} {found}; paths start from the manifest's folder")
    return Utterance(name, recording, normalise(text), str(entry.get("speaker", "")))
