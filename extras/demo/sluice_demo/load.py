"""Publishes generated request events, at a rate or as fast as possible."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaProducer
from kafka.producer.future import RecordMetadata

from sluice.configs.settings import Settings
from sluice.kafka_io.client import connect
from sluice.process.clock import now_ms
from sluice_demo.load_generator import LoadGenerator

TICK_S = 0.01
"""Interval at which a run with a rate publishes the events that are due."""

BATCH_EVENTS = 20_000
"""Number of events that a run which is behind gives to the producer before it waits for the broker."""

PRODUCER_OPTIONS: Final[Mapping[str, int]] = {
    "linger_ms": 10,
    "batch_size": 131_072,
    "delivery_timeout_ms": 35_000,  # an event that no broker accepts within this time counts as failed
    "enable_idempotence": False,  # kafka-python's idempotent producer never gives up on an unreachable broker
    "max_in_flight_requests_per_connection": 1,  # keeps the order without idempotence
}


@dataclass(slots=True)
class Sent:
    """Counts of one run; the producer's thread adds failures."""

    events: int = 0
    bad: int = 0
    failed: int = 0
    failure: str = ""
    seconds: float = 0.0
    stored: Callable[[RecordMetadata], None] | None = None
    """Called by the producer for each event that the broker has stored, if set."""

    def note_failure(self, error: Exception) -> None:
        """Called by the producer for each event that it gives up on."""
        self.failed += 1
        self.failure = " ".join(str(error).split())

    def and_then(self, other: "Sent") -> "Sent":
        """The counts of this run and the one after it."""
        events, bad, failed = self.events + other.events, self.bad + other.bad, self.failed + other.failed
        return Sent(events, bad, failed, other.failure or self.failure, self.seconds + other.seconds)

    def summary(self) -> str:
        """The run in one line."""
        rate_per_s = (self.events - self.failed) / self.seconds if self.seconds else 0.0
        failed = f"; {self.failed} failed, the last with: {self.failure}" if self.failed else ""
        return f"{self.events} events ({self.bad} bad) in {self.seconds:.1f} s, {rate_per_s:.0f} events/s{failed}"


def publish(
    producer: KafkaProducer,
    topic: str,
    generator: LoadGenerator,
    stop: Event,
    rate_per_s: float = 0.0,
    count: int = sys.maxsize,
    seconds: float = math.inf,
    sent: Sent | None = None,
) -> Sent:
    """Publish events from number 0 until `count`, `seconds` or `stop`, and wait until the broker has them all.

    A `rate_per_s` of 0 is as fast as possible, as is a rate that this machine can't reach. `sent` is updated meanwhile.
    """
    sent = sent or Sent()
    start = time.monotonic()
    while True:
        elapsed_s = min(time.monotonic() - start, seconds)
        due = min(count, int(elapsed_s * rate_per_s)) if rate_per_s else count
        _publish_until(min(due, sent.events + BATCH_EVENTS), producer, topic, generator, sent)
        if stop.is_set() or sent.events >= count or elapsed_s >= seconds:
            break
        if sent.events < due:
            producer.flush()  # bounds the memory, because nothing else slows down a loop that is behind
        else:
            stop.wait(TICK_S)
    producer.flush()
    sent.seconds = time.monotonic() - start
    return sent


def _publish_until(due: int, producer: KafkaProducer, topic: str, generator: LoadGenerator, sent: Sent) -> None:
    """Send the events up to number `due`, all with the current time."""
    timestamp_ms = now_ms()
    for sequence in range(sent.events, due):
        value = generator.event(sequence, timestamp_ms)
        future = producer.send(topic, value, generator.key(sequence), timestamp_ms=timestamp_ms)
        future.add_errback(sent.note_failure)
        if sent.stored is not None:
            future.add_callback(sent.stored)
        sent.bad += generator.is_bad(sequence)
    sent.events = due


def load(settings: Settings, generator: LoadGenerator, stop: Event, rate_per_s: float, **limits: Any) -> Sent:
    """Publish a load to a job's requests topic, as `publish` does.

    An event whose acknowledgement was lost is sent again, and is then a second request.
    """
    with connect(KafkaProducer, settings.kafka, **PRODUCER_OPTIONS) as producer:
        return publish(producer, settings.topics.requests, generator, stop, rate_per_s, **limits)


@contextmanager
def loading(
    settings: Settings, generator: LoadGenerator, rate_per_s: float, sent: Sent | None = None
) -> Iterator[None]:
    """Publish a load in the background while this block runs."""
    stop = Event()
    thread = Thread(target=load, args=(settings, generator, stop, rate_per_s), kwargs={"sent": sent}, daemon=True)
    thread.start()
    try:
        yield
    finally:  # without a broker a producer that is left open ends with a traceback
        stop.set()
        thread.join()
