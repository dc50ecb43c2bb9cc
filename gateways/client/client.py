"""The gateway client for Kafka proxies, brokers and API front ends. It needs no Spark.

with Gateway({"bootstrap.servers": "127.0.0.1:9092"}) as gateway:
    answer = gateway.admit({"api": "Produce", "user": user, "client_id": client_id, ...})  # the response is ready
    answer.throttle_ms  # 0: the client needn't wait
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from threading import Lock
from types import TracebackType
from typing import Self

from kafka import KafkaProducer

from sluice.gateways.client.answer import Answer, AwaitedDecisions, correction, decided_answer
from sluice.gateways.client.events import as_executed, asks_for_mutations, checked_events
from sluice.gateways.client.in_force import InForce
from sluice.gateways.client.inline import InlineCharges
from sluice.gateways.client.metrics import GatewayStats
from sluice.gateways.client.options import GatewayOptions, instance_name
from sluice.gateways.client.policy import AdmissionPolicy, Staleness
from sluice.gateways.client.publisher import EventPublisher, Heartbeats, connected_producer
from sluice.kafka_io.client import kafka_python_config
from sluice.kafka_io.topic_follower import CLOSE_S, Reading, TopicFollower
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import DecidedHeartbeat
from sluice.state.contract.records import NO_LOGIN, Decision, Request, Share
from sluice.state.decisions.charge_plan import is_validation
from sluice.state.decisions.waits import TopicPartitionName
from sluice.state.shares.gateway_shares import Admission
from sluice.state.shares.read_sums import read_sums

log = logging.getLogger(__name__)

CLOSED_RETRY_MS = 1_000
"""The shortest wait of every client while a gateway refuses all."""

NO_THROTTLE = Answer()

_FORKED = Lock()
"""The lock of a gateway that begins anew."""

_PARENTS: list[dict[str, object]] = []
"""The parts of gateways before a fork: never destroyed, as that would wait for threads that aren't in this process."""


class Gateway:
    """Charges requests inline, publishes them as events, and reads the sums of what is decided in the background.

    Thread-safe. `kafka` holds Kafka's own property names, like section `kafka` of the settings. The gateway starts
    without a broker and connects in the background. `clock_ms` returns epoch milliseconds. Raises
    UnsupportedPropertyError without `bootstrap.servers`, and for a login or certificate store that kafka-python can't
    use. `follow` and `produce` make its connections, which a test replaces.

    `instance` is the name of this very gateway, by which it recognises what is decided on its own events: no other one
    has it. In a process that was forked off, the gateway begins anew with its first call, as one of its own.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        options: GatewayOptions | None = None,
        clock_ms: Callable[[], int] = now_ms,
        follow: Callable[[Mapping[str, str], Reading], TopicFollower] = TopicFollower,
        produce: Callable[[Mapping[str, str]], KafkaProducer] = connected_producer,
    ) -> None:
        kafka_python_config(kafka)
        self._follow, self._produce = follow, produce
        self.options = options or GatewayOptions()
        self._kafka = kafka
        self._clock_ms = clock_ms
        self._begin()

    def _begin(self) -> None:
        """Make the parts and start the threads, which belong to this process."""
        kafka, clock_ms = self._kafka, self._clock_ms
        self.instance = instance_name(self.options.name)
        self._in_force = InForce(self.instance, self.options, clock_ms)
        self._inline = InlineCharges(self.instance, self.options, self._in_force, clock_ms)
        self._staleness = Staleness(clock_ms)
        self._policy = AdmissionPolicy(self.options, self._in_force, self._staleness)
        self._publisher = EventPublisher(
            lambda: self._produce(kafka), self.options, self.instance, self._staleness, clock_ms
        )
        self._heartbeats = Heartbeats(self.instance, self._publisher, self._inline, self._staleness, clock_ms)
        longest_ms = max(self.options.max_wait_ms, self.options.decide_timeout_ms)
        self._awaited = AwaitedDecisions(longest_ms, clock_ms)  # no wait is left that a later one would correct
        sums = Reading(
            self.options.sums_topic,
            self._on_sums,
            since_ms=max(0, now_ms() - int(self.options.lookback_s * 1000)),
            fenced=True,
            on_restart=self._inline.clear,
            on_caught_up=lambda: self._on_read(self._waits_reader),
            on_idle=self._on_idle,
        )
        waits = Reading(
            self.options.waits_topic,
            self._in_force.on_kept_wait,
            fenced=True,
            ends_there=True,  # the sums say all that comes after
            on_restart=self._in_force.forget_kept_orders,
            on_caught_up=lambda: self._on_read(self._sums_reader),
        )
        limits = Reading(
            self.options.limits_topic,
            self._in_force.on_limit,
            on_restart=self._in_force.restart_limits,
            on_caught_up=self._in_force.note_limits_read,
            has_gaps=self._in_force.missed_removals,
        )
        self._sums_reader = self._follow(kafka, sums)
        self._waits_reader = self._follow(kafka, waits)
        self._limits_reader = self._follow(kafka, limits)
        self._readers = (self._limits_reader, self._waits_reader, self._sums_reader)
        self._pid = os.getpid()
        for reader in self._readers:
            reader.start()

    def _begin_if_forked(self) -> None:
        """Begin anew where none of the threads runs: nothing would be sent or read, and a full queue block for ever."""
        if os.getpid() == self._pid:
            return
        with _FORKED:
            if os.getpid() != self._pid:
                log.warning("the gateway was made before a fork; it begins anew in process %d", os.getpid())
                _PARENTS.append(vars(self).copy())
                self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def admit(self, request: Request | Mapping[str, object], delivered: bool = False) -> Answer:
        """Charge a request inline and publish its event. The answer says how long the client has to wait.

        Call it when the response is ready and before it is sent; for mutations before they are executed. A Fetch that
        has to wait is to be answered empty, and is charged no bytes, unless it was `delivered`.

        The wait is the longer of what the gateway's share of the limit asks for and of a decided wait on an event that
        wasn't charged inline. Without limits, and while decisions are stale under FAIL_OPEN, nothing is charged inline.
        While the gateway refuses all, every client waits and all mutations are refused.

        The event gets id, time, gateway name and instance where they are missing, and NO_LOGIN as user. A request that
        touches more than `max_charges_per_event` topic-partitions becomes several events with `-1`, `-2` and so on
        after its id, the first with the request's times; `request_id` of the answer is that of the last, None if any
        was dropped. With WhenFull.BLOCK a call waits while too many events are unsent. Raises InvalidRequestError for
        an event that breaks the contract, and GatewayClosedError.
        """
        self._begin_if_forked()
        event = self._publisher.completed_event(request)
        events = checked_events(event, self.options.max_charges_per_event)
        if asks_for_mutations(event) and self.refuses_all():
            return self._refusal(event)
        self._policy.note_allowed()
        admission, is_inline = self._charge(event, delivered)
        if asks_for_mutations(event) and not is_validation(event, self.options.quota):
            as_executed(events[0], admission.refused, self.options.quota)
        for each in events:
            each.throttled_by = list(admission.throttled_by) if is_inline else None
            each.withheld = admission.withhold
        return self._answer(event, admission, self._publisher.publish(events))

    def admit_mutations(self, request: Request | Mapping[str, object]) -> Answer:
        """Publish a mutation request and wait up to `decide_timeout_ms` for the decision, which admits or refuses.

        It waits for strict requests only; others are admitted inline. While decisions are stale it doesn't wait.
        Without a decision the gateway's share decides, and with FAIL_CLOSED all mutations are refused. Raises as
        `admit` does, and InvalidRequestError for a `request_id` whose decision is awaited already.
        """
        self._begin_if_forked()
        event = self._publisher.completed_event(request)
        if not asks_for_mutations(event):
            return self.admit(event)
        events = checked_events(event, self.options.max_charges_per_event)
        if self.refuses_all():
            return self._refusal(event)
        asking = str(events[0].request_id)  # the first has the mutations
        future, published, decision = self._awaited.expect(asking), None, None
        try:
            published = self._publisher.publish(events)
            if published is not None:
                decision = future.result(0 if self.is_stale() else self.options.decide_timeout_ms / 1000)
        except TimeoutError:
            pass
        finally:
            if published is None:
                self._awaited.forget(asking)
        answer = None if decision is None else decided_answer(decision, event, published, self.options.max_wait_ms)
        return answer or self._admit_undecided(event, future, published)

    def throttle_of(
        self,
        user: str | None,
        client_id: str | None,
        api: str | None = None,
        topic_partitions: Iterable[TopicPartitionName] = (),
    ) -> Answer:
        """The wait that is left to a client before a request of it may be served, with the quota behind it.

        Without a user it is that of a client that has not logged in, NO_LOGIN.

        For gateways that have no connection to mute. It charges nothing, counts the waits that `admit` counts, and
        never blocks. A client that is stopped by a hold waits as long as that lasts; its `quota` is the decider's name.
        The wait is the longest of the counters that the request leads to: those of `api` such as
        "Produce" and of the (topic, partition) pairs it touches; without `api` all counters of this user and client-id.
        While the gateway refuses all, it is at least CLOSED_RETRY_MS.
        """
        self._begin_if_forked()
        user, client_id, now_ms = user or NO_LOGIN, client_id or "", self._clock_ms()
        with_inline = self._policy.charges_inline()
        wait = self._in_force.longest_wait(user, client_id, api, topic_partitions, with_inline, now_ms)
        wait_ms = 0 if wait is None else wait.left_ms(now_ms)
        if self.refuses_all():
            wait_ms = max(wait_ms, CLOSED_RETRY_MS)
        if wait_ms == 0:
            return NO_THROTTLE
        return Answer(wait_ms) if wait is None else Answer(wait_ms, quota=wait.quota, limit=wait.limit)

    def refuses_all(self) -> bool:
        """True if every client is refused.

        That is so while decisions are stale and the policy is FAIL_CLOSED, and before the limits or the waits that were
        decided earlier are known if the option for that is HOLD.
        """
        self._begin_if_forked()
        return self._policy.refuses_all()

    def is_stale(self) -> bool:
        """True if an event published more than `stale_after_s` ago may still be without a decision."""
        self._begin_if_forked()
        return self._policy.is_stale()

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until all waits that were decided before the start are known; False on timeout."""
        self._begin_if_forked()
        return self._policy.current.wait(timeout_s)

    def shares(self) -> list[Share]:
        """The shares of this gateway's busiest counters, at most 20, as a heartbeat reports them."""
        self._begin_if_forked()
        return self._inline.busiest()

    def stats(self) -> GatewayStats:
        """The gateway's counts."""
        self._begin_if_forked()
        p50_ms, p99_ms = self._staleness.age_percentiles_ms(0.50, 0.99)
        counters, forgotten = self._inline.size()
        gateways, instances = self._inline.gateways()
        decided_waits, inline_waits = self._in_force.decided_waits, self._in_force.inline_waits
        return GatewayStats(
            decided_waits=len(decided_waits),
            evicted_waits=decided_waits.evicted,
            capped_waits=decided_waits.capped,
            sums=self._inline.sums,
            decision_age_p50_ms=p50_ms,
            decision_age_p99_ms=p99_ms,
            stale_s=self._staleness.stale_ms() / 1000,
            published=self._publisher.published,
            unsent=self._publisher.unsent,
            dropped=self._publisher.dropped,
            failed=self._publisher.failed,
            limits_version=limits.version if (limits := self._in_force.limits) else None,
            allowed_before_limits=self._policy.allowed_before_limits,
            is_current=self._policy.current.is_set(),
            allowed_before_current=self._policy.allowed_before_current,
            unreadable_records=sum(reader.unreadable for reader in self._readers),
            fenced_records=sum(each.reader.fenced for each in (self._sums_reader, self._waits_reader)),
            reader_restarts=sum(reader.crashes for reader in self._readers),
            charged_inline=self._inline.requests,
            throttled_inline=self._inline.throttled,
            throttled_inline_ms=self._inline.throttled_ms,
            inline_waits=len(inline_waits),
            counters=counters,
            forgotten=forgotten,
            gateways=gateways,
            instances=instances,
        )

    def close(self) -> None:
        """Publish the remaining events for at most `close_timeout_s` and end the threads. May be called again.

        In a process that was forked off and never called the gateway there is nothing to end.
        """
        if os.getpid() != self._pid:
            return
        for reader in self._readers:
            reader.stopped.set()
        self._publisher.close(self.options.close_timeout_s)
        deadline_s = time.monotonic() + CLOSE_S
        for reader in self._readers:
            reader.stop(max(0.0, deadline_s - time.monotonic()))

    def _charge(self, event: Request, delivered: bool = False) -> tuple[Admission, bool]:
        """Charge the event inline. The flag is False if nothing was charged: without limits, or under FAIL_OPEN."""
        limits = self._in_force.limits
        if limits is None or not self._policy.charges_inline():
            return Admission(0), False
        return self._inline.charge_inline(event, limits.enforced, delivered), True

    def _answer(self, event: Request, admission: Admission, request_id: str | None) -> Answer:
        """The longer of two waits: that of the admission, and a decided one on events that weren't charged inline."""
        throttle_ms, quota, limit, share = admission.throttle_ms, admission.quota, admission.limit, admission.share
        wait = self._in_force.decided_wait(event)
        if wait is not None and (wait_ms := wait.left_ms(self._clock_ms())) > throttle_ms:
            throttle_ms, quota, limit, share = wait_ms, wait.quota, wait.limit, None
        if self.refuses_all():
            throttle_ms = max(throttle_ms, CLOSED_RETRY_MS)
        return Answer(throttle_ms, admission.withhold, admission.refused, quota, limit, share, request_id)

    def _refusal(self, event: Request) -> Answer:
        """All mutations are refused; there is no event, because nothing is executed."""
        return Answer(CLOSED_RETRY_MS, refused=(True,) * len(event.mutations))

    def _admit_undecided(self, event: Request, future: "Future[Decision]", published: str | None) -> Answer:
        """Answer inline what wasn't decided in time. The event stays the charge; its decision may still come."""
        if self._policy.closes_when_stale or self.refuses_all():
            return self._refusal(event)
        admission, is_inline = self._charge(event)
        future.add_done_callback(lambda done: self._correct(event, admission.refused, is_inline, done.result()))
        return self._answer(event, admission, published)

    def _correct(self, event: Request, refused: tuple[bool, ...], is_inline: bool, decision: Decision) -> None:
        """Correct the charges of mutations that were answered inline when they are decided. In the reader's thread."""
        decided = decided_answer(decision, event, None, self.options.max_wait_ms)
        if decided is None:
            return
        twice, missed = correction(event, refused, decided.refused, self.options.quota)
        if is_inline and twice:
            self._inline.refund(decision, twice)
        if missed:
            executed = Request(event.api, user=event.user, client_id=event.client_id, mutations_charged=missed)
            executed.throttled_by = self._in_force.applied_waits(event) if is_inline else None
            self._publisher.publish_own(executed)

    def _on_sums(self, _: bytes | None, value: bytes | None) -> None:
        """Apply one record of the sums topic. Raises for a record that Sluice wouldn't write."""
        read, now_ms = read_sums(value), self._clock_ms()
        if read.heartbeat is not None:
            self._on_heartbeat(read.heartbeat, now_ms)
        if read.answer is not None and read.answer.instance == self.instance:
            self._awaited.hand_over(read.answer)
        self._inline.on_sums(read, now_ms)
        self._in_force.on_sums(read, now_ms)
        decided_ms = read.decided_until_ms(self.instance)
        if decided_ms is not None:
            self._staleness.note_decided(decided_ms, now_ms)

    def _on_heartbeat(self, decided: DecidedHeartbeat, now_ms: int) -> None:
        sender = self._heartbeats.sender_of(decided)
        self._inline.on_heartbeat(sender, decided, now_ms)
        self._staleness.note_age(now_ms - decided.timestamp_ms)
        if sender == self.instance:
            self._staleness.note_decided(decided.timestamp_ms, now_ms)

    def _on_read(self, other: TopicFollower) -> None:
        """Note that one of the two topics with waits is read; the gateway is current when the other one is too."""
        if other.caught_up.is_set():
            self._in_force.relax()  # what the waits topic keeps may have been decided under other limits
            self._in_force.forget_kept_orders()
            self._policy.current.set()

    def _on_idle(self) -> None:
        """Housekeeping. The reader of sums calls it several times a second."""
        self._in_force.expire()
        self._awaited.expire()
        self._heartbeats.beat()
