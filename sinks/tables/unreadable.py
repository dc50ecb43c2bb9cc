"""The Delta table `unreadable`: records of the answer topics that are no rows of another table, whole, with the reason.

Anyone who may write to the decisions or dead-letter topic can put anything there. A record that Spark, Delta or a
reader of the tables would fail at must not stop the audit query, and must not be lost.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.sinks.tables.delta import RECORD, RECORD_ID, AuditTable, Commit, append_once

_DDL = """
    topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, key BINARY, value BINARY,
    field STRING, reason STRING, read_at TIMESTAMP, date DATE
"""
"""The record with its own time, the field that is wrong and why, and when the audit query read it first.

The record's time is a number: whoever writes a record sets it, and not every time is a TIMESTAMP that tools can read.
"""

_IDENTITY = ("topic", "partition", "offset", "timestamp_ms")
"""Offsets begin at 0 again in a topic that was deleted and created again; the time tells such records apart."""

FAULT = "fault"
"""The column that says what is wrong with a record: a struct of `field` and `reason`, or null."""

CORRUPT = "corrupt"
"""The column into which Spark puts the text of JSON that it could not read as the wanted fields."""

JSON_OPTIONS = {"columnNameOfCorruptRecord": CORRUPT}


class TimeBounds(NamedTuple):
    """How far a time in a record may lie before and after the time the record is read, in milliseconds.

    Each day of a table is a folder, and each time outside of years 1 to 9999 one that Python can't read.
    """

    past_ms: int
    future_ms: int

    def broken_by(self, time_ms: Column) -> Column:
        """Whether the time is missing or out of bounds; compares without any arithmetic on the time itself."""
        read_at_ms = F.unix_millis("read_at")
        within = time_ms.between(read_at_ms - F.lit(self.past_ms), read_at_ms + F.lit(self.future_ms))
        return ~F.coalesce(within, F.lit(False))


def unreadable_table(path: str) -> AuditTable:
    """The table at `path`, for rows of `unreadable_rows`."""
    return AuditTable(path, _DDL, ("date",), partial(append_once, path=path))


def fault(wrong: Column, field: str, reason: str) -> Column:
    """The fault of a record for which the condition is true."""
    return F.when(wrong, F.struct(F.lit(field).alias("field"), F.lit(reason).alias("reason")))


def json_fault(parsed: Column, what: str) -> Column:
    """The fault of a record's bytes, which `from_json` made into `parsed` with JSON_OPTIONS."""
    value = F.col("value")
    return F.coalesce(
        fault(value.isNull(), "value", "is null"),
        # Spark would replace the bytes that are wrong.
        fault(~F.is_valid_utf8(value.cast("string")), "value", "is not UTF-8"),
        fault(
            parsed.isNull() | parsed[CORRUPT].isNotNull(), "value", f"is not a JSON object with the fields of {what}"
        ),
    )


def unreadable_rows(records: DataFrame, faults: DataFrame) -> DataFrame:
    """Rows of the table: of these records, those with a fault.

    `faults` has a row (RECORD, FAULT) for each, `records` the columns of Kafka and `read_at`.
    """
    found = faults.select(*(F.col(f"{RECORD}.{part}").alias(part) for part in RECORD_ID), f"{FAULT}.*")
    return records.join(found, [*RECORD_ID]).select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        "field",
        "reason",
        "read_at",
        F.to_date("read_at").alias("date"),
    )


def append_unreadable(rows: DataFrame, commit: Commit, path: str) -> Sequence[tuple[str, str, int]]:
    """Append the rows that the table doesn't have yet; returns how many, by field and reason.

    A query that starts on a new checkpoint reads the whole topics again.
    """
    bounds = rows.agg(F.min("offset"), F.max("offset")).collect()[0]
    table = rows.sparkSession.read.format("delta").load(path)
    known = table.where(F.col("offset").between(*bounds)).select(*_IDENTITY)
    new = rows.join(known, [*_IDENTITY], "left_anti").persist()
    try:
        counts = [
            (row["field"], row["reason"], row["count"]) for row in new.groupBy("field", "reason").count().collect()
        ]
        if counts:
            append_once(new, commit, path)
        return counts
    finally:
        new.unpersist()
