"""Counts of a run: requests and answers in the topics, and rows in Delta."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple, Self

from deltalake import DeltaTable
from kafka import KafkaConsumer, TopicPartition

from sluice.configs.settings import Settings
from sluice.kafka_io.client import connect
from sluice.kafka_io.topic_reader import TopicReader
from sluice_demo.job import wait_until

_POLL_MS = 500


def rows(path: str) -> int:
    """Number of rows of a Delta table, from its log; 0 if there is no table yet."""
    if not DeltaTable.is_deltatable(path):
        return 0
    return sum(DeltaTable(path).get_add_actions(flatten=True)["num_records"].to_pylist())


def audited(settings: Settings) -> int:
    """Number of decisions, dead letters and unreadable records in Delta."""
    delta = settings.delta
    return rows(delta.decisions) + rows(delta.dead_letters) + rows(delta.unreadable)


def answered(settings: Settings) -> int:
    """Number of records in the topics of decisions and dead letters."""
    topics = settings.topics
    return sum(stored(settings, topic) for topic in (topics.decisions, topics.dead_letters))


def stored(settings: Settings, topic: str) -> int:
    """Number of records that a topic has had."""
    return sum(ends(settings, topic).values())


class Surplus(NamedTuple):
    """Answers and rows for requests that the topic never had: of one before it, or of another cluster."""

    answers: int
    rows: int

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Those that there are now, before a run sends requests."""
        requests = stored(settings, settings.topics.requests)
        return cls(max(0, answered(settings) - requests), max(0, audited(settings) - requests))


_NO_SURPLUS = Surplus(0, 0)


def missing_answers(settings: Settings, before: Surplus = _NO_SURPLUS) -> int:
    """Number of requests without an answer; `before` counts for none of them. Another job may answer some as well."""
    return max(stored(settings, settings.topics.requests) - answered(settings) + before.answers, 0)


def drain(settings: Settings, seconds: float, before: Surplus = _NO_SURPLUS) -> None:
    """Wait until every request is answered and every answer is in Delta. Raises RunError if that takes longer.

    `before` counts for neither.
    """
    requests = stored(settings, settings.topics.requests)
    wait_until(lambda: answered(settings) >= requests + before.answers, seconds)
    wait_until(lambda: audited(settings) >= requests + before.rows, seconds)


def ends(settings: Settings, topic: str) -> dict[int, int]:
    """The next offset of each partition of a topic."""
    with TopicReader(settings.kafka, topic) as reader:
        return {partition: offsets.end for partition, offsets in reader.offsets().items()}


def records(settings: Settings, topic: str) -> Iterator[Any]:
    """Every record of a topic; within a partition they are in order."""
    # It checks no CRCs, which takes longer in Python than all the rest.
    with closing(connect(KafkaConsumer, settings.kafka, check_crcs=False)) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for batch in consumer.poll(timeout_ms=_POLL_MS).values():
                yield from batch
