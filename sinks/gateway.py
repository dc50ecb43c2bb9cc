"""The gateway client: what a Kafka proxy, a broker or an API front end needs of Sluice. No Spark in it.

with Gateway({"bootstrap.servers": "127.0.0.1:9092"}, GatewayOptions(name="gateway-1")) as gateway:
    wait_ms = gateway.check(user, client_id)          # 0: serve the request
    gateway.publish({"api": "Produce", "user": user, "client_id": client_id, ...})
"""

import logging
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from threading import Lock
from types import TracebackType
from typing import Any, Self

import msgspec

from sinks.decision_reader import DecisionReader
from sinks.errors import GatewayClosedError
from sinks.event_sender import EventRecord, EventSender, WhenFull
from sinks.mute_table import Mute, MuteTable, now_ms
from sinks.topics import kafka_python_config
from state.entity import sanitize
from state.errors import InvalidRequestError
from state.request import Request, check_request

log = logging.getLogger(__name__)

MAX_AWAITED = 10_000
"""Most requests that wait for their decisions at a time; the oldest of more is given up."""

RECENT_AGES = 1_024
"""Decisions that the age percentiles look at."""

CLOSED_RETRY_MS = 1_000
"""The wait that `check` names while stale decisions keep the gateway closed."""

HEARTBEAT_API = "ApiVersions"
HEARTBEAT_CLIENT_ID = "sluice-gateway-heartbeat"

DecisionFields = dict[str, Any]
"""A decision as JSON has it (docs/decision.schema.json)."""


class StalePolicy(StrEnum):
    """What `check` says while no decision younger than `stale_after_s` answers what was published."""

    FAIL_OPEN = "fail_open"
    FAIL_CLOSED = "fail_closed"


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """How one gateway behaves. `name` is what its events carry as `gateway`."""

    name: str = "gateway"
    requests_topic: str = "quota-requests"
    decisions_topic: str = "quota-decisions"
    policy: StalePolicy = StalePolicy.FAIL_OPEN
    stale_after_s: float = 30.0
    lookback_s: float = 600.0  # how far back a new gateway reads the decisions topic
    max_muted: int = 100_000
    max_unsent: int = 100_000  # events kept while Kafka doesn't take them
    when_full: WhenFull = WhenFull.BLOCK
    close_timeout_s: float = 10.0  # how long close tries to publish what is left


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """A gateway in numbers; ages are from the request's timestamp to the decision's arrival, of late decisions."""

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


class _Charge(msgspec.Struct):
    quota: str
    limit: float | None = None
    throttle_ms: int = 0
    mode: str | None = None


class _Decision(msgspec.Struct):
    """What every decision is looked at for."""

    request_id: str
    timestamp_ms: int
    user: str | None = None
    client_id: str | None = None
    mute_until_ms: int | None = None
    decided_by: str | None = None


class _Charges(msgspec.Struct):
    charges: list[_Charge] = []


_DECISION = msgspec.json.Decoder(_Decision)
_CHARGES = msgspec.json.Decoder(_Charges)
_JSON = msgspec.json.Encoder()


class Gateway:
    """Publishes request events, reads decisions in the background and says who is muted. Thread-safe.

    `kafka` has Kafka's own property names, as section `kafka` of the settings. It starts without a broker and waits
    for one in the background. `on_decision` is called in the reader's thread with every decision that arrives.
    Raises UnsupportedPropertyError as kafka_python_config does.
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
        self.mutes = MuteTable(self.options.max_muted, clock_ms)
        self._clock_ms = clock_ms
        self._on_decision = on_decision
        self._closes_when_stale = self.options.policy is StalePolicy.FAIL_CLOSED
        self._id_stem = f"{self.options.name}-{uuid.uuid4().hex[:12]}"
        self._numbers = count()
        self._lock = Lock()  # guards what follows
        self._decisions = 0
        self._unanswered_since_ms: int | None = None
        self._last_published_ms = 0
        self._last_heartbeat_ms = 0
        self._ages_ms: deque[int] = deque(maxlen=RECENT_AGES)
        self._awaited: OrderedDict[str, Future[DecisionFields]] = OrderedDict()
        self._sender = EventSender(kafka, self.options.requests_topic, self.options.max_unsent, self.options.when_full)
        self._reader = DecisionReader(
            kafka, self.options.decisions_topic, self.options.lookback_s, self._take, self._tick
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def check(self, user: str | None, client_id: str | None) -> int:
        """0 when the client may go on, else the milliseconds it is still muted. Never waits for anything.

        With FAIL_CLOSED at least 1 000 ms for every client while decisions are stale.
        """
        remaining_ms = self.mutes.remaining_ms(user, client_id)
        if self._closes_when_stale and self.is_stale():
            return max(remaining_ms, CLOSED_RETRY_MS)
        return remaining_ms

    def refuses_all(self) -> bool:
        """Whether FAIL_CLOSED and stale decisions keep every client out."""
        return self._closes_when_stale and self.is_stale()

    def is_stale(self) -> bool:
        """Whether something published longer ago than `stale_after_s` may still be without a decision."""
        since_ms = self._unanswered_since_ms
        return since_ms is not None and self._clock_ms() - since_ms > self.options.stale_after_s * 1000

    def publish(self, request: Request | Mapping[str, object], awaited: bool = False) -> str | None:
        """Hands a request event over for publishing and returns its id; None if it was dropped.

        Id, time and gateway name are filled in where they are missing. With `awaited`, `wait_for` can be called for
        the decision. Raises InvalidRequestError for an event that breaks the contract and GatewayClosedError.
        """
        event = _as_request(request)
        event = msgspec.structs.replace(
            event,
            request_id=event.request_id or f"{self._id_stem}-{next(self._numbers)}",
            timestamp_ms=self._clock_ms() if event.timestamp_ms is None else event.timestamp_ms,
            gateway=event.gateway or self.options.name,
        )
        check_request(event)
        request_id, timestamp_ms = str(event.request_id), int(event.timestamp_ms or 0)
        if awaited:
            self._await(request_id)
        key = f"{sanitize(event.user or '')}|{sanitize(event.client_id or '')}".encode()
        self._note_published(timestamp_ms)  # before its decision can come
        if not self._sender.send(EventRecord(key, _JSON.encode(event), timestamp_ms)):
            self._forget(request_id)
            return None
        return request_id

    def wait_for(self, request_id: str, timeout_s: float) -> DecisionFields | None:
        """The decision on a request published with `awaited`; None if none comes in time. Ask once for each."""
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
        """Publishes the event and waits for its decision, as strict mutation requests need it; None as `wait_for`."""
        request_id = self.publish(request, awaited=True)
        return None if request_id is None else self.wait_for(request_id, timeout_s)

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Waits until the recent past of the decisions topic has been read; False if that takes longer."""
        return self._reader.ready.wait(timeout_s)

    def stats(self) -> GatewayStats:
        """The gateway in numbers."""
        with self._lock:
            ages_ms = sorted(self._ages_ms)
            since_ms = self._unanswered_since_ms
        return GatewayStats(
            muted=len(self.mutes),
            evicted=self.mutes.evicted,
            decisions=self._decisions,
            decision_age_p50_ms=_percentile(ages_ms, 0.50),
            decision_age_p99_ms=_percentile(ages_ms, 0.99),
            stale_s=0.0 if since_ms is None else max(0, self._clock_ms() - since_ms) / 1000,
            published=self._sender.published,
            unsent=self._sender.unsent,
            dropped=self._sender.dropped,
            failed=self._sender.failed,
        )

    def close(self) -> None:
        """Publishes what is left, for at most `close_timeout_s`, and ends the threads. A second call does nothing."""
        self._reader.stop()
        self._sender.close(self.options.close_timeout_s)
        self._reader.close()

    def _take(self, value: bytes | None) -> None:
        """One record of the decisions topic; what is no decision is passed over, it must not stop the others."""
        try:
            decision = _DECISION.decode(value or b"")
            mute = _mute(decision, value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if mute is not None:
            self.mutes.mute(decision.user, decision.client_id, mute)
        waiting = self._note_decision(decision)
        if waiting is not None:
            waiting.set_result(msgspec.json.decode(value or b""))
        if self._on_decision is not None:
            try:
                self._on_decision(msgspec.json.decode(value or b""))
            except Exception:  # whatever the caller's code does, the next decision must be read
                log.exception("on_decision failed on request %s", decision.request_id)

    def _note_decision(self, decision: _Decision) -> Future[DecisionFields] | None:
        """Counts the decision; returns whoever waits for it."""
        now = self._clock_ms()
        with self._lock:
            self._decisions += 1
            self._ages_ms.append(max(0, now - decision.timestamp_ms))
            if self._unanswered_since_ms is not None:
                all_answered = decision.timestamp_ms >= self._last_published_ms
                newer = max(self._unanswered_since_ms, decision.timestamp_ms)
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

    def _tick(self) -> None:
        """Called several times a second by the reader."""
        self.mutes.expire()
        if self._closes_when_stale:
            self._beat()

    def _beat(self) -> None:
        """An event that costs nobody anything: a closed gateway has no other way to see decisions come again."""
        now = self._clock_ms()
        due = now - self._last_heartbeat_ms >= self.options.stale_after_s * 1000 / 3
        if due and self._sender.unsent == 0:  # it would wait behind the others, and the reader with it
            self._last_heartbeat_ms = now
            with suppress(GatewayClosedError):
                self.publish(Request(api=HEARTBEAT_API, client_id=HEARTBEAT_CLIENT_ID))


def _as_request(request: Request | Mapping[str, object]) -> Request:
    if isinstance(request, Request):
        return request
    try:
        return msgspec.convert(dict(request), Request)
    except msgspec.ValidationError as error:
        raise InvalidRequestError("event", str(error), "fields as the contract has them") from None


def _mute(decision: _Decision, value: bytes) -> Mute | None:
    """The mute that the decision asks for, with the quota behind it and that quota's limit where it says so."""
    if decision.mute_until_ms is None:
        return None
    charges = [
        charge
        for charge in _CHARGES.decode(value).charges
        if charge.mode != "shadow" and charge.quota == decision.decided_by
    ]
    longest = max(charges, key=lambda charge: charge.throttle_ms, default=None)
    return Mute(decision.mute_until_ms, decision.decided_by, longest.limit if longest else None)


def _percentile(ages_ms: list[int], share: float) -> int:
    return ages_ms[min(len(ages_ms) - 1, int(share * len(ages_ms)))] if ages_ms else 0
