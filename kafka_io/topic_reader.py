"""Reads a topic: partition by partition in order, from its beginning or a time, across outages and unreadable records.

Every part of Sluice that reads Kafka in Python does it with TopicReader: in its own thread, or with a TopicFollower.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import LeaderNotAvailableError

from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import TopicLostError
from sluice.kafka_io.kafka_python import FetchedRecord, epoch_in, pass_over_unreadable_batches, topic_id
from sluice.state.decisions.leader_epochs import Fence

log = logging.getLogger(__name__)

POLL_MS = 200
"""Longest wait of one poll. A record ends it early; closing takes about as long."""

NO_TOPIC_S = 1.0
"""Interval between two polls for a topic that isn't there."""

PARTITIONS_S = 10.0
"""Interval between two polls for new partitions of the topic."""

OFFSETS_TIMEOUT_MS = 3_000
"""Longest wait for offsets. Without it the client waits 30 s for a topic that was deleted."""

FROM_NOW_MS = 1 << 62
"""A time later than that of any record: reading begins at the end of the topic."""

CONSUMER_OPTIONS: Final[Mapping[str, object]] = MappingProxyType(
    {
        "group_id": None,  # every reader reads every record
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


class Offsets(NamedTuple):
    """The first offset of a partition, and the one after its last record."""

    first: int
    end: int


class TopicReader(AbstractContextManager["TopicReader"]):
    """Reads one topic. No record ends it: `unreadable` counts those that are passed over.

    Every call connects first if there is no connection, and raises KafkaUnavailableError, KafkaError or OSError. After
    `close` the next call goes on at the positions reached before.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        topic: str,
        since_ms: int | None = None,
        *,
        fenced: bool = False,
        on_restart: Callable[[], None] | None = None,
    ) -> None:
        """Begin at `since_ms`, in epoch milliseconds; None is the beginning of the topic.

        If `fenced`, records of an epoch older than one before them in their partition are left out, and markers of
        epochs (`sluice.state.decisions.leader_epochs`). `on_restart` is called when the topic is read from its
        beginning again, because it was deleted and made again or has lost records; without it TopicLostError is raised.
        """
        self.unreadable = 0
        self._kafka = kafka
        self._topic = topic
        self._since_ms = since_ms
        self._fence = Fence() if fenced else None
        self._on_restart = on_restart
        self._consumer: KafkaConsumer | None = None
        self._positions: dict[int, int] = {}  # partition -> next offset to read
        self._first_ends: dict[int, int] = {}  # partition -> end of the topic when its reading began
        self._caught_up = False
        self._topic_id: str | None = None
        self._look_again_s = 0.0  # on the monotonic clock
        self._said: set[type[BaseException]] = set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def fenced(self) -> int:
        """Records left out because their driver had been replaced."""
        return self._fence.fenced if self._fence else 0

    @property
    def has_begun(self) -> bool:
        """True once the topic was there."""
        return bool(self._positions)

    def close(self) -> None:
        """End the connection."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def topic_id(self) -> str | None:
        """Kafka's id of the topic, which is another one when it is made again; None if there is no topic or no id."""
        consumer = self._connected()
        return topic_id(consumer, self._topic) if consumer.partitions_for_topic(self._topic) else None

    def partitions(self) -> set[int]:
        """The partitions of the topic; none if there is no topic."""
        return set(self._connected().partitions_for_topic(self._topic) or ())

    def offsets(self) -> dict[int, Offsets]:
        """The offsets of each partition now."""
        consumer, partitions = self._connected(), self._named(self.partitions())
        if not partitions:
            return {}
        firsts = self._offsets(consumer.beginning_offsets, partitions)
        ends = self._offsets(consumer.end_offsets, partitions)
        return {each.partition: Offsets(firsts[each], ends[each]) for each in partitions}

    def unread(self) -> dict[int, int]:
        """By partition the number of records up to the present end; the first call fixes where reading begins."""
        return {partition: end - self._position(partition) for partition, end in self._ends().items()}

    def count_since(self, since_ms: int) -> int:
        """The number of records of a time or later, by the offsets of Kafka. Raises TopicLostError without a topic."""
        ends = self._ends()
        return sum(max(0, ends[partition] - offset) for partition, offset in self._at(ends, since_ms).items())

    def skip_to_last(self, counts: Mapping[int, int]) -> None:
        """Leave out the oldest unread records of each partition, but for so many."""
        for partition, unread in self.unread().items():
            if (extra := unread - counts.get(partition, unread)) > 0:
                self._seek(partition, self._position(partition) + extra)

    def read(self, wait_ms: int = POLL_MS) -> Iterator[tuple[int, FetchedRecord]]:
        """The next records, each with its partition; none if none comes within `wait_ms`."""
        consumer = self._assigned()
        if not self._positions:
            time.sleep(wait_ms / 1000)
            return
        for (_, partition), records in consumer.poll(timeout_ms=wait_ms).items():
            yield from self.passing(partition, records)

    def read_to_end(self) -> Iterator[tuple[int, FetchedRecord]]:
        """All records that the topic has now and that weren't read."""
        ends = self._ends()
        while any(self._position(partition) < end for partition, end in ends.items()):
            polled = False
            for each in self.read():
                polled = True
                yield each
            if not polled:
                ends = {partition: min(end, ends.get(partition, end)) for partition, end in self._ends().items()}

    def read_again(self, reason: str) -> None:
        """Go on from the beginning of the topic, not within what `read` gives. Raises TopicLostError."""
        self._begin_again(f"{reason}; it is read from its beginning")

    def is_caught_up(self) -> bool:
        """True if all records that existed when reading began have been read."""
        if not self._caught_up and self._positions:
            self._caught_up = all(self._position(partition) >= end for partition, end in self._first_ends.items())
        return self._caught_up

    def passing(self, partition: int, records: Iterable[FetchedRecord]) -> Iterator[tuple[int, FetchedRecord]]:
        """The records of a partition that count; notes for each that it is read, before it is handed over."""
        position = self._positions.get(partition, 0)
        fence = self._fence
        for record in records:
            if record.offset < position:  # the topic has lost records, and the consumer begins again
                self._restarts(f"is read again from offset {record.offset} of partition {partition}")
                if fence is not None:
                    fence.forget(partition)
            position = self._positions[partition] = record.offset + 1
            if fence is None or not record.stored_headers or self._counts(fence, partition, record):
                yield partition, record

    def pass_over(self, partition: int, offset: int, count: int, error: Exception) -> None:
        """Count records that can't be read or handled, and log the first of each kind of error."""
        self.unreadable += count
        if type(error) not in self._said:
            self._said.add(type(error))
            log.error(
                "topic %s, partition %d, offset %d: the record is skipped: %s: %s; further ones are only counted",
                self._topic,
                partition,
                offset,
                type(error).__name__,
                " ".join(str(error).split())[:200],
            )

    def _counts(self, fence: Fence, partition: int, record: FetchedRecord) -> bool:
        try:
            return fence.passes(partition, epoch_in(record.stored_headers), record.value, record.key)
        except Exception as error:  # of any class: a producer chooses the bytes of a header
            self.pass_over(partition, record.offset, 1, error)
            return False

    def _connected(self) -> KafkaConsumer:
        if self._consumer is None:
            self._consumer = connect(KafkaConsumer, self._kafka, **CONSUMER_OPTIONS)
            pass_over_unreadable_batches(self._consumer, self.pass_over)
            self._look_again_s = 0.0
        return self._consumer

    def _assigned(self) -> KafkaConsumer:
        """The consumer with every partition of the topic. Looks for new ones now and then."""
        consumer = self._connected()
        self._notice_new_topic(consumer)
        if time.monotonic() >= self._look_again_s:
            self._assign(consumer)
            self._look_again_s = time.monotonic() + (PARTITIONS_S if self._positions else NO_TOPIC_S)
        return consumer

    def _notice_new_topic(self, consumer: KafkaConsumer) -> None:
        """Forget the positions when the topic was deleted and made again: offsets alone don't always show it."""
        found = topic_id(consumer, self._topic)
        if found is not None and found != self._topic_id:
            if self._topic_id is not None:
                self._begin_again("was made again; it is read from its beginning")
            self._topic_id = found

    def _assign(self, consumer: KafkaConsumer) -> None:
        """Assign every partition of the topic. A new one is read from where reading is to begin."""
        partitions = self._named(self.partitions())
        if not partitions or partitions == self._named(self._positions) == consumer.assignment():
            return
        new = partitions - self._named(self._positions)
        if new:
            ends = self._offsets(consumer.end_offsets, new)
            self._positions |= self._beginnings(consumer, new, ends)
            if not self._caught_up:
                self._first_ends |= {each.partition: end for each, end in ends.items()}
        consumer.assign(list(partitions))
        for each in partitions:
            consumer.seek(each, self._positions[each.partition])

    def _at(self, ends: Mapping[int, int], at_ms: int) -> dict[int, int]:
        """The offset of the first record of a time or later in each partition, or its end."""
        asked = dict.fromkeys(self._named(ends), at_ms)
        found = self._connected().offsets_for_times(asked, OFFSETS_TIMEOUT_MS)
        return {each.partition: since.offset if (since := found.get(each)) else ends[each.partition] for each in asked}

    def _beginnings(
        self, consumer: KafkaConsumer, new: set[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> dict[int, int]:
        if self._since_ms is None:
            firsts = self._offsets(consumer.beginning_offsets, new)
            return {each.partition: first for each, first in firsts.items()}
        if self._since_ms == FROM_NOW_MS:
            return {each.partition: end for each, end in ends.items()}
        return self._at({each.partition: end for each, end in ends.items()}, self._since_ms)

    def _ends(self) -> dict[int, int]:
        """The present end of each partition. Notices a topic that has lost records."""
        consumer = self._assigned()
        if not self._positions:
            raise TopicLostError(f"topic {self._topic} is not there, or this login may not describe it")
        found = self._offsets(consumer.end_offsets, self._named(self._positions))
        ends = {each.partition: end for each, end in found.items()}
        if any(end < self._positions[partition] for partition, end in ends.items()):
            self._begin_again("has lost records; it is read from its beginning")
            return self._ends()
        return ends

    def _offsets(
        self, ask: Callable[[set[TopicPartition], int], dict[TopicPartition, int]], partitions: set[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """An offset of each partition. Raises LeaderNotAvailableError, where kafka-python has only a KeyError."""
        try:
            return ask(partitions, OFFSETS_TIMEOUT_MS)
        except KeyError as error:
            (missing,) = error.args
            raise LeaderNotAvailableError(
                f"partition {missing.partition} of topic {self._topic} has no leader: the brokers that have it are away"
            ) from error

    def _begin_again(self, text: str) -> None:
        self._restarts(text)
        self._positions.clear()
        self._look_again_s = 0.0
        if self._fence is not None:
            self._fence.forget()

    def _restarts(self, text: str) -> None:
        if self._on_restart is None:
            raise TopicLostError(f"topic {self._topic} {text}")
        log.warning("topic %s %s", self._topic, text)
        self._on_restart()

    def _position(self, partition: int) -> int:
        """The consumer's own: where compaction has removed the last records, none comes before the end."""
        return self._connected().position(TopicPartition(self._topic, partition), OFFSETS_TIMEOUT_MS) or 0

    def _seek(self, partition: int, offset: int) -> None:
        self._positions[partition] = offset
        self._connected().seek(TopicPartition(self._topic, partition), offset)

    def _named(self, partitions: Iterable[int]) -> set[TopicPartition]:
        return {TopicPartition(self._topic, partition) for partition in partitions}
