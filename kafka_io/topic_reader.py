"""Reads a topic in the background: its past first, then every new record, across outages and whatever is in it."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event, Thread
from types import MappingProxyType
from typing import Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from sluice.kafka_io.client import Trouble, connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.readable_batches import FetchedRecord, epoch_in, pass_over_unreadable_batches
from sluice.state.decisions.epochs import Fence

log = logging.getLogger(__name__)

POLL_MS = 200
"""Longest wait of one poll. A record ends it early; closing takes about as long."""

REJOIN_S = 1.0
"""Pause before a new attempt after an error."""

PARTITIONS_S = 10.0
"""Interval between two looks for new partitions of the topic."""

CLOSE_S = 0.5
"""Longest wait for the end of the threads."""

OFFSETS_TIMEOUT_MS = 3_000
"""How long to ask for offsets. Without it the client waits 30 s for a topic that was deleted."""

CONSUMER_OPTIONS: Final[Mapping[str, object]] = MappingProxyType(
    {
        "group_id": None,  # every gateway reads every record
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",  # if retention has removed records before they were read
        "allow_auto_create_topics": False,
        "fetch_max_wait_ms": POLL_MS,
        "check_crcs": False,  # TCP and the broker have theirs
        "max_partition_fetch_bytes": 8 * 1024 * 1024,
        "max_poll_records": 5_000,
        "reconnect_backoff_max_ms": 1_000,
        "metadata_max_age_ms": 10_000,
    }
)


def _nothing() -> None:
    """What a reader does by default when nothing is asked of it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read and what to do with it. All calls come from the reader's thread.

    `since_ms` is where to begin, in epoch milliseconds; None is the beginning of the topic. `on_record` is called with
    key and value of every record; what it raises is counted, and the record is skipped. `on_restart` is called when the
    topic is read from its beginning again, because it was deleted and made again or has lost records. `on_caught_up` is
    called once, when all records that existed at the start have been read; the reader ends there if `ends_there`.
    While a broker answers, `on_idle` is called at least every POLL_MS. If `fenced`, records of an epoch older than one
    before them in their partition are left out, and markers of epochs (`sluice.state.decisions.epochs`).
    """

    topic: str
    on_record: Callable[[bytes | None, bytes | None], None]
    since_ms: int | None = None
    ends_there: bool = False
    fenced: bool = False
    on_restart: Callable[[], None] = _nothing
    on_caught_up: Callable[[], None] = _nothing
    on_idle: Callable[[], None] = _nothing


class TopicReader:
    """A background thread that reads one topic. No record ends it.

    It waits for a topic that does not exist yet, and continues at its last position after an outage. `unreadable`
    counts the records whose handling failed, `restarts` the times that reading ended for a reason other than an outage
    and was begun again.
    """

    def __init__(self, kafka: Mapping[str, str], reading: Reading) -> None:
        self.caught_up = Event()  # set when all records that existed at the start have been read
        self.unreadable = 0
        self.restarts = 0
        self._fence = Fence()
        self._kafka = kafka
        self._reading = reading
        self._positions: dict[TopicPartition, int] = {}  # partition -> next offset to read
        self._ends: dict[TopicPartition, int] = {}  # partition -> end of the topic at the start
        self._topic_id: object = None
        self._look_again_s = 0.0  # on the monotonic clock
        self._said: set[type[BaseException]] = set()
        self._trouble = Trouble()
        self._closing = Event()
        self._thread = Thread(target=self._run, name=f"sluice-reader-{reading.topic}", daemon=True)

    @property
    def fenced(self) -> int:
        """How many records were left out because a driver wrote them that had been replaced."""
        return self._fence.fenced

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end. Does not wait for it."""
        self._closing.set()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Ends the thread and waits for it, with a limit: kafka-python searches long for a broker that is gone."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with connect(KafkaConsumer, self._kafka, **CONSUMER_OPTIONS) as consumer:
                    pass_over_unreadable_batches(consumer, self._pass_over)
                    self._look_again_s = 0.0
                    self._read(consumer)
            except (KafkaError, KafkaUnavailableError, OSError) as error:
                self._report(error)
                self._closing.wait(REJOIN_S)
            except BaseException:  # a reader that is gone would let everybody through; sys.exit in a callback too
                self.restarts += 1
                log.exception("the reader of topic %s failed; it is started again", self._reading.topic)
                self._closing.wait(REJOIN_S)

    def _read(self, consumer: KafkaConsumer) -> None:
        while not self._closing.is_set():
            self._notice_new_topic(consumer)
            if time.monotonic() >= self._look_again_s:
                self._assign(consumer)
                self._look_again_s = time.monotonic() + (PARTITIONS_S if self._positions else REJOIN_S)
            if not self._positions:
                self._closing.wait(POLL_MS / 1000)
                continue
            for partition, records in consumer.poll(timeout_ms=POLL_MS).items():
                for record in records:
                    self._take(partition, record)
            self._trouble.ends()
            if not self.caught_up.is_set() and self._is_caught_up(consumer):
                self.caught_up.set()  # first: two readers that end at once must see it of each other
                self._reading.on_caught_up()
                if self._reading.ends_there:
                    self._closing.set()
            self._reading.on_idle()

    def _take(self, partition: TopicPartition, record: FetchedRecord) -> None:
        offset = record.offset
        if offset < self._positions[partition]:  # the topic has lost records, and the consumer begins again
            log.warning("topic %s is read again from offset %d of partition %d", *partition[:1], offset, partition[1])
            self._fence.forget(partition.partition)
            self._reading.on_restart()
        self._positions[partition] = offset + 1  # first, so that no record is taken twice, whatever it does
        try:
            if not self._reading.fenced or self._counts(partition, record):
                self._reading.on_record(record.key, record.value)
        except Exception as error:  # whatever a record holds, the next one must be read
            self._pass_over(partition.partition, offset, 1, error)

    def _counts(self, partition: TopicPartition, record: FetchedRecord) -> bool:
        epoch = epoch_in(record.stored_headers) if record.stored_headers else None
        return epoch is None or self._fence.passes(partition.partition, epoch, record.value)

    def _pass_over(self, partition: int, offset: int, count: int, error: Exception) -> None:
        """Counts records that can't be read or handled, and logs the first of each kind."""
        self.unreadable += count
        if type(error) not in self._said:
            self._said.add(type(error))
            log.error(
                "topic %s, partition %d, offset %d: the record is skipped: %s: %s; further ones are only counted",
                self._reading.topic,
                partition,
                offset,
                type(error).__name__,
                " ".join(str(error).split())[:200],
            )

    def _notice_new_topic(self, consumer: KafkaConsumer) -> None:
        """Forgets the positions when the topic was deleted and made again: offsets alone don't always show it."""
        topic_id = consumer._cluster.topic_id(self._reading.topic)  # noqa: SLF001 # no public call tells the id
        if topic_id is None or topic_id == self._topic_id:
            return
        if self._topic_id is not None:
            log.warning("topic %s was made again; it is read from its beginning", self._reading.topic)
            self._positions.clear()
            self._fence.forget()
            self._look_again_s = 0.0
            self._reading.on_restart()
        self._topic_id = topic_id

    def _assign(self, consumer: KafkaConsumer) -> None:
        """Assigns every partition of the topic. A new one is read from where reading is to begin."""
        numbers = consumer.partitions_for_topic(self._reading.topic)
        partitions = {TopicPartition(self._reading.topic, number) for number in numbers}
        if not partitions or partitions == self._positions.keys() == consumer.assignment():
            return
        new = partitions - self._positions.keys()
        if new:
            ends = consumer.end_offsets(new, OFFSETS_TIMEOUT_MS)
            self._positions |= self._beginnings(consumer, new, ends)
            if not self.caught_up.is_set():
                self._ends |= ends
        consumer.assign(list(partitions))
        for partition in partitions:
            consumer.seek(partition, self._positions[partition])

    def _beginnings(
        self, consumer: KafkaConsumer, new: set[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The offset from which to read each of these partitions."""
        if self._reading.since_ms is None:
            return dict(consumer.beginning_offsets(new, OFFSETS_TIMEOUT_MS))
        found = consumer.offsets_for_times(dict.fromkeys(new, self._reading.since_ms), OFFSETS_TIMEOUT_MS)
        return {partition: since.offset if (since := found.get(partition)) else ends[partition] for partition in new}

    def _is_caught_up(self, consumer: KafkaConsumer) -> bool:
        """By the consumer's positions: where compaction has removed the last records, none comes before the end."""
        return all(
            (consumer.position(partition, OFFSETS_TIMEOUT_MS) or 0) >= end for partition, end in self._ends.items()
        )

    def _report(self, error: Exception) -> None:
        """Logs a trouble once, until it changes or is over."""
        if self._trouble.is_new(error):
            log.warning("topic %s can't be read: %s; trying again", self._reading.topic, self._trouble.line)
