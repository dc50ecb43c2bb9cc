"""Clients at full speed of librdkafka, of Kafka's Java library, and of kafka-python."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Semaphore
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.metrics.stats import Total

from scripts.java.compiler import compile_java, java_compiler
from sluice.demo.full_speed_client import RECORD_BYTES, Client, FullSpeedClient, Role
from sluice.demo.jars import BROKER_JARS
from sluice.jvm.java import OLDEST
from sluice.jvm.machine import Jvm
from sluice.kafka_io.clock import now_ms

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
            if not self._stop.is_set():
                self.errors.append(repr(error))
            room.release()

        producer, value = KafkaProducer(**self._config), bytes(RECORD_BYTES)
        self._watch(producer)
        while not self._stop.is_set():
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
        while not self._stop.is_set():
            for partition, records in consumer.poll(_POLL_MS, max_records=10_000).items():
                self.samples.append((now_ms(), float(sum(len(record.value) for record in records))))
                if records[-1].offset + 1 >= ends[partition]:
                    consumer.seek_to_beginning(partition)
        consumer.close()
