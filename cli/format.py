"""Tables, JSON and CSV for terminals, pipes and spreadsheets.

Names come from events, so no character of a name may act on a terminal, or run as a formula of a spreadsheet.
"""

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TextIO

import msgspec
import typer
from rich.cells import cell_len

from sluice.process.format import NOTHING, printable, short

MAX_NAME = 60
"""Characters of a name in a table; JSON and CSV have the whole name."""

MIN_NAME = 20
"""Those that a name keeps on a narrow terminal."""

_OTHER_CELLS = 40
"""Cells of a line that long names leave to the other columns."""

_FIGURE = re.compile(rf"{NOTHING}?|(> |-)?\d[\d.e+]*(/s)?( (%|[A-Za-z]{{1,3}}(/s)?|\d+))*")
"""A number, or a figure of `process.format`: 3, 1.05 MB/s, 80 %, 1 min 30 s, or none."""

_FORMULA = re.compile(r"(?:^|(?<=;))(?=[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""A place before a formula: at the start of a text, and after a semicolon, which ends a cell where commas are decimal.
The last four signs are the first ones in full width."""


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


def fitting(parts: Iterable[str], width: int) -> str:
    """The first parts that a line of this width has room for, the very first in any case.

    >>> fitting(["sluice top", "25/s ALLOW", "397 counters"], 30)
    'sluice top  25/s ALLOW'
    """
    first, *others = parts
    for part in others:
        if cell_len(f"{first}  {part}") > width:
            break
        first = f"{first}  {part}"
    return first


def time_text(at: datetime) -> str:
    """A time in UTC to the second, as --from and --to take it.

    >>> time_text(datetime.fromisoformat("2026-01-01T01:00:12.345+01:00"))
    '2026-01-01T00:00:12Z'
    """
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def json_text(content: object, *, indent: bool = False) -> str:
    r"""JSON on one line, or indented, with null for NaN and the infinities.

    Escaped is what a terminal would execute or turn: JSON itself escapes a part of it alone.

    >>> json_text({"user": "al\x9bice\u202e \u6771", "rate": float("nan")})
    '{"user":"al\\u009bice\\u202e \u6771","rate":null}'
    """
    encoded = msgspec.json.encode(content, enc_hook=str)
    text = (msgspec.json.format(encoded, indent=2) if indent else encoded).decode()
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text)


def csv_safe(text: str) -> str:
    """The text, with a single quote before what a spreadsheet would take for a formula.

    >>> csv_safe("=1+1"), csv_safe("alice"), csv_safe("a;=1+1;b")
    ("'=1+1", 'alice', "a;'=1+1;b")
    """
    return _FORMULA.sub("'", text)


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[object]], out: TextIO) -> None:
    """Write the rows as CSV, to a terminal with control characters escaped. Give names through `csv_safe`."""
    if out.isatty():
        rows = ([printable(value) if isinstance(value, str) else value for value in row] for row in rows)
    plain = csv.writer(out, lineterminator="\n")
    # Python before 3.13 doesn't quote a lone carriage return, which a spreadsheet takes for the end of a row.
    quoted = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(columns)
    for row in rows:
        has_return = any(isinstance(value, str) and "\r" in value for value in row)
        (quoted if has_return else plain).writerow(row)


class OutputFormat(StrEnum):
    """Forms of output; json is one object a line."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def print_rows(
    output_format: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    shown: Mapping[str, Callable[[Any], str]] = MappingProxyType({}),
    least: Sequence[str] = (),
    names: Collection[str] = (),
) -> None:
    """Print rows in an OutputFormat. A table cuts names, and has the values of the columns in `shown` as these say.

    A narrow terminal has no room for those in `least`, and cuts those in `names`, as `table_lines` does.
    """
    if output_format == OutputFormat.JSON:
        sys.stdout.writelines(json_text(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    elif output_format == OutputFormat.CSV:
        cells = ([csv_safe(cell) if isinstance(cell, str) else _text(cell) for cell in row] for row in rows)
        write_csv(columns, cells, sys.stdout)
    else:
        show = [shown.get(name, lambda value: short(_text(value), MAX_NAME)) for name in columns]
        texts = ([each(value) for each, value in zip(show, row, strict=True)] for row in rows)
        headings = [name.removesuffix("_ms") if name in shown else name for name in columns]
        lines = table_lines(headings, texts, terminal_width(), [name for name in least if name in headings], names)
        sys.stdout.writelines(line + "\n" for line in lines)


def _text(value: object) -> str:
    """A value as text: nothing for null, JSON for lists and structs, base64 for bytes."""
    if value is None:
        return ""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value if isinstance(value, str) else json_text(value).strip('"')


def print_json(content: object, *, indent: bool = False) -> None:
    """Print JSON to standard output."""
    typer.echo(json_text(content, indent=indent))


def print_lines(lines: Iterable[str]) -> None:
    """Print each line to standard output; what a name or a reason has of line ends and escapes is shown, not done."""
    for line in lines:
        typer.echo(printable(line))
