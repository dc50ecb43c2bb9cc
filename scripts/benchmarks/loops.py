"""The simplest alternative to Sluice: a consumer loop with a dictionary of counters.

    python -m scripts.benchmarks.loops kafka-python|confluent-kafka SETTINGS LOAD EVENTS

prints requests/s. One process; the limits are known in advance, quotas are not looked up, and a crash loses all state.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from scripts.benchmarks.events import LOADS, ONE_CHARGE, TWO_CHARGES
from sluice.configs.settings import Settings, load_settings
from sluice.state.arithmetic.charge import Charge, Outcome
from sluice.state.arithmetic.counter import EntityCounters
from sluice.state.decisions.charge_plan import request_points
from sluice.state.decisions.request import Request
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings

Key = str | tuple[str, int]
Charger = Callable[["PlainLoop", Request], list[Outcome]]

_POLL_EVENTS = 1000
_POLL_S = 10.0  # idle time at the end of the backlog would count as time of the loop


class PlainLoop:
    """Parse, charge, answer: one request after another."""

    def __init__(self, load: str, settings: QuotaSettings) -> None:
        quotas = next(candidate.quotas for candidate in LOADS if candidate.name == load)
        self._limits = {quota.kind: quota.value for quota in quotas}
        self._settings = settings
        self._counters: dict[Key, EntityCounters] = {}
        self._parse = msgspec.json.Decoder(Request).decode
        self._write = msgspec.json.Encoder().encode
        self._charge: Charger = {ONE_CHARGE.name: PlainLoop._mutations, TWO_CHARGES.name: PlainLoop._client}.get(
            load, PlainLoop._client_and_partitions
        )

    def decide(self, value: bytes) -> bytes:
        """The decision on one event."""
        request = self._parse(value)
        outcomes = self._charge(self, request)
        throttle_ms = max(outcome.wait_ms for outcome in outcomes)
        decision = {
            "request_id": request.request_id,
            "timestamp_ms": request.timestamp_ms,
            "user": request.user,
            "client_id": request.client_id,
            "api": request.api,
            "gateway": request.gateway,
            "verdict": "THROTTLE" if throttle_ms else "ALLOW",
            "throttle_time_ms": throttle_ms,
            "charges": [
                {
                    "quota": outcome.charge.kind,
                    "limit": outcome.charge.limit,
                    "value": outcome.value,
                    "rate": outcome.rate,
                    "tokens": outcome.tokens,
                    "throttle_ms": outcome.wait_ms,
                    "violated": outcome.violated,
                }
                for outcome in outcomes
            ],
        }
        return self._write(decision)

    def _mutations(self, request: Request) -> list[Outcome]:
        amounts = [float(mutation.partitions) for mutation in request.mutations]
        return [self._one(request.user or "", QuotaKind.CONTROLLER_MUTATION_RATE, amounts, request)]

    def _client(self, request: Request) -> list[Outcome]:
        user, size = request.user or "", sum(touched.bytes for touched in request.topic_partitions)
        return [
            self._one(user, QuotaKind.PRODUCER_BYTE_RATE, [float(size)], request),
            self._one(user, QuotaKind.REQUEST_PERCENTAGE, request_points(request, self._settings), request),
        ]

    def _client_and_partitions(self, request: Request) -> list[Outcome]:
        kind = QuotaKind.TOPIC_PRODUCER_BYTE_RATE
        return self._client(request) + [
            self._one((touched.topic, touched.partition), kind, [float(touched.bytes)], request)
            for touched in request.topic_partitions
        ]

    def _one(self, key: Key, kind: QuotaKind, amounts: list[float], request: Request) -> Outcome:
        counters = self._counters.get(key)
        if counters is None:
            counters = self._counters[key] = EntityCounters()
        charge = Charge(kind, "", self._limits[kind], False, amounts, strict=True)
        return counters.charge(charge, request.timestamp_ms or 0, self._settings)


def run_kafka_python(settings: Settings, loop: PlainLoop, events: int) -> float:
    """Requests/s with kafka-python."""
    servers, topics = settings.kafka["bootstrap.servers"], settings.topics
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5, batch_size=131_072)
    numbers = consumer.partitions_for_topic(topics.requests)
    consumer.assign([PythonTopicPartition(topics.requests, number) for number in numbers])
    consumer.seek_to_beginning()

    def records() -> Iterator[tuple[bytes, bytes]]:
        while True:
            for polled in consumer.poll(timeout_ms=int(_POLL_S * 1000), max_records=_POLL_EVENTS).values():
                for record in polled:
                    yield record.key, record.value

    def send(key: bytes, value: bytes) -> None:
        producer.send(topics.decisions, value, key)

    return _timed(records(), loop, send, producer.flush, events)


def run_confluent_kafka(settings: Settings, loop: PlainLoop, events: int) -> float:
    """Requests/s with confluent-kafka, whose C threads do the network I/O."""
    servers, topics = settings.kafka["bootstrap.servers"], settings.topics
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench-loop", "enable.auto.commit": False})
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    numbers = consumer.list_topics(topics.requests, timeout=30).topics[topics.requests].partitions
    consumer.assign([TopicPartition(topics.requests, number, 0) for number in numbers])

    def records() -> Iterator[tuple[bytes, bytes]]:
        while True:
            for record in consumer.consume(_POLL_EVENTS, timeout=_POLL_S):
                yield record.key() or b"", record.value() or b""

    def send(key: bytes, value: bytes) -> None:
        producer.produce(topics.decisions, value, key)

    return _timed(records(), loop, send, producer.flush, events)


def _timed(
    records: Iterator[tuple[bytes, bytes]],
    loop: PlainLoop,
    send: Callable[[bytes, bytes], None],
    flush: Callable[[], object],
    events: int,
) -> float:
    """Requests/s from the second record, when all connections are open, until the broker has every decision."""
    key, value = next(records)
    send(key, loop.decide(value))
    start = time.perf_counter()
    for _ in range(events - 1):
        key, value = next(records)
        send(key, loop.decide(value))
    flush()
    return (events - 1) / (time.perf_counter() - start)


CLIENTS = {"kafka-python": run_kafka_python, "confluent-kafka": run_confluent_kafka}


def main() -> None:
    """Run the loop that the command line names."""
    client, file, load, events = sys.argv[1:]
    settings = load_settings(Path(file))
    print(CLIENTS[client](settings, PlainLoop(load, settings.quota), int(events)))


if __name__ == "__main__":
    main()
