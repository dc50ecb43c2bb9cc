"""The audit query's writer in a real Spark session: tasks in Spark's workers, and files that Spark can read."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from sluice.configs.settings import Settings
from sluice.state.decisions.leader_epochs import LeaderEpoch
from tests.audit_records import GOOD, HOSTILE, T0, Record, as_records, decision, letter, text
from tests.audit_tables import offsets, records, rows, tables_in, write
from tests.builders import DEFAULTS

pytestmark = pytest.mark.spark


@pytest.fixture
def tables(tmp_path: Path) -> Settings:
    """Empty tables."""
    return tables_in(tmp_path)


def in_spark(spark: SparkSession, batch: pa.Table) -> DataFrame:
    """The records as Spark reads them, spread over tasks."""
    return spark.createDataFrame(batch).repartition(3)


def test_what_cannot_be_read_or_written_is_kept_whole_and_the_rest_is_committed_once(
    spark: SparkSession, tables: Settings
) -> None:
    """Hostile records of one micro-batch, of the same again, and of another query that reads from the beginning."""
    spark.conf.set("spark.sql.ansi.enabled", "true")
    topics = DEFAULTS.topics
    strange: list[Record] = [(topics.decisions, value) for value in GOOD.values()]
    letters: list[Record] = [(topics.dead_letters, text(letter(offset))) for offset in (32, 33)]
    batch = in_spark(spark, records([record for record, _ in HOSTILE] + strange + letters))

    for query, batch_id in (("query", 0), ("query", 0), ("another", 0)):
        write(tables, batch, batch_id, query)

    made = {(row["source_offset"], row["user"]) for row in rows(tables.delta.decisions)}
    assert len(rows(tables.delta.decisions)) == len(made) == len(GOOD)
    assert [row["user"] for row in rows(tables.delta.decisions) if row["source_offset"] == 12] == ['{"a":1}']
    assert offsets(tables.delta.dead_letters) == [32, 33]
    charged = sum(
        len(row["charges"] or ()) * (row["amounts"] or {}).get("requests", 1) for row in rows(tables.delta.decisions)
    )
    assert sum(row["count"] for row in rows(tables.delta.quota_metrics)) == charged
    found = sorted(rows(tables.delta.unreadable), key=lambda row: row["offset"])
    assert [((row["topic"], row["value"]), row["field"]) for row in found] == HOSTILE
    assert {(row["partition"], row["timestamp_ms"], row["key"]) for row in found} == {(0, T0, b"key")}
    assert [row["offset"] for row in found] == list(range(len(HOSTILE)))
    assert all(row["reason"] for row in found)


def test_decisions_of_a_driver_that_was_replaced_and_second_answers_are_left_out(
    spark: SparkSession, tables: Settings
) -> None:
    """The tasks that write know the findings of the driver in the reports of the tasks."""
    older, newer = LeaderEpoch("job", 1).header(), LeaderEpoch("job", 2).header()
    made = as_records([decision(1), decision(2), decision(1), decision(3) | {"user": "late"}, decision(3)])
    marker: list[Record] = [(DEFAULTS.topics.decisions, None)]
    batch = records([*made, *marker], epochs=[older, newer, newer, older, newer, newer])

    write(tables, in_spark(spark, batch), batch_id=0)

    found = {row["source_offset"]: row["user"] for row in rows(tables.delta.decisions)}
    assert found == dict.fromkeys((1, 2, 3), "a|b")
    assert [(row["offset"], row["field"]) for row in rows(tables.delta.unreadable)] == [(3, "epoch")]


def test_each_day_has_a_file_with_the_statistics_that_readers_skip_by(spark: SparkSession, tables: Settings) -> None:
    """The least and the greatest value of what decisions are looked up by; long texts are bounds, not values."""
    long = "x" * 40
    late = decision(3, T0 + 3_600_000) | {"client_id": long}
    write(tables, records(as_records([decision(1), decision(2), late])), batch_id=0)

    files = pa.table(DeltaTable(tables.delta.decisions).get_add_actions(flatten=True)).to_pylist()
    assert [file["num_records"] for file in files] == [3]
    least, greatest = (
        {
            name.removeprefix(kind): value
            for name, value in files[0].items()
            if name.startswith(kind) and value is not None
        }
        for kind in ("min.", "max.")
    )
    assert least == {
        "decision_id": "my-requests-3-1",
        "source_topic": "my-requests",
        "source_partition": 3,
        "source_offset": 1,
        "timestamp_ms": T0,
        "decided_at_ms": T0 + 5,
        "user": "a|b",
        "client_id": "x" * 32,
    }
    assert greatest["client_id"] == "x" * 32 + "\U0010ffff"
    assert greatest["source_offset"] == 3
    by_client = (
        DeltaTable(tables.delta.decisions).to_pyarrow_dataset().to_table(filter=pa.compute.field("client_id") == long)
    )
    assert by_client["source_offset"].to_pylist() == [3]
    assert spark.read.format("delta").load(tables.delta.decisions).where(f"client_id = '{long}'").count() == 1
