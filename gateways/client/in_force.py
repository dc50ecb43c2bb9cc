"""What is in force at a gateway: the limits, and the waits under them, decided or applied in line."""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat

import msgspec

from sluice.gateways.client.decided import Charges, Decided, order_of, wait_of, waits_ms
from sluice.gateways.client.options import GatewayOptions
from sluice.gateways.client.wait_table import Order, Wait, WaitTable
from sluice.state.decisions.wait_records import read_wait
from sluice.state.decisions.waits import (
    CounterKey,
    TopicPartitionName,
    counters_of,
    possible_counters,
    wait_under_limit_ms,
)
from sluice.state.quotas.kinds import CLIENT_KINDS, TOPIC_KINDS
from sluice.state.quotas.limits import LimitsInForce, LimitsView

_NO_WAITS = repeat(0)


class InForce:
    """The limits in force and three tables of waits. Thread-safe for readers; the readers of topics write.

    `decided` are the waits of all decisions. `unforeseen` are those of them that no gateway had charged in line, so
    that nobody has applied one yet. `applied` are the waits that this gateway asked for in line. `limits` is None
    before the first complete version. `clock_ms` is the time in epoch milliseconds.
    """

    def __init__(self, options: GatewayOptions, clock_ms: Callable[[], int]) -> None:
        self.limits: LimitsInForce | None = None
        self.decided = WaitTable(options.max_muted, options.max_mute_ms, clock_ms)
        self.unforeseen = WaitTable(options.max_muted, options.max_mute_ms, clock_ms)
        self.applied = WaitTable(options.max_muted, options.max_mute_ms, clock_ms)
        self._tables = (self.decided, self.unforeseen, self.applied)
        self._decided_counters, self._unforeseen_counters = self.decided.counters(), self.unforeseen.counters()
        self._clock_ms = clock_ms
        self._limits_view = LimitsView()
        self._max_kept = options.max_muted
        self._kept_orders: dict[CounterKey, Order] = {}  # of the waits read from the waits topic

    def counters(
        self, user: str, client_id: str, api: str | None, topic_partitions: Iterable[TopicPartitionName]
    ) -> Iterator[CounterKey]:
        """The counters that such a request leads to; all that it may lead to while the limits aren't known."""
        limits = self.limits
        if limits is None:
            return possible_counters(user, client_id, api, topic_partitions)
        return counters_of(limits.enforced, user, client_id, api, topic_partitions)

    def take_decided(self, decided: Decided, charges: Charges, now_ms: int) -> None:
        """Take over the waits of a decision."""
        decided_counters, unforeseen_counters = self._decided_counters, self._unforeseen_counters
        if decided.mute_until_ms is None:
            if not decided_counters and not unforeseen_counters:
                return  # nobody waits, and nobody did: so it is with most decisions
            waits: Iterable[int] = _NO_WAITS
        else:
            waits = waits_ms(decided, charges)
        order = None
        for (counter, charge), wait_ms in zip(charges, waits, strict=False):
            if wait_ms or counter in decided_counters or counter in unforeseen_counters:
                order = order or order_of(decided, now_ms)
                self._take_wait(decided, counter, wait_of(decided, charge, wait_ms, order))

    def _take_wait(self, decided: Decided, counter: CounterKey, wait: Wait) -> None:
        """Take over a wait, as the limits in force have it if it was decided under older ones."""
        limits = self.limits
        if wait.wait_ms and limits is not None and decided.quota_version < limits.version:
            wait = _under(limits, counter, wait)
        self.decided.take(counter, wait)
        if decided.throttled_by is None:
            self.unforeseen.take(counter, wait)
        else:
            self.unforeseen.shorten(counter, wait)  # what is longer in this wait was applied in line
        if self.limits is not limits:  # they came in between, and have relaxed the waits without this one
            self.relax()

    def take_kept(self, key: bytes | None, value: bytes | None) -> None:
        """Take over a record of the waits topic, which doesn't say what was charged in line: it counts as if not.

        Raises InvalidWaitError for what is no such record.
        """
        counter, record = read_wait(key, value)
        if record is not None:
            now_ms = self._clock_ms()
            order = (min(record.timestamp_ms, now_ms), record.offset)
            self._keep_order(counter, order if record.until_ms > now_ms else None)
            wait = Wait(record.until_ms, order, record.throttle_ms, counter[0], record.limit, record.rate)
        elif (ended := self._kept_orders.pop(counter, None)) is not None:
            wait = Wait(0, ended)  # a wait that a decision has asked for since stays
        else:
            return
        self.decided.take(counter, wait)
        self.unforeseen.take(counter, wait)

    def _keep_order(self, counter: CounterKey, order: Order | None) -> None:
        """Note how late the wait is that the waits topic keeps; None if it has ended, so that nothing can end it."""
        self._kept_orders.pop(counter, None)
        if order is not None:
            self._kept_orders[counter] = order
        if len(self._kept_orders) > self._max_kept:
            del self._kept_orders[next(iter(self._kept_orders))]

    def forget_kept_orders(self) -> None:
        """The waits topic has been read to its end, or is read again."""
        self._kept_orders.clear()

    def take_limit(self, key: bytes | None, value: bytes | None) -> None:
        """Take over a record of the limits topic. Raises InvalidQuotaError for garbage."""
        known = self._limits_view.in_force
        self._limits_view.take(key, value)
        limits = self._limits_view.in_force
        if limits is not known:
            self.limits = limits
            self.relax()

    def read_limits_again(self) -> None:
        """Begin with no limits when the topic begins again; those in force stay until a version is complete."""
        self._limits_view = LimitsView()

    def relax(self) -> None:
        """Shorten or end the waits whose limit was raised or removed."""
        limits = self.limits
        if limits is not None:
            for table in self._tables:
                table.relax(lambda counter: _limit_of(limits, counter))

    def expire(self) -> None:
        """Forget the waits that have ended."""
        for table in self._tables:
            table.expire()


def _under(limits: LimitsInForce, counter: CounterKey, wait: Wait) -> Wait:
    """What is left of a wait under limits that are newer than the decision that asked for it."""
    left_ms = wait_under_limit_ms(wait.wait_ms, wait.rate, wait.limit, _limit_of(limits, counter))
    if left_ms >= wait.wait_ms:
        return wait
    return msgspec.structs.replace(wait, until_ms=wait.until_ms - wait.wait_ms + left_ms if left_ms else 0)


def _limit_of(limits: LimitsInForce, counter: CounterKey) -> float | None:
    """The limit of a counter; None for unlimited, and for a counter of a quota that this release doesn't know."""
    quota, tags = counter
    for kind in CLIENT_KINDS if tags.topic is None else TOPIC_KINDS:
        if kind == quota:
            return limits.enforced.limit_of(kind, tags)
    return None
