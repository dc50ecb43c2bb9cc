"""The audit tables: one row per decision, metrics that add up, and nothing counted twice."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.configs.settings import Settings
from sluice.sinks.tables.decisions import decisions_table
from sluice.sinks.tables.delta import Commit, RequestsTopic, append_once, create_table, new_rows, source_spans
from sluice.sinks.tables.quota_metrics import measure_decisions, merge_metrics, quota_metrics_table
from sluice.sinks.tables.unreadable import unreadable_table
from sluice.state.contract.records import Amounts, Decision, Heartbeat
from sluice.state.decisions.leader_epochs import LeaderEpoch
from tests.integration.audit_batches import (
    DAY_MS,
    DEFAULTS,
    HOSTILE,
    HOSTILE_DECISIONS,
    HOSTILE_LETTERS,
    IN_LINE,
    LAST,
    T0,
    Json,
    Record,
    as_records,
    decision,
    judged,
    letter,
    member,
    offsets,
    parsed,
    records,
    rows,
    write,
)

pytestmark = pytest.mark.spark


def metrics_rows(settings: Settings) -> list[Json]:
    return sorted(rows(settings.delta.quota_metrics), key=lambda row: row["window_start"])


def measure(settings: Settings, decided: DataFrame, batch_id: int) -> None:
    measured = measure_decisions(decided, window_s=60).toArrow()
    merge_metrics(measured, settings.delta.quota_metrics, {}, Commit("test", batch_id))


NEW_COLUMNS = ["job_id", *IN_LINE]


def test_a_table_of_an_older_release_gets_the_columns_of_this_one(spark: SparkSession, tmp_path: Path) -> None:
    """Without a new checkpoint or table; its old rows have null."""
    table = decisions_table(str(tmp_path / "decisions"))
    create_table(spark, table._replace(ddl=re.sub(r"job_id STRING,.*,(?=\s*date)", "", table.ddl, flags=re.DOTALL)))
    assert not set(NEW_COLUMNS) & set(spark.read.format("delta").load(table.path).columns)
    table.write(parsed(spark, [decision(1)]).drop(*NEW_COLUMNS), Commit("old", 1))

    create_table(spark, table)
    table.write(parsed(spark, [decision(2) | IN_LINE | {"job_id": "mine"}]), Commit("new", 1))

    found = DeltaTable(table.path).to_pyarrow_dataset().to_table(columns=["source_offset", *NEW_COLUMNS]).to_pylist()
    assert sorted(found, key=lambda row: row["source_offset"]) == [
        {"source_offset": 1} | dict.fromkeys(NEW_COLUMNS),
        {"source_offset": 2, "job_id": "mine"} | IN_LINE,
    ]


def test_a_file_of_decisions_has_statistics_of_what_it_is_looked_up_by(spark: SparkSession, tables: Settings) -> None:
    """Those of Delta's first 32 columns took as long as the rest of the file."""
    append_once(parsed(spark, [decision(1), decision(7)]), Commit("test", 0), tables.delta.decisions)

    files = pa.table(DeltaTable(tables.delta.decisions).get_add_actions(flatten=True))
    (greatest,) = files.select([name for name in files.column_names if name.startswith("max.")]).to_pylist()
    known = {name.removeprefix("max."): value for name, value in greatest.items() if value is not None}
    assert known == {
        "decision_id": "my-requests-3-7",
        "source_topic": "my-requests",
        "source_partition": 3,
        "source_offset": 7,
        "timestamp_ms": T0,
        "decided_at_ms": T0 + 5,
        "user": "a|b",
    }


def test_the_table_has_every_field_that_a_decision_can_have(spark: SparkSession) -> None:
    """A field that the columns don't know would be left out without a word."""
    columns = parsed(spark, []).schema

    assert set(Decision.__struct_fields__) <= set(columns.fieldNames())
    assert set(columns["amounts"].dataType.fieldNames()) == set(Amounts.__struct_fields__)  # type: ignore[attr-defined]
    assert set(columns["heartbeat"].dataType.fieldNames()) == set(Heartbeat.__struct_fields__)  # type: ignore[attr-defined]


def test_an_older_releases_row_and_the_same_decision_again_are_the_same(spark: SparkSession, tables: Settings) -> None:
    """The columns that it lacks don't make it another answer."""
    path = tables.delta.decisions
    old = spark.read.format("delta").load(path).drop(*NEW_COLUMNS)
    old.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    parsed(spark, [decision(1)]).drop(*NEW_COLUMNS).write.format("delta").mode("append").save(path)

    write(tables, records(spark, as_records([decision(1), decision(2) | IN_LINE])), batch_id=0)
    write(tables, records(spark, as_records([decision(1), decision(2) | IN_LINE]), first=2), batch_id=1)

    assert offsets(path) == [1, 2]
    assert rows(tables.delta.unreadable) == []


def test_a_decisions_source_comes_from_its_id(spark: SparkSession) -> None:
    """Also where the topic's name has dashes."""
    (row,) = parsed(spark, [decision(17)]).collect()

    assert (row["source_topic"], row["source_partition"], row["source_offset"]) == ("my-requests", 3, 17)
    assert row["charges"][0]["entity"]["user"] == "a|b"


@pytest.mark.parametrize(
    "forged",
    [
        (DEFAULTS.topics.dead_letters, HOSTILE_LETTERS["no base64"][0]),
        (DEFAULTS.topics.decisions, HOSTILE_DECISIONS["time overflow"][0]),
    ],
    ids=["no base64", "time overflow"],
)
def test_one_forged_record_does_not_stop_the_query(spark: SparkSession, tables: Settings, forged: Record) -> None:
    """Each ended every attempt to write its micro-batch."""
    good = (DEFAULTS.topics.decisions, json.dumps(decision(1)).encode())

    write(tables, records(spark, [forged, good]), batch_id=0)

    assert offsets(tables.delta.decisions) == [1]
    ((topic, value),) = [(row["topic"], row["value"]) for row in rows(tables.delta.unreadable)]
    assert (topic, value) == forged


def test_what_cannot_be_read_or_written_is_kept_whole_and_the_rest_is_committed_once(
    spark: SparkSession, tables: Settings
) -> None:
    """Of one micro-batch, of the same again, and of another query that reads the topics from their beginning."""
    spark.conf.set("spark.sql.ansi.enabled", "true")
    topics = DEFAULTS.topics
    good: list[Record] = [(topics.decisions, json.dumps(decision(offset)).encode()) for offset in (2, 3)]
    good += [(topics.dead_letters, json.dumps(letter(offset)).encode()) for offset in (2, 3)]
    batch = records(spark, [record for record, _ in HOSTILE] + good)

    for query, batch_id in (("query", 0), ("query", 0), ("another", 0)):
        write(tables, batch, batch_id, query)

    assert offsets(tables.delta.decisions) == offsets(tables.delta.dead_letters) == [2, 3]
    assert sum(row["count"] for row in rows(tables.delta.quota_metrics)) == 2
    found = sorted(rows(tables.delta.unreadable), key=lambda row: row["offset"])
    assert [((row["topic"], row["value"]), row["field"]) for row in found] == HOSTILE
    assert {(row["partition"], row["timestamp_ms"], row["key"]) for row in found} == {(0, T0, b"key")}
    assert [row["offset"] for row in found] == list(range(len(HOSTILE)))
    assert all(row["reason"] for row in found)


def test_strange_records_that_can_be_written_are_rows(spark: SparkSession, tables: Settings) -> None:
    """Unknown fields, names that are no text, numbers that are large, and no charges."""
    strange = [
        member(decision(1), "unknown", b"[" * 900 + b"]" * 900),
        member(decision(2), "user", b'{"a": 1}'),
        member(decision(3), "user", b'"\\ud800\\u0000"'),
        json.dumps(decision(4) | {"throttle_time_ms": 2**63 - 1, "mute_until_ms": -(2**63)}).encode(),
        json.dumps(decision(5) | {"charges": []}).encode(),
        json.dumps(decision(6) | {"charges": None}).encode(),
        json.dumps(decision(7) | {"api": "x" * 1_000_000}).encode(),
        member(decision(8) | {"throttle_time_ms": 2**63 - 1}, "amounts", b'{"requests": 2147483647, "bytes": -1}'),
        member(decision(9), "throttled_by", b"[null, {}]"),
        member(decision(10), "heartbeat", b'{"shares": [null, {"limit": 1.7e308}]}'),
        json.dumps(decision(LAST, limit=1.7e308)).encode(),
    ]

    write(tables, records(spark, [(DEFAULTS.topics.decisions, value) for value in strange]), batch_id=0)

    assert offsets(tables.delta.decisions) == [*range(1, 11), LAST]
    assert rows(tables.delta.unreadable) == []


def test_a_dead_letter_whose_record_has_no_time_is_unreadable(spark: SparkSession, tables: Settings) -> None:
    """Whoever writes a record sets its time; each day is a folder of the table."""
    batch = records(spark, [(DEFAULTS.topics.dead_letters, json.dumps(letter(1)).encode())], at_ms=-1)

    write(tables, batch, batch_id=0)

    assert [(row["field"], row["timestamp_ms"]) for row in rows(tables.delta.unreadable)] == [("timestamp", -1)]


def test_events_of_many_days_do_not_become_many_folders(spark: SparkSession, tables: Settings) -> None:
    """Days before the bounds are unreadable; what genuine events can have is a row."""
    days = [decision(number, T0 - number * DAY_MS) for number in range(3000)]

    write(tables, records(spark, as_records(days)), batch_id=0)

    dates = {row["date"] for row in rows(tables.delta.quota_metrics)}
    assert 8 < len(dates) < 50
    assert len(rows(tables.delta.decisions)) == len(dates)
    assert len(rows(tables.delta.decisions)) + len(rows(tables.delta.unreadable)) == 3000


def test_a_second_decision_of_an_event_is_unreadable_unless_it_says_the_same(
    spark: SparkSession, tables: Settings
) -> None:
    """In the same micro-batch and in a later one; the first that was written to the topic is the row."""
    first, again, other = decision(1), decision(1), decision(1) | {"user": "mallory"}
    write(tables, records(spark, as_records([first, other, again, decision(2)])), batch_id=0)
    write(tables, records(spark, as_records([other, again, decision(3)]), first=4), batch_id=1)

    found = {row["source_offset"]: row["user"] for row in rows(tables.delta.decisions)}
    assert found == {1: "a|b", 2: "a|b", 3: "a|b"}
    assert sum(row["count"] for row in rows(tables.delta.quota_metrics)) == 3
    assert offsets(tables.delta.unreadable, "offset") == [1, 4]
    assert {json.loads(row["value"])["user"] for row in rows(tables.delta.unreadable)} == {"mallory"}


def test_a_table_without_a_column_of_a_later_release_is_compared_without_it(
    spark: SparkSession, tables: Settings
) -> None:
    """Such as after an upgrade, before the first micro-batch has added the column."""
    path = tables.delta.decisions
    old = spark.read.format("delta").load(path).drop("gateway")
    old.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    parsed(spark, [decision(1)]).drop("gateway").write.format("delta").mode("append").save(path)
    batch = judged(spark, [decision(1), decision(2)]).drop("fault")

    new = new_rows(batch, source_spans(batch).spans, path, ["date"])

    assert [row["source_offset"] for row in new.first.collect()] == [2]
    assert new.contradicting is not None
    assert new.contradicting.count() == 0


def test_a_batch_of_very_many_source_partitions_is_written(spark: SparkSession, tables: Settings) -> None:
    """A condition for each of thousands can't be planned; duplicates are found all the same."""
    requests = RequestsTopic("my-requests", ends=[100] * 3000)
    wide = [decision(1) | {"decision_id": f"my-requests-{number}-7"} for number in range(3000)]
    write(tables, records(spark, as_records([decision(1), *wide])), 0, requests=requests)

    write(tables, records(spark, as_records([*wide, decision(2), decision(1)]), first=5000), 1, requests=requests)

    assert len(rows(tables.delta.decisions)) == 3002


@pytest.mark.parametrize("source", ["my-requests-3-10", "my-requests-3-11", "my-requests-4-1", "other-3-1"])
def test_an_answer_to_an_event_that_is_not_there_is_unreadable(
    spark: SparkSession, tables: Settings, source: str
) -> None:
    """Of an offset that the topic hasn't reached, of a partition that it hasn't, and of another topic."""
    topic, partition, offset = source.rsplit("-", 2)
    decided = json.dumps(decision(1) | {"decision_id": source}).encode()
    refused = json.dumps(letter(1, source={"topic": topic, "partition": int(partition), "offset": int(offset)}))
    batch = [(DEFAULTS.topics.decisions, decided), (DEFAULTS.topics.dead_letters, refused.encode())]

    write(tables, records(spark, batch), 0, requests=RequestsTopic("my-requests", ends=[10] * 4))

    assert rows(tables.delta.decisions) == rows(tables.delta.dead_letters) == []
    assert {(row["field"], row["reason"]) for row in rows(tables.delta.unreadable)} == {
        ("decision_id", "names no event of topic my-requests"),
        ("source", "names no event of topic my-requests"),
    }


def test_a_decision_forged_before_its_event_does_not_take_the_genuine_ones_place(
    spark: SparkSession, tables: Settings
) -> None:
    """The first answer of an event is the row, so whoever names an event before it is there would be the first."""
    forged = decision(10) | {"user": "mallory"}
    before, after = (RequestsTopic("my-requests", ends=[0, 0, 0, end]) for end in (10, 11))
    write(tables, records(spark, as_records([decision(9), forged])), 0, requests=before)
    write(tables, records(spark, as_records([decision(10)]), first=2), 1, requests=after)

    assert {row["source_offset"]: row["user"] for row in rows(tables.delta.decisions)} == {9: "a|b", 10: "a|b"}
    assert offsets(tables.delta.unreadable, "offset") == [1]


def test_an_answer_to_a_very_old_event_does_not_make_the_whole_table_be_looked_up(
    spark: SparkSession, tables: Settings
) -> None:
    """Its span may hold more rows than memory; only those that the micro-batch has are kept."""
    write(tables, records(spark, as_records([decision(0), decision(10**12)])), batch_id=0)
    batch = judged(spark, [decision(0), decision(10**12 + 1)]).drop("fault")
    spans, _ = source_spans(batch)

    new = new_rows(batch, spans, tables.delta.decisions, ["date"])

    assert [row["source_offset"] for row in new.first.collect()] == [10**12 + 1]
    assert [frame.count() for frame in new.cached] == [1]


def test_decisions_that_are_there_already_are_not_new(spark: SparkSession, tables: Settings) -> None:
    """Twice in one batch, or in an earlier one."""
    write(tables, records(spark, as_records([decision(1), decision(2), decision(2)])), batch_id=0)
    write(tables, records(spark, as_records([decision(2), decision(3)]), first=3), batch_id=1)

    assert offsets(tables.delta.decisions) == [1, 2, 3]
    assert rows(tables.delta.unreadable) == []


def test_a_repeated_batch_is_appended_once(spark: SparkSession, tables: Settings) -> None:
    """Versions 0, 1, 1, 0, 2 of one row each leave three."""
    for batch_id in (0, 1, 1, 0, 2):
        append_once(parsed(spark, [decision(batch_id)]), Commit("test", batch_id), tables.delta.decisions)

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


def test_withheld_bytes_count_as_nothing_served(spark: SparkSession, tables: Settings) -> None:
    """The request and its wait count, and so does its request time."""
    both = decision(1, throttle_ms=300, quota="consumer_byte_rate") | {"amounts": {"withheld": True}}
    both["charges"] += decision(1, quota="request_percentage")["charges"]
    both["decided_by"] = "consumer_byte_rate"
    measure(tables, parsed(spark, [both]), batch_id=0)

    rows = {row["quota"]: (row["count"], row["value"], row["throttled_count"]) for row in metrics_rows(tables)}
    assert rows == {"consumer_byte_rate": (1, 0.0, 1), "request_percentage": (1, 100.0, 0)}


def test_every_request_of_a_sum_counts(spark: SparkSession, tables: Settings) -> None:
    """Three and one: requests, those over the limit, those that wait, and the average of their waits."""
    summed = decision(1, throttle_ms=300) | {"amounts": {"requests": 3}}
    measure(tables, parsed(spark, [summed, decision(2, throttle_ms=100), decision(3)]), batch_id=0)

    (row,) = metrics_rows(tables)
    assert (row["count"], row["violated_count"], row["throttled_count"]) == (5, 4, 4)
    assert (row["throttle_time_avg_ms"], row["throttle_time_max_ms"], row["value"]) == (250.0, 300, 300.0)


def test_a_shadow_charge_is_measured_apart_from_the_enforced_one(spark: SparkSession, tables: Settings) -> None:
    """Of one decision, on counters with the same tags: what is tried must not count twice in what is in force."""
    both = decision(1)
    both["charges"] += decision(1, mode="shadow", limit=5.0)["charges"]
    measure(tables, parsed(spark, [both]), batch_id=0)
    measure(tables, parsed(spark, [both | {"decision_id": "my-requests-3-2"}]), batch_id=1)

    rows = {row["mode"]: (row["count"], row["value"], row["limit"]) for row in metrics_rows(tables)}
    assert rows == {None: (2, 200.0, 10.0), "shadow": (2, 200.0, 5.0)}


def test_a_metrics_table_of_an_older_release_is_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    """It has no column `mode`; the query's start leaves it, and its first batch adds the column."""
    path = str(tmp_path / "quota_metrics")
    table = quota_metrics_table(path, {}, window_s=60)
    create_table(spark, table._replace(ddl=table.ddl.replace("mode STRING,", "")))

    create_table(spark, table)
    table.write(parsed(spark, [decision(1)]), Commit("test", 0))

    (row,) = DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist()
    assert (row["mode"], row["count"]) == (None, 1)


def test_of_two_decisions_at_the_same_time_the_one_read_later_is_the_latest(
    spark: SparkSession, tables: Settings
) -> None:
    """Also where offsets and times are as large as they can be."""
    measure(tables, parsed(spark, [decision(LAST, rate=2.0), decision(LAST - 1, rate=1.0)]), batch_id=0)

    (row,) = metrics_rows(tables)
    assert (row["rate"], row["count"]) == (2.0, 2)


def test_metrics_of_very_many_counters_are_merged_in_parts(
    spark: SparkSession, tables: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver never holds all of them; a repeated batch adds nothing."""
    monkeypatch.setattr("sluice.sinks.tables.quota_metrics.MAX_MERGED_ROWS", 4)
    table = quota_metrics_table(tables.delta.quota_metrics, {}, window_s=60)
    batch = parsed(spark, [decision(number, entity={"user": f"user{number}"}) for number in range(10)])

    table.write(batch, Commit("test", 0))
    table.write(batch, Commit("test", 0))

    assert sorted((row["user"], row["count"]) for row in metrics_rows(tables)) == [(f"user{n}", 1) for n in range(10)]


def test_metrics_are_hashed_not_sorted(spark: SparkSession) -> None:
    """Sorting the charges of a large batch takes longer than everything else that the audit query does."""
    measured = measure_decisions(parsed(spark, [decision(1)]), window_s=60)

    plan = measured._jdf.queryExecution().executedPlan().toString()
    assert "HashAggregate" in plan
    assert "SortAggregate" not in plan


def test_decisions_of_a_driver_that_was_replaced_are_no_rows_and_markers_are_nothing(
    spark: SparkSession, tables: Settings
) -> None:
    """In whatever micro-batch they are read. What is no epoch fences nobody, and without a value it is unreadable."""
    topic = tables.topics.decisions
    values = [json.dumps(decision(number)).encode() for number in range(4)]
    older, newer = LeaderEpoch("job", 1).header(), LeaderEpoch("job", 2).header()
    read: list[tuple[bytes | None, bytes | None]] = [
        (values[0], older),
        (None, newer),
        (values[1], older),
        (values[1], newer),
        (values[2], older),
        (values[3], None),
        (None, b"job:2\n"),
    ]
    for batch_id, begin in enumerate((0, 4)):
        part = read[begin : begin + 4]
        epochs = F.create_map(
            *(F.lit(item) for number, (_, epoch) in enumerate(part) for item in (begin + number, epoch))
        )
        batch = records(spark, [(topic, value) for value, _ in part], begin)
        write(tables, batch.withColumn("epoch", epochs[F.col("offset").cast("int")]), batch_id)

    assert offsets(tables.delta.decisions, "source_offset") == [0, 1, 3]
    unreadable = {(row["offset"], row["field"]) for row in rows(tables.delta.unreadable)}
    assert unreadable == {(2, "epoch"), (4, "epoch"), (6, "value")}


def test_tables_can_be_in_a_folder_that_is_named_by_a_uri(spark: SparkSession, tmp_path: Path) -> None:
    """As on a cluster whose machines have all mounted it."""
    table = unreadable_table((tmp_path / "unreadable").as_uri())
    create_table(spark, table)
    create_table(spark, table)

    assert DeltaTable(table.path).version() == 0
