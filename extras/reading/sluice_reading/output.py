"""Tables and JSON for terminals and pipes. Names come from events, so no character of one may act on a terminal."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import typer

from sluice.process.format import printable


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


def print_json(content: object, *, indent: bool = False) -> None:
    """Print JSON to standard output."""
    typer.echo(json_text(content, indent=indent))


def print_lines(lines: Iterable[str]) -> None:
    """Print each line to standard output; what a name or a reason has of line ends and escapes is shown, not done."""
    for line in lines:
        typer.echo(printable(line))
