"""Tables and names for a terminal and for spreadsheets."""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

_FORMULA = re.compile(r"(?:^|(?<=;))(?=[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Where a spreadsheet takes a text for a formula: at its start, and after a semicolon, which ends a cell where commas
are decimal. The last four signs are the first ones in full width."""


def printable(text: str) -> str:
    r"""The text with control characters escaped, which a terminal would execute.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, columns as wide as their widest text; a column of numbers is to the right.

    >>> for line in text_table(("client", "requests"), [("alice", "12"), ("bob", "7")]):
    ...     print(line)
    client  requests
    alice         12
    bob            7
    """
    texts = list(rows)
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    to_right = [bool(texts) and all(map(_is_number, column)) for _, *column in zip(columns, *texts, strict=True)]
    for row in (columns, *texts):
        cells = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, to_right, strict=True)
        )
        yield "  ".join(cells).rstrip()


def json_safe(text: str) -> str:
    r"""The JSON text with escapes for what a terminal would execute, or turn: JSON itself escapes a part of them alone.

    >>> json_safe('{"user": "al\x9bice\u202e \u6771"}')
    '{"user": "al\\u009bice\\u202e \u6771"}'
    """
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


def _is_number(text: str) -> bool:
    return not text or text.replace(".", "", 1).removeprefix("-").isdecimal()
