"""Rig of the bench: a folder under .work and a broker in it, both removed afterwards, and Spark drivers."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Self, cast

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sluice.configs.settings import Settings, load_settings
from sluice.kafka_io.topics import ensure_topics
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice_demo.broker import Broker
from sluice_demo.job import Json, Sections, storage_in, write_settings
from sluice_lab.benchmarks.driver import BenchError, Driver, DriverManager, run_apart
from sluice_lab.benchmarks.events import Load

__all__ = ["BenchError", "BenchmarkRig", "Driver", "Record", "Setup"]

_WORK = Path(".work")
_LEADER_S = 30.0
_POLL_S = 0.1
_TICK_S = 0.002
_PRODUCER = {"linger.ms": 5, "queue.buffering.max.messages": 500_000, "compression.type": "none"}
_CONSUMER = {"group.id": "bench", "enable.auto.commit": False, "log_level": 2}

Record = tuple[bytes, bytes]
"""Key and value."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One configuration of the job: its settings file, and the settings in it."""

    file: Path
    settings: Settings


class BenchmarkRig(AbstractContextManager["BenchmarkRig"]):
    """Folder and broker; `overrides` replace settings of every setup."""

    def __init__(self, overrides: Sections) -> None:
        self._overrides = overrides
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        _WORK.mkdir(exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="bench-", dir=_WORK, ignore_cleanup_errors=True)
        self.folder = Path(self._stack.enter_context(folder)).absolute()
        self.servers = self._stack.enter_context(Broker(self.folder / "broker")).bootstrap_servers
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def setup(self, name: str, requests: str, quotas: Iterable[QuotaEntry] = (), **sections: Json) -> Setup:
        """A configuration with its own checkpoint, tables and output topics, which reads the topic `requests`."""
        folder = self.folder / name
        folder.mkdir()
        named = [
            topic for topic, value in asdict(load_settings(environment={}).topics).items() if isinstance(value, str)
        ]
        topics = {topic: f"{name}-{topic.replace('_', '-')}" for topic in named} | {"requests": requests}
        own: Sections = {
            "kafka": {"bootstrap.servers": self.servers},
            "topics": {**topics, "partitions": os.cpu_count() or 1},  # as docs/sizing.md, "One machine", says
            "audit": {"trigger_s": 0},
        }
        file = folder / "settings.yaml"
        setup = Setup(file, write_settings(file, storage_in(folder), own, self._overrides, sections))
        ensure_topics(setup.settings.topics, setup.settings.kafka)
        QuotasTable(setup.settings.delta.quotas).create(quotas, "bench", datetime.now(UTC))
        return setup

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """A Spark driver in a process of its own. Of several, one runs a query at a time."""
        manager = DriverManager(ctx=get_context("spawn"), shutdown_timeout=10.0)
        manager.start(run_apart, (self.folder / "driver.log",))
        try:
            yield cast(Driver, manager.Driver())  # type: ignore[attr-defined] # registered
        finally:
            manager.shutdown()

    def publish(self, topic: str, records: Iterable[Record]) -> None:
        """Publish records as fast as possible; returns when the broker has them."""
        producer = Producer({"bootstrap.servers": self.servers, **_PRODUCER})
        for number, (key, value) in enumerate(records):
            if number % 50_000 == 0:
                producer.flush()  # bounds the queue
            producer.produce(topic, value, key)
        producer.flush()

    def publish_backlog(self, topic: str, load: Load, users: Iterable[int]) -> None:
        """Publish an event of each user in turn, the last one with the present time."""
        self.publish(topic, load.backlog(list(users), now_ms()))

    def sending(self, topic: str, per_s: float, records: Iterator[Record]) -> BackgroundService:
        """A service that publishes records at a steady rate, or until all are published."""
        return BackgroundService("sending", partial(_send, self.servers, topic, per_s, records), _TICK_S)

    def reader(self, topic: str) -> "closing[Consumer]":
        """A consumer of the records that a topic receives from now on."""
        consumer = Consumer({"bootstrap.servers": self.servers, **_CONSUMER})
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, _end(consumer, topic, number)) for number in numbers])
        return closing(consumer)

    def mean_bytes(self, topic: str) -> int:
        """Mean size of the first values of a topic: a copy has to write as much for the same work."""
        with closing(Consumer({"bootstrap.servers": self.servers, **_CONSUMER})) as consumer:
            numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
            values = [record.value() for record in consumer.consume(500, timeout=30)]
        return round(statistics.mean(len(value) for value in values if value is not None))


def _send(servers: str, topic: str, per_s: float, records: Iterator[Record]) -> Iterator[None]:
    """Publish the records that are due, at each step."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    start_s, sent = time.monotonic(), 0
    try:
        while True:
            due = int((time.monotonic() - start_s) * per_s)
            for key, value in islice(records, due - sent):
                producer.produce(topic, value, key)
            sent = due
            producer.poll(0)
            yield
    finally:
        producer.flush()


def _end(consumer: Consumer, topic: str, number: int) -> int:
    """The partition's next offset. Waits while the broker doesn't know the leader of a new topic yet."""
    deadline_s = time.monotonic() + _LEADER_S
    while True:
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_LEADER_S)
            return int(end)
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)
