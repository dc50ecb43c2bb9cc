"""Times and lengths of time as people write them, and epoch milliseconds."""

import re
from datetime import UTC, datetime, timedelta

from sluice.process.errors import SpanError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_AGO = re.compile(r"(\d{1,6})([mhd])")
_LENGTH = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


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


def read_length(text: str) -> int:
    """A length of time such as 90s, 10m, 2h or 1d, in milliseconds. Raises SpanError.

    >>> [read_length(text) for text in ("90s", "10m")]
    [90000, 600000]
    """
    found = _LENGTH.fullmatch(text)
    if found is None or not int(found[1]):
        raise SpanError(f"{text!r} is no length of time; expected one such as 90s, 10m, 2h, 1d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) // timedelta(milliseconds=1)


def _days_ago(text: str, now: datetime) -> int | None:
    """Days from the last day of this name to today; None for what names no day."""
    name = text.lower()
    if name in ("today", "yesterday"):
        return int(name == "yesterday")
    return (now.weekday() - _WEEKDAYS.index(name)) % 7 if name in _WEEKDAYS else None
