"""Waits by counter: the counters that a request leads to, and the rest of a wait under another limit.

A wait belongs to the counter that asked for it, not to the client whose request was charged: a quota on a user counts
all client-ids of that user together, so all of them wait together.
"""

from collections.abc import Iterable, Iterator

from sluice.state.arithmetic.rounding import round_half_up
from sluice.state.arithmetic.sampled_rate import wait_for_rate_ms
from sluice.state.decisions.charge_plan import client_kinds_of, topic_kinds_of
from sluice.state.quotas.entity import Tags, bounded_name
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
    """The counters that a request may lead to while the quotas aren't known: by all tags that a client may have."""
    user, client_id = bounded_name(user), bounded_name(client_id)
    possible_tags = (Tags(user, client_id), Tags(user), Tags("", client_id))
    for kind in client_kinds_of(api):
        for tags in possible_tags:
            yield kind, tags
    yield from _topic_counters(api, topic_partitions)


def wait_under_limit_ms(wait_ms: int, rate: float | None, limit: float | None, new_limit: float | None) -> int:
    """Rest of a wait, counted from the decision that asked for it, when its limit is raised or removed.

    A wait never grows by this: a lower limit takes effect with the next decision. `rate` is the observed rate of a
    sampled quota, None for tokens. By the formula of `wait_for_rate_ms` the window follows from the old limit, and the
    new wait from the window; a wait for tokens (`wait_for_tokens_ms`) is in inverse proportion to the limit.

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
