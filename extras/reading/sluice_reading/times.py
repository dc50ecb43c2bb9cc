"""Lengths of time as people write and read them."""

import re
from datetime import UTC, datetime, timedelta

from sluice_reading.errors import SpanError

_LENGTH = re.compile(r"(\d{1,6})([smhd])")

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_length(text: str) -> int:
    """A length of time such as 90s, 10m, 2h or 1d, in milliseconds. Raises SpanError.

    >>> [read_length(text) for text in ("90s", "10m")]
    [90000, 600000]
    """
    found = _LENGTH.fullmatch(text)
    if found is None or not int(found[1]):
        raise SpanError(f"{text!r} is no length of time; expected one such as 90s, 10m, 2h, 1d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) // timedelta(milliseconds=1)


def duration(ms: float) -> str:
    """A duration in the unit that suits its length.

    >>> duration(0), duration(730), duration(12_000), duration(90_000), duration(7_300_000)
    ('0 ms', '730 ms', '12.0 s', '1 min 30 s', '2 h 1 min')
    """
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
