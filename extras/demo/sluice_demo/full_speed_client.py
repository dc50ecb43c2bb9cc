"""A client of librdkafka in threads of this process that goes as fast as it may, and records the amounts it gets."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from threading import Event, Thread
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from sluice.process.clock import now_ms

RECORD_BYTES = 10_000
"""Size of a value that is produced."""

_QUEUE_BYTES = 32 * 2**20
_POLL_S = 0.05
_STOP_S = 10.0
_SMALL_REQUESTS: Mapping[str, Any] = {
    "linger.ms": 0,
    "batch.num.messages": 1,
    "acks": 1,
    # Requests that wait for their answers at a broker, as in Java's clients. With librdkafka's default, a million,
    # those that a throttled connection doesn't get to in a minute time out.
    "max.in.flight.requests.per.connection": 5,
}


class Role(StrEnum):
    """Work that the client does as fast as it can: produce, consume, or send small requests."""

    PRODUCE = "produce"
    CONSUME = "consume"
    REQUESTS = "requests"


class Client:
    """A client in threads, whose client-id is `name`, which runs until `stop`.

    `samples` are epoch milliseconds and amounts, `errors` what it was told. A thread ends when `stopping` is set.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples: list[tuple[int, float]] = []
        self.errors: list[str] = []
        self.stopping = Event()
        self._threads: list[Thread] = []

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End it."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(_STOP_S)

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        self._threads.append(Thread(target=run, args=arguments, name=self.name, daemon=True))
        self._threads[-1].start()


class FullSpeedClient(Client):
    """A client of librdkafka.

    `samples` are bytes of values that a broker has acknowledged or that arrived, or acknowledged requests for
    `Role.REQUESTS`. `errors` are those that librdkafka reported, disconnects included. `waits` are epoch milliseconds
    and the throttle times in seconds that it was told then. `partition` gives the partition of each record that is
    produced: all go to that one, until it is another. -1 is any. `options` are librdkafka's, for a producer.
    """

    def __init__(
        self,
        name: str,
        role: Role,
        servers: str,
        topic: str,
        partition: Callable[[], int] = lambda: -1,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name)
        self._options = {"queue.buffering.max.kbytes": _QUEUE_BYTES // 1024, **(options or {})}
        self._topic, self._partition = topic, partition
        self.waits: list[tuple[int, float]] = []
        self._config = {
            "bootstrap.servers": servers,
            "client.id": name,
            "error_cb": self._note_error,
            "throttle_cb": self._note_wait,
            "log_level": 2,
        }
        self._amount = 0.0
        if role is Role.CONSUME:
            self._start(self._consume)
        else:
            self._start(self._produce, role is Role.REQUESTS)

    def _note_error(self, error: object) -> None:
        self.errors.append(" ".join(str(error).split()))

    def _note_wait(self, throttled: confluent_kafka.ThrottleEvent) -> None:
        self.waits.append((now_ms(), throttled.throttle_time))

    def _note_samples(self) -> None:
        """Record the amount since the last call, as of now."""
        if self._amount:
            self.samples.append((now_ms(), self._amount))
            self._amount = 0.0

    def _produce(self, is_small: bool) -> None:
        producer = confluent_kafka.Producer({**self._config, **self._options, **(_SMALL_REQUESTS if is_small else {})})
        value, amount = (b"small", 1) if is_small else (bytes(RECORD_BYTES), RECORD_BYTES)

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is None:
                self._amount += amount
            elif error.code() != KafkaError._PURGE_QUEUE:  # noqa: SLF001 # it is documented
                self._note_error(error)

        partition = self._partition()
        while not self.stopping.is_set():
            before, partition = partition, self._partition()
            if partition != before:  # what wasn't sent yet is for the partition before
                producer.purge(in_flight=False)
            try:
                producer.produce(self._topic, value, partition=partition, on_delivery=delivered)
                producer.poll(0)
            except BufferError:  # its queue is full
                producer.poll(_POLL_S)
            self._note_samples()
        producer.purge()

    def _consume(self) -> None:
        group = {"group.id": self.name, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer({**self._config, **group, "enable.partition.eof": True})
        partitions = consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([TopicPartition(self._topic, number, begin) for number in partitions])
        while not self.stopping.is_set():
            for message in consumer.consume(1000, timeout=_POLL_S):
                error = message.error()
                if error is None:
                    self._amount += len(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 # it is documented
                    consumer.seek(TopicPartition(self._topic, message.partition() or 0, begin))
                else:
                    self._note_error(error)
            self._note_samples()
        consumer.close()
