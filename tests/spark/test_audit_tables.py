"""The audit tables: one row for each decision, metrics that add up, and nothing counted twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from configs.settings import Settings, load_settings
from sinks import decisions_table, quota_metrics_table
from sinks.delta import append_once, create_table, new_rows, source_spans

pytestmark = pytest.mark.spark

Json = dict[str, Any]
T0 = 1_700_000_040_000  # a full minute
DEFAULTS = load_settings(environment={})


def decision(offset: int, at_ms: int = T0, throttle_ms: int = 0, rate: float | None = 5.0, **more: Any) -> Json:
    charge = {
        "quota": "producer_byte_rate",
        "entity": {"user": "a|b"},
        "matched": "user",
        "limit": 10.0,
        "value": 100.0,
        "rate": rate,
        "throttle_ms": throttle_ms,
        "violated": throttle_ms > 0,
    }
    return {
        "decision_id": f"my-requests-3-{offset}",
        "request_id": f"r{offset}",
        "timestamp_ms": at_ms,
        "user": "a|b",
        "client_id": None,
        "api": "Produce",
        "verdict": "THROTTLE" if throttle_ms else "ALLOW",
        "throttle_time_ms": throttle_ms,
        "mute_until_ms": None,
        "error_code": 0,
        "topic_results": [],
        "decided_by": "producer_byte_rate" if throttle_ms else None,
        "charges": [charge | more],
        "quota_version": 2,
        "decided_at_ms": at_ms + 5,
    }


def parsed(spark: SparkSession, decisions: list[Json]) -> DataFrame:
    values = [(json.dumps(value).encode(),) for value in decisions]
    return decisions_table.parse_decisions(spark.createDataFrame(values, "value binary"))


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Settings:
    """Empty tables of their own."""
    paths: Json = {name: str(tmp_path / name) for name in ("decisions", "quota_metrics")}
    create_table(spark, paths["decisions"], decisions_table.DECISIONS_DDL, decisions_table.PARTITIONED_BY)
    create_table(
        spark, paths["quota_metrics"], quota_metrics_table.QUOTA_METRICS_DDL, quota_metrics_table.PARTITIONED_BY
    )
    return replace(DEFAULTS, delta=replace(DEFAULTS.delta, **paths))


def metrics_rows(settings: Settings) -> list[Json]:
    rows: list[Json] = DeltaTable(settings.delta.quota_metrics).to_pyarrow_dataset().to_table().to_pylist()
    return sorted(rows, key=lambda row: row["window_start"])


def measure(settings: Settings, decided: DataFrame, batch_id: int) -> None:
    measured = quota_metrics_table.measure_decisions(decided, window_s=60).toArrow()
    quota_metrics_table.merge_metrics(measured, settings.delta.quota_metrics, {}, "test", batch_id)


def test_a_decisions_source_comes_from_its_id(spark: SparkSession) -> None:
    """Also where the topic's name has dashes."""
    (row,) = parsed(spark, [decision(17)]).collect()

    assert (row["source_topic"], row["source_partition"], row["source_offset"]) == ("my-requests", 3, 17)
    assert row["charges"][0]["entity"]["user"] == "a|b"


def test_what_is_no_decision_is_left_out(spark: SparkSession) -> None:
    """Somebody else's record in the topic stops nothing."""
    ids = ["junk", "a-b", "a-b-c", "a-0-", "-", "a-0-99999999999999999999"]
    strangers: list[Json] = [{}, {"decision_id": "a-0-1"}, *(decision(1) | {"decision_id": strange} for strange in ids)]
    values = [(b"junk",), (None,), *((json.dumps(value).encode(),) for value in [*strangers, decision(1)])]

    (row,) = decisions_table.parse_decisions(spark.createDataFrame(values, "value binary")).collect()
    assert row["decision_id"] == decision(1)["decision_id"]


def test_decisions_that_are_there_already_are_not_new(spark: SparkSession, tables: Settings) -> None:
    """Twice in one batch, or in an earlier one."""
    path = tables.delta.decisions
    first = parsed(spark, [decision(1), decision(2), decision(2)])
    append_once(new_rows(first, source_spans(first), path), path, "test", 0)
    second = parsed(spark, [decision(2), decision(3)])

    new = new_rows(second, source_spans(second), path)

    assert DeltaTable(path).to_pyarrow_dataset().count_rows() == 2
    assert [row["source_offset"] for row in new.collect()] == [3]


def test_rows_without_an_offset_are_one_row(spark: SparkSession, tables: Settings) -> None:
    """A letter that somebody else wrote, twice in a batch: there is no source record to tell them apart."""
    columns = "source_topic string, source_partition int, source_offset bigint"
    rows = spark.createDataFrame([("t", 0, None), ("t", 0, None)], columns)

    spans = source_spans(rows)

    assert [span.unique for span in spans] == [False]
    assert new_rows(rows, spans, tables.delta.decisions).count() == 1


def test_a_repeated_batch_is_appended_once(spark: SparkSession, tables: Settings) -> None:
    """Versions 0, 1, 1, 0, 2 of one row each leave three."""
    for batch_id in (0, 1, 1, 0, 2):
        append_once(parsed(spark, [decision(batch_id)]), tables.delta.decisions, "test", batch_id)

    assert DeltaTable(tables.delta.decisions).to_pyarrow_dataset().count_rows() == 3


def test_metrics_have_one_row_for_each_window_and_counter(spark: SparkSession, tables: Settings) -> None:
    """Count, sum, last rate, and the waits that this quota decided; batches add up, a repeated one adds nothing."""
    measure(tables, parsed(spark, [decision(1), decision(2, T0 + 1, throttle_ms=300, rate=7.0)]), batch_id=0)
    later = parsed(spark, [decision(3, T0 + 2, throttle_ms=100, rate=9.0), decision(4, T0 + 60_000)])
    measure(tables, later, batch_id=1)
    measure(tables, later, batch_id=1)

    first, second = metrics_rows(tables)
    assert (first["metric_group"], first["rate_metric"], first["user"]) == ("Produce", "byte-rate", "a|b")
    assert (first["count"], first["value"], first["rate"], first["limit"]) == (3, 300.0, 9.0, 10.0)
    assert (first["throttled_count"], first["violated_count"]) == (2, 2)
    assert (first["throttle_time_avg_ms"], first["throttle_time_max_ms"]) == (200.0, 300)
    assert (second["count"], second["throttled_count"], second["throttle_time_avg_ms"]) == (1, 0, None)


def test_a_late_decision_does_not_replace_the_latest_rate(spark: SparkSession, tables: Settings) -> None:
    """The rate shown is the one of the newest event time, whichever batch it came in."""
    measure(tables, parsed(spark, [decision(1, T0 + 500, rate=9.0)]), batch_id=0)
    measure(tables, parsed(spark, [decision(2, T0, rate=1.0)]), batch_id=1)

    (row,) = metrics_rows(tables)
    assert (row["rate"], row["count"], row["last_timestamp_ms"]) == (9.0, 2, T0 + 500)


def test_a_rate_that_no_counter_keeps_is_the_windows_amount_over_its_length(
    spark: SparkSession, tables: Settings
) -> None:
    """Exempt request time, and partitions while no topic has a quota."""
    exempt: Json = {"quota": "exempt-request-time", "entity": {}, "limit": None}
    measure(tables, parsed(spark, [decision(1, rate=None, **exempt)]), batch_id=0)
    measure(tables, parsed(spark, [decision(2, rate=None, **exempt)]), batch_id=1)

    (row,) = metrics_rows(tables)
    assert (row["rate_metric"], row["metered"], row["value"]) == ("exempt-request-time", False, 200.0)
    assert row["rate"] == pytest.approx(200.0 / 60)


def test_a_shadow_quota_throttles_nobody(spark: SparkSession, tables: Settings) -> None:
    """It is counted as violated only."""
    shadow = decision(1, throttle_ms=0, mode="shadow")
    shadow["charges"][0] |= {"throttle_ms": 500, "violated": True}
    measure(tables, parsed(spark, [shadow]), batch_id=0)

    (row,) = metrics_rows(tables)
    assert (row["violated_count"], row["throttled_count"]) == (1, 0)


def test_of_two_decisions_at_the_same_time_the_one_read_later_is_the_latest(
    spark: SparkSession, tables: Settings
) -> None:
    """Also where offsets and times are as large as they can be."""
    offset = 2**63 - 2
    measure(tables, parsed(spark, [decision(offset + 1, rate=2.0), decision(offset, rate=1.0)]), batch_id=0)

    (row,) = metrics_rows(tables)
    assert (row["rate"], row["count"]) == (2.0, 2)


def test_metrics_are_hashed_not_sorted(spark: SparkSession) -> None:
    """Sorting the charges of a large batch takes longer than everything else that the audit query does."""
    measured = quota_metrics_table.measure_decisions(parsed(spark, [decision(1)]), window_s=60)

    plan = measured._jdf.queryExecution().executedPlan().toString()
    assert "HashAggregate" in plan
    assert "SortAggregate" not in plan
