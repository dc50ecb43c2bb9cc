"""The Delta table `quotas`: versions, concurrent changes, and paths that hold no quotas table."""

import multiprocessing
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake

from sluice.sinks.errors import QuotasTableError
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_reading.quotas_admin import QuotasAdmin
from tests.builders import quota

MONDAY = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
TUESDAY = datetime(2026, 1, 6, 9, 30, tzinfo=UTC)

PROCESSES = 8


def producer_quota(user: str, value: float, *, shadow: bool = False) -> QuotaEntry:
    return quota(QuotaKind.PRODUCER_BYTE_RATE, value, user=user, shadow=shadow)


ALICE = producer_quota("alice", 1024.0)
BOB = producer_quota("bob", 2048.0, shadow=True)
EVERYBODY = quota(QuotaKind.REQUEST_PERCENTAGE, 12.5, user=DEFAULT, client_id="app")
ORDERS = quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1e7, topic="orders")


@pytest.fixture
def table(tmp_path: Path) -> QuotasAdmin:
    return QuotasAdmin(str(tmp_path / "quotas"))


def test_quotas_are_read_as_they_were_created_once(table: QuotasAdmin) -> None:
    assert not table.exists()
    with pytest.raises(QuotasTableError, match=r"no quotas table at .*; the job makes it when it starts"):
        table.entries()
    assert table.create([ORDERS, BOB, ALICE, EVERYBODY], "carol", MONDAY) == 0
    assert table.exists()
    assert set(table.entries()) == {ALICE, BOB, EVERYBODY, ORDERS}
    assert {(row.changed_by, row.changed_at) for row in table.rows()} == {("carol", MONDAY)}
    assert table.create([BOB], "dave", TUESDAY) == 0
    assert table.alter(lambda entries: list(reversed(entries)), "dave", TUESDAY) == 0
    assert len(table.entries()) == 4


def test_entities_are_canonical_json_with_null_for_the_default(table: QuotasAdmin) -> None:
    table.create([EVERYBODY, BOB], "carol", MONDAY)
    rows = DeltaTable(table.path).scan(columns=["entity", "key", "value", "mode"]).read_all()
    assert sorted(zip(*(rows[name].to_pylist() for name in ("entity", "key", "value", "mode")), strict=True)) == [
        ('{"client_id": "app", "user": null}', "request_percentage", 12.5, "enforce"),
        ('{"user": "bob"}', "producer_byte_rate", 2048.0, "shadow"),
    ]


def test_an_enforced_and_a_shadow_quota_of_one_entity_and_key_are_two_rows(table: QuotasAdmin) -> None:
    """The shadow one comes and goes without the enforced one, which keeps its author and time."""
    trial = producer_quota("alice", 512.0, shadow=True)
    table.create([ALICE], "carol", MONDAY)
    table.alter(lambda entries: [trial, *entries], "dave", TUESDAY)
    table.alter(lambda entries: [entry for entry in entries if not entry.shadow], "erin", TUESDAY)
    table.alter(lambda _: [trial], "erin", TUESDAY)
    table.alter(lambda _: [], "erin", TUESDAY)
    table.alter(lambda _: [BOB], "erin", TUESDAY)

    assert table.entries(version=1) == [ALICE, trial]
    assert [row.changed_by for row in table.rows(version=1)] == ["carol", "dave"]
    assert [table.entries(version) for version in (2, 4, 5)] == [[ALICE], [], [BOB]]
    assert [(change.version, change.old, change.new) for change in table.history()] == [
        (5, None, BOB),
        (4, trial, None),
        (3, ALICE, None),
        (3, None, trial),
        (2, trial, None),
        (1, None, trial),
        (0, None, ALICE),
    ]


def test_each_change_is_a_version_and_old_versions_stay_readable_by_number_and_time(table: QuotasAdmin) -> None:
    """Unchanged quotas keep their author and time."""
    table.create([ALICE], "carol", MONDAY)
    assert table.alter(lambda entries: [*entries, BOB], "dave", TUESDAY) == 1
    assert table.version() == 1
    assert [(row.changed_by, row.changed_at) for row in table.rows()] == [("carol", MONDAY), ("dave", TUESDAY)]
    assert table.entries() == [ALICE, BOB]
    assert table.entries(version=0) == [ALICE]
    day = TUESDAY - MONDAY
    at = (MONDAY - day, MONDAY, TUESDAY - day / 2, TUESDAY)
    assert [len(table.entries_at(each)) for each in at] == [1, 1, 1, 2]


def test_a_change_that_fails_writes_nothing(table: QuotasAdmin) -> None:
    def refuse(_: Sequence[QuotaEntry]) -> list[QuotaEntry]:
        raise ZeroDivisionError

    table.create([ALICE], "carol", MONDAY)
    with pytest.raises(ZeroDivisionError):
        table.alter(refuse, "dave", TUESDAY)
    assert table.version() == 0


@pytest.mark.parametrize("before", [[], [ALICE]], ids=["empty", "filled"])
def test_a_change_is_repeated_on_what_somebody_else_committed(table: QuotasAdmin, before: list[QuotaEntry]) -> None:
    """An overwrite of an empty table removes no file, so delta-rs would see no conflict and keep both."""
    table.create(before, "carol", MONDAY)
    seen: list[list[QuotaEntry]] = []

    def add_orders(entries: list[QuotaEntry]) -> list[QuotaEntry]:
        seen.append(entries)
        if len(seen) == 1:
            table.alter(lambda others: [*others, BOB], "dave", MONDAY)
        return [*entries, ORDERS]

    assert table.alter(add_orders, "carol", TUESDAY) == 2
    assert seen == [before, [*before, BOB]]
    assert set(table.entries()) == {*before, BOB, ORDERS}


def in_processes(target: Callable[..., None], *arguments: tuple[object, ...]) -> None:
    """Call it in a process for each of these, all at once; it has to succeed in all.

    They are forks of one that has imported all and has no threads, for the import takes a second of each.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    processes = [server.Process(target=target, args=each, daemon=True) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)


def alter_many_times(path: str, process: int, alters: int) -> None:
    for index in range(alters):
        added = producer_quota(f"user-{process}-{index}", 1.0)
        QuotasAdmin(path).alter(lambda entries, added=added: [*entries, added], f"process-{process}", MONDAY)  # type: ignore[misc] # mypy can't infer a lambda with a default


@pytest.mark.parametrize("alters", [5, pytest.param(25, marks=pytest.mark.long)])
def test_no_change_of_many_processes_is_lost(table: QuotasAdmin, alters: int) -> None:
    table.create([], "carol", MONDAY)
    in_processes(alter_many_times, *((table.path, process, alters) for process in range(PROCESSES)))
    assert {entry.entity.user for entry in table.entries()} == {
        f"user-{process}-{index}" for process in range(PROCESSES) for index in range(alters)
    }
    assert table.version() == PROCESSES * alters


def create_table(path: str, process: int) -> None:
    QuotasAdmin(path).create([producer_quota(f"user-{process}", 1.0)] * (process + 1), f"process-{process}", MONDAY)


def test_of_processes_that_create_the_table_at_once_one_wins(table: QuotasAdmin) -> None:
    in_processes(create_table, *((table.path, process) for process in range(4)))
    assert table.version() == 0
    assert len(table.entries()) == 1


def test_history_tells_who_set_replaced_and_removed_what_newest_first(table: QuotasAdmin) -> None:
    table.create([ALICE], "carol", MONDAY)
    raised = producer_quota("alice", 4096.0)
    table.alter(lambda _: [raised, BOB], "dave", TUESDAY)
    table.alter(lambda _: [BOB], "erin", TUESDAY)
    changes = [
        (change.version, change.changed_by, change.changed_at, change.old, change.new) for change in table.history()
    ]
    assert changes == [
        (2, "erin", TUESDAY, raised, None),
        (1, "dave", TUESDAY, ALICE, raised),
        (1, "dave", TUESDAY, None, BOB),
        (0, "carol", MONDAY, None, ALICE),
    ]


def test_a_change_by_another_tool_has_an_unknown_author(table: QuotasAdmin) -> None:
    table.create([ALICE, BOB], "carol", MONDAY)
    DeltaTable(table.path).delete("entity LIKE '%bob%'")
    newest = next(table.history())
    assert (newest.version, newest.changed_by, newest.old, newest.new) == (1, "unknown", BOB, None)


def _break_the_log(path: Path) -> None:
    (path / "_delta_log" / "00000000000000000001.json").write_text("{rubbish")


def _remove_data_files(path: Path) -> None:
    for file in path.glob("*.parquet"):
        file.unlink()


def _double_rows(path: Path) -> None:
    write_deltalake(str(path), DeltaTable(str(path)).scan(), mode="append")


@pytest.mark.parametrize(
    ("harm", "version", "problem"),
    [
        (None, 7, "has no version 7; expected 0 to 0"),
        (_break_the_log, None, r"can't be read \(.*\); check delta.quotas"),
        (_remove_data_files, None, r"can't be read \(.*\); check delta.quotas"),
        (_double_rows, None, "two rows of the same entity, key and mode in version 1"),
    ],
)
def test_a_table_that_cant_be_read_is_one_line(
    table: QuotasAdmin, harm: Callable[[Path], None] | None, version: int | None, problem: str
) -> None:
    table.create([ALICE], "carol", MONDAY)
    if harm is not None:
        harm(Path(table.path))
    with pytest.raises(QuotasTableError, match=problem):
        table.entries(version)


def test_a_delta_table_of_another_kind(tmp_path: Path) -> None:
    path = str(tmp_path / "other")
    write_deltalake(path, Table.from_pydict({"entity": Array(["x"], DataType.utf8())}))
    with pytest.raises(QuotasTableError, match="is no quotas table: it has no column key of type string"):
        QuotasAdmin(path).entries()


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("value", "0", "expected a number > 0"),
        ("key", "'bytes'", "unknown quota key 'bytes'"),
        ("mode", "'off'", "expected enforce or shadow"),
        ("entity", "'[]'", "no JSON object"),
        ("entity", "'{'", "truncated"),
    ],
)
def test_a_row_that_another_tool_broke(table: QuotasAdmin, column: str, value: str, problem: str) -> None:
    table.create([ALICE], "carol", MONDAY)
    DeltaTable(table.path).update(updates={column: value})
    with pytest.raises(QuotasTableError, match=f"broken row .* in version 1: .*{problem}.*; correct it with Spark SQL"):
        table.entries()


def test_history_passes_over_versions_with_a_broken_row_once_the_table_is_mended(table: QuotasAdmin) -> None:
    """Versions stay for ever, so a row that was wrong for a minute would else end every later look at the history."""
    table.create([ALICE], "carol", MONDAY)
    DeltaTable(table.path).update(updates={"value": "0"})
    DeltaTable(table.path).update(updates={"key": "'bytes'"})
    with pytest.raises(QuotasTableError, match=r"broken row .* in version 2"):
        list(table.history())

    DeltaTable(table.path).restore(0)
    table.alter(lambda entries: [*entries, BOB], "dave", TUESDAY)

    assert [(each.version, each.new) for each in table.history()] == [(4, BOB), (0, ALICE)]


def test_a_version_with_a_broken_row_was_in_force_at_no_time(table: QuotasAdmin) -> None:
    table.create([ALICE], "carol", MONDAY)
    DeltaTable(table.path).update(updates={"value": "0"})
    at = datetime.now(UTC)
    DeltaTable(table.path).restore(0)

    assert table.entries_at(at) == [ALICE]


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QuotasTableError, match="can't be written"):
        QuotasAdmin(str(tmp_path / "file" / "quotas")).create([ALICE], "carol", MONDAY)
