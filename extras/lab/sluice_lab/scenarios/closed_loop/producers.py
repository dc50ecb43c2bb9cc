"""Idempotent producers of numbered records, each in a request of its own, of all client libraries."""

import json
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Semaphore, Thread
from typing import Any, Protocol

import confluent_kafka
from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.metrics.stats import Total

from scripts.java.compiler import compile_java, java_compiler
from sluice.jvm.java import OLDEST
from sluice.process.clock import now_ms
from sluice_demo.jars import BROKER_JARS
from sluice_lab.scenarios.peers.suite import go_program
from sluice_proxy.processes import Child
from sluice_toolbox.machine import Jvm

TOPIC = "numbered"
NUMBER = struct.Struct(">q")
"""Begins each record's value."""

_TESTBED = Path(__file__).resolve().parents[2] / "testbed"
_SOURCE = _TESTBED / "NumberedProducer.java"
_IN_FLIGHT = 5
_IN_FLIGHT_BYTES = 10_000_000
_END_S = 120.0
_POLL_S = 0.1


def in_flight(size: int) -> int:
    """Requests without an answer: the most that an idempotent producer has, fewer of large ones."""
    return max(1, min(_IN_FLIGHT, _IN_FLIGHT_BYTES // size))


class Producer(Protocol):
    """One or several producers of a library, which run."""

    def acknowledged(self) -> list[tuple[int, int]]:
        """Epoch milliseconds of each acknowledgement, and the milliseconds that it took."""

    def faults(self) -> tuple[int, int, int]:
        """Requests that were sent again, connections that were closed, and errors."""

    def close(self) -> None:
        """End without waiting for anything."""


@contextmanager
def java_machine() -> Iterator[Jvm]:
    """The machine in which all Java producers run."""
    with TemporaryDirectory() as classes:
        compile_java([_SOURCE], BROKER_JARS.paths(), Path(classes), OLDEST, java_compiler)
        with Jvm([*BROKER_JARS.paths(), Path(classes)], ("-Xmx2g", "-XX:+UseSerialGC")) as jvm:
            yield jvm


class JavaProducer:
    """A producer of numbered records that runs until `stop`, which waits until all is acknowledged."""

    def __init__(self, jvm: Jvm, name: str, servers: str, partition: int, size: int) -> None:
        self.size = size
        self._java = jvm.packages.sluice.testbed.NumberedProducer(
            name, servers, TOPIC, partition, size, in_flight(size)
        )

    def stop(self) -> None:
        self._java.stop()

    def acknowledged(self) -> list[tuple[int, int]]:
        """Epoch milliseconds of each acknowledgement, and the milliseconds that it took."""
        return [(int(at), int(took)) for at, took in map(str.split, self._java.acknowledged().splitlines())]

    def faults(self) -> tuple[int, int, int]:
        """Requests that were sent again, connections that were closed, and errors."""
        totals = (self._java.total(f"{name}-total") for name in ("record-retry", "connection-close"))
        return round(next(totals)), round(next(totals)), len(self._java.errors().splitlines())

    def close(self) -> None:
        self._java.close()


class LibrdkafkaProducer:
    """The same with librdkafka."""

    def __init__(self, name: str, servers: str, partition: int, size: int) -> None:
        self.size = size
        self._acknowledged: list[tuple[int, int]] = []
        self._errors: list[str] = []
        self._statistics: dict[str, Any] = {"brokers": {}}
        self._room = Semaphore(in_flight(size))
        self._stop = Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "client.id": name,
                "enable.idempotence": True,
                "batch.num.messages": 1,
                "linger.ms": 0,
                "message.max.bytes": max(1_000_000, size + 1_000),
                "statistics.interval.ms": 10_000,  # they take their time where there are many partitions
                "stats_cb": self._note_statistics,
                "error_cb": lambda error: self._errors.append(str(error)),
                "log_level": 2,
            }
        )
        self._thread = Thread(target=self._produce, args=(partition,), name=name, daemon=True)
        self._thread.start()

    def _note_statistics(self, text: str) -> None:
        self._statistics = json.loads(text)

    def _produce(self, partition: int) -> None:
        number, filling = 0, bytes(self.size - NUMBER.size)
        while not self._stop.is_set():
            self._producer.poll(_POLL_S)
            while not self._stop.is_set() and self._room.acquire(blocking=False):
                value, sent_ms = NUMBER.pack(number) + filling, now_ms()
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=partial(self._told, sent_ms))
                number += 1

    def _told(self, sent_ms: int, error: object, _: object) -> None:
        at_ms = now_ms()
        if error is None:
            self._acknowledged.append((at_ms, at_ms - sent_ms))
        else:
            self._errors.append(str(error))
        self._room.release()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(_END_S)

    def close(self) -> None:
        self._producer.purge()

    def acknowledged(self) -> list[tuple[int, int]]:
        return self._acknowledged

    def faults(self) -> tuple[int, int, int]:
        brokers = self._statistics["brokers"].values()
        retried, closed = (sum(broker[name] for broker in brokers) for name in ("txretries", "disconnects"))
        return retried, closed, len(self._errors)


class KafkaPythonProducer:
    """The same with kafka-python."""

    def __init__(self, name: str, servers: str, partition: int, size: int) -> None:
        self._acknowledged: list[tuple[int, int]] = []
        self._errors: list[str] = []
        self._totals = {"record-retries": Total(), "connections-closed": Total()}
        self._stop = Event()
        self._config = {
            "bootstrap_servers": servers,
            "client_id": name,
            "enable_idempotence": True,
            "batch_size": 1,
            "max_request_size": max(1 << 20, size + 1_000),
            "connections_max_idle_ms": 86_400_000,  # what is closed for being idle isn't counted
        }
        Thread(target=self._produce, args=(partition, size), name=name, daemon=True).start()

    def _produce(self, partition: int, size: int) -> None:
        number, room, filling = 0, Semaphore(in_flight(size)), bytes(size - NUMBER.size)

        def acknowledged(sent_ms: int, _: object) -> None:
            at_ms = now_ms()
            self._acknowledged.append((at_ms, at_ms - sent_ms))
            room.release()

        def failed(error: object) -> None:
            self._errors.append(repr(error))
            room.release()

        producer = KafkaProducer(**self._config)
        metrics = producer._metrics  # noqa: SLF001 - its public metrics have rates alone
        for sensor, total in self._totals.items():
            metrics.sensor(sensor).add(metrics.metric_name(f"{sensor}-total", "numbered"), total)
        while not self._stop.is_set():
            if room.acquire(timeout=_POLL_S):
                try:
                    sent = producer.send(TOPIC, NUMBER.pack(number) + filling, partition=partition)
                    sent.add_callback(partial(acknowledged, now_ms())).add_errback(failed)
                except KafkaError as error:
                    failed(error)
                number += 1
        producer._sender.force_close()  # noqa: SLF001 - to close it waits for all that is throttled
        with suppress(KafkaError):
            producer.close(timeout=1)

    def close(self) -> None:
        self._stop.set()

    def acknowledged(self) -> list[tuple[int, int]]:
        return list(self._acknowledged)

    def faults(self) -> tuple[int, int, int]:
        retried, closed = (round(total.measure(None, None)) for total in self._totals.values())
        return retried, closed, len(self._errors)


class SaramaProducers:
    """So many of Sarama, on the partitions from `first` on; it doesn't tell which requests it has sent again."""

    def __init__(self, folder: Path, name: str, servers: str, first: int, count: int, size: int) -> None:
        program = go_program(_TESTBED / "go" / "numbered")
        self._log = folder / "sarama.log"
        self._child = Child([*map(str, (program, name, servers, TOPIC, first, count, size))], self._log)

    def _said(self, word: str) -> list[list[str]]:
        lines = map(str.split, self._log.read_text().splitlines())
        return [line for line in lines if line[:1] == [word]]

    def acknowledged(self) -> list[tuple[int, int]]:
        return [(int(at), int(took)) for _, at, took in self._said("ok")]

    def faults(self) -> tuple[int, int, int]:
        return 0, len(self._said("closed")), len(self._said("error"))

    def close(self) -> None:
        self._child.end(signal.SIGKILL, _END_S)
