"""The Delta table `quota_metrics`: what every counter measured in each window, under Kafka's names."""

import math
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.schema import Field, PrimitiveType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.sinks.tables.delta import AuditTable, Commit
from sluice.state.decisions.charge_plan import EXEMPT_REQUEST_TIME
from sluice.state.quotas.kinds import QuotaKind

_DDL = """
    window_start TIMESTAMP, window_s INT, metric_group STRING, rate_metric STRING, quota STRING,
    mode STRING, user STRING, client_id STRING, topic STRING, partition INT, `limit` DOUBLE,
    metered BOOLEAN, count BIGINT, value DOUBLE, rate DOUBLE, tokens DOUBLE, violated_count BIGINT,
    throttled_count BIGINT, throttle_time_avg_ms DOUBLE, throttle_time_max_ms BIGINT,
    last_timestamp_ms BIGINT, date DATE
"""
"""One row per window, quota, mode and counter; docs/metrics.md says what each column means."""

METRIC_NAMES = {kind.value: (kind.metric_group, kind.family.rate_name) for kind in QuotaKind} | {
    EXEMPT_REQUEST_TIME: (QuotaKind.REQUEST_PERCENTAGE.metric_group, EXEMPT_REQUEST_TIME)
}
"""Kafka's metric group of each quota, and its name for the rate."""

MAX_MERGED_ROWS = 100_000
"""Rows that are merged at once. The driver holds them in memory, and a few forged decisions make millions."""

_OWN_FILES = 20
"""Newest windows of a micro-batch that have a commit and a file of their own, which takes some 0.1 s each."""

_ORDER_BITS = 62
"""Of the number that orders decisions by time, then by offset: a positive BIGINT."""

_IDENTITY = ("date", "window_start", "window_s", "quota")
_ENTITY = {"mode": "''", "user": "''", "client_id": "''", "topic": "''", "partition": "-1"}
"""What else names a counter: `mode`, null for enforced quotas, and the parts of its entity, any of which may be null;
with the value that replaces null in comparisons."""

_NEWER = "new.last_timestamp_ms >= old.last_timestamp_ms"
_SUM = 'old."{column}" + new."{column}"'
_LATEST = f'CASE WHEN {_NEWER} THEN new."{{column}}" ELSE old."{{column}}" END'
_GREATEST = 'greatest(old."{column}", new."{column}")'
_THROTTLED = "(old.throttled_count + new.throttled_count)"
_WAITED_MS = " + ".join(f"coalesce({row}.throttle_time_avg_ms * {row}.throttled_count, 0)" for row in ("old", "new"))

_UPDATES = {
    "count": _SUM,
    "value": _SUM,
    "violated_count": _SUM,
    "throttled_count": _SUM,
    "limit": _LATEST,
    "metered": _LATEST,
    "tokens": _LATEST,
    "rate": f"CASE WHEN new.metered THEN {_LATEST} ELSE (old.value + new.value) / new.window_s END",
    "throttle_time_avg_ms": f"CASE WHEN {_THROTTLED} > 0 THEN ({_WAITED_MS}) / {_THROTTLED} END",
    "throttle_time_max_ms": _GREATEST,
    "last_timestamp_ms": _GREATEST,
}
"""How each column is updated when a micro-batch measures a window that has a row already (SQL of delta-rs)."""


def quota_metrics_table(path: str, storage_options: Mapping[str, str], window_s: int) -> AuditTable:
    """The table at `path`, for the rows of the decisions table, with windows of `window_s` seconds."""

    def write(decisions: DataFrame, commit: Commit) -> None:
        measured = measure_decisions(decisions, window_s)
        rows = measured.limit(MAX_MERGED_ROWS + 1).toArrow()
        if rows.num_rows <= MAX_MERGED_ROWS:
            merge_metrics(rows, path, storage_options, commit)
            return
        parts = math.ceil(measured.count() / MAX_MERGED_ROWS)
        part_of = F.pmod(F.xxhash64("window_start", "quota", *_ENTITY), F.lit(parts))
        for part in range(parts):
            # A repeated micro-batch has the same parts; each is a commit by an application of its own.
            own = Commit(f"{commit.application}-{part}-of-{parts}", commit.batch_id)
            merge_metrics(measured.where(part_of == part).toArrow(), path, storage_options, own)

    return AuditTable(path, _DDL, ("date",), write)


def measure_decisions(decisions: DataFrame, window_s: int) -> DataFrame:
    """Rows of the table from decisions: their charges, by event-time window of `window_s` seconds."""
    charges = decisions.select(
        "timestamp_ms",
        "source_offset",
        "decided_by",
        "throttle_time_ms",
        F.coalesce("amounts.requests", F.lit(1)).alias("requests"),
        F.coalesce("amounts.withheld", F.lit(False)).alias("withheld"),
        F.explode("charges").alias("charge"),
    )
    quota, window_ms = F.col("charge.quota"), window_s * 1000
    # The counters took withheld bytes back: nobody got them.
    taken_back = F.col("withheld") & quota.isin([kind.value for kind in QuotaKind if kind.consumer])
    value = F.when(taken_back, 0.0).otherwise(F.col("charge.value"))
    # As in Kafka, a wait counts for the quota that decided it.
    decided = (quota == F.col("decided_by")) & (F.col("charge.throttle_ms") > 0) & F.col("charge.mode").isNull()
    wait_ms = F.when(decided, F.col("throttle_time_ms"))
    # An event may sum up several requests; all of them count. As doubles, because a forged wait may be any number.
    requests = F.col("requests")
    throttled = F.sum(F.when(decided, requests).otherwise(0))
    waited_ms = F.sum(wait_ms.cast("double") * requests)
    in_window_ms = F.expr(f"pmod(timestamp_ms, {window_ms})")
    window_start = F.timestamp_millis(F.col("timestamp_ms") - in_window_ms)
    # Time, then offset, as one number: with a struct Spark sorts all charges instead of hashing them, and a decimal
    # takes as long as the rest.
    offsets = order_offsets(window_ms)
    order = in_window_ms * F.lit(offsets) + F.col("source_offset") % F.lit(offsets)
    grouped = charges.groupBy(
        window_start.alias("window_start"),
        quota.alias("quota"),
        F.col("charge.mode").alias("mode"),
        *(F.col(f"charge.entity.{part}").alias(part) for part in ("user", "client_id", "topic", "partition")),
    ).agg(
        F.max_by("charge.limit", order).alias("limit"),
        F.max_by(F.col("charge.rate").isNotNull(), order).alias("metered"),
        F.sum(requests).alias("count"),
        F.sum(value).alias("value"),
        F.max_by("charge.rate", order).alias("rate"),
        F.max_by("charge.tokens", order).alias("tokens"),
        F.sum(F.when(F.col("charge.violated"), requests).otherwise(0)).alias("violated_count"),
        throttled.alias("throttled_count"),
        F.try_divide(waited_ms, throttled).alias("throttle_time_avg_ms"),
        F.max(wait_ms).alias("throttle_time_max_ms"),
        F.max("timestamp_ms").alias("last_timestamp_ms"),
    )
    # Where no counter keeps a rate (exempt time, partitions without any quota): the amount over the window's length.
    rate = F.when(F.col("metered"), F.col("rate")).otherwise(F.col("value") / window_s)
    return grouped.withColumn("rate", rate).select(
        "*",
        F.lit(window_s).alias("window_s"),
        _named(0).alias("metric_group"),
        _named(1).alias("rate_metric"),
        F.to_date("window_start").alias("date"),
    )


def order_offsets(window_ms: int) -> int:
    """The offsets that the order of a window's decisions tells apart, at `in_window_ms * offsets + offset % offsets`.

    Only decisions of one millisecond need the offset: as many low bits of it as are free.

    >>> order_offsets(60_000) == 2**46
    True
    """
    return 1 << (_ORDER_BITS - window_ms.bit_length())


def merge_metrics(measured: pa.Table, path: str, storage_options: Mapping[str, str], commit: Commit) -> None:
    """Add what a micro-batch measured to the rows of its windows, unless its application has done so before.

    This is done by delta-rs in the driver: the rows are few, and a MERGE by Spark takes seconds of all cores.

    Each of the newest windows is a commit and a file of its own. A merge writes the files anew in which it finds a
    row, so a file with the rows of two windows would take the next window too, and each batch would write the day.
    """
    table = DeltaTable(path, storage_options=dict(storage_options))
    if not measured.num_rows or _has_committed(table, commit):
        return
    if "mode" not in {field.name for field in table.schema().fields}:  # a table of an earlier release
        table.alter.add_columns(Field("mode", PrimitiveType("string")))
    *older, newest = _by_file(measured)
    # A repeated micro-batch has the same windows. The commit of the newest says that all of them are merged.
    for number, rows in enumerate(older):
        _merge(table, rows, Commit(f"{commit.application}-older-{number}", commit.batch_id))
    _merge(table, newest, commit)


def _by_file(measured: pa.Table) -> list[pa.Table]:
    """The rows by the file that takes them, oldest first: one a window, or one an hour of windows long past."""
    window_starts = measured["window_start"]
    newest = sorted(pc.unique(window_starts).to_pylist())[-_OWN_FILES:]
    files = pc.if_else(
        pc.greater_equal(window_starts, pa.scalar(newest[0], window_starts.type)),
        window_starts,
        pc.floor_temporal(window_starts, unit="hour"),
    )
    return [measured.filter(pc.equal(files, file)) for file in pc.unique(files).sort()]


def _merge(table: DeltaTable, measured: pa.Table, commit: Commit) -> None:
    if _has_committed(table, commit):
        return
    properties = CommitProperties(app_transactions=[Transaction(*commit)])
    (
        table.merge(measured, _same_row(measured), source_alias="new", target_alias="old", commit_properties=properties)
        .when_matched_update({column: rule.format(column=column) for column, rule in _UPDATES.items()})
        .when_not_matched_insert_all()
        .execute()
    )


def _has_committed(table: DeltaTable, commit: Commit) -> bool:
    done = table.transaction_version(commit.application)
    return done is not None and done >= commit.batch_id


def _same_row(measured: pa.Table) -> str:
    """The condition for the same window, quota and counter.

    Days and windows are literals, so that Delta can skip the files of all others.
    """
    dates = ", ".join(f"DATE '{date}'" for date in sorted(set(measured["date"].to_pylist())))
    first, last = (bound(measured["window_start"]).as_py().isoformat() for bound in (pc.min, pc.max))
    windows = f"old.window_start >= TIMESTAMP '{first}' AND old.window_start <= TIMESTAMP '{last}'"
    pairs = [(f'old."{column}"', f'new."{column}"') for column in _IDENTITY]
    # Only equalities, also for null, so that the engine joins by hashing; with an OR it compares all pairs of rows.
    for column, null in _ENTITY.items():
        old, new = f'old."{column}"', f'new."{column}"'
        pairs += [(f"({old} IS NULL)", f"({new} IS NULL)"), (f"coalesce({old}, {null})", f"coalesce({new}, {null})")]
    same = " AND ".join(f"{old} = {new}" for old, new in pairs)
    return f"old.date IN ({dates}) AND {windows} AND {same}"


def _named(position: int) -> Column:
    pairs = [F.lit(text) for quota, names in METRIC_NAMES.items() for text in (quota, names[position])]
    return F.create_map(*pairs)[F.col("quota")]
