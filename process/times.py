"""Times and lengths of time as people write them, and epoch milliseconds."""

import re
from datetime import UTC, datetime, timedelta

from sluice.process.errors import SpanError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LENGTH = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


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


def read_length(text: str) -> int:
    """A length of time such as 90s, 10m, 2h or 1d, in milliseconds. Raises SpanError.

    >>> [read_length(text) for text in ("90s", "10m")]
    [90000, 600000]
    """
    found = _LENGTH.fullmatch(text)
    if found is None or not int(found[1]):
        raise SpanError(f"{text!r} is no length of time; expected one such as 90s, 10m, 2h, 1d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) // timedelta(milliseconds=1)
