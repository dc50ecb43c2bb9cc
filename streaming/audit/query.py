"""The audit query: decisions and dead letters, as gateways saw them, to the Delta tables."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.configs.settings import Settings
from sluice.sinks.tables.delta import Commit, create_table
from sluice.sinks.tables.faults import RequestsTopic
from sluice.streaming.audit.answers import RequestEnds, current_ends
from sluice.streaming.audit.writer import AuditWriter
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.leadership.leader_epochs import EpochsSeen
from sluice.streaming.queries.gated_query import GatedQuery
from sluice.streaming.runtime.kafka import epoch_header, kafka_source

QUERY_NAME = "audit"


class AuditQuery(GatedQuery):
    """The running query: a few large, idempotent commits instead of one commit per micro-batch of decisions."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        super().__init__(QUERY_NAME, settings.audit.checkpoint, settings.audit.trigger_s * 1000)
        self._spark = spark
        self._settings = settings
        checkpoint = Checkpoint(settings.audit.checkpoint)
        self._request_ends = RequestEnds(checkpoint)
        self._writer = AuditWriter(settings, EpochsSeen(checkpoint))

    def _rows(self) -> DataFrame:
        """Records of the topics of answers; tables are created where there are none."""
        for table in self._writer.tables:
            create_table(table, self._settings.delta.storage_options)
        topics = self._writer.topics
        records = kafka_source(self._spark, self._settings, topics, "earliest", self._settings.audit, headers=True)
        # In a stream this is the time of the micro-batch, which Spark's log keeps: a repeated one is judged as before.
        read_at = F.current_timestamp().alias("read_at")
        epoch = epoch_header().alias("epoch")
        return records.select("topic", "partition", "offset", "timestamp", "key", "value", read_at, epoch)

    def _write_batch(self, records: DataFrame, batch_id: int) -> None:
        # The query's id is the checkpoint's: a new checkpoint counts its batches from 0 again.
        query_id = records.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        self._writer.write(records, self._requests(batch_id), Commit(f"sluice-audit-{query_id}", batch_id))

    def _requests(self, batch_id: int) -> RequestsTopic:
        """The requests topic as it is now, after all answers of the micro-batch were written."""
        ends = self._request_ends.of_batch(batch_id, current_ends(self._settings))
        return RequestsTopic(self._settings.topics.requests, ends)
