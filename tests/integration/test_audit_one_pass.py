"""One pass over decisions in Arrow makes what Spark's way makes, or leaves the micro-batch to it."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.configs.settings import Settings
from sluice.sinks.tables.decision_rows import DoubtError, read_rows
from sluice.sinks.tables.decisions import decisions_table, parse_decisions
from sluice.sinks.tables.delta_files import DayFiles
from sluice.sinks.tables.measures import add_up, measure, metrics_rows
from sluice.sinks.tables.quota_metrics import measure_decisions
from sluice.state.decisions.leader_epochs import LeaderEpoch
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.audit.one_pass import OnePass, Plan, TaskResult, write_part
from sluice.streaming.audit.writer import AuditWriter
from tests.integration.audit_batches import (
    BOUNDS,
    DEFAULTS,
    HOSTILE_DECISIONS,
    IN_LINE,
    LAST,
    REQUESTS,
    T0,
    Json,
    as_records,
    charged,
    decision,
    judged,
    letter,
    member,
    offsets,
    records,
    rows,
    tables_in,
    write,
)

pytestmark = pytest.mark.spark

READ_AT_MS = T0 + 60_000


@pytest.fixture(scope="module")
def columns(spark: SparkSession) -> pa.Schema:
    """Those of the decisions table. To read a DDL takes a session."""
    assert spark.version
    ddl = StructType.fromDDL(decisions_table("unused").ddl)
    return to_arrow_schema(ddl)  # type: ignore[arg-type] # the DDL is of columns, so this is a struct


def text(decided: Json) -> bytes:
    return json.dumps(decided).encode()


FULL = decision(7, throttle_ms=300, tokens=-1.5) | IN_LINE | {"job_id": "mine", "gateway": "g-1", "mute_until_ms": T0}
TAKEN: dict[str, bytes] = {
    "plain": text(decision(1)),
    "full": text(FULL),
    "without charges": text(decision(2) | {"charges": []}),
    "other letters": text(decision(3, entity={"user": "Ünï\u2028 \U0001f600\t", "client_id": ""})),
    "escaped": text(decision(4) | {"user": 'a"\\/\b\f\n\r\t\u0000'}),
    "an unknown field": member(decision(5), "new", b'{"a": [1, {"b": null}]}'),
    "the last offset": text(decision(LAST)),
    "the least and the greatest numbers": text(
        decision(6, rate=5e-324, limit=1.7976931348623157e308, tokens=-0.0)
        | {"throttle_time_ms": 2**63 - 1, "mute_until_ms": -(2**63)}
    ),
    "whole numbers for fractions": text(decision(8, rate=7, limit=2**53)),
    "a shadow quota": text(decision(9, mode="shadow")),
    "spaces and line ends": b" \r\n\t" + json.dumps(decision(10), indent=2).encode() + b"\n\n",
}
"""Decisions that nothing is wrong with: they must not be left to Spark."""

AGAIN = b'"user": "a|b", "user": "mallory"'
LURING: dict[str, bytes | None] = {
    **{name: value for name, (value, _) in HOSTILE_DECISIONS.items()},
    "the same field twice": text(decision(1)).replace(b'"user": "a|b"', AGAIN),
    "the same field of a charge twice": charged(value=1.0).replace(b'"value": 1.0', b'"value": 1.0, "value": 2.0'),
    "the same id twice": text(decision(1)).replace(
        b'{"decision_id"', b'{"decision_id": "my-requests-3-2", "decision_id"'
    ),
    "half a letter": member(decision(1), "user", b'"\\ud800"'),
    "two objects": text(decision(1)) + text(decision(2)),
    "two lines": text(decision(1)) + b"\n" + text(decision(2)),
    "no object between two lines": b"\n",
    "ends in a comma": text(decision(1)) + b",",
    "no UTF-8 in an unknown field": member(decision(1), "new", b'"\xff"'),
    "a surrogate in UTF-8": member(decision(1), "new", b'"\xed\xa0\x80"'),
    "1.0 for an integer": member(decision(1), "timestamp_ms", f"{T0}.0".encode()),
    "1e3 for an integer": member(decision(1), "throttle_time_ms", b"1e3"),
    "an integer of 64 bits and one": member(decision(1), "throttle_time_ms", str(2**63).encode()),
    "NaN in quotes": charged(rate="NaN"),
    "a true number": member(decision(1), "throttle_time_ms", b"true"),
    "a number for text": member(decision(1), "user", b"1"),
    "a list for text": member(decision(1), "user", b"[]"),
    "an object in place of null": member(decision(1), "decided_by", b"{}"),
    "no charges": text(decision(1) | {"charges": None}),
    "an end of 2048 bits": member(decision(1), "new", b"1" * 700),
    "a comment": b"/* */" + text(decision(1)),
    "a byte order mark": b"\xef\xbb\xbf" + text(decision(1)),
    "upper case": text(decision(1)).replace(b'"user"', b'"USER"'),
    "a mode in words": charged(mode=""),
    "past": text(decision(1, READ_AT_MS - BOUNDS.past_ms)),
    "before the past": text(decision(1, READ_AT_MS - BOUNDS.past_ms - 1)),
    "beyond the future": text(decision(1, READ_AT_MS + BOUNDS.future_ms - 4)),
    "a name as long as can be": charged(entity={"user": "x" * 32_767}),
    "a name that is one longer": charged(entity={"user": "x" * 32_768}),
    "the most that can be charged": charged(value=1e30),
    "more than can be charged": charged(value=1.0000000000000001e30 * 1.1),
    "digits of another script": text(decision(1) | {"decision_id": "my-requests-3-\u0661"}),
    "a line end after the id": text(decision(1) | {"decision_id": "my-requests-3-1\n"}),
    "a line end in the id": text(decision(1) | {"decision_id": "my-\nrequests-3-1"}),
    "a partition that is not there": text(decision(1) | {"decision_id": "my-requests-4-1"}),
    "an offset that is not there": text(decision(LAST + 1)),
    "another topic": text(decision(1) | {"decision_id": "your-requests-3-1"}),
    "partition overflow in an id": text(decision(1) | {"decision_id": "my-requests-4294967299-1"}),
}
"""Values that one of two readers might take for something else."""


def scrambled(seed: int) -> bytes:
    """A decision with some bytes changed, left out or doubled: most are no JSON, and some are."""
    random, value = Random(seed), bytearray(TAKEN["full" if seed % 2 else "plain"])
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(value))
        change = random.choice(["replace", "remove", "double", "digit"])
        if change == "remove":
            del value[place : place + random.randint(1, 4)]
        elif change == "double":
            value[place:place] = value[place : place + random.randint(1, 30)]
        else:
            value[place] = random.choice(b"0123456789" if change == "digit" else b'{}[]",:-.eE \\nul\xc3\x00')
    return bytes(value)


def one_pass_row(value: bytes | None, columns: pa.Schema) -> Json | None:
    """The row of a record, unless there is a doubt."""
    try:
        found = read_rows([value], columns, REQUESTS, BOUNDS, READ_AT_MS).to_pylist()
    except DoubtError:
        return None
    row: Json = found[0]
    return row


def spark_rows(spark: SparkSession, values: Sequence[bytes | None]) -> list[Json]:
    """The fault and the columns of each record, in their order."""
    batch = records(spark, [(DEFAULTS.topics.decisions, value) for value in values]).withColumn("fenced", F.lit(False))
    parsed = parse_decisions(batch, REQUESTS, BOUNDS).orderBy("record.offset").drop("record")
    found: list[Json] = parsed.withColumn("fault", F.col("fault.field")).toArrow().to_pylist()
    return found


def test_decisions_that_nothing_is_wrong_with_are_taken(columns: pa.Schema) -> None:
    """Each of them alone, so that one doubt hides no other."""
    left = [name for name, value in TAKEN.items() if one_pass_row(value, columns) is None]

    assert left == []


def test_what_one_pass_takes_is_the_row_that_spark_makes(spark: SparkSession, columns: pa.Schema) -> None:
    """Whatever a record holds: it is left to Spark, or nothing is wrong with it and its row is the same."""
    values = [*TAKEN.values(), *LURING.values(), *map(scrambled, range(1500))]
    taken = 0

    for value, expected in zip(values, spark_rows(spark, values), strict=True):
        row = one_pass_row(value, columns)
        if row is not None:
            taken += 1
            assert {"fault": None} | row == expected, value
    assert taken > len(TAKEN) + 50


def test_many_records_become_the_rows_that_each_becomes_alone(columns: pa.Schema) -> None:
    """In their order, also where line ends are in and around them."""
    values = [*TAKEN.values()] * 20

    together = read_rows(values, columns, REQUESTS, BOUNDS, READ_AT_MS).to_pylist()

    assert together == [one_pass_row(value, columns) for value in values]


def test_one_doubtful_record_makes_all_of_them_doubtful(columns: pa.Schema) -> None:
    """So that two halves can't make a whole."""
    whole = TAKEN["plain"]
    for halves in ([whole[:40], whole[40:]], [whole, b""], [whole + whole, b""], [b"", whole]):
        with pytest.raises(DoubtError):
            read_rows(halves, columns, REQUESTS, BOUNDS, READ_AT_MS)


def some_decisions(count: int, seed: int) -> list[Json]:
    """Of several clients, quotas and windows; some shadowed, withheld, sums, without a counter, at the same time."""
    random = Random(seed)
    quotas = [*(kind.value for kind in QuotaKind), "exempt-request-time"]
    made = []
    for offset in range(count):
        at_ms, quota = T0 + random.choice([0, 1, 59_999, 60_000, 61_000]), random.choice(quotas)
        wait_ms = random.choice([0, 0, 7, 300])
        rate = None if quota == "exempt-request-time" else random.random() * 100
        entity = {"user": random.choice(["a|b", None, "c"]), "client_id": random.choice(["", "x", None])}
        more: Json = {"tokens": random.choice([None, 1.5]), "mode": random.choice([None, None, "shadow"])}
        decided = decision(offset, at_ms, wait_ms, rate, value=random.random(), entity=entity, quota=quota, **more)
        decided["decided_by"] = random.choice([None, quota])
        decided["charges"] *= random.choice([0, 1, 1, 2])
        amounts = {"withheld": random.choice([True, False, None]), "requests": random.choice([None, 1, 5])}
        made.append(decided | {"amounts": random.choice([None, amounts])})
    return made


def in_order(measured: pa.Table) -> list[Json]:
    names = sorted(measured.column_names)
    return sorted((dict(sorted(row.items())) for row in measured.select(names).to_pylist()), key=lambda row: str(row))


def close(row: Json) -> Json:
    """Sums of fractions in another order differ in their last digits."""
    return {name: pytest.approx(value) if isinstance(value, float) else value for name, value in row.items()}


@pytest.mark.parametrize("parts", [1, 3])
def test_measures_of_all_parts_together_are_those_of_spark(spark: SparkSession, columns: pa.Schema, parts: int) -> None:
    """Counts, sums, latest values and waits of every counter and window."""
    made = some_decisions(400, seed=parts)
    expected = measure_decisions(judged(spark, made).drop("record", "fault"), window_s=60).toArrow()

    read = (
        read_rows([text(one) for one in made[part::parts]], columns, REQUESTS, BOUNDS, READ_AT_MS)
        for part in range(parts)
    )
    found = metrics_rows(add_up([measure(rows, window_s=60) for rows in read]), window_s=60)

    assert len(found) > 50
    assert in_order(found) == [close(row) for row in in_order(expected)]


def test_decisions_without_charges_measure_nothing(columns: pa.Schema) -> None:
    """There is nothing to merge then."""
    read = read_rows([TAKEN["without charges"]], columns, REQUESTS, BOUNDS, READ_AT_MS)

    assert len(metrics_rows(add_up([measure(read, window_s=60)]), window_s=60)) == 0


def one_pass_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test fail where a micro-batch is left to Spark."""

    def refuse(*_: object) -> None:
        pytest.fail("the micro-batch was left to Spark")

    monkeypatch.setattr(AuditWriter, "_write_feeds", refuse)


def spark_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave every micro-batch to Spark."""
    monkeypatch.setattr(OnePass, "write", lambda *_: None)


def contents(settings: Settings) -> list[list[Json]]:
    """All rows of the tables, in an order of their own."""
    paths = (settings.delta.decisions, settings.delta.quota_metrics, settings.delta.unreadable)
    return [in_order(pa.Table.from_pylist(found)) if (found := rows(path)) else [] for path in paths]


def marked(batch: DataFrame, epochs: Sequence[bytes | None]) -> DataFrame:
    """The records with these epochs, in their order."""
    of_offset = F.create_map(*(F.lit(item) for offset, epoch in enumerate(epochs) for item in (offset, epoch)))
    return batch.withColumn("epoch", of_offset[F.col("offset").cast("int")])


def parquet_files(settings: Settings) -> int:
    return len(list(Path(settings.delta.decisions).glob("date=*/*.parquet")))


def test_a_batch_in_one_pass_and_one_of_spark_leave_the_same_tables(
    spark: SparkSession, tables: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, partitions and metrics, over several tasks and two micro-batches."""
    made = some_decisions(300, seed=9)
    halves = [records(spark, as_records(made[:200])), records(spark, as_records(made[200:]), first=200)]
    spark_tables = tables_in(Path(copytree(Path(tables.delta.decisions).parent, tmp_path / "spark")))
    with monkeypatch.context() as patch:
        one_pass_only(patch)
        for batch_id, half in enumerate(halves):
            write(tables, half.repartition(3), batch_id)
    with monkeypatch.context() as patch:
        spark_only(patch)
        for batch_id, half in enumerate(halves):
            write(spark_tables, half, batch_id)

    decisions, metrics, unreadable = contents(tables)
    spark_decisions, spark_metrics, _ = contents(spark_tables)
    assert decisions == spark_decisions
    assert metrics == [close(row) for row in spark_metrics]
    assert unreadable == []


def test_a_batch_with_a_fault_leaves_no_file_of_the_pass_behind(spark: SparkSession, tables: Settings) -> None:
    """Spark judges and writes it; what tasks had written already is taken away."""
    made = [text(decision(offset)) for offset in range(5)]
    batch = [(DEFAULTS.topics.decisions, value) for value in (*made, b"junk")]

    write(tables, records(spark, batch).repartition(4), batch_id=0)

    assert offsets(tables.delta.decisions) == [*range(5)]
    assert [row["offset"] for row in rows(tables.delta.unreadable)] == [5]
    assert parquet_files(tables) == len(DeltaTable(tables.delta.decisions).file_uris())


def test_a_repeated_batch_changes_nothing(
    spark: SparkSession, tables: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as after a crash before Spark noted that it was done. All its events have answers, so Spark judges it."""
    batch = records(spark, as_records(some_decisions(50, seed=1)))
    with monkeypatch.context() as patch:
        one_pass_only(patch)
        write(tables, batch, batch_id=0)
    before = contents(tables)

    write(tables, batch, batch_id=0)

    assert contents(tables) == before


def test_a_crash_between_metrics_and_decisions_counts_nothing_twice(
    spark: SparkSession, tables: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics know the batch; the decisions are added when it is repeated."""
    batch = records(spark, as_records([decision(1), decision(2)]))

    def crash(*_: object) -> None:
        raise OSError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr("sluice.streaming.audit.one_pass.add_files", crash)
        with pytest.raises(OSError, match="gone"):
            write(tables, batch, batch_id=0)
    assert rows(tables.delta.decisions) == []

    write(tables, batch, batch_id=0)

    assert offsets(tables.delta.decisions) == [1, 2]
    assert [row["count"] for row in rows(tables.delta.quota_metrics)] == [2]


def test_an_event_that_is_answered_again_is_left_to_spark(spark: SparkSession, tables: Settings) -> None:
    """In the same micro-batch, over two tasks, and in a later one."""
    twice = [decision(1), decision(2), decision(1)]
    write(tables, records(spark, as_records(twice)).repartition(3), batch_id=0)
    write(tables, records(spark, as_records([decision(3), decision(2)]), first=3), batch_id=1)

    assert offsets(tables.delta.decisions) == [1, 2, 3]
    assert sum(row["count"] for row in rows(tables.delta.quota_metrics)) == 3
    assert rows(tables.delta.unreadable) == []


def test_dead_letters_beside_decisions_are_written_too(
    spark: SparkSession, tables: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions in one pass and dead letters by Spark; a batch may have either alone."""
    refused = (DEFAULTS.topics.dead_letters, text(letter(5)))
    write(tables, records(spark, [*as_records([decision(1)]), refused]), batch_id=0)
    write(tables, records(spark, [(refused[0], text(letter(6)))], first=2), batch_id=1)
    with monkeypatch.context() as patch:
        one_pass_only(patch)
        write(tables, records(spark, as_records([decision(2)]), first=3), batch_id=2)

    assert offsets(tables.delta.decisions) == [1, 2]
    assert offsets(tables.delta.dead_letters) == [5, 6]
    assert rows(tables.delta.unreadable) == []


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE delta.`{path}` ADD COLUMNS (note STRING)",
        "ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (source_offset < 2)",
    ],
    ids=["column", "constraint"],
)
def test_a_table_that_an_operator_changed_is_left_to_spark(spark: SparkSession, tables: Settings, change: str) -> None:
    """Files of this release don't heed what it demands; Spark does."""
    spark.sql(change.format(path=tables.delta.decisions))

    write(tables, records(spark, as_records([decision(1)])), batch_id=0)

    assert offsets(tables.delta.decisions) == [1]
    last = DeltaTable(tables.delta.decisions).history(1)[0]
    assert last["engineInfo"].startswith("Apache-Spark")


def task(
    settings: Settings, columns: pa.Schema, decided: Sequence[Json], headers: Sequence[bytes | None] = ()
) -> TaskResult:
    """What one task makes of decisions with these epochs, in this process."""
    table, count = decisions_table(settings.delta.decisions), len(decided)
    plan = Plan(DEFAULTS.topics.decisions, REQUESTS, BOUNDS, table.path, {}, columns, table.looked_up_by, window_s=60)
    batch = pa.record_batch(
        {
            "topic": [plan.topic] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": range(count),
            "value": [text(one) for one in decided],
            "read_at": pa.array([READ_AT_MS * 1000] * count, pa.timestamp("us", "UTC")),
            "epoch": pa.array(headers or [None] * count, pa.binary()),
        }
    )
    (answer,) = write_part((batch.slice(row, 1) for row in range(count)), plan)
    return msgspec.msgpack.decode(answer["result"][0].as_py(), type=TaskResult)


def test_a_task_takes_its_records_in_chunks(
    tables: Settings, columns: pa.Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it has few in memory at once; they go into the same file, and are measured together."""
    taken: list[int] = []

    def read_and_count(values: Sequence[bytes | None], *more: Any) -> pa.Table:
        taken.append(len(values))
        return read_rows(values, *more)

    monkeypatch.setattr("sluice.streaming.audit.one_pass._CHUNK_ROWS", 7)
    monkeypatch.setattr("sluice.streaming.audit.one_pass.read_rows", read_and_count)

    result = task(tables, columns, [decision(offset) for offset in range(40)])

    assert taken == [7, 7, 7, 7, 7, 5]
    assert (result.decisions, len(result.files), parquet_files(tables)) == (40, 1, 1)
    assert result.measures is not None
    assert pa.ipc.open_stream(result.measures).read_all()["count"].to_pylist() == [40]


def test_a_task_has_few_large_records_in_memory_at_once(
    tables: Settings, columns: pa.Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forged decisions may be as large as Kafka takes records."""
    taken: list[int] = []

    def read_and_count(values: Sequence[bytes | None], *more: Any) -> pa.Table:
        taken.append(len(values))
        return read_rows(values, *more)

    monkeypatch.setattr("sluice.streaming.audit.one_pass._CHUNK_BYTES", 100_000)
    monkeypatch.setattr("sluice.streaming.audit.one_pass.read_rows", read_and_count)

    result = task(tables, columns, [decision(offset) | {"new": "x" * 40_000} for offset in range(8)])

    assert taken == [3, 3, 2]
    assert result.decisions == 8


def test_a_header_that_is_no_epoch_is_kept_nowhere(tables: Settings, columns: pa.Schema) -> None:
    """Headers can be forged too: as long as records, and each different."""
    job = [LeaderEpoch("job", number).header() for number in (1, 2)]
    headers = [b"x" * 1_000, job[0], b"y" * 1_000, job[1], job[1], None]

    result = task(tables, columns, [decision(offset) for offset in range(6)], headers)

    assert sorted(result.epochs) == [(0, job[0], 1, 1), (0, job[1], 3, 4)]


def test_a_task_that_cannot_write_leaves_it_to_spark(
    tables: Settings, columns: pa.Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may get past what the task couldn't, such as a data node that is dead."""

    class FullDisk(DayFiles):
        def write(self, rows: pa.Table) -> None:
            super().write(rows)
            raise OSError("no space left")

    monkeypatch.setattr("sluice.streaming.audit.one_pass.DayFiles", FullDisk)

    result = task(tables, columns, [decision(1)])

    assert (result.doubt, result.files) == ("OSError: no space left", [])
    assert parquet_files(tables) == 0


def test_each_day_has_a_file_with_the_statistics_that_readers_skip_by(spark: SparkSession, tables: Settings) -> None:
    """The least and the greatest value of what decisions are looked up by; long texts are bounds, not values."""
    long = "x" * 40
    late = decision(3, T0 + 3_600_000) | {"client_id": long}
    write(tables, records(spark, as_records([decision(1), decision(2), late])).coalesce(1), batch_id=0)

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


def test_markers_of_a_new_driver_are_no_doubt(
    spark: SparkSession, tables: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each driver begins with them. Its decisions are written in one pass; a batch of markers alone writes nothing."""
    one_pass_only(monkeypatch)
    topic, first, second = DEFAULTS.topics.decisions, LeaderEpoch("job", 1).header(), LeaderEpoch("job", 2).header()
    values = [None, text(decision(1)), None, text(decision(2))]
    batch = records(spark, [(topic, value) for value in values])

    write(tables, marked(batch, [first, first, second, second]), batch_id=0)
    write(tables, marked(records(spark, [(topic, None)]), [LeaderEpoch("job", 3).header()]), batch_id=1)

    assert offsets(tables.delta.decisions) == [1, 2]
    assert rows(tables.delta.unreadable) == []


def test_a_record_without_a_value_is_a_marker_only_with_an_epoch(spark: SparkSession, tables: Settings) -> None:
    """Anything else without a value is unreadable."""
    no_epochs = [None, b"", b"job:2\n", b"job"]
    empty = [(DEFAULTS.topics.decisions, None) for _ in no_epochs]

    write(tables, marked(records(spark, [*empty, *as_records([decision(1)])]), [*no_epochs, None]), batch_id=0)

    assert offsets(tables.delta.decisions) == [1]
    unreadable = sorted((row["offset"], row["field"]) for row in rows(tables.delta.unreadable))
    assert unreadable == [(offset, "value") for offset in range(len(no_epochs))]


def test_a_late_decision_of_a_driver_that_was_replaced_is_left_to_spark(spark: SparkSession, tables: Settings) -> None:
    """It is no row, and no file of it is left."""
    older, newer = LeaderEpoch("job", 1).header(), LeaderEpoch("job", 2).header()
    batch = records(spark, as_records([decision(1), decision(2), decision(3)]))
    write(tables, marked(batch, [older, newer, older]), batch_id=0)

    assert offsets(tables.delta.decisions) == [1, 2]
    assert {(row["field"], row["reason"]) for row in rows(tables.delta.unreadable)} == {
        ("epoch", "is of a driver that had been replaced")
    }
    assert parquet_files(tables) == len(DeltaTable(tables.delta.decisions).file_uris())
