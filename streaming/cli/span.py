"""Options for a span of time: --from and --to."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from streaming.cli.options import UsageError
from streaming.whatif.span import Span

FromOption = Annotated[
    str,
    typer.Option("--from", help="Begin: 2026-11-22T14:00Z, or 90m, 24h, 7d before now. UTC where no zone is given."),
]
ToOption = Annotated[str | None, typer.Option("--to", help="End, written as --from; now.", show_default=False)]

_AGO = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def span_of(begin: str, end: str | None, now: datetime) -> Span:
    """The span of --from and --to. Raises UsageError if one is no time, or nothing lies between them.

    >>> noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    >>> span_of("2h", None, noon).length_ms, span_of("2026-11-22", "2026-11-22T13:00+01:00", noon).length_ms
    (7200000, 43200000)
    """
    span = Span(_time_ms("--from", begin, now), _time_ms("--to", end, now) if end else _ms(now))
    if span.length_ms <= 0:
        raise UsageError(f"--to {end or 'now'} is not after --from {begin}; give an earlier --from")
    return span


def _time_ms(option: str, text: str, now: datetime) -> int:
    if ago := _AGO.fullmatch(text):
        return _ms(now - timedelta(**{_UNITS[ago[2]]: int(ago[1])}))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} is {text!r}; expected a time such as 2026-11-22T14:00Z, or 24h") from None
    return _ms(time if time.tzinfo else time.replace(tzinfo=UTC))


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)
