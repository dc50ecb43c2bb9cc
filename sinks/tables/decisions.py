"""The Delta table `decisions`: one row per decision."""

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.sinks.tables.delta import RECORD, RECORD_ID, SOURCE_COLUMNS, AuditTable, RequestsTopic, append_once
from sluice.sinks.tables.quota_metrics import METRIC_NAMES
from sluice.sinks.tables.unreadable import CORRUPT, FAULT, JSON_OPTIONS, TimeBounds, fault, json_fault
from sluice.state.contract.records import MAX_APPLIED_WAITS, MAX_ENTRIES, MAX_NAME_LENGTH, MAX_SHARES, Verdict
from sluice.state.quotas.entry import Mode

_ENTITY_DDL = "STRUCT<user: STRING, client_id: STRING, topic: STRING, partition: INT>"

_CHARGE_DDL = f"""STRUCT<
    quota: STRING, entity: {_ENTITY_DDL},
    matched: STRING, `limit`: DOUBLE, value: DOUBLE, rate: DOUBLE, tokens: DOUBLE,
    throttle_ms: BIGINT, violated: BOOLEAN, mode: STRING
>"""

_AMOUNTS_DDL = """STRUCT<
    bytes: BIGINT, request_time_ns: BIGINT, network_time_ns: BIGINT,
    topic_partitions: ARRAY<STRUCT<topic: STRING, partition: INT, bytes: BIGINT>>,
    mutations: ARRAY<STRUCT<topic: STRING, partitions: INT>>, mutations_charged: INT, api_version: INT,
    validate_only: BOOLEAN, cluster_action: BOOLEAN, authenticating: BOOLEAN, purgatory_ms: BIGINT,
    withheld: BOOLEAN, requests: INT
>"""

_HEARTBEAT_DDL = f"""STRUCT<
    staleness_ms: BIGINT, counters: INT,
    shares: ARRAY<STRUCT<
        quota: STRING, entity: {_ENTITY_DDL}, `limit`: DOUBLE, share: DOUBLE, charged: DOUBLE, throttle_ms: BIGINT
    >>
>"""

_DECISION_DDL = f"""
    decision_id STRING, request_id STRING, timestamp_ms BIGINT, user STRING, client_id STRING, api STRING,
    gateway STRING, verdict STRING, throttle_time_ms BIGINT, mute_until_ms BIGINT, error_code INT,
    topic_results ARRAY<STRUCT<topic: STRING, error_code: INT, error_message: STRING>>,
    decided_by STRING, charges ARRAY<{_CHARGE_DDL}>, quota_version BIGINT, decided_at_ms BIGINT,
    job_id STRING, instance STRING,
    throttled_by ARRAY<STRUCT<quota: STRING, entity: {_ENTITY_DDL}, ms: BIGINT>>,
    amounts {_AMOUNTS_DDL}, heartbeat {_HEARTBEAT_DDL}
"""
"""A decision as the decisions topic has it."""

_DDL = f"""
    source_topic STRING, source_partition INT, source_offset BIGINT, {_DECISION_DDL},
    date DATE
"""
"""The decision, the source record that its id names, and the day on which it was decided (UTC)."""

_LOOKED_UP_BY = ("decision_id", *SOURCE_COLUMNS, "timestamp_ms", "decided_at_ms", "user", "client_id")
"""The source is what a micro-batch looks up, the others are what queries of the table ask for."""

_DECISION_ID = r"^(.+)-(\d+)-(\d+)$"
"""`topic-partition-offset`, where the topic may have dashes and digits of its own."""

MAX_CHARGES = 4 * MAX_ENTRIES
"""More than any request leads to: each of its entries is charged to one topic quota and its shadow at most."""

MAX_VALUE = 1e30
"""Larger than any amount of a request; sums of amounts stay finite."""

_MAX_DOUBLE = 1.7976931348623157e308


def decisions_table(path: str) -> AuditTable:
    """The table at `path`, for rows of `parse_decisions`."""
    return AuditTable(path, _DDL, ("date",), partial(append_once, path=path), _LOOKED_UP_BY)


def parse_decisions(records: DataFrame, requests: RequestsTopic, bounds: TimeBounds) -> DataFrame:
    """A row for each record of the decisions topic: RECORD, FAULT, and the columns of the table.

    Records have the columns of Kafka, `read_at` and `fenced`, whether a driver wrote it that had been replaced. Of a
    record with a fault the SOURCE_COLUMNS and `date` are null.
    """
    text = F.col("value").cast("string")
    decision = F.from_json(text, f"{_DECISION_DDL}, {CORRUPT} STRING", JSON_OPTIONS)
    parts = [F.regexp_extract("decision.decision_id", _DECISION_ID, group) for group in (1, 2, 3)]
    source = F.struct(
        parts[0].alias("source_topic"),
        parts[1].try_cast("int").alias("source_partition"),
        parts[2].try_cast("bigint").alias("source_offset"),
    )
    parsed = records.withColumn("decision", decision).withColumn("source", source)
    unknown = fault(requests.lacks(F.col("source")), "decision_id", f"names no event of topic {requests.name}")
    late = fault(F.col("fenced"), "epoch", "is of a driver that had been replaced")
    faults = [late, json_fault(F.col("decision"), "a decision"), *_faults(bounds), unknown]
    judged = parsed.withColumn(FAULT, F.coalesce(*faults))
    good = F.col(FAULT).isNull()
    return judged.select(
        F.struct(*RECORD_ID).alias(RECORD),
        FAULT,
        *(F.when(good, F.col(f"source.{column}")).alias(column) for column in SOURCE_COLUMNS),
        "decision.*",
        F.to_date(F.timestamp_millis(F.when(good, F.col("decision.decided_at_ms")))).alias("date"),
    ).drop(CORRUPT)


def _faults(bounds: TimeBounds) -> list[Column]:
    """What Delta, the metrics or a reader of the tables would fail at. No condition may fail itself, or be null."""
    charges, waits = F.col("decision.charges"), F.col("decision.throttled_by")
    shares, requests = F.col("decision.heartbeat.shares"), F.col("decision.amounts.requests")
    numbers = [
        fault(_exceeds(within[name], _MAX_DOUBLE), f"{field}.{name}", "is no finite number")
        for field, within, names in (("charges", charges, _NUMBERS), ("heartbeat.shares", shares, _SHARE_NUMBERS))
        for name in names
    ]
    return [
        fault(_is_no_source_id(), "decision_id", "is not topic-partition-offset of a request event"),
        *(
            fault(bounds.broken_by(F.col(f"decision.{name}")), name, "is missing or too far from the present")
            for name in ("timestamp_ms", "decided_at_ms")
        ),
        fault(
            ~F.coalesce(F.col("decision.verdict").isin([str(verdict) for verdict in Verdict]), F.lit(False)),
            "verdict",
            "is no verdict",
        ),
        fault(F.size(charges) > MAX_CHARGES, "charges", f"has more than {MAX_CHARGES} entries"),
        fault(F.size(F.array_except(charges.quota, _quotas())) > 0, "charges.quota", "is no quota"),
        fault(F.size(F.array_except(charges.mode, _modes())) > 0, "charges.mode", f"is not null or {Mode.SHADOW}"),
        fault(_exceeds(charges.value, MAX_VALUE), "charges.value", f"is no number up to {MAX_VALUE:.0e}"),
        *numbers,
        fault(_has_long_name(charges), "charges.entity", f"has a name of more than {MAX_NAME_LENGTH} characters"),
        fault(F.size(waits) > MAX_APPLIED_WAITS, "throttled_by", f"has more than {MAX_APPLIED_WAITS} entries"),
        fault(F.size(shares) > MAX_SHARES, "heartbeat.shares", f"has more than {MAX_SHARES} entries"),
        fault(F.coalesce(requests < 1, F.lit(False)), "amounts.requests", "is no number of requests"),
    ]


_NUMBERS = ("limit", "rate", "tokens")
_SHARE_NUMBERS = ("limit", "share", "charged")


def _is_no_source_id() -> Column:
    """Also where zeros lead a number: two ids would name the same event."""
    parts = [F.col(f"source.{column}").cast("string") for column in SOURCE_COLUMNS]
    # Not concat_ws, which leaves out null: nothing at all would equal the empty id.
    canonical = F.concat(parts[0], F.lit("-"), parts[1], F.lit("-"), parts[2])
    return ~F.coalesce(canonical == F.col("decision.decision_id"), F.lit(False))


def _quotas() -> Column:
    return F.array(*map(F.lit, METRIC_NAMES))


def _modes() -> Column:
    return F.array(F.lit(None).cast("string"), F.lit(str(Mode.SHADOW)))


def _exceeds(values: Column, maximum: float) -> Column:
    """Whether one of the values is not within +-maximum; NaN is greater than any number in Spark."""
    within = (F.array_max(values) <= F.lit(maximum)) & (F.array_min(values) >= F.lit(-maximum))
    return ~F.coalesce(within, F.lit(True))  # null: there are no values


def _has_long_name(charges: Column) -> Column:
    names = ("user", "client_id", "topic")
    found = F.exists(
        charges,
        lambda charge: F.coalesce(
            F.greatest(*(F.length(charge.entity[name]) for name in names)) > MAX_NAME_LENGTH, F.lit(False)
        ),
    )
    # No name in a shorter record is too long: names of most records needn't be looked at.
    return F.when(F.octet_length("value") > MAX_NAME_LENGTH, F.coalesce(found, F.lit(False))).otherwise(F.lit(False))
