"""Transcripts as text files: plain, tab-separated, JSON lines, subtitles and NIST's CTM. Imports no torch.

Each format is a function from a recording's path or URL and its transcript to the text of a file; `FORMATS` names
them.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import MochaError
from .sources import Source
from .transcript import Transcript, Word, as_json

MAX_LINE = 42
"""Characters a line of a subtitle may have; a cue has two lines at most."""
MAX_CUE_MS, MIN_CUE_MS = 6000, 1000
"""How long a cue is shown; less than the minimum only where the next one comes sooner."""
PAUSE_S = 0.7
"""A silence between words from which on they are never in one cue."""


def txt(path: Source, transcript: Transcript) -> str:
    """The text alone, on one line."""
    return f"{transcript.text}\n"


def tsv(path: Source, transcript: Transcript) -> str:
    """`path<TAB>text` on one line."""
    return f"{shown(path).translate({9: ' ', 10: ' ', 13: ' '})}\t{transcript.text}\n"


def jsonl(path: Source, transcript: Transcript) -> str:
    """One JSON object with path, text, duration_s and words, on one line."""
    values = as_json(transcript)
    ordered = {"path": shown(path), **{key: values[key] for key in ("text", "duration_s", "words")}}
    return json.dumps(ordered, ensure_ascii=False) + "\n"


def ctm(path: Source, transcript: Transcript) -> str:
    """`recording 1 start duration word confidence` a word; the recording is the file's name without its ending."""
    name = "_".join(shown(Path(path).stem).split())
    return "".join(
        f"{name} 1 {word.start_s:.3f} {max(0.0, word.end_s - word.start_s):.3f} {word.word} {word.confidence:.3f}\n"
        for word in transcript.words
    )


def srt(path: Source, transcript: Transcript) -> str:
    """Numbered subtitles, as SubRip has them."""
    cues = enumerate(_timed_cues(transcript.words), start=1)
    blocks = [f"{n}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n" for n, (start, end, text) in cues]
    return "\n".join(blocks)


def vtt(path: Source, transcript: Transcript) -> str:
    """Subtitles as WebVTT, the format of web pages."""
    blocks = ["WEBVTT\n"]
    for start, end, text in _timed_cues(transcript.words):
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{_clock(start, '.')} --> {_clock(end, '.')}\n{escaped}\n")
    return "\n".join(blocks)


FORMATS: dict[str, Callable[[Source, Transcript], str]] = {
    "txt": txt,
    "tsv": tsv,
    "jsonl": jsonl,
    "srt": srt,
    "vtt": vtt,
    "ctm": ctm,
}


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a whole file or none: under a temporary name beside it first. Raises MochaError."""
    temporary = path.with_name(
        f".{path.name}.part"
    )  # always the same, so that a later run clears up after a killed one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise MochaError(f"{path}: cannot be written ({error.strerror}); choose another place") from None


def _timed_cues(words: tuple[Word, ...]) -> Iterator[tuple[int, int, str]]:
    """Start and end in milliseconds and the lines of each cue; no cue begins before the last one has ended."""
    cues, shown_until = _cues(words), 0
    for i, cue in enumerate(cues):
        start = max(shown_until, _ms(cue[0].start_s))
        end = max(_ms(cue[-1].end_s), start + MIN_CUE_MS)
        if i + 1 < len(cues):
            end = min(end, _ms(cues[i + 1][0].start_s))
        shown_until = max(start + 1, min(end, start + MAX_CUE_MS))
        yield start, shown_until, "\n".join(_lines(cue))


def _cues(words: tuple[Word, ...]) -> list[list[Word]]:
    """The words in groups that each fit a cue. One that gets too long is cut at its longest pause, not too early."""
    cues: list[list[Word]] = []
    cue: list[Word] = []
    for word in words:
        while cue and not _fits(cue, word):
            pauses = [after.start_s - before.end_s for before, after in zip(cue, [*cue[1:], word], strict=True)]
            cut = max(range(len(pauses) // 2, len(pauses)), key=lambda i: (pauses[i], i)) + 1
            cues.append(cue[:cut])
            cue = cue[cut:]
        cue.append(word)
    return [*cues, cue] if cue else cues


def _fits(cue: list[Word], word: Word) -> bool:
    """Whether the word may join the cue."""
    if word.start_s - cue[-1].end_s >= PAUSE_S or _ms(word.end_s) - _ms(cue[0].start_s) > MAX_CUE_MS:
        return False
    return max(map(len, _lines([*cue, word]))) <= MAX_LINE


def _lines(cue: list[Word]) -> list[str]:
    """The text on one line, or on two of as nearly the same length as can be."""
    texts = [word.word for word in cue]
    whole = " ".join(texts)
    if len(whole) <= MAX_LINE or len(texts) == 1:
        return [whole]
    halves = [[" ".join(texts[:i]), " ".join(texts[i:])] for i in range(1, len(texts))]
    return min(halves, key=lambda lines: max(map(len, lines)))


def shown(path: Source) -> str:
    """The path or URL as text that can be written: names on disk may be no valid UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _clock(ms: int, point: str) -> str:
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
