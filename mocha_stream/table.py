"""Tables on the screen."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first one left-aligned; a row of one cell is printed as it is."""
    whole = [header, *(row for row in rows if len(row) == len(header))]
    widths = [max(len(row[i]) for row in whole) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        if len(row) < len(header):
            lines.append("  ".join(row))
            continue
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
