"""Publishing of request events in the background, so that callers never wait for Kafka."""

import logging
import time
from collections.abc import Mapping
from enum import StrEnum
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from types import MappingProxyType
from typing import Final

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from sluice.gateways.errors import GatewayClosedError
from sluice.kafka_io.client import connect, error_line
from sluice.kafka_io.errors import KafkaUnavailableError

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


class WhenFull(StrEnum):
    """The fate of an event when `max_unsent` others wait for Kafka: wait for room, or drop and count it."""

    BLOCK = "block"
    DROP = "drop"


class EventRecord(msgspec.Struct, gc=False):
    """One event as a Kafka record."""

    key: bytes
    value: bytes
    timestamp_ms: int


class EventSender:
    """A background thread that publishes events in order and keeps them while no broker answers.

    At most `max_unsent` accepted events wait for Kafka. Every event is counted as `published`, `dropped`, `failed` or
    `unsent`.
    """

    def __init__(self, kafka: Mapping[str, str], topic: str, max_unsent: int, when_full: WhenFull) -> None:
        self.published = 0
        self.dropped = 0
        self.failed = 0
        self._kafka = kafka
        self._topic = topic
        self._when_full = when_full
        self._max_unsent = max_unsent
        self._accepted = 0
        self._counts = Lock()
        self._room = Condition(self._counts)
        self._queue: SimpleQueue[EventRecord | None] = SimpleQueue()  # None: the end
        self._closed = False
        self._said: set[type[BaseException]] = set()
        self._deadline_s = float("inf")  # on the monotonic clock; set by close
        self._thread = Thread(target=self._run, name="sluice-event-sender", daemon=True)
        self._thread.start()

    @property
    def unsent(self) -> int:
        """Events that wait for Kafka."""
        with self._counts:
            return self._accepted - self.published - self.failed

    def send(self, record: EventRecord, may_block: bool = True) -> bool:
        """Queues the event; False if it was dropped. With BLOCK a call waits for room while too many are unsent.

        One that may not block drops the event instead. Raises GatewayClosedError after close, which also ends a wait
        for room.
        """
        with self._counts:
            while not self._closed and self._accepted - self.published - self.failed >= self._max_unsent:
                if not may_block or self._when_full is WhenFull.DROP:
                    self.dropped += 1
                    return False
                self._room.wait()
            if self._closed:
                raise GatewayClosedError("the gateway is closed; it takes no more events")
            self._accepted += 1
            self._queue.put(record)
        return True

    def close(self, timeout_s: float) -> None:
        """Publishes the remaining events for at most `timeout_s`; events left after that count as failed.

        Without any it doesn't wait: no broker may ever answer.
        """
        with self._counts:
            failed = self.failed
            if self._accepted == self.published + failed:
                timeout_s = 0.0
            if not self._closed:
                self._closed = True
                self._deadline_s = time.monotonic() + timeout_s
                self._queue.put(None)
                self._room.notify_all()
        self._thread.join(timeout_s + CLOSE_S)  # with a limit: kafka-python takes long to notice that a broker is gone
        with self._counts:
            self.failed = self._accepted - self.published
            given_up = self.failed - failed
        if given_up:
            log.error(
                "request events given up because Kafka hadn't taken them when the gateway was closed: %d", given_up
            )

    def _run(self) -> None:
        producer = self._connect()
        if producer is not None:
            while (record := self._queue.get()) is not None:
                self._publish(producer, record)
            self._close_producer(producer)

    def _connect(self) -> KafkaProducer | None:
        """A producer that has reached a broker; None if the deadline passed first."""
        while not self._is_over():
            try:
                return connect(KafkaProducer, self._kafka, **PRODUCER_OPTIONS)
            except KafkaUnavailableError as error:
                log.warning("%s; trying again", error)
                time.sleep(min(RECONNECT_S, max(0.0, self._deadline_s - time.monotonic())))
        return None

    def _publish(self, producer: KafkaProducer, record: EventRecord) -> None:
        while not self._is_over():
            try:
                future = producer.send(self._topic, record.value, record.key, timestamp_ms=record.timestamp_ms)
            except KafkaTimeoutError:  # the topic is unknown: no broker answers, or it does not exist yet
                continue
            except (KafkaError, ValueError) as error:
                self._note_failure(error)
                return
            future.add_callback(self._note_success)
            future.add_errback(self._note_failure)
            return

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline_s

    def _note_success(self, _: object) -> None:
        with self._counts:
            self.published += 1
            self._room.notify()

    def _note_failure(self, error: BaseException) -> None:
        with self._counts:
            self.failed = min(self.failed + 1, self._accepted - self.published)  # close has counted what comes late
            self._room.notify()
            is_said = self._closed or type(error) in self._said  # close says how many it has given up
            self._said.add(type(error))
        if not is_said:
            log.error("a request event can't be published: %s; further ones are only counted", error_line(error))

    def _close_producer(self, producer: KafkaProducer) -> None:
        try:
            producer.close(max(CLOSE_S, self._deadline_s - time.monotonic()))
        except KafkaTimeoutError:  # close has left its thread running, and no public call ends it
            producer._sender.force_close()  # noqa: SLF001
            producer.close(1)
