"""A Kafka client that goes as fast as it is let: a process that writes down when it got how much.

    python -m scripts.testbed.full_speed_client '{"library": "librdkafka", ...}'

runs until SIGTERM, with the fields of `ClientOptions`. `FullSpeedClient` starts one as a child; that of
`Library.JAVA` is `FullSpeedJavaClient.java`.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from signal import SIGTERM
from threading import Event, Lock, Semaphore
from typing import IO

import confluent_kafka
import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError

from scripts.command import stop_on_signals
from scripts.testbed.broker_jars import BROKER_JARS
from scripts.testbed.processes import Child
from sluice.jvm.java import find_java

READY = "ready"
_ERROR = "error: "

_JAVA_CLIENT = Path(__file__).with_name("FullSpeedJavaClient.java")
_RECORD_BYTES = 10_000
_QUEUE_BYTES = 32 * 2**20
_BATCH_BYTES = 100_000
_POLL_S = 0.05
_SMALL = b"small"
_IN_FLIGHT = 5
"""Small requests that wait for their answers at a broker, as in Java's clients. With librdkafka's default, a million,
those that a throttled connection doesn't get to in a minute time out."""
_SMALL_REQUESTS = {
    "linger.ms": 0,
    "batch.num.messages": 1,
    "acks": 1,
    "max.in.flight.requests.per.connection": _IN_FLIGHT,
}


class Library(StrEnum):
    """Whose client it is."""

    LIBRDKAFKA = "librdkafka"
    KAFKA_PYTHON = "kafka-python"
    JAVA = "java"


class Role(StrEnum):
    """What it does as fast as it can: produce, consume, or send small requests."""

    PRODUCE = "produce"
    CONSUME = "consume"
    REQUESTS = "requests"


@dataclass(frozen=True)
class ClientOptions:
    """One client, and the file for its samples: a line `<epoch ms> <amount>` for what arrived together.

    `visits` are the partitions that one of librdkafka uses for `stay_s` each, over and over; without them it uses all.
    """

    library: Library
    role: Role
    bootstrap_servers: str
    topic: str
    client_id: str
    samples: str
    visits: Sequence[Sequence[int]] = ()
    stay_s: float = 0.0


class FullSpeedClient:
    """A client as a child process, with its samples and its log in a folder.

    `name` is its client-id. The amounts are bytes of values that a broker has acknowledged or that arrived, and
    acknowledged requests for `Role.REQUESTS`. `visits` and `stay_s` are those of `ClientOptions`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        library: Library,
        role: Role,
        servers: str,
        topic: str,
        visits: Sequence[Sequence[int]] = (),
        stay_s: float = 0.0,
    ) -> None:
        self.name = name
        self._samples = folder / f"{name}.samples"
        self._log = folder / f"{name}.log"
        self._samples.write_text("")
        options = ClientOptions(library, role, servers, topic, name, str(self._samples), visits, stay_s)
        self._child = Child(_command(options), self._log)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.alive

    @property
    def is_ready(self) -> bool:
        """Whether it has begun."""
        return READY in self._log.read_text()

    def samples(self) -> list[tuple[int, float]]:
        """What it got so far: epoch milliseconds and amount."""
        lines = (line.split() for line in self._samples.read_text().splitlines(keepends=True) if line.endswith("\n"))
        return [(int(time_ms), float(amount)) for time_ms, amount in lines]

    def errors(self) -> list[str]:
        """What its library reported as errors, disconnects included."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]

    def stop(self) -> None:
        """End it; SIGKILL after 10 s."""
        self._child.end(SIGTERM, 10)


def _command(options: ClientOptions) -> list[str]:
    if options.library is not Library.JAVA:
        return [sys.executable, "-m", "scripts.testbed.full_speed_client", msgspec.json.encode(options).decode()]
    java, _ = find_java()
    class_path = os.pathsep.join(map(str, BROKER_JARS.paths()))
    arguments = [options.role, options.bootstrap_servers, options.topic, options.client_id, options.samples]
    return [java, "-Xmx256m", "-cp", class_path, str(_JAVA_CLIENT), *arguments, str(_RECORD_BYTES)]


class _Samples:
    """Writes amounts down, those that came together in one line. Thread-safe: kafka-python adds in its own thread."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = Lock()
        self._amount = 0.0

    def add(self, amount: float) -> None:
        with self._lock:
            self._amount += amount

    def flush(self) -> None:
        """Write down what has come since the last call, as of now."""
        with self._lock:
            amount, self._amount = self._amount, 0.0
        if amount:
            self._file.write(f"{time.time_ns() // 1_000_000} {amount:.0f}\n")
            self._file.flush()


class _Visits:
    """Which partitions to use now."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._begun_s = time.monotonic()
        self._number = 0

    @property
    def partitions(self) -> Sequence[int]:
        """Those of the visit that goes on; none if there are no visits."""
        visits = self._options.visits
        return visits[self._number % len(visits)] if visits else ()

    def is_over(self) -> bool:
        """Whether the visit is over. The next one goes on then."""
        if not self._options.visits:
            return False
        number = int((time.monotonic() - self._begun_s) / self._options.stay_s)
        is_over, self._number = number != self._number, number
        return is_over

    def each(self) -> Iterator[int]:
        """The partitions for one record after the other: -1, which librdkafka takes for any, if there are no visits."""
        number = 0
        while True:
            partitions = self.partitions
            number += 1
            yield partitions[number % len(partitions)] if partitions else -1


def _say_error(error: object) -> None:
    print(f"{_ERROR}{' '.join(str(error).split())}", flush=True)


def _librdkafka_config(options: ClientOptions) -> dict[str, object]:
    return {
        "bootstrap.servers": options.bootstrap_servers,
        "client.id": options.client_id,
        "error_cb": _say_error,
    }


def _run_librdkafka_producer(options: ClientOptions, samples: _Samples, stop: Event) -> None:
    is_small = options.role is Role.REQUESTS
    batches = _SMALL_REQUESTS if is_small else {}
    limits = {"queue.buffering.max.kbytes": _QUEUE_BYTES // 1024}
    producer = confluent_kafka.Producer({**_librdkafka_config(options), **limits, **batches})
    value = _SMALL if is_small else bytes(_RECORD_BYTES)
    amount = 1 if is_small else _RECORD_BYTES

    def delivered(error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is None:
            samples.add(amount)
        elif error.code() != confluent_kafka.KafkaError._PURGE_QUEUE:  # noqa: SLF001 # it is documented
            _say_error(error)

    visits = _Visits(options)
    partitions = visits.each()
    while not stop.is_set():
        if visits.is_over():
            producer.purge(in_flight=False)
        try:
            producer.produce(options.topic, value, partition=next(partitions), on_delivery=delivered)
            producer.poll(0)
        except BufferError:  # its queue is full
            producer.poll(_POLL_S)
        samples.flush()
    producer.purge()


def _run_librdkafka_consumer(options: ClientOptions, samples: _Samples, stop: Event) -> None:
    group = {"group.id": options.client_id, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**_librdkafka_config(options), **group, "enable.partition.eof": True})
    partitions = consumer.list_topics(options.topic, timeout=30).topics[options.topic].partitions
    begin = confluent_kafka.OFFSET_BEGINNING
    visits = _Visits(options)

    def assign() -> None:
        numbers = visits.partitions or partitions
        consumer.assign([confluent_kafka.TopicPartition(options.topic, number, begin) for number in numbers])

    assign()
    while not stop.is_set():
        if visits.is_over():
            assign()
        for message in consumer.consume(1000, timeout=_POLL_S):
            error = message.error()
            if error is None:
                samples.add(len(message.value() or b""))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 # it is documented
                consumer.seek(confluent_kafka.TopicPartition(options.topic, message.partition() or 0, begin))
            else:
                _say_error(error)
        samples.flush()
    consumer.close()


def _run_kafka_python_producer(options: ClientOptions, samples: _Samples, stop: Event) -> None:
    producer = KafkaProducer(
        bootstrap_servers=options.bootstrap_servers, client_id=options.client_id, batch_size=_BATCH_BYTES
    )
    room = Semaphore(_QUEUE_BYTES // _RECORD_BYTES)  # kafka-python has no bound of its own
    value = bytes(_RECORD_BYTES)

    def delivered(_: object) -> None:
        samples.add(_RECORD_BYTES)
        room.release()

    def failed(error: object) -> None:
        if not stop.is_set():  # what is left at the end is given up
            _say_error(error)
        room.release()

    while not stop.is_set():
        if room.acquire(timeout=_POLL_S):
            producer.send(options.topic, value).add_callback(delivered).add_errback(failed)
        samples.flush()
    with suppress(KafkaTimeoutError):  # what is left is given up
        producer.close(timeout=1)


def _run_kafka_python_consumer(options: ClientOptions, samples: _Samples, stop: Event) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap_servers,
        client_id=options.client_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    partitions = [TopicPartition(options.topic, number) for number in consumer.partitions_for_topic(options.topic)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    while not stop.is_set():
        for partition, records in consumer.poll(timeout_ms=int(_POLL_S * 1000)).items():
            samples.add(sum(len(record.value) for record in records))
            if records[-1].offset + 1 == consumer.highwater(partition):
                consumer.seek_to_beginning(partition)
        samples.flush()
    consumer.close()


_RUN: dict[tuple[Library, Role], Callable[[ClientOptions, _Samples, Event], None]] = {
    (Library.LIBRDKAFKA, Role.PRODUCE): _run_librdkafka_producer,
    (Library.LIBRDKAFKA, Role.REQUESTS): _run_librdkafka_producer,
    (Library.LIBRDKAFKA, Role.CONSUME): _run_librdkafka_consumer,
    (Library.KAFKA_PYTHON, Role.PRODUCE): _run_kafka_python_producer,
    (Library.KAFKA_PYTHON, Role.CONSUME): _run_kafka_python_consumer,
}


def run_client(options: ClientOptions) -> None:
    """Run a client until SIGTERM."""
    stop = stop_on_signals()
    print(READY, flush=True)
    with Path(options.samples).open("a") as file:
        _RUN[options.library, options.role](options, _Samples(file), stop)


if __name__ == "__main__":
    run_client(msgspec.json.decode(sys.argv[1], type=ClientOptions))
