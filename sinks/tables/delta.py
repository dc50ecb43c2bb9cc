"""Writing Delta tables with Spark so that a repeated micro-batch changes nothing."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple, cast

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

SOURCE_COLUMNS = ("source_topic", "source_partition", "source_offset")
"""The request event that a row answers; an event has one decision or one dead letter."""

RECORD = "record"
"""The column that names the record that a row was made from: a struct of RECORD_ID."""

RECORD_ID = ("partition", "offset")

_MAX_SPANS = 200
"""More source partitions than that in one micro-batch are looked up without their names, which would make a condition
that Spark can't plan."""

_MAX_WIDTH = 10_000_000
"""Most offsets in the spans of a micro-batch whose rows are looked up by span alone."""


_STATISTICS = "delta.dataSkippingStatsColumns"
"""Delta's property that names the columns of which a file's least and greatest value are kept."""


class Commit(NamedTuple):
    """Who commits what, so that a table can recognise a repeated micro-batch: the application and its batch number."""

    application: str
    batch_id: int


class RequestsTopic(NamedTuple):
    """The requests topic, and by partition the offset after the newest event that an answer may be of."""

    name: str
    ends: Sequence[int]

    def lacks(self, source: Column) -> Column:
        """Whether the struct of SOURCE_COLUMNS names no event of the topic."""
        end = F.get(F.array(*map(F.lit, self.ends)).cast("array<bigint>"), source.source_partition)
        there = (source.source_topic == self.name) & (source.source_offset < end)
        return ~F.coalesce(there, F.lit(False))


class AuditTable(NamedTuple):
    """One table: where it is, its columns, and how the new rows of a micro-batch go into it.

    `write` may be called again for the same commit, and must then change nothing. Readers skip files by the columns of
    `looked_up_by`; without any, by Delta's first 32 columns. Each column costs time when a file is written.
    """

    path: str
    ddl: str
    partitioned_by: Sequence[str]
    write: Callable[[DataFrame, Commit], None]
    looked_up_by: Sequence[str] = ()


class AuditFeed(NamedTuple):
    """A topic and the tables that are made from its records.

    `parse` gives a row for each record: RECORD, what is wrong with it, and the columns of the last table; of a record
    with a fault the SOURCE_COLUMNS are null. Rows that the last table has already are left out before any table is
    written; the tables are then written in order. Two rows that answer the same event are the same if they differ in
    nothing but the columns of `own`, which say when a row was made.
    """

    topic: str
    parse: Callable[[DataFrame, RequestsTopic], DataFrame]
    tables: Sequence[AuditTable]
    own: Sequence[str]


def create_table(spark: SparkSession, table: AuditTable) -> None:
    """Create the table if there is none at its path."""
    # Delta compares the location with Hadoop's form of it, which has one slash, and refuses three.
    location = table.path.replace("file:///", "file:/", 1) if table.path.startswith("file:///") else table.path
    builder = DeltaTable.createIfNotExists(spark).location(location).partitionedBy(*table.partitioned_by)
    if table.looked_up_by:
        builder = builder.property(_STATISTICS, ",".join(table.looked_up_by))
    columns = cast(StructType, StructType.fromDDL(table.ddl))
    builder.addColumns(list(columns)).execute()


def append_once(rows: DataFrame, commit: Commit, path: str) -> None:
    """Append a micro-batch's rows to the table at `path`, unless its application has written this batch before."""
    (
        rows.coalesce(1)  # one file per batch: the audit query writes few, large batches
        .write.format("delta")
        .mode("append")
        .option("txnAppId", commit.application)
        .option("txnVersion", commit.batch_id)
        .option("mergeSchema", True)  # a table of an older release gets new columns; old rows have null there
        .save(path)
    )


class SourceSpan(NamedTuple):
    """The first and last offset of some rows in a source partition, and whether no two rows have the same offset.

    Without topic and partition it spans all of them.
    """

    topic: str | None
    partition: int | None
    first: int
    last: int
    unique: bool


class SourceSpans(NamedTuple):
    """The spans of rows, and whether there are rows without a source: those with a fault."""

    spans: Sequence[SourceSpan]
    faults: bool


def source_spans(rows: DataFrame) -> SourceSpans:
    """The span of each source partition that has rows; runs a Spark job, and another one for very many partitions."""
    offset = F.col("source_offset")
    measures = (F.min(offset), F.max(offset), F.count(offset) == F.count_distinct(offset))
    found = rows.groupBy("source_topic", "source_partition").agg(*measures).limit(_MAX_SPANS + 1).collect()
    spans = [SourceSpan(*span) for span in found if span[0] is not None]
    if len(found) <= _MAX_SPANS:
        return SourceSpans(spans, faults=len(spans) < len(found))
    first, last = rows.agg(*measures[:2]).collect()[0]
    return SourceSpans([SourceSpan(None, None, first, last, unique=False)], faults=True)


class NewRows(NamedTuple):
    """Rows that answer an event for the first time, and rows that give an answered event another answer.

    Repetitions of an answer are in neither.
    """

    first: DataFrame
    contradicting: DataFrame | None
    cached: Sequence[DataFrame]

    def release(self) -> None:
        """Free the memory that the lookup takes."""
        for frame in self.cached:
            frame.unpersist()


def new_rows(rows: DataFrame, spans: Sequence[SourceSpan], path: str, own: Sequence[str]) -> NewRows:
    """Tell new rows from those whose source record is in the table at `path`, or earlier among the rows.

    Rows have RECORD and the SOURCE_COLUMNS, `spans` are theirs, and `own` the columns that don't count. The table's
    files are written in the order of time, so Delta skips nearly all of them by the ranges of offsets in `spans`: the
    cost doesn't grow with the table.
    """
    content = [name for name in rows.columns if name not in (RECORD, *SOURCE_COLUMNS, *own)]
    digest = _digest(content, rows.columns)
    contradicting = []
    cached = []
    known = _known(rows, spans, path)
    known = known.select(*SOURCE_COLUMNS, _digest(content, known.columns).alias("known")).persist()
    cached.append(known)
    if known.count():
        others = rows.join(F.broadcast(known), [*SOURCE_COLUMNS]).where(digest != F.col("known"))
        contradicting.append(others.drop("known").dropDuplicates([RECORD]))
        rows = rows.join(F.broadcast(known), [*SOURCE_COLUMNS], "left_anti")
    if not all(span.unique for span in spans):
        repeated = _repeated(rows, digest).persist()
        cached.append(repeated)
        compared = rows.join(repeated, [*SOURCE_COLUMNS], "left")
        later = F.coalesce(F.col(RECORD) != F.col("first_record"), F.lit(False))
        columns = rows.columns
        contradicting.append(compared.where(later & (digest != F.col("first_digest"))).select(*columns))
        rows = compared.where(~later).select(*columns)
    return NewRows(rows, reduce(DataFrame.unionByName, contradicting) if contradicting else None, cached)


def _known(rows: DataFrame, spans: Sequence[SourceSpan], path: str) -> DataFrame:
    """The rows of the table whose source record is in a span: no more than there are offsets or rows."""
    table = rows.sparkSession.read.format("delta").load(path)
    known = table.where(reduce(or_, map(_within, spans)))
    width = sum(span.last - span.first + 1 for span in spans)
    if width > _MAX_WIDTH or any(span.topic is None for span in spans):
        # An old answer, again or forged: the span between it and the newest may be the whole table.
        known = known.join(rows.select(*SOURCE_COLUMNS), [*SOURCE_COLUMNS], "left_semi")
    return known


def _digest(content: Sequence[str], columns: Sequence[str]) -> Column:
    """One number for the content of a row. A column that a table of an older release lacks is null there."""
    values = [F.col(name) if name in columns else F.lit(None) for name in content]
    # Spark's hash skips null: where it was, the hash has to be told.
    return F.xxhash64(*values, *(value.isNull() for value in values))


def _repeated(rows: DataFrame, digest: Column) -> DataFrame:
    """The source records with several rows, and of each the record and digest of the row that came first."""
    counted = rows.groupBy(*SOURCE_COLUMNS).agg(
        F.count("*").alias("rows"),
        F.min(RECORD).alias("first_record"),
        F.min_by(digest, RECORD).alias("first_digest"),
    )
    return counted.where("rows > 1").drop("rows")


def _within(span: SourceSpan) -> Column:
    within = F.col("source_offset").between(span.first, span.last)
    if span.topic is None:
        return within
    return (F.col("source_topic") == span.topic) & (F.col("source_partition") == span.partition) & within
