"""Reads topics in the background for the console: no group, from a point in time, across outages."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from sluice.kafka_io.background import BackgroundThread
from sluice.kafka_io.client import Trouble, connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.state.decisions.epochs import Fence

log = logging.getLogger("sluice.console")

POLL_MS = 200
RETRY_S = 1.0
PARTITIONS_S = 10.0
OFFSETS_TIMEOUT_MS = 3_000
STOP_S = 1.0
FAILED_POLLS = 3
"""After so many polls that fail without a record read, what can't be decoded is passed over."""

OPTIONS: Mapping[str, object] = {
    "group_id": None,
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "allow_auto_create_topics": False,
    "fetch_max_wait_ms": POLL_MS,
    "check_crcs": False,
    "max_poll_records": 5_000,
    "max_partition_fetch_bytes": 8 * 1024 * 1024,
    "metadata_max_age_ms": 10_000,
}

OnRecords = Callable[[Sequence[tuple[bytes | None, bytes | None]]], None]
"""Called with (key, value) of the records of a poll, from the feed's thread."""


@dataclass
class TopicFeed:
    """A thread that reads one topic from `since_ms`, None for its beginning, and goes on after any outage.

    `trouble` says what keeps it from reading. `skipped` counts the times that records which can't be decoded were
    passed over, up to the end of the topic. Decisions of a driver that was replaced are left out, as gateways do.
    """

    kafka: Mapping[str, str]
    topic: str
    on_records: OnRecords
    since_ms: int | None = None
    on_restart: Callable[[], None] = lambda: None
    trouble: Trouble = field(default_factory=Trouble)
    skipped: int = 0

    def __post_init__(self) -> None:
        self._positions: dict[TopicPartition, int] = {}
        self._topic_id: object = None
        self._fence = Fence()
        self._failures = 0
        self._thread = BackgroundThread(f"console-{self.topic}", self._read, RETRY_S, failed=self._failed)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait a moment for it."""
        self._thread.stop(STOP_S)

    def _read(self) -> None:
        with closing(connect(KafkaConsumer, self.kafka, **OPTIONS)) as consumer:
            look_again_s = 0.0
            while not self._thread.stopped.is_set():
                if self._is_made_again(consumer):
                    look_again_s = 0.0
                if time.monotonic() >= look_again_s:
                    self._assign(consumer)
                    look_again_s = time.monotonic() + (PARTITIONS_S if self._positions else RETRY_S)
                if not self._positions:
                    self._thread.stopped.wait(POLL_MS / 1000)
                    continue
                self._take(consumer.poll(timeout_ms=POLL_MS))
                self._failures = 0
                self.trouble.ends()

    def _take(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        for partition, records in polled.items():
            if records[0].offset < self._positions[partition]:  # the topic was made again, or has lost records
                self._fence.forget(partition.partition)
                self.on_restart()
            self._positions[partition] = records[-1].offset + 1
            self.on_records([(record.key, record.value) for record in records if self._fence.passes_record(record)])

    def _is_made_again(self, consumer: Any) -> bool:
        """Whether the topic was made again, which offsets alone don't always show; then what was read is forgotten."""
        topic_id = consumer._cluster.topic_id(self.topic)  # noqa: SLF001 # no public call tells the id
        if topic_id is None or topic_id == self._topic_id:
            return False
        is_other = self._topic_id is not None
        self._topic_id = topic_id
        if is_other:
            self._positions.clear()
            self._fence.forget()
            self.on_restart()
        return is_other

    def _assign(self, consumer: Any) -> None:
        partitions = {TopicPartition(self.topic, number) for number in consumer.partitions_for_topic(self.topic) or ()}
        if not partitions or partitions == self._positions.keys() == consumer.assignment():
            return
        new = partitions - self._positions.keys()
        if new:
            self._positions |= self._beginnings(consumer, new)
        if self._failures >= FAILED_POLLS:
            self._positions = dict(consumer.end_offsets(partitions, OFFSETS_TIMEOUT_MS))
            self._failures = 0
            self.skipped += 1
        consumer.assign(list(partitions))
        for partition in partitions:
            consumer.seek(partition, self._positions[partition])

    def _beginnings(self, consumer: Any, new: set[TopicPartition]) -> dict[TopicPartition, int]:
        if self.since_ms is None:
            return dict(consumer.beginning_offsets(new, OFFSETS_TIMEOUT_MS))
        ends = consumer.end_offsets(new, OFFSETS_TIMEOUT_MS)
        found = consumer.offsets_for_times(dict.fromkeys(new, self.since_ms), OFFSETS_TIMEOUT_MS)
        return {partition: since.offset if (since := found.get(partition)) else ends[partition] for partition in new}

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, KafkaUnavailableError | OSError):
            self._failures += 1
        if self.trouble.is_new(error):
            unexpected = not isinstance(error, KafkaError | KafkaUnavailableError | OSError)
            log.warning("topic %s can't be read: %s", self.topic, self.trouble.line, exc_info=unexpected)
