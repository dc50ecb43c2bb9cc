"""Tables of text, for terminals and pipes."""

import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.cells import cell_len

from sluice.process.format import NOTHING, printable
from sluice_reading.format import short

MAX_NAME = 60
"""Characters of a name in a table; JSON and CSV have the whole name."""

MIN_NAME = 20
"""Those that a name keeps on a narrow terminal."""

_OTHER_CELLS = 40
"""Cells of a line that long names leave to the other columns."""

_FIGURE = re.compile(rf"{NOTHING}?|(> |-)?\d[\d.e+]*(/s)?( (%|[A-Za-z]{{1,3}}(/s)?|\d+))*")
"""A number, or a figure of `process.format`: 3, 1.05 MB/s, 80 %, 1 min 30 s, or none."""


def table_lines(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int | None = None,
    least: Sequence[str] = (),
    names: Collection[str] = (),
) -> Iterator[str]:
    """The lines of a table, each column as wide as its widest text, and to the right if it has figures alone.

    If it is wider than `width` cells, the columns in `least` are left out until it isn't, the first of these first, and
    the columns in `names` have what the others leave to them: longer names lose their middle. Only the cells are
    measured by rich: its `Table` takes 30 times as long for the thousands of rows of a report.

    >>> for line in table_lines(("client", "requests"), [("日本", "12"), ("bob", "7")]):
    ...     print(line)
    client  requests
    日本          12
    bob            7
    >>> list(table_lines(("client", "requests", "level"), [("bob", "7", "user")], 16, ["level", "requests"]))
    ['client  requests', 'bob            7']
    >>> list(table_lines(("client", "requests"), [("a" * 20 + "b" * 20, "7")], 32, (), ["client"]))
    ['client                  requests', 'aaaaaaaaaa…bbbbbbbbbb          7']
    """
    texts = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
    numeric = [bool(texts) and all(map(_FIGURE.fullmatch, cells)) for _, *cells in zip(columns, *texts, strict=True)]
    if width is not None:
        widths = _fitted(columns, widths, width, least, names)
    for row in (columns, *texts):
        padded = (
            " " * (cells - cell_len(text)) + text if right else text + " " * (cells - cell_len(text))
            for text, cells, right in zip(map(_cut, row, widths), widths, numeric, strict=True)
            if cells
        )
        yield "  ".join(padded).rstrip()


def _fitted(
    columns: Sequence[str], widths: Sequence[int], width: int, least: Sequence[str], names: Collection[str]
) -> list[int]:
    """The cells of each column in lines of `width` cells; 0 for a column that is left out."""
    present = [name for name in columns if name in names]
    least_name = max(MIN_NAME, (width - _OTHER_CELLS) // max(1, len(present)))
    fitted = [min(cells, least_name) if name in present else cells for name, cells in zip(columns, widths, strict=True)]
    for name in least:
        if _line_cells(fitted) <= width:
            break
        fitted[columns.index(name)] = 0
    cut = sorted((place for place, name in enumerate(columns) if name in present), key=widths.__getitem__)
    for number, place in enumerate(cut):
        free = max(0, width - _line_cells(fitted)) // (len(cut) - number)
        fitted[place] += min(widths[place] - fitted[place], free)
    return fitted


def _line_cells(widths: Iterable[int]) -> int:
    return sum(cells + 2 for cells in widths if cells) - 2


def _cut(text: str, cells: int) -> str:
    """A text without its middle, if it is wider than this."""
    most = cells
    while cell_len(text) > cells > 0:
        text, most = short(text, most), most - 1
    return text


def terminal_width() -> int | None:
    """The cells of a line of standard output; None if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
