"""Waits by counter: the counters that a request leads to, and the rest of a wait under another limit.

A wait belongs to the counter that asked for it, not to the client whose request was charged: a quota on a user counts
all client-ids of that user together, so all of them wait together.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from sluice.state.arithmetic.rounding import round_half_up
from sluice.state.arithmetic.sampled_rate import wait_for_rate_ms
from sluice.state.contract.gateway_topics import WaitKey, WaitRecord
from sluice.state.contract.records import MAX_TIMESTAMP_MS
from sluice.state.decisions.charge_plan import client_kinds_of, topic_kinds_of
from sluice.state.errors import UNREADABLE, SluiceError
from sluice.state.quotas.entity import Tags, bounded_name
from sluice.state.quotas.kinds import MAX_THROTTLE_MS
from sluice.state.quotas.resolution import Quotas

CounterKey = tuple[str, Tags]
"""Quota kind and tags: names one counter."""

TopicPartitionName = tuple[str, int]
"""Topic and partition."""


def counters_of(
    quotas: Quotas, user: str, client_id: str, api: str | None, topic_partitions: Iterable[TopicPartitionName]
) -> Iterator[CounterKey]:
    """The counters that a request leads to under these quotas, with a limit or without."""
    for kind in client_kinds_of(api):
        if quotas.enabled(kind):
            for resolution in quotas.resolve_all(kind, user, client_id):
                yield kind, resolution.tags
    yield from _topic_counters(api, topic_partitions)


def possible_counters(
    user: str, client_id: str, api: str | None, topic_partitions: Iterable[TopicPartitionName]
) -> Iterator[CounterKey]:
    """The counters that a request may lead to while the quotas aren't known: every shape that tags can have."""
    user, client_id = bounded_name(user), bounded_name(client_id)
    shapes = (Tags(user, client_id), Tags(user), Tags("", client_id))
    for kind in client_kinds_of(api):
        for tags in shapes:
            yield kind, tags
    yield from _topic_counters(api, topic_partitions)


def wait_under_limit_ms(wait_ms: int, rate: float | None, limit: float | None, new_limit: float | None) -> int:
    """Rest of a wait, counted from the decision that asked for it, when its limit is raised or removed.

    A wait never grows by this: a lower limit takes effect with the next decision. `rate` is the observed rate of a
    sampled quota, None for tokens. The wait of a rate is (O - Q) / Q * window, so the window follows from the old
    limit, and the new wait from the window; a wait for tokens is -tokens / Q (KIP-124 and KIP-599).

    2 750 bytes/s under a limit of 2 000 wait 3 750 ms, under 2 500 only 1 000 ms, and under 2 750 not at all:

    >>> [wait_under_limit_ms(3750, 2750.0, 2000.0, limit) for limit in (1000.0, 2000.0, 2500.0, 2750.0, None)]
    [3750, 3750, 1000, 0, 0]
    >>> wait_under_limit_ms(12_000, None, 5.0, 10.0)
    6000
    """
    if new_limit is None:
        return 0
    if limit is None or new_limit <= limit:
        return wait_ms
    if rate is None:
        return round_half_up(wait_ms * limit / new_limit)
    if rate <= new_limit:
        return 0
    window_ms = wait_ms * limit / (rate - limit) if rate > limit else float(wait_ms)
    return min(wait_ms, wait_for_rate_ms(rate, new_limit, window_ms))


def _topic_counters(api: str | None, topic_partitions: Iterable[TopicPartitionName]) -> Iterator[CounterKey]:
    for topic, partition in topic_partitions:
        tags = Tags(topic=bounded_name(topic), partition=partition)
        yield from ((kind, tags) for kind in topic_kinds_of(api))


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


def deciding(decided_by: str | None, asked: Sequence[tuple[str, int]]) -> list[bool]:
    """Flags for the charges of a decision whose wait is the decision's: the longest of the quota `decided_by`.

    A charge is its quota, "" if that is on trial, and its wait. The others ask for their own wait, if it is no longer.

    >>> deciding("producer_byte_rate", [("producer_byte_rate", 200), ("producer_byte_rate", 900), ("other", 900)])
    [False, True, False]
    """
    longest_ms = max((wait_ms for quota, wait_ms in asked if quota == decided_by), default=0)
    return [quota == decided_by and wait_ms == longest_ms for quota, wait_ms in asked]
