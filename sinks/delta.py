"""Writing Delta tables with Spark so that a repeated micro-batch changes nothing."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

SOURCE_COLUMNS = ("source_topic", "source_partition", "source_offset")
"""The identity of a request event; of a decision and a dead letter there is one for each."""


def create_table(spark: SparkSession, path: str, ddl: str, partitioned_by: Sequence[str]) -> None:
    """Make the table at `path` with these columns if there is none."""
    builder = DeltaTable.createIfNotExists(spark).location(path).partitionedBy(*partitioned_by)
    columns = cast(StructType, StructType.fromDDL(ddl))
    builder.addColumns(list(columns)).execute()


def append_once(rows: DataFrame, path: str, application: str, batch_id: int) -> None:
    """Append a micro-batch's rows, unless this application wrote this batch before."""
    (
        rows.coalesce(1)  # a file a batch: the audit query writes few, large batches
        .write.format("delta")
        .mode("append")
        .option("txnAppId", application)
        .option("txnVersion", batch_id)
        .save(path)
    )


class SourceSpan(NamedTuple):
    """The first and last offset that some rows have of a source partition, and whether they have each only once."""

    topic: str
    partition: int
    first: int
    last: int
    unique: bool


def source_spans(rows: DataFrame) -> list[SourceSpan]:
    """The span of each source partition with rows."""
    offset = F.col("source_offset")
    spans = rows.groupBy("source_topic", "source_partition").agg(
        F.min(offset), F.max(offset), F.count("*") == F.count_distinct(offset)
    )
    return [SourceSpan(*span) for span in spans.collect()]


def new_rows(rows: DataFrame, spans: Sequence[SourceSpan], path: str) -> DataFrame:
    """The rows whose source record the table hasn't yet, one for each source record.

    Rows have the SOURCE_COLUMNS, `spans` are theirs. Files are written in the order of time, so the ranges of offsets
    that a batch spans let Delta skip nearly all of them: the cost doesn't grow with the table.
    """
    if not all(span.unique for span in spans):  # seldom, and it sorts whole rows
        rows = rows.dropDuplicates([*SOURCE_COLUMNS])
    within = F.lit(False)
    for span in spans:
        within = within | _within(span)
    known = rows.sparkSession.read.format("delta").load(path).where(within).select(*SOURCE_COLUMNS)
    return rows.join(F.broadcast(known), [*SOURCE_COLUMNS], "left_anti")


def _within(span: SourceSpan) -> Column:
    same_partition = (F.col("source_topic") == span.topic) & (F.col("source_partition") == span.partition)
    return same_partition & F.col("source_offset").between(span.first, span.last)
