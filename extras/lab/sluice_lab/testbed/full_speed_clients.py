"""Clients at full speed of librdkafka, of Kafka's Java library, and of kafka-python."""

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Semaphore
from typing import Any

import confluent_kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.metrics.stats import Total
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from scripts.java.compiler import compile_java, java_compiler
from sluice.jvm.java import OLDEST
from sluice.process.clock import now_ms
from sluice_demo.full_speed_client import RECORD_BYTES, Client, FullSpeedClient, Role
from sluice_demo.jars import BROKER_JARS
from sluice_toolbox.machine import Jvm

_SOURCE = Path(__file__).with_name("FullSpeedClient.java")
_UNACKNOWLEDGED = 400  # records, 4 MB: what waits for two minutes times out
_POLL_MS = 50


@contextmanager
def java_machine() -> Iterator[Jvm]:
    """The machine in which all Java clients run."""
    with TemporaryDirectory() as classes:
        compile_java([_SOURCE], BROKER_JARS.paths(), Path(classes), OLDEST, java_compiler)
        with Jvm([*BROKER_JARS.paths(), Path(classes)], ("-Xmx768m", "-XX:+UseSerialGC")) as jvm:
            yield jvm


def full_speed_client(library: str, jvm: Jvm, name: str, role: Role, servers: str, topic: str) -> Client:
    """A client of the library `librdkafka`, `java`, or `kafka-python`, which runs."""
    kinds: Mapping[str, Callable[[str, Role, str, str], Client]] = {
        "librdkafka": FullSpeedClient,
        "java": partial(_JavaClient, jvm),
        "kafka-python": _KafkaPythonClient,
    }
    return kinds[library](name, role, servers, topic)


class _JavaClient(Client):
    """A client of FullSpeedClient.java. It has its samples and errors once it has been stopped."""

    def __init__(self, jvm: Jvm, name: str, role: Role, servers: str, topic: str) -> None:
        super().__init__(name)
        self._java = jvm.packages.sluice.testbed.FullSpeedClient(name, role.value, servers, topic, RECORD_BYTES)

    def stop(self) -> None:
        """End it."""
        self._java.stop()
        samples = (line.split() for line in self._java.samples().splitlines())
        self.samples = [(int(at_ms), float(size)) for at_ms, size in samples]
        self.errors = self._java.errors().splitlines()


class _KafkaPythonClient(Client):
    """A client of kafka-python with its defaults, but for how much a producer sends without an acknowledgement."""

    def __init__(self, name: str, role: Role, servers: str, topic: str) -> None:
        super().__init__(name)
        self._config = {"bootstrap_servers": servers, "client_id": name}
        self._closed = Total()
        self._start(self._run, self._consume if role is Role.CONSUME else self._produce, topic)

    def stop(self) -> None:
        """End it."""
        if closed := round(self._closed.measure(None, None)):
            self.errors.append(f"{closed} connections were closed")
        super().stop()

    def _run(self, work: Callable[[str], None], topic: str) -> None:
        try:
            work(topic)
        except KafkaError as error:
            self.errors.append(repr(error))

    def _watch(self, client: Any) -> None:
        """Count connections that are closed from now on; that to the bootstrap server, which it closes itself, is."""
        metrics = client._metrics  # noqa: SLF001 - its public metrics have a rate of the last minute alone
        metrics.sensor("connections-closed").add(metrics.metric_name("closed", "full-speed"), self._closed)

    def _produce(self, topic: str) -> None:
        room = Semaphore(_UNACKNOWLEDGED)

        def acknowledged(_: object) -> None:
            self.samples.append((now_ms(), float(RECORD_BYTES)))
            room.release()

        def failed(error: object) -> None:
            if not self.stopping.is_set():
                self.errors.append(repr(error))
            room.release()

        producer, value = KafkaProducer(**self._config), bytes(RECORD_BYTES)
        self._watch(producer)
        while not self.stopping.is_set():
            if room.acquire(timeout=_POLL_MS / 1000):
                producer.send(topic, value).add_callback(acknowledged).add_errback(failed)
        producer._sender.force_close()  # noqa: SLF001 - to close it waits for all that is throttled
        with suppress(KafkaError):
            producer.close(timeout=1)

    def _consume(self, topic: str) -> None:
        consumer = KafkaConsumer(**self._config)
        self._watch(consumer)
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while not self.stopping.is_set():
            for partition, records in consumer.poll(_POLL_MS, max_records=10_000).items():
                self.samples.append((now_ms(), float(sum(len(record.value) for record in records))))
                if records[-1].offset + 1 >= ends[partition]:
                    consumer.seek_to_beginning(partition)
        consumer.close()


SOCKETS = 3

_VERSION = 8  # the last one whose answer needs no flexible fields, which every broker since 2.0 takes
_VALUE_BYTES = 100_000
_PATIENCE_S = 30.0


class ReconnectingClient(Client):
    """SOCKETS threads, each with a connection of its own for every request of 100 kB.

    `samples` are bytes of values of requests that were answered, `errors` what ended others.
    """

    def __init__(self, name: str, servers: str, topic: str) -> None:
        super().__init__(name)
        leaders = _leaders(servers, topic)
        for number in range(SOCKETS):
            self._start(self._run, topic, leaders, number)

    def _run(self, topic: str, leaders: list[tuple[int, tuple[str, int]]], first: int) -> None:
        order = cycle(leaders[first % len(leaders) :] + leaders[: first % len(leaders)])
        requests = {
            partition: produce_request(self.name, topic, partition, _VALUE_BYTES, now_ms()) for partition, _ in leaders
        }
        while not self.stopping.is_set():
            partition, address = next(order)
            try:
                with socket.create_connection(address, timeout=_PATIENCE_S) as connection:
                    connection.sendall(requests[partition])
                    read_answer(connection)
            except OSError as error:
                self.errors.append(str(error))
                time.sleep(0.1)
            else:
                self.samples.append((now_ms(), float(_VALUE_BYTES)))


def _leaders(servers: str, topic: str) -> list[tuple[int, tuple[str, int]]]:
    """Each partition with the address of its leader."""
    metadata = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "leaders"}).list_topics(topic)
    brokers = {node: (broker.host, broker.port) for node, broker in metadata.brokers.items()}
    return [(number, brokers[partition.leader]) for number, partition in metadata.topics[topic].partitions.items()]


def produce_request(client_id: str, topic: str, partition: int, value_bytes: int, at_ms: int) -> bytes:
    """A request to produce a record with a value of zeros, as it is sent."""
    builder = MemoryRecordsBuilder(2, 0, value_bytes + 1_000)
    builder.append(at_ms, None, bytes(value_bytes))
    builder.close()
    data = ProduceRequest.TopicProduceData
    parts = [data.PartitionProduceData(index=partition, records=builder.buffer())]
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=10_000, topic_data=[data(name=topic, partition_data=parts)]
    )
    request.API_VERSION = _VERSION
    request.with_header(correlation_id=1, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


def request_bytes(api: int, version: int, client_id: str, body: bytes = b"") -> bytes:
    """A request without flexible fields, as it is sent."""
    name = client_id.encode()
    request = struct.pack(">hhih", api, version, 0, len(name)) + name + body
    return struct.pack(">i", len(request)) + request


def read_answer(connection: socket.socket) -> int:
    """Read a broker's answer to one request. Returns its size in bytes. Raises OSError."""
    (left,) = struct.unpack(">i", _read(connection, 4))
    return len(_read(connection, left))


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise OSError("the broker has closed the connection")
        content += part
    return content
