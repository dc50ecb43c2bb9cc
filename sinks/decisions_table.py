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
    decisions = values.select(decision.alias("decision")).select("decision.*").where("decision_id is not null")
    parts = F.split("decision_id", "-")
    return decisions.select(
        F.regexp_replace("decision_id", r"-\d+-\d+$", "").alias("source_topic"),
        F.element_at(parts, -2).cast("int").alias("source_partition"),
        F.element_at(parts, -1).cast("bigint").alias("source_offset"),
        *decisions.columns,
        F.to_date(F.timestamp_millis("decided_at_ms")).alias("date"),
    )
