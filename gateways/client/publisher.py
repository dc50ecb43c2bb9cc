"""The events of one gateway on their way to Kafka, heartbeats among them. Callers never wait for Kafka."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from types import MappingProxyType
from typing import Final

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from sluice.gateways.client.events import as_request
from sluice.gateways.client.inline import InlineCharges
from sluice.gateways.client.options import GatewayOptions, WhenFull
from sluice.gateways.client.policy import Staleness
from sluice.gateways.errors import GatewayClosedError
from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.process.format import error_line
from sluice.state.contract.gateway_topics import DecidedHeartbeat
from sluice.state.contract.records import HEARTBEAT_API, NO_LOGIN, RELEASE, Heartbeat, Request
from sluice.state.quotas.entity import client_key
from sluice.state.shares.alive import HEARTBEAT_MS

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
"""Pause between two attempts to reach a broker."""

CLOSE_S = 0.5
"""Longest time in which the thread ends after the deadline for publishing."""

PRODUCER_OPTIONS: Final[Mapping[str, object]] = MappingProxyType(
    {
        "linger_ms": 5,
        "batch_size": 131_072,
        "delivery_timeout_ms": 600_000,  # an event that no broker accepts within it counts as failed
        "max_block_ms": 2_000,  # longest search of one attempt for the topic
        "reconnect_backoff_max_ms": 1_000,  # with the default a returning broker is found only after 30 s
        "allow_auto_create_topics": False,
        "enable_idempotence": False,  # kafka-python's idempotent producer never gives up when its broker is gone
        "max_in_flight_requests_per_connection": 1,  # keeps the order without idempotence
    }
)

MEAN_BYTES = 2_048
"""Largest mean of the unsent events: of larger ones, as with long names of clients, a gateway keeps fewer."""

_JSON = msgspec.json.Encoder()


def connected_producer(kafka: Mapping[str, str]) -> KafkaProducer:
    """A producer of events that has reached a broker. Raises KafkaUnavailableError."""
    return connect(KafkaProducer, kafka, **PRODUCER_OPTIONS)


class EventRecord(msgspec.Struct, gc=False):
    """One event as a Kafka record. It is settled once it counts as published or failed."""

    key: bytes
    value: bytes
    timestamp_ms: int
    is_settled: bool = False


class EventPublisher:
    """A background thread that publishes the events of one gateway in order, and keeps them while no broker answers.

    Every event is counted once, as `published`, `failed` or `dropped`; `unsent` events wait for Kafka. Those of one
    request are taken together, while fewer than `max_unsent`, of MEAN_BYTES in the mean, are unsent. The ids
    that it makes begin with `id_stem`, which no other gateway has.
    """

    def __init__(
        self,
        produce: Callable[[], KafkaProducer],
        options: GatewayOptions,
        instance: str,
        staleness: Staleness,
        clock_ms: Callable[[], int],
    ) -> None:
        self.id_stem = f"{options.name}-{uuid.uuid4().hex[:12]}"
        self.published = 0
        self.dropped = 0
        self.failed = 0
        self.unsent = 0
        self._unsent_bytes = 0
        self._produce = produce
        self._options = options
        self._instance = instance
        self._staleness = staleness
        self._clock_ms = clock_ms
        self._numbers = count()
        self._lock = Lock()  # guards the counts, and keeps the events of one request together
        self._room = Condition(self._lock)
        self._queue: SimpleQueue[EventRecord | None] = SimpleQueue()  # None: the end
        self._is_closed = self._has_given_up = False
        self._said: set[type[BaseException]] = set()
        self._deadline_s = float("inf")  # on the monotonic clock; set by close
        self._thread = Thread(target=self._run, name="sluice-event-publisher", daemon=True)
        self._thread.start()

    def completed_event(self, request: Request | Mapping[str, object]) -> Request:
        """The event with all that was missing: without a user it is of a client that has not logged in.

        The instance is always the gateway's own.
        """
        event = as_request(request)
        return msgspec.structs.replace(
            event,
            user=event.user or (NO_LOGIN if event.heartbeat is None else None),
            request_id=event.request_id or f"{self.id_stem}-{next(self._numbers)}",
            timestamp_ms=self._clock_ms() if event.timestamp_ms is None else event.timestamp_ms,
            gateway=event.gateway or self._options.name,
            instance=self._instance,
        )

    def publish(self, events: Sequence[Request], may_block: bool = True) -> str | None:
        """Queue the events of one request, all or none. Returns the id of the last one; None if they were dropped.

        With BLOCK a call waits for room while too many are unsent; one that may not block drops the events instead.
        Raises GatewayClosedError after close, which also ends a wait for room.
        """
        records, most = [self._record(event) for event in events], self._options.max_unsent
        with self._lock:
            while not self._is_closed and (self.unsent >= most or self._unsent_bytes >= most * MEAN_BYTES):
                if not may_block or self._options.when_full is WhenFull.DROP:
                    self.dropped += len(records)
                    return None
                self._room.wait()
            if self._is_closed:
                raise GatewayClosedError("the gateway is closed; it takes no more events")
            self.unsent += len(records)
            self._unsent_bytes += sum(len(record.value) for record in records)
            for record in records:
                self._staleness.note_published(record.timestamp_ms)  # before its decision can arrive
                self._queue.put(record)
        return events[-1].request_id

    def publish_own(self, event: Request) -> None:
        """Queue an event that the gateway itself makes. Drops it if the buffer is full or the gateway is closed."""
        with suppress(GatewayClosedError):
            self.publish((self.completed_event(event),), may_block=False)

    def close(self, timeout_s: float) -> None:
        """Publish the remaining events for at most `timeout_s`; events left after that count as failed.

        Without any it doesn't wait: no broker may ever answer.
        """
        with self._lock:
            failed = self.failed
            if not self.unsent:
                timeout_s = 0.0
            if not self._is_closed:
                self._is_closed = True
                self._deadline_s = time.monotonic() + timeout_s
                self._queue.put(None)
                self._room.notify_all()
        self._thread.join(timeout_s + CLOSE_S)  # with a limit: kafka-python takes long to notice that a broker is gone
        with self._lock:
            self._has_given_up = True
            self.failed += self.unsent
            self.unsent = 0
            given_up = self.failed - failed
        if given_up:
            log.error(
                "request events given up because Kafka hadn't taken them when the gateway was closed: %d", given_up
            )

    def _record(self, event: Request) -> EventRecord:
        key = client_key(event.user or "", event.client_id or "").encode()
        # An event from the future must not set the record's time: the broker refuses it with the whole batch it is in.
        return EventRecord(key, _JSON.encode(event), min(int(event.timestamp_ms or 0), self._clock_ms()))

    def _run(self) -> None:
        producer = self._connect()
        if producer is not None:
            while (record := self._queue.get()) is not None:
                self._send(producer, record)
            self._close_producer(producer)

    def _connect(self) -> KafkaProducer | None:
        """A producer that has reached a broker; None if the deadline passed first."""
        while not self._is_over():
            try:
                return self._produce()
            except KafkaUnavailableError as error:
                log.warning("%s; trying again", error)
                time.sleep(min(RECONNECT_S, max(0.0, self._deadline_s - time.monotonic())))
        return None

    def _send(self, producer: KafkaProducer, record: EventRecord) -> None:
        while not self._is_over():
            try:
                future = producer.send(
                    self._options.requests_topic, record.value, record.key, timestamp_ms=record.timestamp_ms
                )
            except KafkaTimeoutError:  # the topic is unknown: no broker answers, or it does not exist yet
                continue
            except Exception as error:  # of any class: the next event has to be published
                self._on_failed(record, error)
                return
            future.add_callback(partial(self._on_sent, record))
            future.add_errback(partial(self._on_failed, record))
            return

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline_s

    def _on_sent(self, record: EventRecord, _: object) -> None:
        with self._lock:
            self.published += self._settle(record)

    def _on_failed(self, record: EventRecord, error: BaseException) -> None:
        with self._lock:
            self.failed += self._settle(record)
            is_said = self._is_closed or type(error) in self._said  # close says how many it has given up
            self._said.add(type(error))
        if not is_said:
            log.error("a request event can't be published: %s; further ones are only counted", error_line(error))

    def _settle(self, record: EventRecord) -> bool:
        """Make room for another event; False if this one is counted already, also by close."""
        if record.is_settled or self._has_given_up:
            return False
        record.is_settled = True
        self.unsent -= 1
        self._unsent_bytes -= len(record.value)
        self._room.notify()
        return True

    def _close_producer(self, producer: KafkaProducer) -> None:
        try:
            producer.close(max(CLOSE_S, self._deadline_s - time.monotonic()))
        except KafkaTimeoutError:  # close has left its thread running, and no public call ends it
            producer._sender.force_close()  # noqa: SLF001
            producer.close(1)


class Heartbeats:
    """Publishes the heartbeats of one gateway, and recognises those that it hasn't sent under its instance."""

    def __init__(
        self,
        instance: str,
        publisher: EventPublisher,
        inline: InlineCharges,
        staleness: Staleness,
        clock_ms: Callable[[], int],
    ) -> None:
        self._instance = instance
        self._publisher = publisher
        self._inline = inline
        self._staleness = staleness
        self._clock_ms = clock_ms
        self._last_ms = 0

    def beat(self) -> None:
        """Publish a heartbeat once in HEARTBEAT_MS. Never waits: the reader's thread must go on."""
        now_ms = self._clock_ms()
        if abs(now_ms - self._last_ms) < HEARTBEAT_MS:
            return
        if now_ms < self._last_ms:
            log.warning("the clock was set back by %d ms; shares begin anew", self._last_ms - now_ms)
            self._inline.on_clock_set_back()
        self._last_ms = now_ms
        counters, _ = self._inline.size()
        busiest, command = self._inline.busiest(), self._inline.command()
        beat = Heartbeat(self._staleness.stale_ms(), counters, busiest, load=self._inline.load(), command=command)
        beat.release = RELEASE
        self._publisher.publish_own(Request(HEARTBEAT_API, heartbeat=beat))

    def sender_of(self, decided: DecidedHeartbeat) -> str:
        """The instance whose heartbeat was decided; another one if somebody else published it under this one's."""
        if decided.instance != self._instance or decided.request_id.startswith(self._publisher.id_stem):
            return decided.instance
        return decided.request_id.rpartition("-")[0] or "namesake"
