"""The Delta table `dead_letters`: one row for each event that couldn't be decided."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_LETTER_DDL = """
    source STRUCT<topic: STRING, partition: INT, offset: BIGINT>,
    error STRUCT<field: STRING, problem: STRING, expected: STRING>, value STRING, value_bytes BIGINT
"""

DEAD_LETTERS_DDL = """
    source_topic STRING, source_partition INT, source_offset BIGINT,
    field STRING, problem STRING, expected STRING, value BINARY, value_bytes BIGINT, recorded_at TIMESTAMP, date DATE
"""
"""The source record, what was wrong, the event's own bytes, and when the dead letter was written."""

PARTITIONED_BY = ("date",)


def parse_dead_letters(records: DataFrame) -> DataFrame:
    """Rows of the table from the dead-letter topic's records (`value`, `timestamp`)."""
    letter = F.from_json(F.col("value").cast("string"), _LETTER_DDL)
    letters = records.select(letter.alias("letter"), "timestamp").where("letter.source.topic is not null")
    return letters.select(
        F.col("letter.source.topic").alias("source_topic"),
        F.col("letter.source.partition").alias("source_partition"),
        F.col("letter.source.offset").alias("source_offset"),
        "letter.error.*",
        F.unbase64("letter.value").alias("value"),
        F.col("letter.value_bytes").alias("value_bytes"),
        F.col("timestamp").alias("recorded_at"),
        F.to_date("timestamp").alias("date"),
    )
