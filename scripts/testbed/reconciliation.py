"""Reconciles a run: every request is answered exactly once, in the topics and in Delta, and with the right decision."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from deltalake import DeltaTable
from kafka import KafkaConsumer, TopicPartition
from numpy.typing import NDArray

from sluice.configs.settings import Settings
from sluice.kafka_io.client import connect
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.decisions.epochs import Fence
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation

_POLL_MS = 500
_BY_RUN = {"decided_at_ms": 0, "job_id": None}
"""What a decision and its simulation don't have in common: compared as if it were this."""

_SOURCE = ["source_partition", "source_offset"]

_Record = tuple[str, int, int]
"""Topic, partition and offset."""

Answered = NDArray[np.bool_]
"""Whether each record of a partition is answered, by offset."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Counts over the whole life of the topics and tables. `different` counts decisions that `simulate` contradicts.

    `unreadable` counts records of the answer topics that the table `unreadable` has, which are no answers;
    `unaccounted` those that are no answers and not in that table, and its rows beyond one for a record. `simulated` is
    false when the order of the requests is unknown: with several partitions or after deleted records.
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
    unreadable: int = 0
    unaccounted: int = 0

    @property
    def answered(self) -> bool:
        """Whether requests = decisions + dead letters, each once, and no decision is different."""
        return self.requests == self.decisions + self.dead_letters and not self.duplicates and not self.different

    @property
    def balanced(self) -> bool:
        """Whether every request is answered, every answer is one row in Delta, and every charge is counted once."""
        return (
            self.answered
            and self.decision_rows == self.decisions
            and self.dead_letter_rows == self.dead_letters
            and self.metered_charges == self.charges
            and not self.unaccounted
        )

    def __str__(self) -> str:
        """All counts in one line."""
        simulated = f"{self.different} different from simulate" if self.simulated else "not simulated"
        others = f"; {self.unreadable} unreadable records" if self.unreadable else ""
        others += f", {self.unaccounted} unaccounted for" if self.unaccounted else ""
        return (
            f"{self.requests} requests = {self.decisions} decisions + {self.dead_letters} dead letters"
            f" ({self.duplicates} duplicates){others}; in Delta {self.decision_rows} decisions,"
            f" {self.dead_letter_rows} dead letters, {self.metered_charges} of {self.charges} charges; {simulated}:"
            f" {'balanced' if self.balanced else 'NOT BALANCED'}"
        )


def reconcile(settings: Settings) -> Reconciliation:
    """Read everything, and simulate the decisions. The quotas must not have changed since the job's first start."""
    topics, delta = settings.topics, settings.delta
    requests = list(records(settings, topics.requests))
    unreadable = _unreadable(delta.unreadable)
    answers, no_answers = _readable(settings, topics.decisions, "decision_id", unreadable)
    lettered, no_letters = _readable(settings, topics.dead_letters, "source", unreadable)
    letters = [letter["source"] for letter in lettered]
    decisions = {answer["decision_id"]: answer for answer in answers}
    sources = {(letter["partition"], letter["offset"]) for letter in letters}
    simulated = [record.offset for record in requests] == list(range(len(requests)))
    # The simulation knows no record times, so it does not refuse events that are ahead of their record's time.
    decidable = (record.value if (record.partition, record.offset) not in sources else None for record in requests)
    return Reconciliation(
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
        unreadable=len(unreadable),
        unaccounted=no_answers + no_letters + rows(delta.unreadable) - len(unreadable),
    )


def reconcile_counts(settings: Settings) -> Reconciliation:
    """The same counts in bounded memory, for runs of any size: nothing is simulated, and topics are not read.

    Duplicates are those in Delta, which has a row for each source record.
    """
    topics, delta = settings.topics, settings.delta
    unreadable = Counter(
        topic for batch in _batches(delta.unreadable, ["topic"]) for topic in batch["topic"].to_pylist()
    )
    is_answered = {partition: np.zeros(end, bool) for partition, end in ends(settings, topics.requests).items()}
    charges = duplicates = 0
    for batch in _batches(delta.decisions, [*_SOURCE, "charges"]):
        duplicates += _mark(batch, is_answered)
        charges += pc.sum(pc.list_value_length(batch["charges"])).as_py() or 0
    for batch in _batches(delta.dead_letters, _SOURCE):
        duplicates += _mark(batch, is_answered)
    return Reconciliation(
        requests=sum(map(len, is_answered.values())),
        decisions=sum(ends(settings, topics.decisions).values()) - unreadable[topics.decisions],
        dead_letters=sum(ends(settings, topics.dead_letters).values()) - unreadable[topics.dead_letters],
        duplicates=duplicates,
        decision_rows=rows(delta.decisions),
        dead_letter_rows=rows(delta.dead_letters),
        charges=charges,
        metered_charges=sum(pc.sum(batch["count"]).as_py() or 0 for batch in _batches(delta.quota_metrics, ["count"])),
        different=0,
        simulated=False,
        unreadable=unreadable.total(),
    )


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
    return sum(sum(ends(settings, topic).values()) for topic in (topics.decisions, topics.dead_letters))


def ends(settings: Settings, topic: str) -> dict[int, int]:
    """The next offset of each partition of a topic."""
    with _reader(settings, topic) as (consumer, partitions):
        return {partition.partition: end for partition, end in consumer.end_offsets(partitions).items()}


def records(settings: Settings, topic: str) -> Iterator[Any]:
    """Every record of a topic; within a partition they are in order."""
    with _reader(settings, topic) as (consumer, partitions):
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for batch in consumer.poll(timeout_ms=_POLL_MS).values():
                yield from batch


def _readable(settings: Settings, topic: str, required: str, unreadable: set[_Record]) -> tuple[list[Any], int]:
    """The JSON objects of a topic with the required field, and the number of all other records.

    Records that the table `unreadable` has count as neither, and markers of epochs.
    """
    answers, others, fence = [], 0, Fence()
    for record in records(settings, topic):
        if (topic, record.partition, record.offset) in unreadable or not fence.passes_record(record):
            continue
        try:
            answer = json.loads(record.value or b"")
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict) and required in answer:
            answers.append(answer)
        else:
            others += 1
    return answers, others


def _unreadable(path: str) -> set[_Record]:
    columns = ["topic", "partition", "offset"]
    batches = _batches(path, columns)
    return {record for batch in batches for record in zip(*(batch[name].to_pylist() for name in columns), strict=True)}


@contextmanager
def _reader(settings: Settings, topic: str) -> Iterator[tuple[Any, list[TopicPartition]]]:
    """A consumer, and the partitions of a topic. It checks no CRCs, which takes longer in Python than all the rest."""
    with closing(connect(KafkaConsumer, settings.kafka, check_crcs=False)) as consumer:
        yield consumer, [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]


def _batches(path: str, columns: list[str]) -> Iterator[Any]:
    """The Arrow record batches of a Delta table; none if there is no table yet."""
    if DeltaTable.is_deltatable(path):
        yield from DeltaTable(path).to_pyarrow_dataset().to_batches(columns=columns)


def _mark(batch: Any, is_answered: dict[int, Answered]) -> int:
    """Mark the source records of these rows as answered; returns how many of them were answered before."""
    offsets, partitions = batch["source_offset"].to_numpy(), batch["source_partition"].to_numpy()
    again = 0
    for partition, flags in is_answered.items():
        own = offsets[partitions == partition]
        before = int(flags.sum())
        flags[own] = True
        again += len(own) - (int(flags.sum()) - before)
    return again


def _different(settings: Settings, values: Iterable[bytes | None], decisions: dict[str, Any]) -> int:
    """Number of decisions that are missing, or differ from the simulated ones in more than time and id of the job."""
    quotas = Quotas(QuotasTable(settings.delta.quotas).entries(0))
    answers = map(_answer, Simulation(quotas, settings).decide(value or b"" for value in values))
    return sum(
        {**answer, **_BY_RUN} != {**decisions.get(answer["decision_id"], {}), **_BY_RUN}
        for answer in answers
        if answer is not None
    )


def _answer(record: Any) -> dict[str, Any] | None:
    """The decision in a record; None for a dead letter."""
    value: dict[str, Any] = json.loads(record.value)
    return value if "decision_id" in value else None
