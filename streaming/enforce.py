"""The enforce query: requests topic to decisions and dead letters, nothing slow in it."""

import logging
import time

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from configs.settings import Settings
from streaming.batch_gate import BatchGate
from streaming.checkpoint import Batch, BatchLog, CheckpointFolder
from streaming.kafka import kafka_since, kafka_writer, requests_source
from streaming.operator import (
    COMBINED_SCHEMA,
    DECIDED_AT_PROPERTY,
    DECIDED_SCHEMA,
    PLANNED_SCHEMA,
    QUOTA_VERSION_PROPERTY,
    STATE_SCHEMA,
    combiner,
    planner,
    shard_decider,
)
from streaming.quota_watch import QuotaWatch
from streaming.starting_offsets import starting_offsets

log = logging.getLogger("sluice.enforce")

QUERY_NAME = "enforce"
_CLOCK_DIFFERENCE_MS = 60_000
"""How far the broker's clock may be behind ours; looking back further than needed costs time, nothing else."""


class EnforceQuery:
    """The running query. Each micro-batch picks up the quotas in force when it is begun."""

    def __init__(self, spark: SparkSession, settings: Settings, watch: QuotaWatch) -> None:
        self._spark = spark
        self._settings = settings
        self._watch = watch
        self._log = BatchLog(CheckpointFolder(settings.enforce.checkpoint))
        self._gate = BatchGate()
        self._query: StreamingQuery | None = None

    def start(self) -> StreamingQuery:
        """Start the query on its checkpoint."""
        enforce = self._settings.enforce
        writer = (
            decided_rows(self._spark, self._settings)
            .writeStream.queryName(QUERY_NAME)
            .foreachBatch(self._write_batch)
            .option("checkpointLocation", enforce.checkpoint)
        )
        if enforce.trigger_ms:
            writer = writer.trigger(processingTime=f"{enforce.trigger_ms} milliseconds")
        self._query = writer.start()
        return self._query

    def stop(self) -> None:
        """Stop between two micro-batches: the current one is finished and committed, none is begun after it."""
        if self._query is not None:
            self._gate.stop(self._query)

    def _write_batch(self, decided: DataFrame, batch_id: int) -> None:
        """Decide and write one micro-batch: one action, for a second one would run the stateful plan again."""
        self._gate.enter(batch_id)
        quotas = self._watch.quotas
        replayed = self._log.begun_before(batch_id)
        batch = self._log.begin(batch_id, quotas.version, now_ms=time.time_ns() // 1_000_000)
        self._announce(batch)
        if replayed:
            log.warning("micro-batch %d is repeated; what it wrote before is left out", batch_id)
            self._write(self._unwritten(combined(decided, self._settings), batch))
        elif quotas.one_tag_shape():
            self._write(decided)
        else:
            self._write(combined(decided, self._settings))

    def _unwritten(self, records: DataFrame, batch: Batch) -> DataFrame:
        """The records that the topics haven't got since the batch was begun for the first time."""
        topics = self._settings.topics
        since_ms = batch.decided_at_ms - _CLOCK_DIFFERENCE_MS
        written = kafka_since(self._spark, self._settings, [topics.decisions, topics.dead_letters], since_ms)
        return (
            records.withColumn("answered", _answered())
            .join(F.broadcast(written.select(_answered().alias("answered"))), "answered", "left_anti")
            .drop("answered")
        )

    def _announce(self, batch: Batch) -> None:
        context = self._spark.sparkContext
        context.setLocalProperty(QUOTA_VERSION_PROPERTY, str(batch.quota_version))
        context.setLocalProperty(DECIDED_AT_PROPERTY, str(batch.decided_at_ms))
        context.setLocalProperty("spark.scheduler.pool", QUERY_NAME)

    def _write(self, records: DataFrame) -> None:
        kafka_writer(records.write, self._settings).save()


def decided_rows(spark: SparkSession, settings: Settings) -> DataFrame:
    """The streaming plan: finished records, and parts of decisions (topic null) still to be combined."""
    records = requests_source(spark, settings, starting_offsets(settings)).select(
        "value", "partition", "offset", F.unix_millis("timestamp").alias("timestamp_ms")
    )
    planned = records.mapInArrow(planner(settings), PLANNED_SCHEMA)
    decided = planned.groupBy("shard_key").applyInPandasWithState(
        shard_decider(settings), DECIDED_SCHEMA, STATE_SCHEMA, "append", "NoTimeout"
    )
    return decided.select("topic", F.inline(F.arrays_zip("keys", "values")).alias("key", "value"))


def _answered() -> Column:
    """The event that a record answers: a decision by its id, a dead letter by its source."""
    value = F.col("value").cast("string")
    return F.coalesce(F.get_json_object(value, "$.decision_id"), F.get_json_object(value, "$.source"))


def combined(decided: DataFrame, settings: Settings) -> DataFrame:
    """Finished records as they are, and those that the parts of decisions make, brought together by key."""
    together = decided.repartition("key")
    return together.mapInArrow(combiner(settings.topics.decisions, settings.quota), COMBINED_SCHEMA)
