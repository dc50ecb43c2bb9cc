"""The limits in force at a gateway, and the waits under them."""

import logging
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

import msgspec

from sluice.gateways.client.options import GatewayOptions
from sluice.gateways.client.wait_table import Order, Wait, WaitTable
from sluice.state.contract.decision_id import MAX_OFFSET
from sluice.state.contract.gateway_topics import CounterSum
from sluice.state.contract.records import AppliedWait, Request
from sluice.state.decisions.charge_plan import BYTE_APIS
from sluice.state.decisions.wait_records import read_wait
from sluice.state.decisions.waits import (
    CounterKey,
    TopicPartitionName,
    counters_of,
    possible_counters,
    wait_under_limit_ms,
)
from sluice.state.quotas.entity import Tags, bounded_name
from sluice.state.quotas.kinds import CLIENT_KINDS, TOPIC_KINDS
from sluice.state.quotas.limits import LimitsInForce, LimitsView
from sluice.state.quotas.overrides import HELD_MS, OverridesInForce
from sluice.state.shares.read_sums import ReadEntity, ReadSums

log = logging.getLogger(__name__)


class InForce:
    """The limits in force and two tables of waits. Thread-safe for readers; the readers of topics write.

    `decided_waits` are those of decisions on events that no gateway had charged inline: nobody has applied them yet.
    `inline_waits` are those that this gateway asked for inline, and `held_waits` those of clients under a hold, by API
    and client. `limits` is None before the first complete version. `overrides` are those that
    gateway `instance` has heard of. `clock_ms` is the time in epoch milliseconds.
    """

    def __init__(self, instance: str, options: GatewayOptions, clock_ms: Callable[[], int]) -> None:
        self.limits: LimitsInForce | None = None
        self.overrides = OverridesInForce(instance)
        self.decided_waits = WaitTable(options.max_waits, options.max_wait_ms, clock_ms)
        self.inline_waits = WaitTable(options.max_waits, options.max_wait_ms, clock_ms)
        self.held_waits = WaitTable(options.max_waits, HELD_MS, clock_ms)
        self._tables = (self.decided_waits, self.inline_waits)
        self._waiting = self.decided_waits.view()
        self._clock_ms = clock_ms
        self._limits_view = LimitsView()
        self._reads_past = True  # of the limits topic
        self._max_wait_ms = options.max_wait_ms
        self._max_kept = options.max_waits
        self._kept_orders: dict[CounterKey, Order] = {}  # of the waits read from the waits topic
        self._said_capped = False

    def decided_wait(self, event: Request) -> Wait | None:
        """The longest decided wait of the counters that the event leads to; None if no counter waits."""
        if not self._waiting:
            return None  # before the counters are found, which takes longer than all the rest
        touched = [(entry.topic, entry.partition) for entry in event.topic_partitions]
        return self.decided_waits.longest(self._counters(event.user or "", event.client_id or "", event.api, touched))

    def longest_wait(
        self,
        user: str,
        client_id: str,
        api: str | None,
        topic_partitions: Iterable[TopicPartitionName],
        with_inline: bool,
        now_ms: int,
    ) -> Wait | None:
        """The longest wait of the counters that such a request leads to, and of holds; or decided waits only."""
        tables = self._tables if with_inline else self._tables[:1]
        held = self.held_wait(user, client_id, api, now_ms) if with_inline else None
        if not any(map(len, tables)):
            return held
        counters = list(self._counters(user, client_id, api, topic_partitions))
        waits = (held, *(table.longest(counters) for table in tables))
        return max(filter(None, waits), key=attrgetter("until_ms"), default=None)

    def held_wait(self, user: str, client_id: str, api: str | None, now_ms: int) -> Wait | None:
        """The wait of a client that is under a hold at `now_ms`, for requests of this API, or of any without one.

        A client that is stopped waits as long as the hold lasts; another one after each request.
        """
        limits = self.limits
        if limits is None or not self.overrides.has_holds:
            return None  # each request asks
        held = []
        for each in BYTE_APIS if api is None else {api}.intersection(BYTE_APIS):
            hold = self.overrides.hold(user, client_id, limits.enforced.tenants, now_ms, each == "Fetch")
            if hold is not None and hold.override.consumers:
                return Wait(now_ms + HELD_MS, (now_ms, 0), HELD_MS, hold.decider)
            if hold is not None:
                held.append(held_counter(each, user, client_id))
        return self.held_waits.longest(held)

    def applied_waits(self, event: Request) -> list[AppliedWait]:
        """The rest of the waits that this gateway has asked the client of an event for."""
        counters = self._counters(event.user or "", event.client_id or "", event.api, ())
        waits, now_ms = ((each, self.inline_waits.longest([each])) for each in counters), self._clock_ms()
        return [AppliedWait(kind, tags.entity(), wait.left_ms(now_ms)) for (kind, tags), wait in waits if wait]

    def on_sums(self, read: ReadSums, now_ms: int) -> None:
        """Apply the waits of counters after a micro-batch.

        On events that were charged inline there is no new wait. Raises msgspec's errors for sums that can't be read.
        """
        for entity in read.sums:
            if entity.has_waits or self._waiting:  # there is nothing to apply otherwise: so it is with most sums
                self._apply_waits(entity, read, now_ms)

    def _apply_waits(self, entity: ReadEntity, of: ReadSums, now_ms: int) -> None:
        tags = entity.tags()
        for kind, decided in of.counters(entity):
            counter, wait = (kind, tags), decided.wait
            is_new = wait is not None and wait.is_new
            if counter in self._waiting or (is_new and wait is not None and wait.wait_ms):
                self._apply(counter, _wait_of(counter, decided, of, now_ms), is_new, of.quota_version)

    def on_kept_wait(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record of the waits topic, which doesn't say if the event was charged inline: it counts as if not.

        Raises InvalidWaitError for a record that holds no wait.
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
        self.decided_waits.note_wait(counter, wait)

    def forget_kept_orders(self) -> None:
        """Forget the records of the waits topic, which has been read to its end, or is read again."""
        self._kept_orders.clear()

    def on_limit(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record of the limits topic. Raises InvalidQuotaError for a record that holds no limit."""
        view = self._limits_view
        known = view.in_force
        view.take(key, value)
        self.overrides.hear(view.overrides, self._clock_ms(), is_past=self._reads_past)
        if view.in_force is not known:
            self.limits = view.in_force
            self.relax()

    def restart_limits(self) -> None:
        """Begin with no limits when the topic begins again; those in force stay until a version is complete."""
        self._limits_view.begin_again()

    def note_limits_read(self) -> None:
        """Note that the limits topic has been read to its end: a record that comes now is just published."""
        self._reads_past = False

    def missed_removals(self) -> bool:
        """True if limits are known that the topic has removed: it has to be read from its beginning."""
        return self._limits_view.missed_removals

    def relax(self) -> None:
        """Shorten or end the waits whose limit was raised or removed."""
        limits = self.limits
        if limits is not None:
            for table in self._tables:
                table.relax(table.counters(), lambda counter: _limit_of(limits, counter))

    def expire(self) -> None:
        """Forget waits that have ended. Log once that decisions ask for waits that are too long."""
        for table in (*self._tables, self.held_waits):
            table.expire()
        if self.decided_waits.capped and not self._said_capped:
            self._said_capped = True
            log.warning(
                "a decision, perhaps on a client of another gateway, asks for a wait of more than max_wait_ms (%d ms),"
                " which counts as that; further ones are only counted",
                self._max_wait_ms,
            )

    def _counters(
        self, user: str, client_id: str, api: str | None, topic_partitions: Iterable[TopicPartitionName]
    ) -> Iterator[CounterKey]:
        """The counters that such a request leads to; while the limits aren't known, all that it may lead to."""
        limits = self.limits
        if limits is None:
            return possible_counters(user, client_id, api, topic_partitions)
        return counters_of(limits.enforced, user, client_id, api, topic_partitions)

    def _apply(self, counter: CounterKey, wait: Wait, is_new: bool, quota_version: int) -> None:
        """Apply a wait, recomputed for the limits in force if it was decided under older ones."""
        limits = self.limits
        if wait.wait_ms and limits is not None and quota_version < limits.version:
            wait = _under(limits, counter, wait)
        if is_new:
            self.decided_waits.note_wait(counter, wait)
        else:
            self.decided_waits.shorten(counter, wait)  # the part of this wait that is longer was applied inline
        newer = self.limits
        if newer is not limits and newer is not None:  # they came in between, and have relaxed the waits without this
            self.decided_waits.relax([counter], lambda waiting: _limit_of(newer, waiting))

    def _keep_order(self, counter: CounterKey, order: Order | None) -> None:
        """Note the order of a wait that the waits topic keeps; None if it has ended, so that nothing can end it."""
        self._kept_orders.pop(counter, None)
        if order is not None:
            self._kept_orders[counter] = order
        if len(self._kept_orders) > self._max_kept:
            del self._kept_orders[next(iter(self._kept_orders))]


def held_counter(api: str, user: str, client_id: str) -> CounterKey:
    """The key of a client's wait under a hold."""
    return (api, Tags(bounded_name(user), bounded_name(client_id)))


def _under(limits: LimitsInForce, counter: CounterKey, wait: Wait) -> Wait:
    """The rest of a wait under limits that are newer than the decision that asked for it."""
    left_ms = wait_under_limit_ms(wait.wait_ms, wait.rate, wait.limit, _limit_of(limits, counter))
    if left_ms >= wait.wait_ms:
        return wait
    return msgspec.structs.replace(wait, until_ms=wait.until_ms - wait.wait_ms + left_ms if left_ms else 0)


def _limit_of(limits: LimitsInForce, counter: CounterKey) -> float | None:
    """The limit of a counter; None for unlimited, and for a counter of a quota that this release doesn't know."""
    quota, tags = counter
    kinds = CLIENT_KINDS if tags.topic is None else TOPIC_KINDS
    return next((limits.enforced.limit_of(kind, tags) for kind in kinds if kind == quota), None)


def _wait_of(counter: CounterKey, decided: CounterSum, of: ReadSums, now_ms: int) -> Wait:
    """The wait of a counter after a micro-batch. One from the future doesn't outrank those of later micro-batches."""
    wait = decided.wait
    if wait is None:
        return Wait(0, (min(of.base_ms + decided.until_ms, now_ms), MAX_OFFSET), 0, counter[0], decided.limit)
    order = (min(of.base_ms + wait.timestamp_ms, now_ms), wait.offset)
    until_ms = of.base_ms + wait.until_ms if wait.wait_ms else 0
    return Wait(until_ms, order, wait.wait_ms, counter[0], decided.limit, wait.rate)
