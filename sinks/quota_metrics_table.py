"""The Delta table `quota_metrics`: what every counter saw in each window, under Kafka's names."""

from collections.abc import Mapping
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from state.charge import EXEMPT_REQUEST_TIME
from state.quota import QuotaKind

QUOTA_METRICS_DDL = """
    window_start TIMESTAMP, window_s INT, metric_group STRING, rate_metric STRING, quota STRING,
    user STRING, client_id STRING, topic STRING, partition INT, `limit` DOUBLE,
    metered BOOLEAN, count BIGINT, value DOUBLE, rate DOUBLE, tokens DOUBLE, violated_count BIGINT,
    throttled_count BIGINT, throttle_time_avg_ms DOUBLE, throttle_time_max_ms BIGINT,
    last_timestamp_ms BIGINT, date DATE
"""
"""One row for each window, quota and counter; docs/metrics.md says what each column means."""

PARTITIONED_BY = ("date",)

METRIC_NAMES = {
    QuotaKind.PRODUCER_BYTE_RATE.value: ("Produce", "byte-rate"),
    QuotaKind.TOPIC_PRODUCER_BYTE_RATE.value: ("Produce", "byte-rate"),
    QuotaKind.CONSUMER_BYTE_RATE.value: ("Fetch", "byte-rate"),
    QuotaKind.TOPIC_CONSUMER_BYTE_RATE.value: ("Fetch", "byte-rate"),
    QuotaKind.REQUEST_PERCENTAGE.value: ("Request", "request-time"),
    EXEMPT_REQUEST_TIME: ("Request", "exempt-request-time"),
    QuotaKind.CONTROLLER_MUTATION_RATE.value: ("ControllerMutation", "mutation-rate"),
}
"""Kafka's metric group of each quota, and its name for the rate."""

_OFFSETS = Decimal(10**19)
"""More than any offset."""

_IDENTITY = ("date", "window_start", "window_s", "quota")
_ENTITY = {"user": "''", "client_id": "''", "topic": "''", "partition": "-1"}
"""The parts of a counter's entity, any of which may be null, and what stands for null in comparisons."""


def measure_decisions(decisions: DataFrame, window_s: int) -> DataFrame:
    """Rows of the table from decisions: their charges, by event-time window of `window_s` seconds."""
    charges = decisions.select(
        "timestamp_ms", "source_offset", "decided_by", "throttle_time_ms", F.explode("charges").alias("charge")
    )
    quota, window_ms = F.col("charge.quota"), window_s * 1000
    # As in Kafka, a wait is booked by the quota that decided it.
    decided = (quota == F.col("decided_by")) & (F.col("charge.throttle_ms") > 0) & F.col("charge.mode").isNull()
    wait_ms = F.when(decided, F.col("throttle_time_ms"))
    # Time, then offset, as one number: by a struct Spark would sort all charges instead of hashing them.
    order = F.col("timestamp_ms").cast("decimal(18,0)") * F.lit(_OFFSETS) + F.col("source_offset")
    window_start = F.timestamp_millis(F.col("timestamp_ms") - F.expr(f"pmod(timestamp_ms, {window_ms})"))
    grouped = charges.groupBy(
        window_start.alias("window_start"),
        quota.alias("quota"),
        *(F.col(f"charge.entity.{part}").alias(part) for part in ("user", "client_id", "topic", "partition")),
    ).agg(
        F.max_by("charge.limit", order).alias("limit"),
        F.max_by(F.col("charge.rate").isNotNull(), order).alias("metered"),
        F.count("*").alias("count"),
        F.sum("charge.value").alias("value"),
        F.max_by("charge.rate", order).alias("rate"),
        F.max_by("charge.tokens", order).alias("tokens"),
        F.count_if(F.col("charge.violated")).alias("violated_count"),
        F.count(wait_ms).alias("throttled_count"),
        F.avg(wait_ms).alias("throttle_time_avg_ms"),
        F.max(wait_ms).alias("throttle_time_max_ms"),
        F.max("timestamp_ms").alias("last_timestamp_ms"),
    )
    # A rate that no counter keeps (exempt time, partitions without any quota) is the amount over the window's length.
    rate = F.when(F.col("metered"), F.col("rate")).otherwise(F.col("value") / window_s)
    return grouped.withColumn("rate", rate).select(
        "*",
        F.lit(window_s).alias("window_s"),
        _named(0).alias("metric_group"),
        _named(1).alias("rate_metric"),
        F.to_date("window_start").alias("date"),
    )


def merge_metrics(
    measured: pa.Table, path: str, storage_options: Mapping[str, str], application: str, batch_id: int
) -> None:
    """Add what a micro-batch measured to the rows of its windows, unless this application did so before.

    By delta-rs in the driver: the rows are few, and a MERGE by Spark takes seconds of all cores.
    """
    table = DeltaTable(path, storage_options=dict(storage_options))
    done = table.transaction_version(application)
    if not measured.num_rows or (done is not None and done >= batch_id):
        return
    commit = CommitProperties(app_transactions=[Transaction(application, batch_id)])
    (
        table.merge(measured, _same_row(measured), source_alias="new", target_alias="old", commit_properties=commit)
        .when_matched_update(_updates())
        .when_not_matched_insert_all()
        .execute()
    )


def _same_row(measured: pa.Table) -> str:
    """The same window, quota and counter; days and windows as literals let Delta leave out the files of all others."""
    dates = ", ".join(f"DATE '{date}'" for date in sorted(set(measured["date"].to_pylist())))
    first, last = (bound(measured["window_start"]).as_py().isoformat() for bound in (pc.min, pc.max))
    windows = f"old.window_start >= TIMESTAMP '{first}' AND old.window_start <= TIMESTAMP '{last}'"
    pairs = [(f'old."{column}"', f'new."{column}"') for column in _IDENTITY]
    # Equalities alone, null or not, so that the engine hashes rows: with an OR it would compare each with every other.
    for column, null in _ENTITY.items():
        old, new = f'old."{column}"', f'new."{column}"'
        pairs += [(f"({old} IS NULL)", f"({new} IS NULL)"), (f"coalesce({old}, {null})", f"coalesce({new}, {null})")]
    same = " AND ".join(f"{old} = {new}" for old, new in pairs)
    return f"old.date IN ({dates}) AND {windows} AND {same}"


def _updates() -> dict[str, str]:
    throttled = "(old.throttled_count + new.throttled_count)"
    waited_ms = " + ".join(f"coalesce({row}.throttle_time_avg_ms * {row}.throttled_count, 0)" for row in ("old", "new"))
    updates = {column: f"old.{column} + new.{column}" for column in ("count", "value", "violated_count")}
    updates |= {column: _latest(f'new."{column}"', f'old."{column}"') for column in ("limit", "metered", "tokens")}
    return updates | {
        "rate": f"CASE WHEN new.metered THEN {_latest('new.rate', 'old.rate')} "
        "ELSE (old.value + new.value) / new.window_s END",
        "throttled_count": throttled,
        "throttle_time_avg_ms": f"CASE WHEN {throttled} > 0 THEN ({waited_ms}) / {throttled} END",
        "throttle_time_max_ms": "greatest(old.throttle_time_max_ms, new.throttle_time_max_ms)",
        "last_timestamp_ms": "greatest(old.last_timestamp_ms, new.last_timestamp_ms)",
    }


def _latest(new: str, old: str) -> str:
    return f"CASE WHEN new.last_timestamp_ms >= old.last_timestamp_ms THEN {new} ELSE {old} END"


def _named(position: int) -> Column:
    pairs = [F.lit(text) for quota, names in METRIC_NAMES.items() for text in (quota, names[position])]
    return F.create_map(*pairs)[F.col("quota")]
