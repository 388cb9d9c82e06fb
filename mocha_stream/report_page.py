"""A report as a page with pictures, Markdown or HTML: `mocha-stream evaluate --report FILE`. Imports no torch at first.

The pictures of a Markdown file lie beside it, in a folder that has its name with `-pictures` for the ending. Those of
an HTML file are in it.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from .errors import ConfigError
from .pictures import as_png, draw_alignment, draw_delays, draw_reliability, draw_training, new_figure
from .training.run_log import RunLog
from .writers import write_whole

if TYPE_CHECKING:
    from .recognizer import Recognizer
    from .report import Recording, Report, Table

NUM_EXAMPLES = 2
"""Recordings drawn of the best, and of the worst."""
STYLE = (
    "body{font:15px/1.45 sans-serif;max-width:62em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ccc}"
    "td:first-child,th:first-child,.text td{text-align:left}figure{margin:1em 0;overflow-x:auto}"
)


@dataclass(frozen=True)
class Picture:
    name: str
    """Of its file, without ending."""
    caption: str
    png: bytes


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, in this order."""

    heading: str
    lines: Sequence[str] = ()
    rows: Sequence[tuple[str, str]] = ()
    tables: "Sequence[Table]" = ()
    pictures: Sequence[Picture] = ()


def check_page(path: Path) -> None:
    """Tells before the work begins what would keep a page from being written.

    Raises:
        ConfigError: a name that ends neither in .md nor in .html.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"--report {path}: a report is Markdown or HTML; give it the ending .md or .html")
    new_figure(1.0, 1.0)


def write_page(path: Path, report: "Report", recognizer: "Recognizer", model: str, log: RunLog | None = None) -> None:
    """Draws the pictures and writes the page.

    Args:
        path: ends in .md or .html
        recognizer: hears the best and the worst recordings again, for their alignment
        model: name of the model
        log: of the run that trained it, for its curves

    Raises:
        MochaError: a file that cannot be written, or a recording that has gone.
    """
    FORMATS[path.suffix](path, f"{model} on {Path(report.data).name}", _sections(report, recognizer, log))


def examples(recordings: "Sequence[Recording]", longest_s: float) -> "tuple[list[Recording], list[Recording]]":
    """The recordings with the lowest and the highest WER, each at most once; of equal ones, those with more words."""
    fit = [item for item in recordings if item.errors.num_words and item.duration_s <= longest_s]
    ranked = sorted(fit, key=lambda item: (item.errors.wer, -item.errors.num_words))
    best, others = ranked[:NUM_EXAMPLES], ranked[NUM_EXAMPLES:]
    worst = sorted(others, key=lambda item: (item.errors.wer, item.errors.num_words), reverse=True)
    return best, worst[:NUM_EXAMPLES]


def _sections(report: "Report", recognizer: "Recognizer", log: RunLog | None) -> list[Section]:
    from .hard_alignment import LONGEST_S
    from .scores import reliability

    delays = [delay for item in report.recordings for delay in item.delays_s]
    bins = reliability(word for item in report.recordings for word in item.words)
    pictures = []
    if delays:
        caption = "Emission delay: audio heard from the end of a word, by forced alignment, to its display."
        pictures.append(Picture("delays", caption, as_png(draw_delays(delays))))
    if bins:
        caption = "Words by confidence: how many are correct (bars, with the number of words), and would be if the "
        caption += "confidence were right (dashed); their mean confidence (red)."
        pictures.append(Picture("reliability", caption, as_png(draw_reliability(bins))))
    sections = [Section("Figures", [report.conditions()], report.rows(), report.tables(), pictures)]
    if log:
        caption = "Losses, and word error rates of the development set after each epoch."
        sections.append(Section("Training", pictures=[Picture("training", caption, as_png(draw_training(log)))]))
    for label, items in zip(("best", "worst"), examples(report.recordings, LONGEST_S), strict=True):
        for i, item in enumerate(items, start=1):
            sections.append(_example(f"{label}-{i}", f"{label.capitalize()}, {i}", item, report, recognizer))
    notes = [*report.notes, *(f"not used: {failure}" for failure in report.failures)]
    return [*sections, Section("Notes", notes)] if notes else sections


def _example(name: str, heading: str, item: "Recording", report: "Report", recognizer: "Recognizer") -> Section:
    from .hard_alignment import hard_alignment

    figure = draw_alignment(hard_alignment(Path(item.path), recognizer, report.latency_ms), item.id)
    caption = "Hard attention over the spectrogram, from one search over the whole recording."
    rows = [("WER", f"{item.errors.wer:.2f}%"), ("spoken", item.reference), ("recognised", item.hypothesis)]
    return Section(f"{heading}: {item.id}", rows=rows, pictures=[Picture(name, caption, as_png(figure))])


def _write_markdown(path: Path, title: str, sections: Sequence[Section]) -> None:
    folder = path.with_name(f"{path.stem}-pictures")
    parts = [f"# {_plain(title)}"]
    for section in sections:
        parts.append(f"## {_plain(section.heading)}")
        parts += [_plain(line) for line in section.lines]
        if section.rows:
            parts.append(_markdown_table(("", ""), section.rows, ":--"))
        for table in section.tables:
            parts += [f"**{table.title}**", _markdown_table(table.header, table.rows, "--:")]
        for picture in section.pictures:
            file = folder / f"{picture.name}.png"
            write_whole(file, picture.png)
            parts += [f"![{_plain(picture.caption)}]({quote(folder.name)}/{file.name})", f"*{_plain(picture.caption)}*"]
    write_whole(path, "\n\n".join(parts) + "\n")


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], aligned: str) -> str:
    """`aligned` is the rule below all columns but the first."""
    lines = [header, [":--", *[aligned] * (len(header) - 1)], *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """The text with what Markdown would take for its own marks escaped."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in text)


def _write_html(path: Path, title: str, sections: Sequence[Section]) -> None:
    parts = [f"<title>{escape(title)}</title><style>{STYLE}</style>", f"<h1>{escape(title)}</h1>"]
    for section in sections:
        parts.append(f"<h2>{escape(section.heading)}</h2>")
        parts += [f"<p>{escape(line)}</p>" for line in section.lines]
        if section.rows:
            parts.append(f'<table class="text">{_html_rows("td", section.rows)}</table>')
        for table in section.tables:
            parts.append(f"<h3>{escape(table.title)}</h3>")
            parts.append(f"<table>{_html_rows('th', [table.header])}{_html_rows('td', table.rows)}</table>")
        for picture in section.pictures:
            source, caption = b64encode(picture.png).decode(), escape(picture.caption)
            parts.append(f'<figure><img alt="{picture.name}" src="data:image/png;base64,{source}">')
            parts.append(f"<figcaption>{caption}</figcaption></figure>")
    write_whole(path, '<!doctype html>\n<html lang="en"><meta charset="utf-8">\n' + "\n".join(parts) + "\n</html>\n")


def _html_rows(cell: str, rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in row)}</tr>" for row in rows)


FORMATS: dict[str, Callable[[Path, str, Sequence[Section]], None]] = {".md": _write_markdown, ".html": _write_html}
