"""Reads the newest records of the decisions topic, again and again, for what the job watches in them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from kafka import KafkaConsumer, TopicPartition

from sluice.kafka_io.background import BackgroundThread
from sluice.kafka_io.client import Trouble, connect
from sluice.state.decisions.epochs import Fence

log = logging.getLogger("sluice.decisions")

LOOK_S = 2.0
"""From one look to the next."""

_RETRY_S = 10.0
_OFFSETS_TIMEOUT_MS = 3_000
_POLL_MS = 200
_MOST_POLLS = 25
_STOP_TIMEOUT_S = 10.0

_LEAST_OF_A_PARTITION = 100
"""Records of a partition that each look reads. Another job is seen in these too; reading all would cost a core."""


class DecisionsWatch:
    """A thread that gives the newest records of each partition to each of `readers`, none of them twice.

    Those of a driver that was replaced are left out.
    """

    def __init__(
        self,
        topic: str,
        kafka: Mapping[str, str],
        readers: Sequence[Callable[[bytes | None], None]],
        newest: int = 0,
    ) -> None:
        """Each look reads `newest` records at most, in equal parts of all partitions, or 100 of each if more."""
        self._topic = topic
        self._kafka = kafka
        self._readers = readers
        self._newest = newest
        self._fence = Fence()
        self._trouble = Trouble()
        self._thread = BackgroundThread("decisions-watch", self._look_while_topic_lasts, _RETRY_S, self._report)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop(_STOP_TIMEOUT_S)

    def _look_while_topic_lasts(self) -> None:
        """Look again and again until the topic is another one or has other partitions; the next call begins anew."""
        self._fence.forget()
        with closing(connect(KafkaConsumer, self._kafka, enable_auto_commit=False)) as consumer:
            numbers = consumer.partitions_for_topic(self._topic)
            partitions = [TopicPartition(self._topic, number) for number in sorted(numbers or ())]
            newest = max(_LEAST_OF_A_PARTITION, self._newest // max(1, len(partitions)))
            consumer.assign(partitions)
            seen = dict.fromkeys(partitions, 0)
            while numbers and numbers == consumer.partitions_for_topic(self._topic):
                first = consumer.beginning_offsets(partitions, _OFFSETS_TIMEOUT_MS)
                ends = consumer.end_offsets(partitions, _OFFSETS_TIMEOUT_MS)
                for partition, end in ends.items():
                    if end < seen[partition]:
                        return
                    consumer.seek(partition, max(first[partition], seen[partition], end - newest))
                    seen[partition] = end
                self._read_to(ends, consumer)
                self._trouble.ends()
                if self._thread.stopped.wait(LOOK_S):
                    return

    def _report(self, error: Exception) -> None:
        """Log a trouble once, until it changes or is over."""
        if self._trouble.is_new(error):
            log.warning("can't read the newest decisions: %s; trying again", self._trouble.line)

    def _read_to(self, ends: Mapping[TopicPartition, int], consumer: KafkaConsumer) -> None:
        for _ in range(_MOST_POLLS):
            if self._thread.stopped.is_set():
                return
            if all(consumer.position(partition) >= end for partition, end in ends.items()):
                return
            for records in consumer.poll(timeout_ms=_POLL_MS).values():
                for record in records:
                    counts = self._fence.passes_record(record)
                    if counts and record.offset < ends[TopicPartition(record.topic, record.partition)]:
                        for read in self._readers:
                            read(record.value)
