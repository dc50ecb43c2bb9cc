"""The audit tables: one row per answered event, metrics that add up, and nothing counted twice."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.configs.settings import Settings
from sluice.sinks.tables.delta import create_table
from sluice.sinks.tables.faults import RequestsTopic
from sluice.sinks.tables.unreadable import unreadable_table
from sluice.state.decisions.leader_epochs import LeaderEpoch
from sluice.streaming.audit import query
from sluice.streaming.errors import JobError
from tests.audit_records import DAY_MS, T0, Record, as_records, decision, letter, some_decisions, text
from tests.audit_tables import offsets, records, rows, tables_in, write
from tests.builders import DEFAULTS, Json

DECISIONS, LETTERS = DEFAULTS.topics.decisions, DEFAULTS.topics.dead_letters


@pytest.fixture
def tables(tmp_path: Path) -> Settings:
    """Empty tables."""
    return tables_in(tmp_path)


def faults(settings: Settings) -> list[tuple[int, str]]:
    """Offset and field of the records that are unreadable."""
    return sorted((row["offset"], row["field"]) for row in rows(settings.delta.unreadable))


def counted(settings: Settings) -> int:
    """The decisions that the metrics count; each of them has one charge."""
    return sum(row["count"] for row in rows(settings.delta.quota_metrics))


def in_order(found: list[Json]) -> list[Json]:
    return sorted((dict(sorted(row.items())) for row in found), key=str)


def contents(settings: Settings) -> list[list[Json]]:
    """All rows of the tables, in an order of their own."""
    delta = settings.delta
    paths = (delta.decisions, delta.quota_metrics, delta.dead_letters, delta.unreadable)
    return [in_order(rows(path)) for path in paths]


def files(path: str) -> int:
    return len(list(Path(path).glob("date=*/*.parquet")))


def close(row: Json) -> Json:
    """Sums of fractions in another order differ in their last digits."""
    return {name: pytest.approx(value) if isinstance(value, float) else value for name, value in row.items()}


def of_topic(answers: list[Json], topic_id: str) -> list[Json]:
    """Decisions on events of a topic with this id."""
    return [answer | {"source_topic_id": topic_id} for answer in answers]


@pytest.mark.parametrize("tasks", [1, 3])
def test_decisions_on_a_topic_that_was_made_again_are_rows_beside_those_on_the_one_before(
    tables: Settings, tasks: int
) -> None:
    """Its offsets begin at 0 again. A second answer to an event of either is one, also much later.

    That on the last event before comes late: the topic was shorter when the query looked.
    """
    first = of_topic([decision(number) for number in range(3)], "first")
    second = of_topic([decision(number, T0 + 40_000) for number in range(3)], "second")
    event = {"topic": "my-requests", "partition": 0, "offset": 2}
    old, new = ((LETTERS, text(letter(5, source=event | {"topic_id": each}))) for each in ("first", "second"))
    before = RequestsTopic("my-requests", [2] * 4, "first")
    requests = RequestsTopic("my-requests", [9] * 4, "second", ["first"])
    write(tables, records(as_records(first[:2])), 0, requests=before)
    write(tables, records([*as_records([first[2], *second]), old, new], first=2), 1, requests=requests, tasks=tasks)
    other = [each | {"user": "mallory"} for each in (first[1], second[1])]
    write(tables, records(as_records([first[0], *other, second[2]]), first=8), 2, requests=requests, tasks=tasks)

    found = sorted((row["source_topic_id"], row["source_offset"], row["user"]) for row in rows(tables.delta.decisions))
    assert found == [(topic_id, number, "a|b") for topic_id in ("first", "second") for number in range(3)]
    assert {row["source_topic_id"] for row in rows(tables.delta.dead_letters)} == {"first", "second"}
    assert len(rows(tables.delta.dead_letters)) == 2
    assert faults(tables) == [(9, "value"), (10, "value")]
    assert counted(tables) == 6


def test_a_topic_id_that_nobody_knows_makes_no_second_row_of_an_event(tables: Settings) -> None:
    """A writer to the decisions topic could count a request as often as there are ids."""
    requests = RequestsTopic("my-requests", [9] * 4, "second", ["first"])
    nowhere = decision(1) | {"decision_id": "my-requests-4294967299-1"}
    forged = [*of_topic([decision(1)], "forged"), *of_topic([nowhere], "first"), decision(1)]
    write(tables, records(as_records([*of_topic([decision(1)], "second"), *forged])), 0, requests=requests)

    assert [row["source_topic_id"] for row in rows(tables.delta.decisions)] == ["second"]
    assert faults(tables) == [(number, "decision_id") for number in (1, 2, 3)]


@pytest.mark.parametrize("unnamed", ["first", ""])
def test_rows_of_a_time_without_ids_of_topics_are_of_the_topic_that_was_there(tables: Settings, unnamed: str) -> None:
    """Unless it was made again meanwhile."""
    write(tables, records(as_records([decision(0), decision(1)])), 0)
    requests = RequestsTopic("my-requests", [9] * 4, "first", [] if unnamed else [""], unnamed)

    again = [*of_topic([decision(1) | {"user": "bob"}, decision(2)], "first"), decision(1)]
    write(tables, records(as_records(again), first=2), 1, requests=requests)

    assert offsets(tables.delta.decisions) == ([0, 1, 2] if unnamed else [0, 1, 1, 2])
    assert faults(tables) == ([(2, "value")] if unnamed else [])
    assert counted(tables) == len(rows(tables.delta.decisions))


def test_many_tasks_and_batches_leave_the_tables_of_one(tables: Settings, tmp_path: Path) -> None:
    """Rows, partitions and metrics."""
    made = some_decisions(300, seed=9)
    at_once = tables_in(tmp_path / "at once")
    write(at_once, records(as_records(made)), batch_id=0)

    for batch_id, half in enumerate((made[:200], made[200:])):
        write(tables, records(as_records(half), first=200 * batch_id), batch_id, tasks=3)

    decisions, metrics, letters, unreadable = contents(tables)
    expected = contents(at_once)
    assert decisions == expected[0]
    assert metrics == [close(row) for row in expected[1]]
    assert letters == unreadable == []


def test_a_fault_is_of_its_record_and_takes_no_other_along(tables: Settings) -> None:
    made = [(DECISIONS, text(decision(offset))) for offset in range(5)]

    write(tables, records([*made, (DECISIONS, b"junk"), (LETTERS, b"junk")]), batch_id=0, tasks=4)

    assert offsets(tables.delta.decisions) == [*range(5)]
    assert faults(tables) == [(5, "value"), (6, "value")]
    assert counted(tables) == 5


def test_a_repeated_batch_changes_nothing(tables: Settings) -> None:
    """Such as after a crash before Spark noted that it was done."""
    made = [*as_records(some_decisions(50, seed=1)), (LETTERS, text(letter(1))), (LETTERS, b"junk"), (DECISIONS, b"")]
    write(tables, records(made), batch_id=0)
    before = contents(tables)

    write(tables, records(made), batch_id=0, tasks=2)
    assert contents(tables) == before


@pytest.mark.parametrize("commits", range(4))
def test_a_crash_between_two_commits_counts_nothing_twice(tables: Settings, commits: int) -> None:
    """Earlier commits are known when the batch is repeated, and the rest is added."""
    answers = as_records([decision(1), decision(2)]) + [(LETTERS, text(letter(number))) for number in (3, 1)]
    batch = records([*answers, (DECISIONS, b"junk")])
    left = iter(range(commits))

    def crash_after(commit: Any) -> Any:
        def may_crash(*given: object) -> None:
            if next(left, None) is None:
                raise OSError("the machine is gone")
            commit(*given)

        return may_crash

    crash(tables, batch, 0, **{name: crash_after(getattr(query, name)) for name in ("add_files", "merge_metrics")})
    assert rows(tables.delta.decisions) == []

    write(tables, batch, batch_id=0)

    assert offsets(tables.delta.decisions) == [1, 2]
    assert offsets(tables.delta.dead_letters) == [3]
    assert faults(tables) == [(3, "value"), (4, "value")]
    assert counted(tables) == 2


def crash(settings: Settings, batch: pa.Table, batch_id: int, **commits: Any) -> None:
    """Write a batch whose commits fail: by default that of the decisions, after the metrics are merged."""
    with patch.multiple(query, **commits or {"add_files": _gone}), pytest.raises(OSError, match="gone"):
        write(settings, batch, batch_id)


def _gone(*_given: object) -> None:
    raise OSError("the machine is gone")


def test_another_query_that_reads_from_the_beginning_writes_nothing_again(tables: Settings) -> None:
    """Its checkpoint is new, so its commits have another name; a record that is new is added."""
    made = [*as_records([decision(1), decision(2)]), (LETTERS, text(letter(3))), (LETTERS, b"junk"), (DECISIONS, b"")]
    write(tables, records(made), batch_id=0)
    before = contents(tables)

    write(tables, records(made), batch_id=0, query="another")
    assert contents(tables) == before

    write(tables, records([*made, (DECISIONS, text(decision(4)))]), batch_id=0, query="a third")
    assert offsets(tables.delta.decisions) == [1, 2, 4]
    assert counted(tables) == 3


def restored_backup(settings: Settings) -> list[Record]:
    """Write three micro-batches; returns all records there are when a backup made after the first is restored."""
    made = [*as_records([decision(number) for number in range(5)]), (LETTERS, text(letter(5))), (LETTERS, b"junk")]
    made += [(LETTERS, text(letter(7))), (DECISIONS, b"junk"), *as_records([decision(9)])]
    for batch_id, (first, last) in enumerate([(0, 1), (1, 6), (6, 7)]):
        write(settings, records(made[first:last], first), batch_id)
    return made


@pytest.mark.parametrize("cuts", [[1, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 7, 10], [1, 6, 9, 10]])
def test_a_query_that_goes_on_from_a_backup_writes_what_came_since(tables: Settings, cuts: list[int]) -> None:
    """It counts its micro-batches from the backup again, and cuts them elsewhere."""
    made = restored_backup(tables)

    for batch_id, (first, last) in enumerate(pairwise(cuts), start=1):
        write(tables, records(made[first:last], first), batch_id)

    assert offsets(tables.delta.decisions) == [0, 1, 2, 3, 4, 9]
    assert offsets(tables.delta.dead_letters) == [5, 7]
    assert faults(tables) == [(6, "value"), (8, "value")]
    assert counted(tables) == 6


@pytest.mark.parametrize("name", ["query", "another"])
@pytest.mark.parametrize("cuts", [[1, 6], [1, 3, 6], [0, 6]])
def test_metrics_of_a_micro_batch_that_a_crash_cut_short_are_counted_once_after_a_restore(
    tables: Settings, name: str, cuts: list[int]
) -> None:
    """They are merged before the decisions are rows; the backup, or a new checkpoint, cuts its micro-batches elsewhere.

    The micro-batch has decisions of two windows, which are a commit each.
    """
    made = as_records([decision(number, T0 + 40_000 * (number % 2)) for number in range(6)])
    write(tables, records(made[:1]), 0)
    crash(tables, records(made[1:4], 1), 1)
    assert counted(tables) == 4
    DeltaTable(tables.delta.quota_metrics).optimize.compact()

    for batch_id, (first, last) in enumerate(pairwise(cuts), start=1):
        write(tables, records(made[first:last], first), batch_id, name)

    assert offsets(tables.delta.decisions) == [*range(6)]
    assert counted(tables) == 6


def _remove_old_files(metrics: DeltaTable) -> None:
    """By an operator who keeps none for readers."""
    metrics.vacuum(0, dry_run=False, enforce_retention_duration=False)


def _write_values(metrics: DeltaTable) -> None:
    """By an operator: a restore would undo that too."""
    metrics.update({"value": "777.0"})


def _forget_the_log(metrics: DeltaTable) -> None:
    """The job was down for longer than the log of the table is kept, and the maintenance went on."""
    metrics.optimize.compact()
    metrics.create_checkpoint()
    *old, _ = sorted((Path(metrics.table_uri.removeprefix("file://")) / "_delta_log").glob("0*.json"))
    for commit in old:
        commit.unlink()


@pytest.mark.parametrize(
    ("happen", "at_ms", "reason"),
    [
        (_remove_old_files, T0, ""),
        (_write_values, T0, " (UPDATE of its version 3)"),
        (_forget_the_log, T0 + 60_000, " (its log has forgotten them)"),
    ],
)
def test_metrics_that_cant_be_taken_back_stop_nothing_and_are_told_of_when_they_count_twice(
    tables: Settings, caplog: pytest.LogCaptureFixture, happen: Callable[[DeltaTable], None], at_ms: int, reason: str
) -> None:
    write(tables, records(as_records([decision(0)])), 0)
    crash(tables, records(as_records([decision(1, at_ms)]), 1), 1)
    happen(DeltaTable(tables.delta.quota_metrics))

    write(tables, records(as_records([decision(1, at_ms), decision(2, T0 + 60_000)]), 1), 1)

    assert offsets(tables.delta.decisions) == [0, 1, 2]
    assert f"counts some decisions twice, as that can't be taken back{reason}" in caplog.text
    values = [row["value"] for row in rows(tables.delta.quota_metrics)]
    assert (777.0 + 100.0 in values) == (happen is _write_values), "what others wrote is never taken back"


def test_a_driver_that_wakes_up_after_others_went_on_counts_nothing_twice(
    tables: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked up what is answered before it paused."""
    first, second = (records(as_records([decision(number)]), number) for number in range(2))

    def pause(*_given: object) -> None:
        monkeypatch.undo()
        write(tables, first, 0)
        write(tables, second, 1)

    monkeypatch.setattr("sluice.streaming.audit.query.AuditWriter._log_unreadable", pause)
    with pytest.raises(JobError, match="another driver"):
        write(tables, first, 0)

    assert offsets(tables.delta.decisions) == [0, 1]
    assert counted(tables) == 2


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_second_decision_of_an_event_is_unreadable_unless_it_says_the_same(tables: Settings, tasks: int) -> None:
    """In the same micro-batch and in a later one; the first that was written to the topic is the row."""
    first, again, other = decision(1), decision(1), decision(1) | {"user": "mallory"}
    write(tables, records(as_records([first, other, again, decision(2)])), batch_id=0, tasks=tasks)
    write(tables, records(as_records([other, again, decision(3)]), first=4), batch_id=1, tasks=tasks)

    found = {row["source_offset"]: row["user"] for row in rows(tables.delta.decisions)}
    assert found == {1: "a|b", 2: "a|b", 3: "a|b"}
    assert counted(tables) == 3
    assert faults(tables) == [(1, "value"), (4, "value")]
    unreadable = rows(tables.delta.unreadable)
    assert {row["reason"] for row in unreadable} == {"answers an event that has another answer already"}
    assert {json.loads(row["value"])["user"] for row in unreadable} == {"mallory"}
    assert files(tables.delta.decisions) == len(DeltaTable(tables.delta.decisions).file_uris())


def test_a_second_dead_letter_of_an_event_is_unreadable_unless_it_says_the_same(tables: Settings) -> None:
    """However late it was written, or in the same micro-batch."""
    same, other = letter(1), letter(1, value="Qg==")
    write(tables, records([(LETTERS, text(same))] * 2), batch_id=0, tasks=2)
    later = [(LETTERS, text(answer)) for answer in (same, other)]
    write(tables, records(later, first=2, at_ms=T0 + 1), batch_id=1)

    assert [row["value"] for row in rows(tables.delta.dead_letters)] == [b"A"]
    assert faults(tables) == [(3, "value")]


def test_an_event_has_either_a_decision_or_a_dead_letter(tables: Settings) -> None:
    """The one that is a row already; of two in a micro-batch the decision, as gateways act on it."""
    decisions = as_records([decision(number) for number in range(3)])
    letters = [(LETTERS, text(letter(number))) for number in range(3)]
    write(tables, records([decisions[0], letters[1]]), 0)
    write(tables, records([letters[0], decisions[1], letters[2], decisions[2]], first=2), 1, tasks=2)

    assert offsets(tables.delta.decisions) == [0, 2]
    assert offsets(tables.delta.dead_letters) == [1]
    assert faults(tables) == [(2, "value"), (3, "value"), (4, "value")]
    assert counted(tables) == 2


def test_events_of_many_days_do_not_become_many_folders(tables: Settings) -> None:
    """Days before the bounds are unreadable; what genuine events can have is a row."""
    days = [decision(number, T0 - number * DAY_MS) for number in (0, 8, 67, 68, 300)]

    write(tables, records(as_records(days)), batch_id=0)

    assert len({row["date"] for row in rows(tables.delta.quota_metrics)}) == 3
    assert offsets(tables.delta.decisions) == [0, 8, 67]
    assert faults(tables) == [(3, "timestamp_ms"), (4, "timestamp_ms")]


def test_a_batch_of_very_many_source_partitions_is_written(tables: Settings) -> None:
    """A condition for each of thousands can't be planned; duplicates are found all the same."""
    requests = RequestsTopic("my-requests", ends=[100] * 3000)
    wide = [decision(1) | {"decision_id": f"my-requests-{number}-7"} for number in range(3000)]
    write(tables, records(as_records([decision(1), *wide])), 0, requests=requests)

    write(tables, records(as_records([*wide, decision(2), decision(1)]), first=5000), 1, requests=requests)

    assert len(rows(tables.delta.decisions)) == 3002


def test_an_answer_to_a_very_old_event_is_looked_up_among_all(tables: Settings) -> None:
    """Its span may hold more rows than memory; only those that the micro-batch has are kept."""
    write(tables, records(as_records([decision(0), decision(10**12)])), batch_id=0)

    write(tables, records(as_records([decision(0), decision(10**12 + 1)]), first=2), batch_id=1)

    assert offsets(tables.delta.decisions) == [0, 10**12, 10**12 + 1]


def test_a_decision_forged_before_its_event_does_not_take_the_genuine_ones_place(tables: Settings) -> None:
    """The first answer of an event is the row, so one that names an event before it is there would be the first."""
    forged = decision(10) | {"user": "mallory"}
    before, after = (RequestsTopic("my-requests", ends=[0, 0, 0, end]) for end in (10, 11))
    write(tables, records(as_records([decision(9), forged])), 0, requests=before)
    write(tables, records(as_records([decision(10)]), first=2), 1, requests=after)

    assert {row["source_offset"]: row["user"] for row in rows(tables.delta.decisions)} == {9: "a|b", 10: "a|b"}
    assert faults(tables) == [(1, "decision_id")]
    assert {row["reason"] for row in rows(tables.delta.unreadable)} == {"names no event of topic my-requests"}


OLDER, NEWER, NEWEST = (LeaderEpoch("job", number).header() for number in (1, 2, 3))


def test_decisions_of_a_driver_that_was_replaced_are_no_rows_and_markers_are_nothing(tables: Settings) -> None:
    """In any micro-batch. A header that is no epoch fences no driver, and without a value is unreadable."""
    values = [text(decision(number)) for number in range(4)]
    read: list[tuple[bytes | None, bytes | None]] = [(values[0], OLDER), (None, NEWER), (values[1], OLDER)]
    read += [(values[1], NEWER), (values[2], OLDER), (values[3], None), (None, b"job:2\n")]
    for batch_id, begin in enumerate((0, 4)):
        part = read[begin : begin + 4]
        batch = records([(DECISIONS, value) for value, _ in part], begin, epochs=[epoch for _, epoch in part])
        write(tables, batch, batch_id)
    write(tables, records([(DECISIONS, None)], first=7, epochs=[NEWEST]), batch_id=2)

    assert offsets(tables.delta.decisions) == [0, 1, 3]
    assert faults(tables) == [(2, "epoch"), (4, "epoch"), (6, "value")]


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_late_decision_of_a_driver_that_was_replaced_is_no_row(tables: Settings, tasks: int) -> None:
    """No file of it is left; it is no second answer, and what it says first does not count."""
    late = [decision(3) | {"user": "late"}, decision(2), decision(3)]
    made = as_records([decision(1), decision(2), *late])
    write(tables, records(made, epochs=[OLDER, NEWER, OLDER, OLDER, NEWER]), batch_id=0, tasks=tasks)

    found = {row["source_offset"]: row["user"] for row in rows(tables.delta.decisions)}
    assert found == {1: "a|b", 2: "a|b", 3: "a|b"}
    assert {(row["offset"], row["field"], row["reason"]) for row in rows(tables.delta.unreadable)} == {
        (offset, "epoch", "is of a driver that had been replaced") for offset in (2, 3)
    }
    assert counted(tables) == 3
    assert files(tables.delta.decisions) == len(DeltaTable(tables.delta.decisions).file_uris())


def test_dead_letters_of_a_driver_that_was_replaced_are_no_rows(tables: Settings) -> None:
    """Their topic has markers of its own, and the epochs of the decisions say nothing of it."""
    one, two, three = ((LETTERS, text(letter(number))) for number in (1, 2, 3))
    read = [(DECISIONS, None), one, (LETTERS, None), two, two]
    write(tables, records(read, epochs=[NEWER, OLDER, NEWER, OLDER, NEWER]), batch_id=0)
    write(tables, records([three], first=5, epochs=[OLDER]), batch_id=1)

    assert offsets(tables.delta.dead_letters) == [1, 2]
    assert faults(tables) == [(3, "epoch"), (5, "epoch")]


def test_a_record_without_a_value_is_a_marker_only_with_an_epoch(tables: Settings) -> None:
    """Anything else without a value is unreadable, in both topics."""
    no_epochs = [None, b"", b"job:2\n", b"job"]
    empty = [(DECISIONS, None) for _ in no_epochs] + [(LETTERS, None)] * 2
    epochs = [*no_epochs, b"job", OLDER, None]

    write(tables, records([*empty, *as_records([decision(1)])], epochs=epochs), batch_id=0)

    assert offsets(tables.delta.decisions) == [1]
    assert faults(tables) == [(offset, "value") for offset in range(5)]


def test_a_column_that_an_operator_added_is_null_in_new_rows(tables: Settings) -> None:
    path = tables.delta.decisions
    write(tables, records(as_records([decision(1)])), batch_id=0)
    noted = DeltaTable(path).to_pyarrow_table().append_column("note", pa.array(["mine"]))
    write_deltalake(path, noted, mode="overwrite", schema_mode="overwrite", partition_by=["date"])

    write(tables, records(as_records([decision(2), decision(1)]), first=1), batch_id=1)

    assert sorted((row["source_offset"], row["note"]) for row in rows(path)) == [(1, "mine"), (2, None)]
    assert rows(tables.delta.unreadable) == []


def without_tenants(kind: pa.DataType) -> pa.DataType:
    """The type as it was before entities had a tenant."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(without_tenants(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(without_tenants(each.type)) for each in kind if each.name != "tenant"])
    return kind


def test_tables_from_before_tenants_keep_their_rows_and_take_charges_of_tenants(
    tables: Settings, tmp_path: Path
) -> None:
    write(tables, records(as_records([decision(1)])), batch_id=0)
    for path in (tables.delta.decisions, tables.delta.quota_metrics):
        found = DeltaTable(path).to_pyarrow_table()
        fields = [each.with_type(without_tenants(each.type)) for each in found.schema if each.name != "tenant"]
        earlier = pa.Table.from_pylist(found.to_pylist(), schema=pa.schema(fields))
        assert earlier.schema != found.schema
        write_deltalake(path, earlier, mode="overwrite", schema_mode="overwrite", partition_by=["date"])

    tables_in(tmp_path)  # as a job of today starts
    write(tables, records(as_records([decision(2, entity={"tenant": "shop"})]), first=1), batch_id=1)

    charged = [charge["entity"] for row in rows(tables.delta.decisions) for charge in row["charges"]]
    assert {(entity["user"], entity["tenant"]) for entity in charged} == {(None, "shop"), ("a|b", None)}
    metrics = rows(tables.delta.quota_metrics)
    assert {(row["user"], row["tenant"]): row["count"] for row in metrics} == {("a|b", None): 1, (None, "shop"): 1}


def test_tables_can_be_in_a_folder_that_is_named_by_a_uri(tmp_path: Path) -> None:
    """As on a cluster whose machines have all mounted it."""
    table = unreadable_table((tmp_path / "unreadable").as_uri())
    create_table(table, {})
    create_table(table, {})

    assert DeltaTable(table.path).version() == 0
