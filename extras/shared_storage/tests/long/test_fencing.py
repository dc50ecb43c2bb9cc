"""A driver that was replaced publishes on: what it writes counts for no reader, and each event has one decision.

A real lease, a real topic and a real checkpoint; Spark's sink publishes. The drivers live in this process, and a paused
one goes on exactly where a test lets it.
"""

import random
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.configs.settings import Settings
from sluice.kafka_io.topic_follower import Reading, TopicFollower
from sluice.sinks.tables.faults import RequestsTopic
from sluice.state.decisions.leader_epochs import Fence, LeaderEpoch
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import job_identity
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.query import EnforceQuery, JobContext
from sluice.streaming.enforce.quota_watch import QuotaWatch, ensure_quotas_table
from sluice.streaming.errors import LeadershipError
from sluice.streaming.runtime.kafka import epoch_header, kafka_since
from sluice_demo.counts import records
from sluice_shared_storage.leadership import LEASE_S, KafkaLeadership
from tests.audit_records import READ_AT_MS, decision, text
from tests.audit_tables import rows, tables_in, write
from tests.deciding_side import own_settings
from tests.waiting import DriverClock

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

EVENTS = 8
"""Events of a micro-batch."""

NUMBER = "cast(cast(key as string) as int)"


class Driver(NamedTuple):
    """A driver that has begun to lead, as `sluice.streaming.job` does it."""

    leadership: KafkaLeadership
    epoch: LeaderEpoch
    query: EnforceQuery


@pytest.fixture
def settings(kafka_broker: str, tmp_path: Path) -> Settings:
    """Topics of two partitions and a checkpoint that is a URI."""
    settings = own_settings(kafka_broker, partitions=2)
    return replace(
        settings,
        enforce=replace(settings.enforce, checkpoint=(tmp_path / "checkpoint").as_uri()),
        delta=replace(settings.delta, quotas=str(tmp_path / "quotas")),
    )


@pytest.fixture
def watch(settings: Settings) -> QuotaWatch:
    """The quotas in force."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    return QuotaWatch(ensure_quotas_table(settings), QuotaSnapshots(checkpoint))


def taking_over(spark: SparkSession, settings: Settings, watch: QuotaWatch) -> Driver:
    """A driver that takes the place of the one before, which sends no heartbeat."""
    checkpoint, clock = Checkpoint(settings.enforce.checkpoint), DriverClock()
    leadership = KafkaLeadership(settings.topics, settings.kafka, checkpoint.location, True, clock)

    class Passing(Event):
        def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 # no time passes here
            clock.now_s += LEASE_S
            return super().wait(0)

    assert leadership.acquire(Passing())
    epoch = leadership.begin_epoch(spark)
    return Driver(leadership, epoch, EnforceQuery(JobContext(spark, settings, watch, epoch=epoch)))


def decided(settings: Settings, event: str) -> bytes:
    """The decision of the checkpoint's job on this event."""
    job_id = job_identity(Checkpoint(settings.enforce.checkpoint)).job_id
    return text(decision(0) | {"decision_id": event, "job_id": job_id})


def summed(batch_id: int) -> bytes:
    """The sums of a micro-batch; here also what it says of a wait."""
    return b'{"batch":%d}' % batch_id


def lettered(settings: Settings, batch_id: int) -> bytes:
    """The dead letter of a micro-batch."""
    source = {"topic": settings.topics.requests, "partition": 1, "offset": batch_id}
    return text({"source": source, "error": {"field": "api", "problem": "is missing", "expected": "a value"}})


def micro_batch(spark: SparkSession, settings: Settings, batch_id: int) -> DataFrame:
    """The decisions of a micro-batch, and at the end sums, a wait and a dead letter: finished records."""
    topics, last = settings.topics, b"%d" % EVENTS
    made = [(False, topic, last, summed(batch_id)) for topic in (topics.sums, topics.waits)]
    made.append((False, topics.dead_letters, last, lettered(settings, batch_id)))
    for number in range(EVENTS):
        event = f"{settings.topics.requests}-0-{batch_id * EVENTS + number}"
        made.append((False, settings.topics.decisions, b"%d" % number, decided(settings, event)))
    return spark.createDataFrame(made, "partial boolean, topic string, key binary, value binary").coalesce(1)


def plan(settings: Settings, batch_id: int) -> None:
    """Note the ends of a micro-batch's events, as Spark does it."""
    ends = {settings.topics.requests: {"0": (batch_id + 1) * EVENTS, "1": batch_id + 1}}
    Checkpoint(settings.enforce.checkpoint).spark.write(f"offsets/{batch_id}", b"v1\n{}\n" + text(ends))


def counting(settings: Settings) -> Counter[bytes]:
    """The decisions that count, by the rule that all readers have."""
    fence = Fence()
    return Counter(
        record.value for record in records(settings, settings.topics.decisions) if fence.passes_record(record)
    )


def as_a_gateway_reads(settings: Settings, topic: str) -> tuple[Counter[bytes], int]:
    """The records of a topic that a gateway takes, and how many it leaves out."""
    taken: list[bytes] = []
    reading = Reading(topic, lambda _, value: taken.append(value or b""), ends_there=True, fenced=True)
    reader = TopicFollower(settings.kafka, reading)
    reader.start()
    try:
        assert reader.caught_up.wait(60)
    finally:
        reader.stop(10)
    return Counter(taken), reader.reader.fenced


def as_audit_reads(spark: SparkSession, settings: Settings, tmp_path: Path) -> tuple[Counter[bytes], int]:
    """The decisions that the audit query writes, and how many it leaves out."""
    topics, audit = settings.topics, tables_in(tmp_path / "audit")
    read = kafka_since(spark, settings, [topics.decisions], 0).withColumn("epoch", epoch_header())
    batch = read.drop("headers").withColumn("read_at", F.lit(datetime.fromtimestamp(READ_AT_MS / 1000, UTC)))
    write(replace(audit, topics=topics), batch, 0, requests=RequestsTopic(topics.requests, [10**9] * 2))
    unreadable = rows(audit.delta.unreadable)
    assert {row["field"] for row in unreadable} <= {"epoch"}
    return Counter(decided(settings, row["decision_id"]) for row in rows(audit.delta.decisions)), len(unreadable)


@pytest.mark.parametrize("tries", [2, pytest.param(50, marks=pytest.mark.long)])
def test_a_driver_that_was_replaced_is_refused_every_time_and_each_event_has_one_decision(
    spark: SparkSession, settings: Settings, watch: QuotaWatch, tmp_path: Path, tries: int
) -> None:
    """It pauses in the middle of a micro-batch and wakes up before, while or after the next one repeats it.

    So have the sums of a micro-batch, its wait and its dead letter, which it always writes late.
    """
    chance = random.Random(7)
    late = 0
    stale = taking_over(spark, settings, watch)
    for batch_id in range(tries):
        batch = micro_batch(spark, settings, batch_id)
        plan(settings, batch_id)
        _, repeated = stale.query._log.begin(batch_id, 0, now_ms=time.time_ns() // 1_000_000)
        assert not repeated
        cut = chance.randrange(EVENTS + 1)
        stale.query.publish(batch.where(f"{NUMBER} < {cut}"))

        leader = taking_over(spark, settings, watch)
        wakes_up_early = chance.random() < 0.5
        if wakes_up_early:
            stale.query.publish(batch.where(f"{NUMBER} >= {cut}"))
        leader.query.write_batch(batch, batch_id)
        if not wakes_up_early:
            stale.query.publish(batch.where(f"{NUMBER} >= {cut}"))
        late += EVENTS - cut

        with pytest.raises(LeadershipError, match="leads the checkpoint"):
            stale.leadership.confirm()
        stale = leader
    everything = {
        bytes(row["value"]): 1
        for batch_id in range(tries)
        for row in micro_batch(spark, settings, batch_id).collect()
        if row["topic"] == settings.topics.decisions
    }
    assert counting(settings) == everything
    assert as_a_gateway_reads(settings, settings.topics.decisions) == (everything, late)
    assert as_a_gateway_reads(settings, settings.topics.sums) == ({summed(each): 1 for each in range(tries)}, tries)
    waits, fenced = as_a_gateway_reads(settings, settings.topics.waits)
    assert set(waits.values()) == {1}  # compaction may have taken some of them
    assert fenced
    letters = {lettered(settings, each): 1 for each in range(tries)}
    assert as_a_gateway_reads(settings, settings.topics.dead_letters) == (letters, tries)
    assert as_audit_reads(spark, settings, tmp_path) == (everything, late)


def test_the_driver_of_a_restored_checkpoint_has_an_epoch_above_those_in_the_topic(
    spark: SparkSession, settings: Settings, watch: QuotaWatch
) -> None:
    """The backup has none of the epochs that were begun since; decisions count all the same."""
    for _ in range(3):
        last = taking_over(spark, settings, watch)
    batch = micro_batch(spark, settings, 0)
    last.query.publish(batch.where(f"{NUMBER} < 1"))
    epochs = Path(settings.enforce.checkpoint.removeprefix("file://")) / "sluice" / "epochs"
    for file in sorted(epochs.iterdir())[1:]:
        file.unlink()

    leader = taking_over(spark, settings, watch)
    leader.query.publish(batch.where(f"{NUMBER} >= 1"))

    assert leader.epoch.number == 4
    decisions = [row for row in batch.collect() if row["topic"] == settings.topics.decisions]
    assert counting(settings) == {bytes(row["value"]): 1 for row in decisions}
