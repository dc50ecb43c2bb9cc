"""Where a bench works: a broker and a folder of its own, both gone afterwards."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from configs.settings import Settings, load_settings
from scripts.bench_events import Load
from scripts.broker import Broker
from sinks.quotas_table import QuotasTable
from sinks.topics import ensure_topics
from state.errors import SluiceError
from state.quota_entry import QuotaEntry

Json = dict[str, Any]

_WORK = Path(".work")
_END_SECONDS = 30
_LEADER_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_PRODUCER = {"linger.ms": 5, "queue.buffering.max.messages": 500_000, "compression.type": "none"}
_CONSUMER = {"group.id": "bench", "enable.auto.commit": False, "log_level": 2}


class BenchError(SluiceError):
    """Something can't be measured."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large and how often: `runs` of every figure, batches of `batch_events`, of which `warm` don't count.

    Java compiles for minutes, which is nothing to a job that runs for months: `warm_runs` of (a) and the first
    `warm_s` of (b) don't count either.
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
    loads: tuple[Load, ...]
    overrides: Mapping[str, Mapping[str, Any]]

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
    """One configuration of the job: its settings file, and what that says."""

    file: Path
    settings: Settings


class Place(AbstractContextManager["Place"]):
    """A folder under .work and a broker in it."""

    def __init__(self, overrides: Mapping[str, Mapping[str, Any]]) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def setup(self, name: str, requests: str, quotas: Iterable[QuotaEntry] = (), **sections: Json) -> Setup:
        """A configuration with its own checkpoint, tables and output topics, reading the topic `requests`."""
        folder = self.folder / name
        cores = os.cpu_count() or 1  # sized for this machine as docs/operating.md, "Sizing", has it
        content: dict[str, Json] = {
            "kafka": {"bootstrap.servers": self.servers},
            "topics": {
                "requests": requests,
                "decisions": f"{name}-decisions",
                "dead_letters": f"{name}-dead-letters",
                "partitions": cores,
            },
            "state": {"shards": 4 * cores},
            "enforce": {"checkpoint": str(folder / "enforce")},
            "audit": {"checkpoint": str(folder / "audit"), "trigger_s": 0},
            "delta": {
                table: str(folder / "delta" / table)
                for table in ("quotas", "decisions", "quota_metrics", "dead_letters")
            },
        }
        for given in (self._overrides, sections):
            for section, values in given.items():
                content[section] = {**content.get(section, {}), **values}
        folder.mkdir(parents=True)
        file = folder / "settings.yaml"
        file.write_text(yaml.safe_dump(content))
        setup = Setup(file, load_settings(file))
        ensure_topics(setup.settings)
        QuotasTable(setup.settings.delta.quotas).create(quotas, "bench", datetime.now(UTC))
        return setup

    def publish(self, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Put records (key, value) into a topic, as fast as it goes; returns when the broker has them."""
        producer = Producer({"bootstrap.servers": self.servers, **_PRODUCER})
        for number, (key, value) in enumerate(records):
            if number % 50_000 == 0:
                producer.flush()  # bounds the queue
            producer.produce(topic, value, key)
        producer.flush()

    def reader(self, topic: str) -> Consumer:
        """A consumer of what comes into a topic from now on; the caller closes it."""
        consumer = Consumer({"bootstrap.servers": self.servers, **_CONSUMER})
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        ends = []
        for number in partitions:
            ends.append(TopicPartition(topic, number, _end(consumer, TopicPartition(topic, number))))
        consumer.assign(ends)
        return consumer

    def mean_bytes(self, topic: str) -> int:
        """Mean size of the values at the beginning of a topic: what a copy has to write for the same work."""
        consumer = Consumer({"bootstrap.servers": self.servers, **_CONSUMER})
        try:
            numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
            values = [record.value() for record in consumer.consume(500, timeout=30)]
        finally:
            consumer.close()
        return round(statistics.mean(len(value) for value in values if value is not None))

    def driver(self, environment: Mapping[str, str] | None = None) -> "SparkDriver":
        """A Spark driver in a process of its own; only one at a time."""
        return SparkDriver(self.folder / "driver.log", environment or {})

    def loop(self, client: str, setup: Setup, charges: str, events: int) -> float:
        """Requests/s of a plain consumer loop (scripts.bench_loops) over the backlog."""
        command = [sys.executable, "-m", "scripts.bench_loops", client, str(setup.file), charges, str(events)]
        with (self.folder / "loop.log").open("a") as log:
            ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        if ran.returncode != 0:
            raise BenchError(f"the {client} loop failed: {_last_line(self.folder / 'loop.log')}")
        return float(ran.stdout)


class SparkDriver(AbstractContextManager["SparkDriver"]):
    """Talks to scripts.bench_driver. Raises BenchError with the driver's reason when a command fails."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.bench_driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the bench, which then closes the driver's input
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The end of its input ends the driver, and that its Java."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def session(self, setup: Setup) -> None:
        """Start the session, with the Spark settings that all setups share."""
        self._command(do="session", settings=str(setup.file))

    def start(self, query: str, setup: Setup, **arguments: object) -> None:
        """Start `enforce`, `audit` or `copy`."""
        self._command(do="start", query=query, settings=str(setup.file), **arguments)

    def drain(self, events: int) -> Json:
        """Let the query commit so many events, and stop it; answers `batches` and `jvm_cpu_s`."""
        return self._command(do="drain", events=events)

    def stop(self) -> Json:
        """Stop the query; answers `batches` and `jvm_cpu_s`."""
        return self._command(do="stop")

    def state_bytes(self, setup: Setup) -> int:
        """Bytes that the entities take in the state store."""
        return int(self._command(do="state_bytes", settings=str(setup.file))["bytes"])

    def _command(self, **command: object) -> Json:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise BenchError("the Spark driver has no pipes")
        try:
            print(json.dumps(command), file=stdin, flush=True)
        except BrokenPipeError:
            raise BenchError(f"the Spark driver ended: {_last_line(self._log)}") from None
        line = stdout.readline()
        if not line:
            raise BenchError(f"the Spark driver ended: {_last_line(self._log)}")
        answer: Json = json.loads(line)
        if "error" in answer:
            raise BenchError(f"the Spark driver can't {command['do']}: {answer['error']}")
        return answer


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """The partition's next offset; of a new topic the broker may not know the leader yet."""
    deadline = time.monotonic() + _LEADER_SECONDS
    while True:
        try:
            _, end = consumer.get_watermark_offsets(partition, timeout=_LEADER_SECONDS)
            return int(end)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it left no message"
