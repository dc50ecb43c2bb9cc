"""Spans of event time, and groupings of reports."""

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from sluice_reading.errors import SpanError
from sluice_reading.times import to_ms

_AGO = re.compile(r"(\d{1,6})([mhd])")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class By(StrEnum):
    """The name of a row."""

    USER = "user"
    CLIENT = "client"
    TENANT = "tenant"
    TOPIC = "topic"


class Per(StrEnum):
    """The length of a period; days are those of UTC, and a span is one period."""

    HOUR = "hour"
    DAY = "day"
    SPAN = "span"


class Span(NamedTuple):
    """Event times from `start_ms` to before `end_ms`, epoch milliseconds."""

    start_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        """The length in ms."""
        return self.end_ms - self.start_ms


def read_span(start: str | None, end: str | None, *, now: datetime, default: timedelta) -> Span:
    """The span between two texts; without an end until now, without a start `default` before the end.

    Raises SpanError.

    >>> noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    >>> read_span("2026-11-22", "2026-11-22T13:00+01:00", now=noon, default=timedelta(days=1)).length_ms
    43200000
    """
    until = now if end is None else read_time(end, now)
    try:
        since = until - default if start is None else read_time(start, now)
    except OverflowError:
        raise SpanError(f"--to {end} has no time {default.days} days before it; give --from too") from None
    if since >= until:
        raise SpanError(f"the span from {since.isoformat()} to {until.isoformat()} is empty; give --from before --to")
    return Span(to_ms(since), to_ms(until))


def read_time(text: str, now: datetime) -> datetime:
    """A time in ISO 8601, a day, which begins at midnight, or as long before now; UTC unless it says otherwise.

    A day may be `today`, `yesterday` or a weekday: the last one, which may be today. Raises SpanError.

    >>> noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    >>> [read_time(text, noon).isoformat() for text in ("2026-11-02", "90m")]
    ['2026-11-02T00:00:00+00:00', '2026-11-22T10:30:00+00:00']
    >>> [read_time(text, noon).day for text in ("yesterday", "monday", "sunday")]
    [21, 16, 22]
    """
    try:
        if (days := _days_ago(text, now)) is not None:
            return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
        if ago := _AGO.fullmatch(text):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise SpanError(
            f"{text!r} is no time; expected one such as 2026-11-02 or 2026-11-02T10:15Z, 90m, 24h, 7d before now, or"
            " today, yesterday, monday"
        ) from None


def _days_ago(text: str, now: datetime) -> int | None:
    """Days from the last day of this name to today; None for what names no day."""
    name = text.lower()
    if name in ("today", "yesterday"):
        return int(name == "yesterday")
    return (now.weekday() - _WEEKDAYS.index(name)) % 7 if name in _WEEKDAYS else None
