"""Micro-batches whose requests charge one counter each: Spark plans them once, and writes each answer once."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.configs.settings import Settings
from sluice.process.clock import now_ms
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.query import EnforceQuery, JobContext
from sluice.streaming.enforce.quota_watch import QuotaWatch
from sluice.streaming.java_bridge import KafkaSink
from sluice.streaming.queries.supervision import QueryProgress
from sluice_demo.counts import records
from sluice_demo.job import wait_until
from tests.builders import creates_event, quota
from tests.deciding_side import own_settings

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_the_answers_of_each_micro_batch_are_written_once(
    spark: SparkSession, kafka_broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan that decides them, once the query is known: of a first micro-batch Spark may plan the rows again."""
    settings = own_settings(kafka_broker, partitions=2)
    checkpoint, quotas = Checkpoint(str(tmp_path / "checkpoint")), QuotasTable(str(tmp_path / "quotas"))
    settings = replace(settings, enforce=replace(settings.enforce, checkpoint=checkpoint.location))
    quotas.create([quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1000.0)], "test", datetime.now(UTC))
    planned_once: list[StreamingQuery] = []
    write_batch = KafkaSink.write_batch

    def write(sink: KafkaSink, query: StreamingQuery) -> None:
        planned_once.append(query)
        write_batch(sink, query)

    monkeypatch.setattr(KafkaSink, "write_batch", write)
    enforce = EnforceQuery(JobContext(spark, settings, QuotaWatch(quotas, QuotaSnapshots(checkpoint))))
    enforce.start()
    try:
        with KafkaProducer(bootstrap_servers=kafka_broker) as producer:
            for batch in range(4):
                for number in range(5):
                    event = creates_event("alice", [1], now_ms(), f"{batch}-{number}")
                    producer.send(settings.topics.requests, event, partition=number % 2)
                producer.flush()
                wait_until(partial(_has_decided, settings, 5 * (batch + 1)), 60)
        batches = list(QueryProgress(planned_once[-1]).new_batches())
    finally:
        enforce.stop()

    answered = Counter(json.loads(each.value)["request_id"] for each in records(settings, settings.topics.decisions))
    assert answered == Counter(f"{batch}-{number}" for batch in range(4) for number in range(5))
    assert len(planned_once) >= 3
    numbers = [batch["batch_id"] for batch in batches]
    assert len(numbers) >= 3, "reports that a follower has missed are read, too"
    assert numbers == sorted(set(numbers))


def _has_decided(settings: Settings, number: int) -> bool:
    return sum(1 for _ in records(settings, settings.topics.decisions)) >= number
