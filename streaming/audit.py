"""The audit query: decisions and dead letters, as gateways saw them, to the Delta tables."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from configs.settings import Settings
from sinks import dead_letters_table, decisions_table, quota_metrics_table
from sinks.delta import append_once, create_table, new_rows, source_spans
from streaming.batch_gate import BatchGate
from streaming.kafka import kafka_source

QUERY_NAME = "audit"


class AuditQuery:
    """The running query: a few large, idempotent commits instead of one for each micro-batch of decisions."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._gate = BatchGate()
        self._query: StreamingQuery | None = None

    def start(self) -> StreamingQuery:
        """Make the tables if need be, and start the query on its checkpoint."""
        delta, audit = self._settings.delta, self._settings.audit
        create_table(self._spark, delta.decisions, decisions_table.DECISIONS_DDL, decisions_table.PARTITIONED_BY)
        create_table(
            self._spark, delta.quota_metrics, quota_metrics_table.QUOTA_METRICS_DDL, quota_metrics_table.PARTITIONED_BY
        )
        create_table(
            self._spark, delta.dead_letters, dead_letters_table.DEAD_LETTERS_DDL, dead_letters_table.PARTITIONED_BY
        )
        topics = self._settings.topics
        answers = [topics.decisions, topics.dead_letters]
        records = kafka_source(self._spark, self._settings, answers, "earliest", audit.max_offsets_per_trigger)
        self._query = (
            records.select("topic", "value", "timestamp")
            .writeStream.queryName(QUERY_NAME)
            .foreachBatch(self._write_batch)
            .option("checkpointLocation", audit.checkpoint)
            .trigger(processingTime=f"{audit.trigger_s} seconds")
            .start()
        )
        return self._query

    def stop(self) -> None:
        """Stop between two batches."""
        if self._query is not None:
            self._gate.stop(self._query)

    def _write_batch(self, records: DataFrame, batch_id: int) -> None:
        """Write one batch; the order of the commits matters.

        Metrics count the decisions that the decisions table hasn't yet, so they are merged (once a batch) before the
        decisions are appended: a crash in between repeats both and counts nothing twice.
        """
        self._gate.enter(batch_id)
        topics, spark = self._settings.topics, records.sparkSession
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", QUERY_NAME)
        application = self._application(spark)
        records.persist()
        try:
            letters = dead_letters_table.parse_dead_letters(records.where(records.topic == topics.dead_letters))
            self._append_letters(letters, application, batch_id)
            decisions = decisions_table.parse_decisions(records.where(records.topic == topics.decisions))
            self._append_decisions(decisions, application, batch_id)
        finally:
            records.unpersist()

    def _append_letters(self, letters: DataFrame, application: str, batch_id: int) -> None:
        path = self._settings.delta.dead_letters
        spans = source_spans(letters)
        if spans:
            append_once(new_rows(letters, spans, path), path, application, batch_id)

    def _append_decisions(self, decisions: DataFrame, application: str, batch_id: int) -> None:
        delta = self._settings.delta
        spans = source_spans(decisions)
        if not spans:
            return
        decided = new_rows(decisions, spans, delta.decisions).persist()
        try:
            measured = quota_metrics_table.measure_decisions(decided, self._settings.audit.metrics_window_s)
            quota_metrics_table.merge_metrics(
                measured.toArrow(), delta.quota_metrics, delta.storage_options, application, batch_id
            )
            append_once(decided, delta.decisions, application, batch_id)
        finally:
            decided.unpersist()

    def _application(self, spark: SparkSession) -> str:
        """The name the tables know this checkpoint by: a new checkpoint counts its batches from 0 again."""
        return f"sluice-audit-{spark.sparkContext.getLocalProperty('sql.streaming.queryId')}"
