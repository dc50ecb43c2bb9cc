"""What every report needs of the tables: their paths, SQL literals, and spans of event time."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from reports.errors import SpanError
from sinks.tables.sql import Rows, run_query

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Tables(NamedTuple):
    """Where the decisions and the quotas are: folders or URIs, and the options of delta-rs for them."""

    decisions: str
    quotas: str
    storage_options: Mapping[str, str]

    def rows(self, query: str) -> Rows:
        """The answer to a query over the table `decisions`. Raises QueryError."""
        return run_query(query, {"decisions": self.decisions}, self.storage_options)

    def mappings(self, query: str) -> list[dict[str, Any]]:
        """All rows of a short answer, by column. Raises QueryError."""
        rows = self.rows(query)
        return [dict(zip(rows.columns, row, strict=True)) for row in rows]


class Span(NamedTuple):
    """From `start` up to, not including, `end`; both in UTC."""

    start: datetime
    end: datetime

    @property
    def start_ms(self) -> int:
        """Milliseconds since 1970."""
        return to_ms(self.start)

    @property
    def end_ms(self) -> int:
        """Milliseconds since 1970."""
        return to_ms(self.end)

    def condition(self) -> str:
        """SQL for the events of this span. Files of other times are skipped by the statistics in the table's log.

        There is no condition on `date`, which is the day of the decision: after an outage that may be any later day.
        """
        return f"timestamp_ms >= {self.start_ms} AND timestamp_ms < {self.end_ms}"


def to_ms(at: datetime) -> int:
    """Milliseconds since 1970.

    >>> to_ms(datetime(1970, 1, 2, tzinfo=UTC))
    86400000
    """
    return (at - _EPOCH) // timedelta(milliseconds=1)


def from_ms(at_ms: int) -> datetime:
    """The time in UTC.

    >>> from_ms(86_400_000).isoformat()
    '1970-01-02T00:00:00+00:00'
    """
    return _EPOCH + timedelta(milliseconds=at_ms)


def literal(text: str) -> str:
    """Text as SQL, whatever is in it.

    >>> literal("o'neil")
    "'o''neil'"
    """
    return "'" + text.replace("'", "''") + "'"


def read_time(text: str) -> datetime:
    """A time in ISO 8601, or a day, which begins at midnight; UTC unless it says otherwise. Raises SpanError.

    >>> read_time("2026-11-02").isoformat()
    '2026-11-02T00:00:00+00:00'
    """
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise SpanError(f"{text!r} is no time; expected one such as 2026-11-02 or 2026-11-02T10:15:00Z") from None


def read_span(start: str | None, end: str | None, *, now: datetime, default: timedelta) -> Span:
    """The span between two texts; without an end until now, without a start `default` before the end.

    Raises SpanError.
    """
    until = now if end is None else read_time(end)
    since = until - default if start is None else read_time(start)
    if since >= until:
        raise SpanError(f"the span from {since.isoformat()} to {until.isoformat()} is empty; give --from before --to")
    return Span(since, until)
