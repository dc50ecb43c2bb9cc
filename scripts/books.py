"""The books of a run: whether every request was answered once, in the topics and in Delta, and answered right."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from deltalake import DeltaTable
from kafka import KafkaConsumer, TopicPartition
from numpy.typing import NDArray

from configs.settings import Settings
from sinks.quotas_table import QuotasTable
from sinks.topics import connect
from state.resolution import Quotas
from streaming.simulation import Simulation

_POLL_MS = 500
_SOURCE = ["source_partition", "source_offset"]

Marks = NDArray[np.bool_]
"""Of each record of a partition, by its offset, whether it is answered."""


@dataclass(frozen=True, slots=True)
class Books:
    """Counts over the whole life of the topics and tables. `different` decisions aren't what `simulate` decides.

    `simulated` is false where the simulation knows no order: with several partitions, or after records were deleted.
    """

    requests: int
    decisions: int
    dead_letters: int
    duplicates: int
    decision_rows: int
    dead_letter_rows: int
    charges: int
    metered_charges: int
    different: int
    simulated: bool

    @property
    def answered(self) -> bool:
        """Requests = decisions + dead letters, each once, and no decision different."""
        return self.requests == self.decisions + self.dead_letters and not self.duplicates and not self.different

    @property
    def balanced(self) -> bool:
        """Answered, each answer one row in Delta and each charge counted once."""
        return (
            self.answered
            and self.decision_rows == self.decisions
            and self.dead_letter_rows == self.dead_letters
            and self.metered_charges == self.charges
        )

    def __str__(self) -> str:
        """The balance in a line."""
        simulated = f"{self.different} different from simulate" if self.simulated else "not simulated"
        return (
            f"{self.requests} requests = {self.decisions} decisions + {self.dead_letters} dead letters"
            f" ({self.duplicates} duplicates); in Delta {self.decision_rows} decisions, {self.dead_letter_rows} dead"
            f" letters, {self.metered_charges} of {self.charges} charges; {simulated}:"
            f" {'balanced' if self.balanced else 'NOT BALANCED'}"
        )


def close_books(settings: Settings) -> Books:
    """Read everything and count. The quotas must not have changed since the job's first start."""
    topics, delta = settings.topics, settings.delta
    requests = list(records(settings, topics.requests))
    answers = [json.loads(record.value) for record in records(settings, topics.decisions)]
    letters = [json.loads(record.value)["source"] for record in records(settings, topics.dead_letters)]
    decisions = {answer["decision_id"]: answer for answer in answers}
    sources = {(letter["partition"], letter["offset"]) for letter in letters}
    simulated = [record.offset for record in requests] == list(range(len(requests)))
    # The simulation knows no record times: an event that lies ahead of its own is a dead letter to the job alone.
    decidable = (record.value if (record.partition, record.offset) not in sources else None for record in requests)
    return Books(
        requests=len(requests),
        decisions=len(decisions),
        dead_letters=len(sources),
        duplicates=len(answers) - len(decisions) + len(letters) - len(sources),
        decision_rows=rows(delta.decisions),
        dead_letter_rows=rows(delta.dead_letters),
        charges=sum(len(decision["charges"]) for decision in decisions.values()),
        metered_charges=sum(DeltaTable(delta.quota_metrics).to_pyarrow_table(columns=["count"])["count"].to_pylist()),
        different=_different(settings, decidable, decisions) if simulated else 0,
        simulated=simulated,
    )


def count_books(settings: Settings) -> Books:
    """The same counts in bounded memory, whatever the size; nothing is simulated, and topics are counted, not read.

    Duplicates are those in Delta, which has a row for each source record.
    """
    topics, delta = settings.topics, settings.delta
    answered = {partition: np.zeros(end, bool) for partition, end in ends(settings, topics.requests).items()}
    charges = duplicates = 0
    for batch in _batches(delta.decisions, [*_SOURCE, "charges"]):
        duplicates += _mark(batch, answered)
        charges += pc.sum(pc.list_value_length(batch["charges"])).as_py() or 0
    for batch in _batches(delta.dead_letters, _SOURCE):
        duplicates += _mark(batch, answered)
    return Books(
        requests=sum(map(len, answered.values())),
        decisions=sum(ends(settings, topics.decisions).values()),
        dead_letters=sum(ends(settings, topics.dead_letters).values()),
        duplicates=duplicates,
        decision_rows=rows(delta.decisions),
        dead_letter_rows=rows(delta.dead_letters),
        charges=charges,
        metered_charges=sum(pc.sum(batch["count"]).as_py() or 0 for batch in _batches(delta.quota_metrics, ["count"])),
        different=0,
        simulated=False,
    )


def rows(path: str) -> int:
    """Rows of a Delta table, from its log; 0 if there is no table yet."""
    if not DeltaTable.is_deltatable(path):
        return 0
    return sum(DeltaTable(path).get_add_actions(flatten=True)["num_records"].to_pylist())


def ends(settings: Settings, topic: str) -> dict[int, int]:
    """The next offset of each partition of a topic."""
    consumer = connect(KafkaConsumer, settings.kafka)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        return {partition.partition: end for partition, end in consumer.end_offsets(partitions).items()}
    finally:
        consumer.close()


def records(settings: Settings, topic: str) -> Iterator[Any]:
    """Every record of a topic, in order within a partition."""
    consumer = connect(KafkaConsumer, settings.kafka)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for batch in consumer.poll(timeout_ms=_POLL_MS).values():
                yield from batch
    finally:
        consumer.close()


def _batches(path: str, columns: list[str]) -> Iterator[Any]:
    """A Delta table piece by piece, as Arrow record batches; nothing if there is no table yet."""
    if DeltaTable.is_deltatable(path):
        yield from DeltaTable(path).to_pyarrow_dataset().to_batches(columns=columns)


def _mark(batch: Any, answered: dict[int, Marks]) -> int:
    """Mark the source records of these rows as answered; how many of them were so already."""
    offsets, partitions = batch["source_offset"].to_numpy(), batch["source_partition"].to_numpy()
    again = 0
    for partition, marks in answered.items():
        own = offsets[partitions == partition]
        before = int(marks.sum())
        marks[own] = True
        again += len(own) - (int(marks.sum()) - before)
    return again


def _different(settings: Settings, values: Iterable[bytes | None], decisions: dict[str, Any]) -> int:
    """How many decisions are missing, or differ in anything but the time of deciding."""
    quotas = Quotas(QuotasTable(settings.delta.quotas).entries(0))
    answers = map(_answer, Simulation(quotas, settings).decide(value or b"" for value in values))
    return sum(
        {**answer, "decided_at_ms": 0} != {**decisions.get(answer["decision_id"], {}), "decided_at_ms": 0}
        for answer in answers
        if answer is not None
    )


def _answer(record: Any) -> dict[str, Any] | None:
    """The decision of a record; None for a dead letter."""
    value: dict[str, Any] = json.loads(record.value)
    return value if "decision_id" in value else None
