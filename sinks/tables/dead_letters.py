"""The Delta table `dead_letters`: one row per event that couldn't be decided."""

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.sinks.tables.delta import RECORD, RECORD_ID, SOURCE_COLUMNS, AuditTable, RequestsTopic, append_once
from sluice.sinks.tables.unreadable import CORRUPT, FAULT, JSON_OPTIONS, TimeBounds, fault, json_fault

_LETTER_DDL = """
    source STRUCT<topic: STRING, partition: INT, offset: BIGINT>,
    error STRUCT<field: STRING, problem: STRING, expected: STRING>, value STRING, value_bytes BIGINT
"""

_DDL = """
    source_topic STRING, source_partition INT, source_offset BIGINT,
    field STRING, problem STRING, expected STRING, value BINARY, value_bytes BIGINT, recorded_at TIMESTAMP, date DATE
"""
"""The source record, what was wrong, the event's own bytes, and when the dead letter was written."""


def dead_letters_table(path: str) -> AuditTable:
    """The table at `path`, for rows of `parse_dead_letters`."""
    return AuditTable(path, _DDL, ("date",), partial(append_once, path=path))


def parse_dead_letters(records: DataFrame, requests: RequestsTopic, bounds: TimeBounds) -> DataFrame:
    """A row for each record of the dead-letter topic: RECORD, FAULT, and the columns of the table.

    Records have the columns of Kafka and `read_at`. Of a record with a fault the SOURCE_COLUMNS and `date` are null.
    """
    text = F.col("value").cast("string")
    letter = F.from_json(text, f"{_LETTER_DDL}, {CORRUPT} STRING", JSON_OPTIONS)
    # ANSI or not, unbase64 fails at what is no base64.
    event = F.try_to_binary(F.col("letter.value"), F.lit("base64"))
    parsed = records.withColumn("letter", letter).withColumn("event", event)
    source, error = F.col("letter.source"), F.col("letter.error")
    sources = list(zip(SOURCE_COLUMNS, ("topic", "partition", "offset"), strict=True))
    named = F.struct(*(source[part].alias(column) for column, part in sources))
    faults = [
        json_fault(F.col("letter"), "a dead letter"),
        fault(
            ~F.coalesce((source.topic != "") & (source.partition >= 0) & (source.offset >= 0), F.lit(False)),
            "source",
            "is not topic, partition and offset of a request event",
        ),
        fault(error.problem.isNull(), "error", "says no problem"),
        fault(F.col("letter.value").isNotNull() & F.col("event").isNull(), "value", "is no base64"),
        # The day of the record's time becomes a folder.
        fault(bounds.broken_by(F.unix_millis("timestamp")), "timestamp", "is too far from the present"),
        fault(requests.lacks(named), "source", f"names no event of topic {requests.name}"),
    ]
    good = F.col(FAULT).isNull()
    return parsed.withColumn(FAULT, F.coalesce(*faults)).select(
        F.struct(*RECORD_ID).alias(RECORD),
        FAULT,
        *(F.when(good, F.col(f"letter.source.{part}")).alias(column) for column, part in sources),
        *(F.col(f"letter.error.{column}").alias(column) for column in ("field", "problem", "expected")),
        F.col("event").alias("value"),
        F.col("letter.value_bytes").alias("value_bytes"),
        F.col("timestamp").alias("recorded_at"),
        F.when(good, F.to_date("timestamp")).alias("date"),
    )
