"""Spans of event time, and groupings of reports."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from sluice.process.errors import SpanError
from sluice.process.times import read_time, to_ms


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

    >>> from datetime import UTC
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
