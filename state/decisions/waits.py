"""Waits by counter: the counters that a request leads to, and the rest of a wait under another limit.

A wait belongs to the counter that asked for it, not to the client whose request was charged: a quota on a user counts
all client-ids of that user together, so all of them wait together.
"""

from collections.abc import Iterable, Iterator, Sequence

from sluice.state.arithmetic.rounding import round_half_up
from sluice.state.decisions.charge_plan import MUTATION_APIS
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import CLIENT_KINDS, QuotaKind
from sluice.state.quotas.resolution import Quotas

CounterKey = tuple[str, Tags]
"""Quota kind and tags: names one counter."""

TopicPartitionName = tuple[str, int]
"""Topic and partition."""

_TOPIC_KINDS = {
    "Produce": (QuotaKind.TOPIC_PRODUCER_BYTE_RATE,),
    "Fetch": (QuotaKind.TOPIC_CONSUMER_BYTE_RATE,),
    None: (QuotaKind.TOPIC_PRODUCER_BYTE_RATE, QuotaKind.TOPIC_CONSUMER_BYTE_RATE),
}
"""The topic quotas that a request of this API is charged to; None stands for any API."""


def charged_client_kinds(api: str | None) -> Sequence[QuotaKind]:
    """The client quotas that a request of this API is charged to; without an API all of them.

    >>> [str(kind) for kind in charged_client_kinds("Produce")]
    ['producer_byte_rate', 'request_percentage']
    """
    if api is None:
        return CLIENT_KINDS
    if api == "Produce":
        return (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)
    if api == "Fetch":
        return (QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)
    if api in MUTATION_APIS:
        return (QuotaKind.CONTROLLER_MUTATION_RATE, QuotaKind.REQUEST_PERCENTAGE)
    return (QuotaKind.REQUEST_PERCENTAGE,)


def counters_of(
    quotas: Quotas, user: str, client_id: str, api: str | None, topic_partitions: Iterable[TopicPartitionName]
) -> Iterator[CounterKey]:
    """The counters that a request leads to under these quotas, with a limit or without."""
    for kind in charged_client_kinds(api):
        if quotas.enabled(kind):
            yield kind, quotas.resolve(kind, user, client_id).tags
    yield from _topic_counters(api, topic_partitions)


def possible_counters(
    user: str, client_id: str, api: str | None, topic_partitions: Iterable[TopicPartitionName]
) -> Iterator[CounterKey]:
    """The counters that a request may lead to while the quotas aren't known: every shape that tags can have."""
    shapes = (Tags(user, client_id), Tags(user), Tags("", client_id))
    for kind in charged_client_kinds(api):
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
    return min(wait_ms, round_half_up((rate - new_limit) / new_limit * window_ms))


def _topic_counters(api: str | None, topic_partitions: Iterable[TopicPartitionName]) -> Iterator[CounterKey]:
    kinds = _TOPIC_KINDS.get(api, ())
    for topic, partition in topic_partitions:
        tags = Tags(topic=topic, partition=partition)
        for kind in kinds:
            yield kind, tags
