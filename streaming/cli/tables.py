"""Tables and names for a terminal and for spreadsheets."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What makes a spreadsheet take a text for a formula."""


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


def csv_safe(text: str) -> str:
    """The text, with a single quote before what a spreadsheet would take for a formula.

    >>> csv_safe("=1+1"), csv_safe("alice")
    ("'=1+1", 'alice')
    """
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[object]], out: TextIO) -> None:
    """Write the rows as CSV. Give names through `csv_safe`."""
    plain = csv.writer(out, lineterminator="\n")
    # Python before 3.13 doesn't quote a lone carriage return, which a spreadsheet takes for the end of a row.
    quoted = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(columns)
    for row in rows:
        has_return = any(isinstance(value, str) and "\r" in value for value in row)
        (quoted if has_return else plain).writerow(row)


def _is_number(text: str) -> bool:
    return not text or text.replace(".", "", 1).removeprefix("-").isdecimal()
