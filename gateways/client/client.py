"""The gateway client for Kafka proxies, brokers and API front ends. It needs no Spark.

with Gateway({"bootstrap.servers": "127.0.0.1:9092"}, GatewayOptions(name="gateway-1")) as gateway:
    wait_ms = gateway.check(user, client_id, "Produce")  # 0: serve the request
    gateway.publish({"api": "Produce", "user": user, "client_id": client_id, ...})
"""

import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from threading import Event, Lock
from types import TracebackType
from typing import Any, Self

import msgspec

from configs.kafka import kafka_python_config
from gateways.client.clock import now_ms
from gateways.client.decided import Decided, decided_waits, read_decided
from gateways.client.event_sender import EventRecord, EventSender
from gateways.client.options import BeforeKnown, GatewayOptions, StalePolicy
from gateways.client.topic_reader import CLOSE_S, Reading, TopicReader
from gateways.client.wait_table import Order, Wait, WaitTable
from gateways.errors import GatewayClosedError
from state.decisions.request import Request, check_request
from state.decisions.wait_records import read_wait
from state.decisions.waits import (
    CounterKey,
    TopicPartitionName,
    counters_of,
    possible_counters,
    wait_under_limit_ms,
)
from state.errors import InvalidRequestError
from state.quotas.entity import client_key
from state.quotas.kinds import CLIENT_KINDS, TOPIC_KINDS
from state.quotas.limits import LimitsInForce, LimitsView

log = logging.getLogger(__name__)

MAX_AWAITED = 10_000
"""Most requests that wait for their decisions at a time. Beyond it the oldest is given up."""

RECENT_AGES = 1_024
"""Number of recent decisions that the age percentiles cover."""

CLOSED_RETRY_MS = 1_000
"""The wait that `check` returns while stale decisions keep the gateway closed."""

HEARTBEAT_API = "ApiVersions"
HEARTBEAT_CLIENT_ID = "sluice-gateway-heartbeat"

DecisionFields = dict[str, Any]
"""A decision, decoded from JSON (docs/decision.schema.json)."""


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """Counts of one gateway. A decision's age is from the request's timestamp to the decision's arrival.

    `muted` counters have a wait, `evicted` waits were given up because there were too many, `capped` ones asked for
    more than `max_mute_ms`. The percentiles cover the last RECENT_AGES decisions. `stale_s` is the age of the oldest
    event that may be without a decision. `unsent` events wait for Kafka, `dropped` ones found the buffer full, `failed`
    ones were given up. `limits_version` is the version of the limits in force, None before they are read; the requests
    that were let through meanwhile are `allowed_before_limits`. `is_current` says whether the waits decided earlier are
    read; requests let through before are `allowed_before_current`. `unreadable_records` of all topics were skipped,
    `reader_restarts` says how often a reader failed and was started again.
    """

    muted: int
    evicted: int
    decisions: int
    decision_age_p50_ms: int
    decision_age_p99_ms: int
    stale_s: float
    published: int
    unsent: int
    dropped: int
    failed: int
    capped: int = 0
    limits_version: int | None = None
    allowed_before_limits: int = 0
    is_current: bool = False
    allowed_before_current: int = 0
    unreadable_records: int = 0
    reader_restarts: int = 0


_JSON = msgspec.json.Encoder()


class Gateway:
    """Publishes request events, reads decisions in the background and knows who has to wait. Thread-safe.

    `kafka` holds Kafka's own property names, like section `kafka` of the settings. The gateway starts without a broker
    and connects in the background. Every decision is passed to `on_decision`, in the reader's thread. `clock_ms`
    returns epoch milliseconds. Raises UnsupportedPropertyError for a login or certificate store that kafka-python
    can't use.
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
        self.waits = WaitTable(self.options.max_muted, self.options.max_mute_ms, clock_ms)
        self._clock_ms = clock_ms
        self._decision_callback = on_decision
        self._closes_when_stale = self.options.policy is StalePolicy.FAIL_CLOSED
        self._id_stem = f"{self.options.name}-{uuid.uuid4().hex[:12]}"
        self._numbers = count()
        self._lock = Lock()  # guards the fields below, up to _awaited
        self._decisions = 0
        self._unanswered_since_ms: int | None = None
        self._last_published_ms = 0
        self._last_heartbeat_ms = 0
        self._allowed_before_limits = 0
        self._allowed_before_current = 0
        self._ages_ms: deque[int] = deque(maxlen=RECENT_AGES)
        self._awaited: OrderedDict[str, Future[DecisionFields]] = OrderedDict()
        self._limits: LimitsInForce | None = None
        self._limits_view = LimitsView()
        self._known_orders: dict[CounterKey, Order] = {}  # of the waits read from the waits topic
        self._said_capped = False
        self._current = Event()
        self._sender = EventSender(kafka, self.options.requests_topic, self.options.max_unsent, self.options.when_full)
        decisions = Reading(
            self.options.decisions_topic,
            self._on_decision,
            since_ms=max(0, now_ms() - int(self.options.lookback_s * 1000)),
            on_caught_up=lambda: self._on_read(self._waits_reader),
            on_idle=self._on_idle,
        )
        waits = Reading(
            self.options.waits_topic,
            self._on_wait,
            ends_there=True,  # the decisions say all that comes after
            on_restart=self._known_orders.clear,
            on_caught_up=lambda: self._on_read(self._decision_reader),
        )
        limits = Reading(self.options.limits_topic, self._on_limit, on_restart=self._read_limits_again)
        self._decision_reader = TopicReader(kafka, decisions)
        self._waits_reader = TopicReader(kafka, waits)
        self._limits_reader = TopicReader(kafka, limits)
        self._readers = (self._limits_reader, self._waits_reader, self._decision_reader)
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def check(
        self,
        user: str | None,
        client_id: str | None,
        api: str | None = None,
        topic_partitions: Iterable[TopicPartitionName] = (),
    ) -> int:
        """Returns 0 if the request may be served, else the milliseconds it has to wait. Never blocks.

        The wait is the longest of the counters that the request leads to: those of `api` such as "Produce" and of the
        (topic, partition) pairs it touches; without `api` all counters of this user and client-id. While the gateway
        is closed to everyone (`refuses_all`), it is at least CLOSED_RETRY_MS.
        """
        wait_ms = self.waits.remaining_ms(self._counters(user or "", client_id or "", api, topic_partitions))
        if self._limits is None or not self._current.is_set():
            return self._check_before_known(wait_ms)
        if self._closes_when_stale and self.is_stale():
            return max(wait_ms, CLOSED_RETRY_MS)
        return wait_ms

    def find_wait(
        self,
        user: str | None,
        client_id: str | None,
        api: str | None = None,
        topic_partitions: Iterable[TopicPartitionName] = (),
    ) -> Wait | None:
        """The wait behind what `check` returns, with its quota and limit; None if no counter waits."""
        return self.waits.longest(self._counters(user or "", client_id or "", api, topic_partitions))

    def refuses_all(self) -> bool:
        """Whether every client is refused.

        That is so while decisions are stale and the policy is FAIL_CLOSED, and before the limits or the waits that were
        decided earlier are known if the option for that is HOLD.
        """
        return (self._closes_when_stale and self.is_stale()) or self._is_held()

    def is_stale(self) -> bool:
        """Whether an event published more than `stale_after_s` ago may still be without a decision."""
        since_ms = self._unanswered_since_ms
        return since_ms is not None and self._clock_ms() - since_ms > self.options.stale_after_s * 1000

    def publish(self, request: Request | Mapping[str, object], awaited: bool = False) -> str | None:
        """Queues a request event for publishing and returns its id; None if the event was dropped.

        Fills in id, time and gateway name where they are missing. With `awaited`, `wait_for` can be called for the
        decision. A request that touches more than `max_charges_per_event` topic-partitions becomes several events with
        `-1`, `-2` and so on after its id, the first with the request's times. Then the id of the last one is returned,
        whose decision is made last; None if any was dropped. Raises InvalidRequestError for an event that breaks the
        contract, and GatewayClosedError.
        """
        event = _as_request(request)
        event = msgspec.structs.replace(
            event,
            request_id=event.request_id or f"{self._id_stem}-{next(self._numbers)}",
            timestamp_ms=self._clock_ms() if event.timestamp_ms is None else event.timestamp_ms,
            gateway=event.gateway or self.options.name,
        )
        parts = list(_parts(event, self.options.max_charges_per_event))
        for part in parts:
            check_request(part)
        request_id = str(parts[-1].request_id)
        if awaited:
            self._await(request_id)
        sent = [self._send(part) for part in parts]
        if all(sent):
            return request_id
        self._forget(request_id)
        return None

    def _send(self, event: Request) -> bool:
        """Queues one event; False if it was dropped."""
        key = client_key(event.user or "", event.client_id or "").encode()
        # An event from the future must not set the record's time: the broker refuses it with the whole batch it is in.
        timestamp_ms = min(int(event.timestamp_ms or 0), self._clock_ms())
        self._note_published(timestamp_ms)  # before its decision can arrive
        return self._sender.send(EventRecord(key, _JSON.encode(event), timestamp_ms))

    def wait_for(self, request_id: str, timeout_s: float) -> DecisionFields | None:
        """The decision on a request published with `awaited`; None if none arrives in time. Call it once a request."""
        with self._lock:
            future = self._awaited.get(request_id)
        if future is None:
            return None
        try:
            return future.result(timeout_s)
        except TimeoutError:
            return None
        finally:
            self._forget(request_id)

    def decide(self, request: Request | Mapping[str, object], timeout_s: float) -> DecisionFields | None:
        """Publishes the event and waits for its decision, which strict mutation requests need; None as `wait_for`."""
        request_id = self.publish(request, awaited=True)
        return None if request_id is None else self.wait_for(request_id, timeout_s)

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Waits until all waits that were decided before the start are known; False on timeout."""
        return self._current.wait(timeout_s)

    def stats(self) -> GatewayStats:
        """The gateway's counts."""
        with self._lock:
            ages_ms = sorted(self._ages_ms)
            since_ms = self._unanswered_since_ms
        return GatewayStats(
            muted=len(self.waits),
            evicted=self.waits.evicted,
            decisions=self._decisions,
            decision_age_p50_ms=_percentile(ages_ms, 0.50),
            decision_age_p99_ms=_percentile(ages_ms, 0.99),
            stale_s=0.0 if since_ms is None else max(0, self._clock_ms() - since_ms) / 1000,
            published=self._sender.published,
            unsent=self._sender.unsent,
            dropped=self._sender.dropped,
            failed=self._sender.failed,
            capped=self.waits.capped,
            limits_version=limits.version if (limits := self._limits) else None,
            allowed_before_limits=self._allowed_before_limits,
            is_current=self._current.is_set(),
            allowed_before_current=self._allowed_before_current,
            unreadable_records=sum(reader.unreadable for reader in self._readers),
            reader_restarts=sum(reader.restarts for reader in self._readers),
        )

    def close(self) -> None:
        """Publishes the remaining events for at most `close_timeout_s` and ends the threads. May be called again."""
        for reader in self._readers:
            reader.stop()
        self._sender.close(self.options.close_timeout_s)
        deadline_s = time.monotonic() + CLOSE_S
        for reader in self._readers:
            reader.close(max(0.0, deadline_s - time.monotonic()))

    def _counters(
        self, user: str, client_id: str, api: str | None, topic_partitions: Iterable[TopicPartitionName]
    ) -> Iterator[CounterKey]:
        """The counters that such a request leads to; all that it may lead to while the limits aren't known."""
        limits = self._limits
        if limits is None:
            return possible_counters(user, client_id, api, topic_partitions)
        return counters_of(limits.enforced, user, client_id, api, topic_partitions)

    def _is_held(self) -> bool:
        """Whether something isn't known yet without which nobody is to be served."""
        holds_for_limits = self._limits is None and self.options.before_limits is BeforeKnown.HOLD
        holds_for_waits = not self._current.is_set() and self.options.before_current is BeforeKnown.HOLD
        return holds_for_limits or holds_for_waits

    def _check_before_known(self, wait_ms: int) -> int:
        """What `check` returns while not all is known: HOLD holds everybody, ALLOW counts who is let through."""
        if self.refuses_all():
            return max(wait_ms, CLOSED_RETRY_MS)
        if wait_ms == 0:
            with self._lock:
                self._allowed_before_limits += self._limits is None
                self._allowed_before_current += not self._current.is_set()
        return wait_ms

    def _on_decision(self, _: bytes | None, value: bytes | None) -> None:
        """Handles one record of the decisions topic. Raises if it is no decision, or what the caller's code raises."""
        decided = read_decided(value)
        for counter, wait in decided_waits(decided, self._clock_ms()):
            self._take_wait(counter, wait, decided.quota_version)
        waiting = self._note_decision(decided)
        if waiting is not None:
            waiting.set_result(msgspec.json.decode(value or b""))
        if self._decision_callback is not None:
            self._decision_callback(msgspec.json.decode(value or b""))

    def _take_wait(self, counter: CounterKey, wait: Wait, quota_version: int) -> None:
        """Takes over a wait, as the limits in force have it if the decision was made under older ones."""
        limits = self._limits
        if wait.wait_ms and limits is not None and quota_version < limits.version:
            left_ms = wait_under_limit_ms(wait.wait_ms, wait.rate, wait.limit, _limit_of(limits, counter))
            if left_ms < wait.wait_ms:
                wait = wait._replace(until_ms=wait.until_ms - wait.wait_ms + left_ms if left_ms else 0)
        self.waits.take(counter, wait)
        if self._limits is not limits:  # they came in between, and have relaxed the waits without this one
            self._relax_waits()

    def _on_wait(self, key: bytes | None, value: bytes | None) -> None:
        """Handles one record of the waits topic. Raises InvalidWaitError for what is none."""
        counter, record = read_wait(key, value)
        if record is not None:
            order = (min(record.timestamp_ms, self._clock_ms()), record.offset)
            self._known_orders[counter] = order
            wait = Wait(record.until_ms, order, record.throttle_ms, counter[0], record.limit, record.rate)
            self.waits.take(counter, wait)
        elif (ended := self._known_orders.pop(counter, None)) is not None:
            self.waits.take(counter, Wait(0, ended))  # a wait that a decision has asked for since stays

    def _on_read(self, other: TopicReader) -> None:
        """Notes that one of the two topics with waits is read; the gateway is current when the other one is too."""
        if other.caught_up.is_set():
            self._relax_waits()  # what the waits topic keeps may have been decided under other limits
            self._known_orders.clear()
            self._current.set()

    def _on_limit(self, key: bytes | None, value: bytes | None) -> None:
        """Handles one record of the limits topic. Raises InvalidQuotaError for garbage."""
        known = self._limits_view.in_force
        self._limits_view.take(key, value)
        limits = self._limits_view.in_force
        if limits is not known:
            self._limits = limits
            self._relax_waits()

    def _read_limits_again(self) -> None:
        """Begins with no limits when the topic begins again; those in force stay until a version is complete."""
        self._limits_view = LimitsView()

    def _relax_waits(self) -> None:
        """Shortens or ends the waits whose limit was raised or removed."""
        limits = self._limits
        if limits is not None:
            self.waits.relax(lambda counter: _limit_of(limits, counter))

    def _note_decision(self, decision: Decided) -> Future[DecisionFields] | None:
        """Counts the decision. Returns the future that waits for it, if one does."""
        now = self._clock_ms()
        with self._lock:
            self._decisions += 1
            self._ages_ms.append(max(0, now - decision.timestamp_ms))
            if self._unanswered_since_ms is not None:
                all_answered = decision.timestamp_ms >= self._last_published_ms
                newer = max(self._unanswered_since_ms, min(decision.timestamp_ms, now))
                self._unanswered_since_ms = None if all_answered else newer
            waiting = self._awaited.get(decision.request_id)
        return waiting if waiting is not None and not waiting.done() else None

    def _note_published(self, timestamp_ms: int) -> None:
        with self._lock:
            self._last_published_ms = max(self._last_published_ms, timestamp_ms)
            if self._unanswered_since_ms is None:
                self._unanswered_since_ms = timestamp_ms

    def _await(self, request_id: str) -> None:
        with self._lock:
            self._awaited[request_id] = Future()
            while len(self._awaited) > MAX_AWAITED:
                self._awaited.popitem(last=False)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._awaited.pop(request_id, None)

    def _on_idle(self) -> None:
        """Housekeeping. The reader calls it several times a second."""
        self.waits.expire()
        if self.waits.capped and not self._said_capped:
            self._said_capped = True
            log.warning(
                "a decision asks for a wait of more than max_mute_ms (%d ms), which counts as that; further ones are"
                " only counted",
                self.options.max_mute_ms,
            )
        if self._closes_when_stale:
            self._heartbeat()

    def _heartbeat(self) -> None:
        """Publishes an event that costs no client anything, three times in `stale_after_s`.

        While the gateway refuses every client, only a heartbeat can show that decisions are flowing again.
        """
        now = self._clock_ms()
        due = now - self._last_heartbeat_ms >= self.options.stale_after_s * 1000 / 3
        if due and self._sender.unsent == 0:  # behind unsent events it would wait, and block the reader's thread
            self._last_heartbeat_ms = now
            with suppress(GatewayClosedError):
                self.publish(Request(api=HEARTBEAT_API, client_id=HEARTBEAT_CLIENT_ID))


def _as_request(request: Request | Mapping[str, object]) -> Request:
    if isinstance(request, Request):
        return request
    try:
        return msgspec.convert(dict(request), Request)
    except msgspec.ValidationError as error:
        raise InvalidRequestError("event", str(error), "the fields of the request event contract") from None


def _parts(event: Request, most: int) -> Iterator[Request]:
    """The event, or several that charge the same: each has at most `most` topic-partitions, the first has the times.

    Raises InvalidRequestError for too many mutations: their decision must see all of them.
    """
    if len(event.mutations) > most:
        raise InvalidRequestError("mutations", f"has {len(event.mutations)} entries", f"at most {most}")
    if len(event.topic_partitions) <= most:
        yield event
        return
    for number, start in enumerate(range(0, len(event.topic_partitions), most), 1):
        part = msgspec.structs.replace(
            event,
            request_id=f"{event.request_id}-{number}",
            topic_partitions=event.topic_partitions[start : start + most],
        )
        if number > 1:
            part.request_time_ns = part.network_time_ns = None
            part.mutations = []
        yield part


def _limit_of(limits: LimitsInForce, counter: CounterKey) -> float | None:
    """The limit of a counter; None for unlimited, and for a counter of a quota that this release doesn't know."""
    quota, tags = counter
    for kind in CLIENT_KINDS if tags.topic is None else TOPIC_KINDS:
        if kind == quota:
            return limits.enforced.limit_of(kind, tags)
    return None


def _percentile(ages_ms: list[int], share: float) -> int:
    return ages_ms[min(len(ages_ms) - 1, int(share * len(ages_ms)))] if ages_ms else 0
