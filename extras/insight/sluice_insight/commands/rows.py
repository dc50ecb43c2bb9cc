"""Rows as a table, JSON or CSV. No character of a name may run as a formula of a spreadsheet."""

import csv
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TextIO

from sluice.process.format import printable
from sluice_reading.format import short
from sluice_reading.output import json_text
from sluice_reading.text_tables import MAX_NAME, table_lines, terminal_width

_FORMULA = re.compile(r"(?:^|(?<=;))(?=[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""A place before a formula: at the start of a text, and after a semicolon, which ends a cell where commas are decimal.
The last four signs are the first ones in full width."""


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
