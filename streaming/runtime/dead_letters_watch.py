"""Counts the dead letters that are written while the job runs, by the ends of their topic."""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing

from kafka import KafkaConsumer, TopicPartition

from sluice.kafka_io.background import BackgroundThread
from sluice.kafka_io.client import Trouble, connect

log = logging.getLogger("sluice.dead_letters")

_LOOK_S = 10.0
_OFFSETS_TIMEOUT_MS = 3_000
_STOP_TIMEOUT_S = 10.0


class TopicGrowth:
    """How many records a topic gets from one look to the next.

    >>> growth = TopicGrowth()
    >>> growth.since_last({0: 100, 1: 7}), growth.since_last({0: 103, 1: 7})
    (0, 3)
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] | None = None

    def since_last(self, ends: Mapping[int, int]) -> int:
        """Records since the last look, at the first one 0; all of a partition that is new, or was made again."""
        before, self._ends = self._ends, dict(ends)
        if before is None:
            return 0
        return sum(end - _start(before.get(partition, 0), end) for partition, end in ends.items())


def _start(before: int, end: int) -> int:
    return before if before <= end else 0


class DeadLettersWatch:
    """A thread that tells `count` how many records the topic has got."""

    def __init__(self, topic: str, kafka: Mapping[str, str], count: Callable[[int], None]) -> None:
        self._topic = topic
        self._kafka = kafka
        self._count = count
        self._growth = TopicGrowth()
        self._trouble = Trouble()
        self._thread = BackgroundThread("dead-letters-watch", self._look_again_and_again, _LOOK_S, self._report)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop(_STOP_TIMEOUT_S)

    def _look_again_and_again(self) -> None:
        with closing(connect(KafkaConsumer, self._kafka, enable_auto_commit=False)) as consumer:
            while True:
                numbers = consumer.partitions_for_topic(self._topic) or ()
                partitions = [TopicPartition(self._topic, number) for number in numbers]
                ends = consumer.end_offsets(partitions, _OFFSETS_TIMEOUT_MS)
                self._count(self._growth.since_last({partition.partition: end for partition, end in ends.items()}))
                self._trouble.ends()
                if self._thread.stopped.wait(_LOOK_S):
                    return

    def _report(self, error: Exception) -> None:
        """Log a trouble once, until it changes or is over."""
        if self._trouble.is_new(error):
            log.warning("can't count dead letters: %s; trying again", self._trouble.line)
