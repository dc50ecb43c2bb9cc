"""The rig of a benchmark: a broker and a folder of its own, both removed afterwards."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from scripts.benchmarks.events import Load
from scripts.testbed.broker import Broker
from scripts.testbed.job import Json, Sections, storage_in, write_settings
from scripts.testbed.processes import descendants, last_line, resident_mib
from sluice.configs.settings import Settings
from sluice.kafka_io.topics import ensure_topics
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.errors import SluiceError
from sluice.state.quotas.entry import QuotaEntry

_WORK = Path(".work")
_END_SECONDS = 30
_LEADER_SECONDS = 30.0
_POLL_SECONDS = 0.1
_TICK_SECONDS = 0.005
_PRODUCER = {"linger.ms": 5, "queue.buffering.max.messages": 500_000, "compression.type": "none"}
_CONSUMER = {"group.id": "bench", "enable.auto.commit": False, "log_level": 2}

Record = tuple[bytes, bytes]
"""Key and value."""


class BenchError(SluiceError):
    """Something can't be measured."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of a benchmark: `runs` of each figure over `batches` of `batch_events`; the first `warm` don't count.

    Java compiles for minutes, which doesn't matter to a job that runs for months. So the first `warm_runs` of (a) and
    the first `warm_s` of (b) don't count either.
    """

    runs: int
    warm_runs: int
    warm_s: float
    batch_events: int
    batches: int
    warm: int
    users: int
    known: tuple[int, ...]
    configured: tuple[int, ...]
    rates_per_s: tuple[int, ...]
    latency_s: float
    held_s: int
    flood_s: int
    every_client: bool
    loads: tuple[Load, ...]
    overrides: Sections

    @property
    def events(self) -> int:
        """Events of one run over a backlog."""
        return self.batch_events * self.batches

    def steady_events_per_s(self, batches: Sequence[Json]) -> float:
        """Median throughput of the batches after the warm ones."""
        speeds: list[float] = [batch["events"] * 1000.0 / batch["batch_ms"] for batch in batches[self.warm :]]
        return statistics.median(speeds)


@dataclass(frozen=True, slots=True)
class Setup:
    """One configuration of the job: its settings file, and the settings in it."""

    file: Path
    settings: Settings


class BenchmarkRig(AbstractContextManager["BenchmarkRig"]):
    """A folder under .work and a broker in it; `overrides` replace settings of every setup."""

    def __init__(self, overrides: Sections) -> None:
        self._overrides = overrides
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        _WORK.mkdir(exist_ok=True)
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="bench-", dir=_WORK, ignore_cleanup_errors=True)
        )
        self.folder = Path(folder).absolute()
        self.servers = self._stack.enter_context(Broker(self.folder / "broker")).bootstrap_servers
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def setup(self, name: str, requests: str, quotas: Iterable[QuotaEntry] = (), **sections: Json) -> Setup:
        """A configuration with its own checkpoint, tables and output topics, which reads the topic `requests`."""
        folder = self.folder / name
        folder.mkdir()
        cores = os.cpu_count() or 1  # the sizes that docs/operating.md, "Sizing", gives for this machine
        written = ("decisions", "dead_letters", "limits", "waits", "claims")
        topics = {"requests": requests} | {topic: f"{name}-{topic.replace('_', '-')}" for topic in written}
        own: Sections = {
            "kafka": {"bootstrap.servers": self.servers},
            "topics": {**topics, "partitions": cores},
            "audit": {"trigger_s": 0},
        }
        file = folder / "settings.yaml"
        setup = Setup(file, write_settings(file, storage_in(folder), own, self._overrides, sections))
        ensure_topics(setup.settings.topics, setup.settings.kafka)
        QuotasTable(setup.settings.delta.quotas).create(quotas, "bench", datetime.now(UTC))
        return setup

    def publish(self, topic: str, records: Iterable[Record]) -> None:
        """Publish records as fast as possible; returns when the broker has them."""
        producer = Producer({"bootstrap.servers": self.servers, **_PRODUCER})
        for number, (key, value) in enumerate(records):
            if number % 50_000 == 0:
                producer.flush()  # bounds the queue
            producer.produce(topic, value, key)
        producer.flush()

    @contextmanager
    def sending(self, topic: str, per_s: float, records: Iterator[Record]) -> Iterator[None]:
        """Publish records at a steady rate while this block runs."""
        done = Event()
        thread = Thread(target=_send_until, args=(done, self.servers, topic, per_s, records))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def reader(self, topic: str) -> Consumer:
        """A consumer of the records that a topic receives from now on; the caller closes it."""
        consumer = Consumer({"bootstrap.servers": self.servers, **_CONSUMER})
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, _end(consumer, topic, number)) for number in numbers])
        return consumer

    def mean_bytes(self, topic: str) -> int:
        """Mean size of the first values of a topic: a copy has to write as much for the same work."""
        consumer = Consumer({"bootstrap.servers": self.servers, **_CONSUMER})
        try:
            numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
            values = [record.value() for record in consumer.consume(500, timeout=30)]
        finally:
            consumer.close()
        return round(statistics.mean(len(value) for value in values if value is not None))

    def driver(self, environment: Mapping[str, str] | None = None) -> "SparkDriver":
        """A Spark driver in a process of its own. Of several, one runs a query at a time."""
        return SparkDriver(self.folder / "driver.log", environment or {})

    def loop(self, client: str, setup: Setup, charges: str, events: int) -> float:
        """Requests/s of a plain consumer loop (scripts.benchmarks.loops) over the backlog."""
        command = [sys.executable, "-m", "scripts.benchmarks.loops", client, str(setup.file), charges, str(events)]
        with (self.folder / "loop.log").open("a") as log:
            ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        if ran.returncode != 0:
            raise BenchError(f"the {client} loop failed: {last_line(self.folder / 'loop.log')}")
        return float(ran.stdout)


class SparkDriver(AbstractContextManager["SparkDriver"]):
    """Sends commands to scripts.benchmarks.driver. Raises BenchError with the driver's reason when one fails."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.benchmarks.driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the bench, which then closes the driver's input
            )

    def __exit__(self, *_: object) -> None:
        """Close the driver's input, which ends the driver and its Java."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def session(self, setup: Setup, stock: bool = False) -> None:
        """Start the session, with the Spark settings that all setups share; a `stock` one with Spark's defaults."""
        self._command(do="session", settings=str(setup.file), stock=stock)

    def start(self, query: str, setup: Setup, **arguments: object) -> None:
        """Start `enforce`, `audit`, `both` of them or `copy`."""
        self._command(do="start", query=query, settings=str(setup.file), **arguments)

    def drain(self, events: int) -> Json:
        """Stop the query once it has committed this many events; returns `batches`, `took_s` and `jvm_cpu_s`."""
        return self._command(do="drain", events=events)

    def stop(self) -> Json:
        """Stop the query; returns `batches`, `took_s` and `jvm_cpu_s`."""
        return self._command(do="stop")

    def state_bytes(self, setup: Setup) -> int:
        """Bytes of all entities in the state store."""
        return int(self._command(do="state_bytes", settings=str(setup.file))["bytes"])

    def resident_mib(self) -> float:
        """Resident memory of the driver's Java and of all Python processes, in MiB."""
        return resident_mib([self._process.pid, *descendants(self._process.pid)])

    def _command(self, **command: object) -> Json:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise BenchError("the Spark driver has no pipes")
        try:
            print(json.dumps(command), file=stdin, flush=True)
        except BrokenPipeError:
            raise BenchError(f"the Spark driver ended: {last_line(self._log)}") from None
        line = stdout.readline()
        if not line:
            raise BenchError(f"the Spark driver ended: {last_line(self._log)}")
        answer: Json = json.loads(line)
        if "error" in answer:
            raise BenchError(f"the Spark driver can't {command['do']}: {answer['error']}")
        return answer


class Drivers(NamedTuple):
    """Two Spark drivers: one with the job's session, and one with a stock session for the copy."""

    job: SparkDriver
    stock: SparkDriver


def _send_until(done: Event, servers: str, topic: str, per_s: float, records: Iterator[Record]) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    start_s, sent = time.monotonic(), 0
    while not done.wait(_TICK_SECONDS):
        due = int((time.monotonic() - start_s) * per_s)
        for key, value in islice(records, due - sent):
            producer.produce(topic, value, key)
        sent = due
        producer.poll(0)
    producer.flush()


def _end(consumer: Consumer, topic: str, number: int) -> int:
    """The partition's next offset. Waits while the broker doesn't know the leader of a new topic yet."""
    deadline = time.monotonic() + _LEADER_SECONDS
    while True:
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_LEADER_SECONDS)
            return int(end)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
