"""Leaving out what a repeated micro-batch has written before: the answers to its events, decisions and dead letters.

Sums, heartbeats and waits answer no event. They are written again, and their readers know a repetition by its number.
Both stages run in the tasks. An event is a place here, for its topic is known.
"""

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

import pyarrow as pa

from sluice.state.contract.decision_id import answered_event
from sluice.streaming.enforce.stages import ArrowStage

ANSWERED_SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])

Place = tuple[int, int]
"""Partition and offset of an event."""


class BatchAnswers(NamedTuple):
    """Which records are answers of the job to events of one micro-batch: those from `begins` to before `ends`.

    `topic_ids` are Kafka's of the requests topic as its answers may give them, and `topics` those of answers. With
    `job_id` decisions of another job count as foreign.
    """

    topics: frozenset[str]
    requests_topic: str
    topic_ids: frozenset[str | None]
    job_id: str | None
    begins: Mapping[int, int]
    ends: Mapping[int, int]

    def place(self, value: bytes | None) -> Place | None:
        """The event that a record answers; None for any other record."""
        event = answered_event(value, self.job_id)
        if event is None or event.topic != self.requests_topic or event.topic_id not in self.topic_ids:
            return None
        first, end = (offsets.get(event.partition, 0) for offsets in (self.begins, self.ends))
        return (event.partition, event.offset) if first <= event.offset < end else None


def topic_ids_of_answers(now: str | None, begun: str | None) -> frozenset[str | None]:
    """The ids of the requests topic that answers to a micro-batch may give: that of now, and that when it was begun.

    Where both are known the one of now alone counts: with another one they answer events of another topic.
    """
    return frozenset({now} if now is not None and begun is not None else {now, begun})


def answered_places(answers: BatchAnswers) -> ArrowStage:
    """From records (value) to the places (ANSWERED_SCHEMA) of the events that they answer, each once.

    A task keeps no more of them than the micro-batch has events, however many records were written since it began.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = {
            place
            for batch in batches
            for value in batch.column("value").to_pylist()
            if (place := answers.place(value)) is not None
        }
        columns = list(zip(*found, strict=True)) or [(), ()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, ANSWERED_SCHEMA.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=ANSWERED_SCHEMA)

    return read


def places_in(answered: pa.Table) -> frozenset[Place]:
    """The places that all tasks have found."""
    return frozenset(zip(*(answered[name].to_pylist() for name in ANSWERED_SCHEMA.names), strict=True))


def without_answered(answers: BatchAnswers, answered: Set[Place]) -> ArrowStage:
    """The records (topic, key, value) of the micro-batch but for answers to events that have one."""

    def leave_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            records = zip(batch.column("topic").to_pylist(), batch.column("value").to_pylist(), strict=True)
            left = [topic not in answers.topics or answers.place(value) not in answered for topic, value in records]
            yield batch.filter(pa.array(left, pa.bool_()))

    return leave_out
