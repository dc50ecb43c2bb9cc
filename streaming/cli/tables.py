"""Tables and names for a terminal."""

from collections.abc import Iterable, Iterator, Sequence


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


def _is_number(text: str) -> bool:
    return not text or text.replace(".", "", 1).removeprefix("-").isdecimal()
