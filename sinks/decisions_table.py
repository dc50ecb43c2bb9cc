"""The Delta table `decisions`: one row for each decision."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

CHARGE_DDL = """STRUCT<
    quota: STRING,
    entity: STRUCT<user: STRING, client_id: STRING, topic: STRING, partition: INT>,
    matched: STRING, `limit`: DOUBLE, value: DOUBLE, rate: DOUBLE, tokens: DOUBLE,
    throttle_ms: BIGINT, violated: BOOLEAN, mode: STRING
>"""

DECISION_DDL = f"""
    decision_id STRING, request_id STRING, timestamp_ms BIGINT, user STRING, client_id STRING, api STRING,
    gateway STRING, verdict STRING, throttle_time_ms BIGINT, mute_until_ms BIGINT, error_code INT,
    topic_results ARRAY<STRUCT<topic: STRING, error_code: INT, error_message: STRING>>,
    decided_by STRING, charges ARRAY<{CHARGE_DDL}>, quota_version BIGINT, decided_at_ms BIGINT
"""
"""A decision as the decisions topic has it."""

DECISIONS_DDL = f"""
    source_topic STRING, source_partition INT, source_offset BIGINT, {DECISION_DDL},
    date DATE
"""
"""The table: the decision, the source record its id names, and the day it was decided (UTC)."""

PARTITIONED_BY = ("date",)


def parse_decisions(values: DataFrame) -> DataFrame:
    """Rows of the table from the decisions topic's records (`value`); what is no decision is left out."""
    decision = F.from_json(F.col("value").cast("string"), DECISION_DDL)
    decisions = values.select(decision.alias("decision")).select("decision.*").where("timestamp_ms is not null")
    parts = F.split("decision_id", "-")
    rows = decisions.select(
        F.regexp_replace("decision_id", r"-\d+-\d+$", "").alias("source_topic"),
        F.try_element_at(parts, F.lit(-2)).try_cast("int").alias("source_partition"),
        F.try_element_at(parts, F.lit(-1)).try_cast("bigint").alias("source_offset"),
        *decisions.columns,
        F.to_date(F.timestamp_millis("decided_at_ms")).alias("date"),
    )
    return rows.where("source_partition is not null and source_offset is not null")
