"""Epoch milliseconds."""

from datetime import UTC, datetime, timedelta

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
