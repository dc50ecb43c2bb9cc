"""The gateway client for Kafka proxies, brokers and API front ends. It needs no Spark.

with Gateway({"bootstrap.servers": "127.0.0.1:9092"}) as gateway:
    answer = gateway.admit({"api": "Produce", "user": user, "client_id": client_id, ...})  # the response is ready
    answer.throttle_ms  # 0: the client needn't wait
"""

import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from operator import attrgetter
from threading import Event, Lock
from types import TracebackType
from typing import Any, Self

import msgspec

from sluice.gateways.client.answer import Answer, correction, decided_answer
from sluice.gateways.client.decided import Decided, enforced_charges, read_decided
from sluice.gateways.client.event_sender import EventRecord, EventSender
from sluice.gateways.client.events import as_executed, as_request, asks_for_mutations, checked_parts
from sluice.gateways.client.in_force import InForce
from sluice.gateways.client.inline import InlineCharges
from sluice.gateways.client.options import BeforeKnown, GatewayOptions, StalePolicy, process_name
from sluice.gateways.client.staleness import Staleness
from sluice.gateways.client.stats import GatewayStats
from sluice.gateways.client.wait_table import Wait
from sluice.gateways.errors import GatewayClosedError
from sluice.kafka_io.client import kafka_python_config
from sluice.kafka_io.clock import now_ms
from sluice.kafka_io.topic_follower import CLOSE_S, Reading, TopicFollower
from sluice.state.decisions.charge_plan import is_validation
from sluice.state.decisions.request import HEARTBEAT_API, Heartbeat, Request, Share
from sluice.state.decisions.waits import TopicPartitionName
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.entity import client_key
from sluice.state.shares.alive import HEARTBEAT_MS
from sluice.state.shares.gateway_shares import Admission

log = logging.getLogger(__name__)

MAX_AWAITED = 10_000
"""Most requests that wait for their decisions at a time. Beyond it the oldest is given up."""

CLOSED_RETRY_MS = 1_000
"""The least wait of every client while a gateway is closed to all of them."""

DecisionFields = dict[str, Any]
"""A decision, decoded from JSON (docs/decision.schema.json)."""

_JSON = msgspec.json.Encoder()


class Gateway:
    """Charges requests in line, publishes request events, reads decisions in the background, knows who has to wait.

    Thread-safe. `kafka` holds Kafka's own property names, like section `kafka` of the settings. The gateway starts
    without a broker and connects in the background. Every decision is passed to `on_decision`, in the reader's thread.
    `clock_ms` returns epoch milliseconds. Raises UnsupportedPropertyError without `bootstrap.servers`, and for a login
    or certificate store that kafka-python can't use.

    `instance` is the name of this very gateway, by which it knows its own decisions.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        options: GatewayOptions | None = None,
        on_decision: Callable[[DecisionFields], None] | None = None,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        kafka_python_config(kafka)
        self.options = options or GatewayOptions()
        self.instance = self.options.instance or process_name()
        self._in_force = InForce(self.options, clock_ms)
        self._inline = InlineCharges(self.instance, self.options, self._in_force.applied, clock_ms)
        self._staleness = Staleness(clock_ms)
        self._clock_ms = clock_ms
        self._decision_callback = on_decision
        self._closes_when_stale = self.options.policy is StalePolicy.FAIL_CLOSED
        self._opens_when_stale = self.options.policy is StalePolicy.FAIL_OPEN
        self._id_stem = f"{self.options.name}-{uuid.uuid4().hex[:12]}"
        self._numbers = count()
        self._last_heartbeat_ms = 0
        self._decisions = 0
        self._lock = Lock()  # guards the fields below, up to _awaited
        self._allowed_before_limits = 0
        self._allowed_before_current = 0
        self._awaited: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._said_capped = False
        self._said_namesake = False
        self._started_ms = clock_ms()
        self._current = Event()
        self._sender = EventSender(kafka, self.options.requests_topic, self.options.max_unsent, self.options.when_full)
        decisions = Reading(
            self.options.decisions_topic,
            self._on_decision,
            since_ms=max(0, now_ms() - int(self.options.lookback_s * 1000)),
            fenced=True,
            on_restart=self._inline.clear,
            on_caught_up=lambda: self._on_read(self._waits_reader),
            on_idle=self._on_idle,
        )
        waits = Reading(
            self.options.waits_topic,
            self._in_force.take_kept,
            ends_there=True,  # the decisions say all that comes after
            on_restart=self._in_force.forget_kept_orders,
            on_caught_up=lambda: self._on_read(self._decision_reader),
        )
        limits = Reading(
            self.options.limits_topic, self._in_force.take_limit, on_restart=self._in_force.read_limits_again
        )
        self._decision_reader = TopicFollower(kafka, decisions)
        self._waits_reader = TopicFollower(kafka, waits)
        self._limits_reader = TopicFollower(kafka, limits)
        self._readers = (self._limits_reader, self._waits_reader, self._decision_reader)
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def admit(self, request: Request | Mapping[str, object], delivered: bool = False) -> Answer:
        """Charges a request in line and publishes its event; says how long the client has to wait.

        Call it when the response is ready and before it is sent; for mutations before they are executed. A Fetch that
        has to wait is to be answered empty, and is charged no bytes, unless it was `delivered`. It blocks only as
        `publish` does, and raises the same.

        A wait is what the gateway's share of the limit asks for, or a decided one that is longer, if the decision is
        on an event that wasn't charged in line. Without limits, and while decisions are stale under FAIL_OPEN, nothing
        is charged in line. While the gateway refuses all, every client waits and all mutations are refused.
        """
        event = self._filled(request)
        parts = checked_parts(event, self.options.max_charges_per_event)
        if asks_for_mutations(event) and self.refuses_all():
            return self._refusal(event)
        self._note_allowed()
        admission, in_line = self._charge(event, delivered)
        if asks_for_mutations(event) and not is_validation(event, self.options.quota):
            as_executed(parts[0], admission.refused)
        for part in parts:
            part.throttled_by = list(admission.throttled_by) if in_line else None
            part.withheld = admission.withhold
        return self._answer(event, admission, self._publish(parts))

    def admit_mutations(self, request: Request | Mapping[str, object]) -> Answer:
        """Says which mutations may be executed, as the decision has it, for which it waits `decide_timeout_ms`.

        It waits for strict requests alone; others are admitted in line. While decisions are stale it doesn't wait.
        Without a decision the gateway's share decides, and with FAIL_CLOSED all mutations are refused. Raises as
        `publish` does.
        """
        event = self._filled(request)
        if not asks_for_mutations(event):
            return self.admit(event)
        parts = checked_parts(event, self.options.max_charges_per_event)
        if self.refuses_all():
            return self._refusal(event)
        future = self._await(str(event.request_id))
        if self._publish(parts) is None:
            self._forget(str(event.request_id))
            return self.admit(event)
        try:
            value = future.result(0 if self.is_stale() else self.options.decide_timeout_ms / 1000)
        except TimeoutError:
            return self._admit_undecided(event, future)
        self._forget(str(event.request_id))
        return self._decided_answer(value, event) or self._admit_undecided(event, Future())

    def held_ms(
        self,
        user: str | None,
        client_id: str | None,
        api: str | None = None,
        topic_partitions: Iterable[TopicPartitionName] = (),
    ) -> int:
        """Milliseconds that a request has to wait because of what `admit` has answered, at this gateway; 0 if none.

        For gateways that charge in line and have no connection to mute. It counts the waits that `admit` counts, and
        finds counters as `check` does. Never blocks.
        """
        wait_ms = self._left_ms(self.held_by(user, client_id, api, topic_partitions))
        return max(wait_ms, CLOSED_RETRY_MS) if self.refuses_all() else wait_ms

    def held_by(
        self,
        user: str | None,
        client_id: str | None,
        api: str | None = None,
        topic_partitions: Iterable[TopicPartitionName] = (),
    ) -> Wait | None:
        """The wait behind what `held_ms` returns, with its quota and limit; None if no counter waits."""
        tables = [self._in_force.unforeseen]
        if not self._is_let_go():
            tables.append(self._in_force.applied)
        if not any(map(len, tables)):
            return None
        counters = list(self._in_force.counters(user or "", client_id or "", api, topic_partitions))
        waits = [table.longest(counters) for table in tables]
        return max(filter(None, waits), key=attrgetter("until_ms"), default=None)

    def check(
        self,
        user: str | None,
        client_id: str | None,
        api: str | None = None,
        topic_partitions: Iterable[TopicPartitionName] = (),
    ) -> int:
        """Returns 0 if the request may be served, else the milliseconds it has to wait. Never blocks.

        For gateways that don't charge in line: it looks at the waits that were decided. The wait is the longest of the
        counters that the request leads to: those of `api` such as "Produce" and of the (topic, partition) pairs it
        touches; without `api` all counters of this user and client-id. While the gateway is closed to everyone
        (`refuses_all`), it is at least CLOSED_RETRY_MS.
        """
        counters = self._in_force.counters(user or "", client_id or "", api, topic_partitions)
        wait_ms = self._in_force.decided.remaining_ms(counters)
        if self.refuses_all():
            return max(wait_ms, CLOSED_RETRY_MS)
        if wait_ms == 0:
            self._note_allowed()
        return wait_ms

    def find_wait(
        self,
        user: str | None,
        client_id: str | None,
        api: str | None = None,
        topic_partitions: Iterable[TopicPartitionName] = (),
    ) -> Wait | None:
        """The wait behind what `check` returns, with its quota and limit; None if no counter waits."""
        counters = self._in_force.counters(user or "", client_id or "", api, topic_partitions)
        return self._in_force.decided.longest(counters)

    def refuses_all(self) -> bool:
        """Whether every client is refused.

        That is so while decisions are stale and the policy is FAIL_CLOSED, and before the limits or the waits that were
        decided earlier are known if the option for that is HOLD.
        """
        if self._in_force.limits is None and self.options.before_limits is BeforeKnown.HOLD:
            return True
        if self.options.before_current is BeforeKnown.HOLD and not self._current.is_set():
            return True
        return self._closes_when_stale and self.is_stale()

    def is_stale(self) -> bool:
        """Whether an event published more than `stale_after_s` ago may still be without a decision."""
        return self._staleness.stale_ms() > self.options.stale_after_s * 1000

    def publish(self, request: Request | Mapping[str, object], awaited: bool = False) -> str | None:
        """Queues a request event for publishing and returns its id; None if the event was dropped.

        It charges nothing in line. Fills in id, time, gateway name and instance where they are missing. With `awaited`,
        `wait_for` can be called for the decision. A request that touches more than `max_charges_per_event`
        topic-partitions becomes several events with `-1`, `-2` and so on after its id, the first with the request's
        times. Then the id of the last one is returned, whose decision is made last; None if any was dropped. Raises
        InvalidRequestError for an event that breaks the contract, and GatewayClosedError.
        """
        parts = checked_parts(self._filled(request), self.options.max_charges_per_event)
        request_id = str(parts[-1].request_id)
        if awaited:
            self._await(request_id)
        published = self._publish(parts)
        if published is None:
            self._forget(request_id)
        return published

    def wait_for(self, request_id: str, timeout_s: float) -> DecisionFields | None:
        """The decision on a request published with `awaited`; None if none arrives in time. Call it once a request."""
        with self._lock:
            future = self._awaited.get(request_id)
        if future is None:
            return None
        try:
            fields: DecisionFields = msgspec.json.decode(future.result(timeout_s))
        except TimeoutError:
            return None
        finally:
            self._forget(request_id)
        return fields

    def decide(self, request: Request | Mapping[str, object], timeout_s: float) -> DecisionFields | None:
        """Publishes the event and waits for its decision; None as `wait_for`."""
        request_id = self.publish(request, awaited=True)
        return None if request_id is None else self.wait_for(request_id, timeout_s)

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Waits until all waits that were decided before the start are known; False on timeout."""
        return self._current.wait(timeout_s)

    def shares(self) -> list[Share]:
        """The shares of this gateway's busiest counters, at most 20, as a heartbeat reports them."""
        return self._inline.busiest()

    def stats(self) -> GatewayStats:
        """The gateway's counts."""
        p50_ms, p99_ms = self._staleness.age_percentiles_ms(0.50, 0.99)
        counters, forgotten = self._inline.size()
        gateways, instances = self._inline.gateways()
        return GatewayStats(
            muted=len(self._in_force.decided),
            evicted=self._in_force.decided.evicted,
            decisions=self._decisions,
            decision_age_p50_ms=p50_ms,
            decision_age_p99_ms=p99_ms,
            stale_s=self._staleness.stale_ms() / 1000,
            published=self._sender.published,
            unsent=self._sender.unsent,
            dropped=self._sender.dropped,
            failed=self._sender.failed,
            capped=self._in_force.decided.capped,
            limits_version=limits.version if (limits := self._in_force.limits) else None,
            allowed_before_limits=self._allowed_before_limits,
            is_current=self._current.is_set(),
            allowed_before_current=self._allowed_before_current,
            unreadable_records=sum(reader.unreadable for reader in self._readers),
            fenced_decisions=self._decision_reader.reader.fenced,
            reader_restarts=sum(reader.crashes for reader in self._readers),
            charged_in_line=self._inline.requests,
            throttled_in_line=self._inline.throttled,
            throttled_in_line_ms=self._inline.throttled_ms,
            held=len(self._in_force.applied),
            waits_compared=self._inline.compared,
            wait_difference_ms=self._inline.difference_ms,
            counters=counters,
            forgotten=forgotten,
            gateways=gateways,
            instances=instances,
        )

    def close(self) -> None:
        """Publishes the remaining events for at most `close_timeout_s` and ends the threads. May be called again."""
        for reader in self._readers:
            reader.stopped.set()
        self._sender.close(self.options.close_timeout_s)
        deadline_s = time.monotonic() + CLOSE_S
        for reader in self._readers:
            reader.stop(max(0.0, deadline_s - time.monotonic()))

    def _filled(self, request: Request | Mapping[str, object]) -> Request:
        """The event with id, time, gateway name and instance."""
        event = as_request(request)
        return msgspec.structs.replace(
            event,
            request_id=event.request_id or f"{self._id_stem}-{next(self._numbers)}",
            timestamp_ms=self._clock_ms() if event.timestamp_ms is None else event.timestamp_ms,
            gateway=event.gateway or self.options.name,
            instance=self.instance,
        )

    def _publish(self, parts: Sequence[Request], may_block: bool = True) -> str | None:
        """Queues the events of one request; returns the id of the last, None if any was dropped."""
        is_sent = True
        for part in parts:
            is_sent = self._send(part, may_block) and is_sent
        return parts[-1].request_id if is_sent else None

    def _send(self, event: Request, may_block: bool) -> bool:
        """Queues one event; False if it was dropped."""
        key = client_key(event.user or "", event.client_id or "").encode()
        # An event from the future must not set the record's time: the broker refuses it with the whole batch it is in.
        timestamp_ms = min(int(event.timestamp_ms or 0), self._clock_ms())
        self._staleness.note_published(timestamp_ms)  # before its decision can arrive
        return self._sender.send(EventRecord(key, _JSON.encode(event), timestamp_ms), may_block)

    def _charge(self, event: Request, delivered: bool = False) -> tuple[Admission, bool]:
        """Charges the event in line, and says whether that was done: without limits there is nothing to charge."""
        limits = self._in_force.limits
        if limits is None or self._is_let_go():
            return Admission(0), False
        return self._inline.admit(event, limits.enforced, delivered), True

    def _is_let_go(self) -> bool:
        """Whether nobody waits in line because decisions are stale."""
        return self._opens_when_stale and self.is_stale()

    def _answer(self, event: Request, admission: Admission, request_id: str | None) -> Answer:
        """The longer wait of what was charged in line and of what was decided and nobody had charged in line."""
        throttle_ms, quota, limit, share = admission.throttle_ms, admission.quota, admission.limit, admission.share
        wait = self._unforeseen_wait(event)
        if wait is not None and (wait_ms := self._left_ms(wait)) > throttle_ms:
            throttle_ms, quota, limit, share = wait_ms, wait.quota, wait.limit, None
        if self.refuses_all():
            throttle_ms = max(throttle_ms, CLOSED_RETRY_MS)
        return Answer(throttle_ms, admission.withhold, admission.refused, quota, limit, share, request_id)

    def _refusal(self, event: Request) -> Answer:
        """All mutations are refused; there is no event, because nothing is executed."""
        return Answer(CLOSED_RETRY_MS, refused=(True,) * len(event.mutations))

    def _unforeseen_wait(self, event: Request) -> Wait | None:
        unforeseen = self._in_force.unforeseen
        if not len(unforeseen):
            return None  # before the counters are found, which takes longer than all the rest
        touched = [(entry.topic, entry.partition) for entry in event.topic_partitions]
        return unforeseen.longest(self._in_force.counters(event.user or "", event.client_id or "", event.api, touched))

    def _left_ms(self, wait: Wait | None) -> int:
        return 0 if wait is None else max(0, wait.until_ms - self._clock_ms())

    def _decided_answer(self, value: bytes, event: Request) -> Answer | None:
        return decided_answer(value, event, self.options.max_mute_ms)

    def _admit_undecided(self, event: Request, future: "Future[bytes]") -> Answer:
        """Answers in line what wasn't decided in time. The event stays the charge; its decision may still come."""
        if self._closes_when_stale or self.refuses_all():
            return self._refusal(event)
        admission, in_line = self._charge(event)
        future.add_done_callback(lambda done: self._correct(event, admission.refused, in_line, done.result()))
        return self._answer(event, admission, event.request_id)

    def _correct(self, event: Request, refused: tuple[bool, ...], in_line: bool, value: bytes) -> None:
        """Puts the books right when mutations that were answered in line are decided. In the reader's thread."""
        self._forget(str(event.request_id))
        decided = self._decided_answer(value, event)
        if decided is None:
            return
        twice, missed = correction(event, refused, decided.refused)
        if in_line and twice:
            self._inline.take_back(value, twice)
        if missed:
            executed = Request(event.api, user=event.user, client_id=event.client_id, mutations_charged=missed)
            executed.throttled_by = [] if in_line else None
            with suppress(GatewayClosedError):
                self._publish([self._filled(executed)], may_block=False)

    def _note_allowed(self) -> None:
        """Counts who is let through while not all is known that could hold it."""
        before_limits, before_current = self._in_force.limits is None, not self._current.is_set()
        if (before_limits or before_current) and not self.refuses_all():
            with self._lock:
                self._allowed_before_limits += before_limits
                self._allowed_before_current += before_current

    def _on_decision(self, _: bytes | None, value: bytes | None) -> None:
        """Handles one record of the decisions topic. Raises if it is no decision, or what the caller's code raises."""
        decided = read_decided(value)
        now_ms, charges = self._clock_ms(), enforced_charges(decided)
        if decided.api == HEARTBEAT_API and decided.instance == self.instance:
            self._notice_namesake(decided)
        self._in_force.take_decided(decided, charges, now_ms)
        self._inline.take_decided(decided, charges, now_ms)
        self._staleness.note_decided(decided.timestamp_ms, now_ms)
        self._decisions += 1
        if self._awaited and decided.instance == self.instance:
            self._resolve(decided.request_id, value or b"")
        if self._decision_callback is not None:
            self._decision_callback(msgspec.json.decode(value or b""))

    def _notice_namesake(self, decided: Decided) -> None:
        """Let a heartbeat of this instance that isn't this gateway's own be that of another gateway.

        Two that took each other's charges for their own would let a client use its quota twice.
        """
        if decided.request_id.startswith(self._id_stem):
            return
        decided.instance = decided.request_id.rpartition("-")[0] or "namesake"
        if decided.timestamp_ms >= self._started_ms and not self._said_namesake:
            self._said_namesake = True
            log.error(
                "another gateway has the instance %s as well; expected a name that no other process has: its charges"
                " are taken for those of this one",
                self.instance[:100],
            )

    def _on_read(self, other: TopicFollower) -> None:
        """Notes that one of the two topics with waits is read; the gateway is current when the other one is too."""
        if other.caught_up.is_set():
            self._in_force.relax()  # what the waits topic keeps may have been decided under other limits
            self._in_force.forget_kept_orders()
            self._current.set()

    def _on_idle(self) -> None:
        """Housekeeping. The reader of decisions calls it several times a second."""
        self._in_force.expire()
        if self._in_force.decided.capped and not self._said_capped:
            self._said_capped = True
            log.warning(
                "a decision asks for a wait of more than max_mute_ms (%d ms), which counts as that; further ones are"
                " only counted",
                self.options.max_mute_ms,
            )
        self._heartbeat()

    def _heartbeat(self) -> None:
        """Publishes once in HEARTBEAT_MS that this gateway is alive. It never waits: the reader's thread must go on."""
        now = self._clock_ms()
        if abs(now - self._last_heartbeat_ms) < HEARTBEAT_MS:
            return
        if now < self._last_heartbeat_ms:
            log.warning("the clock was set back by %d ms; shares begin anew", self._last_heartbeat_ms - now)
            self._inline.step_back()
        self._last_heartbeat_ms = now
        counters, _ = self._inline.size()
        heartbeat = Heartbeat(self._staleness.stale_ms(), counters, self._inline.busiest())
        with suppress(GatewayClosedError):
            self._publish([self._filled(Request(HEARTBEAT_API, heartbeat=heartbeat))], may_block=False)

    def _await(self, request_id: str) -> "Future[bytes]":
        future: Future[bytes] = Future()
        with self._lock:
            if request_id in self._awaited:
                raise InvalidRequestError("request_id", "is that of a request that is awaited", "another one")
            self._awaited[request_id] = future
            while len(self._awaited) > MAX_AWAITED:
                self._awaited.popitem(last=False)
        return future

    def _resolve(self, request_id: str, value: bytes) -> None:
        """Hands the record of a decision to the one who waits for it, if anybody does."""
        with self._lock:
            future = self._awaited.get(request_id)
        if future is not None and not future.done():
            future.set_result(value)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._awaited.pop(request_id, None)
