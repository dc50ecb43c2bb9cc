"""The records of the waits topic: one for each counter with a long wait, for gateways that start."""

import msgspec

from sluice.state.contract.gateway_topics import WaitKey, WaitRecord
from sluice.state.contract.records import MAX_TIMESTAMP_MS
from sluice.state.decisions.waits import CounterKey
from sluice.state.errors import UNREADABLE, SluiceError
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import MAX_THROTTLE_MS

LONG_WAIT_MS = 5_000
"""Waits of more than this are kept in the topic. Shorter ones are found in the last seconds of the decisions."""


class InvalidWaitError(SluiceError):
    """A record of the waits topic that Sluice would not have written."""


_ENCODER = msgspec.json.Encoder(order="sorted")
_KEY = msgspec.json.Decoder(WaitKey)
_WAIT = msgspec.json.Decoder(WaitRecord)


def wait_key(counter: CounterKey) -> bytes:
    """Key of a counter's record: canonical JSON, so that one counter always has one key.

    >>> wait_key(("producer_byte_rate", Tags(user="alice")))
    b'{"entity":{"user":"alice"},"quota":"producer_byte_rate"}'
    """
    quota, tags = counter
    return _ENCODER.encode(WaitKey(tags.entity(), quota))


def wait_value(wait: WaitRecord) -> bytes:
    """Value of a counter's record.

    >>> wait_value(WaitRecord(9_000, 8_000, 1024.0, None, 1_000, 7))
    b'{"limit":1024.0,"offset":7,"rate":null,"throttle_ms":8000,"timestamp_ms":1000,"until_ms":9000}'
    """
    return _ENCODER.encode(wait)


def read_wait(key: bytes | None, value: bytes | None) -> tuple[CounterKey, WaitRecord | None]:
    """The counter of a record and its wait, None when its wait is over.

    Raises InvalidWaitError if Sluice would not have written the record.
    """
    try:
        named = _KEY.decode(key or b"")
        wait = None if value is None else _WAIT.decode(value)
    except UNREADABLE as error:
        raise InvalidWaitError(f"the record is no wait ({error}); expected a wait as JSON") from None
    counter = (named.quota, Tags.of(named.entity))
    if wait_key(counter) != key:
        raise InvalidWaitError("the record's key names no counter as Sluice writes it; expected quota and entity")
    if wait is not None and not (
        0 <= wait.timestamp_ms <= wait.until_ms <= MAX_TIMESTAMP_MS and 0 < wait.throttle_ms <= MAX_THROTTLE_MS
    ):
        raise InvalidWaitError("the record's times are none that a decision can have; expected a wait after its event")
    return counter, wait
