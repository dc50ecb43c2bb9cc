"""The logs of audit tables stay short over months, so that a commit costs what it cost on the first day."""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.configs.settings import DeltaSettings, Properties
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.delta import AuditTable, Commit, columns, create_table
from sluice.sinks.tables.delta_files import DayFiles, add_files
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_reading.holds_table import HoldsTable
from sluice_reading.quota_lists import ChangedFrom
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_toolbox.maintenance import maintain
from tests.builders import hold_of, quota

DAY_S = 86_400
HOUR_S = 3600
CAROL = ChangedFrom("carol", "a-host-of-the-team-that-operates-kafka", "User:operators-of-kafka")
COLUMNS = columns("source_offset BIGINT, date DATE")


@pytest.fixture
def delta(tmp_path: Path) -> DeltaSettings:
    names = ("quotas", "decisions", "quota_metrics", "dead_letters", "unreadable", "overrides")
    paths = {name: str(tmp_path / name) for name in names}
    return DeltaSettings(**paths, storage_options=Properties(), maintain_every_hours=24, retention_hours=168)


@pytest.fixture
def table(delta: DeltaSettings) -> AuditTable:
    return AuditTable(delta.decisions, COLUMNS, ["source_offset"])


def commit(table: AuditTable, *batches: int) -> None:
    """Micro-batches of one row."""
    for batch in batches:
        files = DayFiles(table, {})
        files.write(pa.table([[batch], [date(2026, 1, 31)]], schema=COLUMNS))
        add_files(DeltaTable(table.path), files.close(), Commit("audit", batch))


def age(path: str, days: float) -> None:
    """Let the table's files be so much older than they are."""
    for file in Path(path).rglob("*"):
        if file.is_file():
            os.utime(file, (then := time.time() - days * DAY_S, then))


def log_of(path: str) -> list[str]:
    return sorted(file.name for file in (Path(path) / "_delta_log").glob("0*.json"))


def offsets(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["source_offset"].to_pylist())


def test_a_commit_looks_at_no_old_ones_and_the_maintenance_removes_them(
    delta: DeltaSettings, table: AuditTable
) -> None:
    """Versions of the last day can still be read."""
    create_table(table, {})
    commit(table, *range(5))
    DeltaTable(table.path).create_checkpoint()
    age(table.path, 2)

    commit(table, 5)
    assert len(log_of(table.path)) == 7

    list(maintain(delta, retention_hours=168))
    assert log_of(table.path)[0] == f"{5:020}.json"
    commit(table, 5, 6)
    assert offsets(table.path) == [*range(7)]
    DeltaTable(table.path).create_checkpoint()
    age(table.path, 0.9)
    list(maintain(delta, retention_hours=168))
    assert DeltaTable(table.path, version=6).to_pyarrow_table().num_rows == 6


def quotas_of(number: float) -> list[QuotaEntry]:
    return [quota(QuotaKind.PRODUCER_BYTE_RATE, number, user="alice")]


def grown(path: str, versions: int) -> QuotasAdmin:
    """A table of quotas with these versions, one an hour, whose log says of each hour what was replaced then."""
    table = QuotasAdmin(path)
    table.create(quotas_of(1), "test", datetime.now(UTC))
    for number in range(1, versions):
        table.alter(partial(lambda value, _: quotas_of(value), number + 1), "test", datetime.now(UTC))
        commit = Path(path) / "_delta_log" / f"{number:020}.json"
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for line in lines:
            if "remove" in line:
                line["remove"]["deletionTimestamp"] -= (versions - number) * HOUR_S * 1000
        commit.write_text("\n".join(map(json.dumps, lines)))
    return table


def names_of_old_files(path: str) -> int:
    """The number of those in a checkpoint that is made now."""
    DeltaTable(path).create_checkpoint()
    newest = max((Path(path) / "_delta_log").glob("*.checkpoint.parquet"))
    return len([each for each in pq.read_table(newest)["remove"].to_pylist() if each])


def test_a_checkpoint_of_quotas_names_the_files_of_the_last_hour_and_all_versions_can_be_read(
    delta: DeltaSettings,
) -> None:
    """With the names of all files there ever were, checkpoints would grow with each version."""
    table = grown(delta.quotas, 15)

    assert names_of_old_files(delta.quotas) <= 2
    assert [table.entries(version) for version in range(15)] == [quotas_of(version + 1) for version in range(15)]
    assert [change.new and change.new.value for change in table.history()] == [*range(15, 0, -1)]
    assert len(list(Path(delta.quotas).glob("*.parquet"))) == 15


def test_the_log_of_forty_thousand_versions_of_quotas_takes_fifty_mebibytes(delta: DeltaSettings) -> None:
    table = QuotasAdmin(delta.quotas)
    table.create(quotas_of(1), "carol", datetime.now(UTC))
    for number in range(2, 12):
        table.alter(partial(lambda value, _: quotas_of(value), number), "carol", datetime.now(UTC), CAROL)
    DeltaTable(delta.quotas).create_checkpoint()

    log = Path(delta.quotas) / "_delta_log"
    commits = [file.stat().st_size for file in sorted(log.glob("0*.json"))[1:]]
    (checkpoint,) = (file.stat().st_size for file in log.glob("0*.parquet"))
    interval = int(DeltaTable(delta.quotas).metadata().configuration["delta.checkpointInterval"])
    assert 40_000 * (sum(commits) / 10 + checkpoint / interval) < 50 * 2**20


def unlistable(path: str) -> None:
    """Let nobody list the log of a table any more: it has a name that delta-rs refuses."""
    (Path(path) / "_delta_log" / os.fsdecode(b"\xff")).touch()


def test_a_poll_that_finds_a_new_version_of_quotas_takes_the_end_of_the_log_alone(delta: DeltaSettings) -> None:
    """Old commits are neither listed nor read, however many changes there were since the last poll."""
    writer, reader = grown(delta.quotas, 12), QuotasAdmin(delta.quotas)
    reader.newest()
    wanted = [[], quotas_of(13), [*quotas_of(13), quota(QuotaKind.CONSUMER_BYTE_RATE, 1, user="bob")], quotas_of(14)]
    for number, quotas in enumerate(wanted):
        writer.alter(lambda _, quotas=quotas: quotas, "test", datetime.now(UTC))  # type: ignore[misc]
        if number == 2:
            assert (reader.is_newest(), reader.newest()) == (False, (14, quotas))
    write_deltalake(delta.quotas, DeltaTable(delta.quotas).to_pyarrow_table().slice(0, 0), mode="append")  # another's
    unlistable(delta.quotas)

    assert not reader.is_newest()
    assert reader.newest() == (16, quotas_of(14))
    assert reader.is_newest()
    with pytest.raises(QuotasTableError):
        writer.newest()


def overwrites(content: str) -> Callable[[Path], object]:
    return lambda log: (log / f"{13:020}.json").write_text(content)


FAULTS: dict[str, Callable[[Path], object]] = {
    "another table": lambda log: os.utime(log / f"{11:020}.json", (0, 0)),
    "an empty commit": overwrites(""),
    "half a commit": overwrites('{"add":{'),
    "another schema": overwrites('{"metaData":{"id":"other"}}'),
    "a file of another folder": overwrites('{"add":{"path":"../x.parquet"}}'),
    "no file": overwrites('{"add":{"path":"x.parquet"}}'),
    "a file without columns": lambda log: (
        pq.write_table(pa.table({"entity": [1]}), log.parent / "x.parquet"),
        overwrites('{"add":{"path":"x.parquet"}}')(log),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_where_the_end_of_the_log_may_not_be_all_of_the_quotas_the_whole_log_is_read(
    delta: DeltaSettings, fault: str
) -> None:
    writer, reader = grown(delta.quotas, 12), QuotasAdmin(delta.quotas)
    reader.newest()
    writer.alter(lambda _: quotas_of(13), "test", datetime.now(UTC))
    FAULTS[fault](Path(delta.quotas) / "_delta_log")
    unlistable(delta.quotas)

    with pytest.raises(QuotasTableError):
        reader.newest()


def test_a_table_that_another_writer_has_given_features_is_read_as_a_whole(delta: DeltaSettings) -> None:
    """Its files may have other rows or columns than the table."""
    reader, log = QuotasAdmin(delta.quotas), Path(delta.quotas) / "_delta_log"
    grown(delta.quotas, 2)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []}
    (log / f"{2:020}.json").write_text(json.dumps({"protocol": protocol}))
    assert reader.newest() == (2, quotas_of(2))
    (log / f"{3:020}.json").write_text('{"txn":{}}')
    unlistable(delta.quotas)

    with pytest.raises(QuotasTableError):
        reader.newest()


@pytest.mark.parametrize("kind", ["quotas", "holds"])
def test_a_poll_reads_the_newest_commit_alone_whatever_there_is_of_older_ones(delta: DeltaSettings, kind: str) -> None:
    """Without the others no library could read the table: it is as fast after years."""
    quotas, holds = grown(delta.quotas, 12), HoldsTable(delta.quotas)
    for number in range(12):
        holds.append(hold_of(Tags(client_id=f"app-{number}"), number, number + 1))
    quotas.newest()
    assert len(holds.poll() or ()) == 12
    log = Path({"quotas": quotas.path, "holds": holds.path}[kind]) / "_delta_log"
    *old, _ = sorted(log.glob("0*.json"))
    for file in (*old, *log.glob("*.parquet"), *log.glob("_last*")):
        file.unlink()

    assert quotas.is_newest()
    assert holds.poll() is None
    (log / f"{12 if kind == 'quotas' else 13:020}.json").write_text("{")
    with pytest.raises(QuotasTableError):
        (holds.poll if kind == "holds" else quotas.newest)()


def test_the_maintenance_makes_one_file_of_many_holds(delta: DeltaSettings) -> None:
    """All of them stay: they are the history."""
    table = HoldsTable(delta.quotas)
    for number in range(5):
        table.append(hold_of(Tags(client_id=f"app-{number}"), number, number + 1))

    list(maintain(delta, retention_hours=0))

    assert len(list(Path(table.path).glob("*.parquet"))) == 1
    assert [each.client_id for each in table.commands()] == [f"app-{number}" for number in range(4, -1, -1)]


def test_files_that_the_log_has_forgotten_are_removed(delta: DeltaSettings) -> None:
    """The log keeps a removed file's name for less time than the file; that of a file nobody added it never had."""
    forgetful = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    for number in range(3):
        rows = pa.table({"source_offset": [number]})
        write_deltalake(delta.dead_letters, rows, mode="append", configuration=forgetful)
    compacted_once = set(Path(delta.dead_letters).glob("*.parquet"))
    DeltaTable(delta.dead_letters).optimize.compact()
    added_by_nobody = Path(delta.dead_letters) / "part-of-a-task-that-was-killed.parquet"
    added_by_nobody.write_bytes(b"PAR1")
    age(delta.dead_letters, 8)
    DeltaTable(delta.dead_letters).create_checkpoint()
    write_deltalake(delta.dead_letters, pa.table({"source_offset": [3]}), mode="append")

    list(maintain(delta, retention_hours=168))

    assert not any(file.exists() for file in (*compacted_once, added_by_nobody))
    assert offsets(delta.dead_letters) == [0, 1, 2, 3]
