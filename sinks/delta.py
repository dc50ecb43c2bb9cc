"""Writing Delta tables with Spark so that a repeated micro-batch changes nothing."""

from collections.abc import Sequence
from typing import cast

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Row, SparkSession
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


def source_spans(rows: DataFrame) -> list[Row]:
    """For each source partition with rows the first and last offset of them."""
    return (
        rows.groupBy("source_topic", "source_partition")
        .agg(F.min("source_offset").alias("first"), F.max("source_offset").alias("last"))
        .collect()
    )


def new_rows(rows: DataFrame, spans: Sequence[Row], path: str) -> DataFrame:
    """The rows whose source record the table hasn't yet, one for each source record.

    Rows have the SOURCE_COLUMNS, `spans` are theirs. Files are written in the order of time, so the ranges of offsets
    that a batch spans let Delta skip nearly all of them: the cost doesn't grow with the table.
    """
    within = F.lit(False)
    for span in spans:
        within = within | _within(span["source_topic"], span["source_partition"], span["first"], span["last"])
    known = rows.sparkSession.read.format("delta").load(path).where(within).select(*SOURCE_COLUMNS)
    return rows.dropDuplicates([*SOURCE_COLUMNS]).join(F.broadcast(known), [*SOURCE_COLUMNS], "left_anti")


def _within(topic: str, partition: int, first: int, last: int) -> Column:
    same_partition = (F.col("source_topic") == topic) & (F.col("source_partition") == partition)
    return same_partition & F.col("source_offset").between(first, last)
