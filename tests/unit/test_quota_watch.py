"""The quotas in force: a new version is taken over, trouble keeps the last good one."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sinks.quotas_table import QuotasTable
from state.entity import QuotaEntity
from state.errors import SluiceError
from state.quota import QuotaKind
from state.quota_entry import QuotaEntry
from streaming.checkpoint import CheckpointFolder, QuotaSnapshots
from streaming.quota_watch import QuotaWatch

AT = datetime(2026, 1, 1, tzinfo=UTC)
KIND = QuotaKind.PRODUCER_BYTE_RATE


def entry(value: float) -> QuotaEntry:
    return QuotaEntry(QuotaEntity(user="alice"), KIND, value)


def made_table(folder: Path) -> QuotasTable:
    table = QuotasTable(str(folder / "quotas"))
    table.create([entry(1.0)], "test", AT)
    return table


def watch_of(table: QuotasTable, folder: Path) -> QuotaWatch:
    return QuotaWatch(table, QuotaSnapshots(CheckpointFolder(str(folder / "checkpoint"))), poll_ms=1)


def limit(watch: QuotaWatch) -> float | None:
    return watch.quotas.resolve(KIND, "alice", "").limit


def test_a_new_version_is_in_force_after_a_look(tmp_path: Path) -> None:
    """And it is named."""
    table = made_table(tmp_path)
    watch = watch_of(table, tmp_path)
    table.alter(lambda _: [entry(2.0)], "test", AT)

    assert (limit(watch), watch.quotas.version) == (1.0, 0)
    watch.look()

    assert (limit(watch), watch.quotas.version) == (2.0, 1)


@pytest.mark.parametrize("trouble", ["removed", "log damaged", "data file removed"])
def test_a_missing_or_broken_table_keeps_the_last_good_version(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and takes over as soon as the table is whole again."""
    table = made_table(tmp_path)
    watch = watch_of(table, tmp_path)
    whole = shutil.copytree(tmp_path / "quotas", tmp_path / "whole")
    if trouble == "removed":
        shutil.rmtree(tmp_path / "quotas")
    else:
        table.alter(lambda _: [entry(2.0)], "test", AT)
        newest = (
            tmp_path / "quotas/_delta_log/00000000000000000001.json"
            if trouble == "log damaged"
            else max((tmp_path / "quotas").glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
        )
        newest.write_bytes(b"{broken") if trouble == "log damaged" else newest.unlink()

    watch.look()
    watch.look()

    assert (limit(watch), watch.quotas.version) == (1.0, 0)
    assert sum("stays in force" in record.message for record in caplog.records) == 1
    shutil.rmtree(tmp_path / "quotas", ignore_errors=True)
    whole.rename(tmp_path / "quotas")
    table.alter(lambda _: [entry(3.0)], "test", AT)
    watch.look()
    assert limit(watch) == 3.0


def test_a_restart_with_a_broken_table_goes_on_with_the_last_good_version(tmp_path: Path) -> None:
    """The snapshot beside the checkpoint outlives the process."""
    table = made_table(tmp_path)
    watch_of(table, tmp_path)
    shutil.rmtree(tmp_path / "quotas")

    restarted = watch_of(table, tmp_path)

    assert (limit(restarted), restarted.quotas.version) == (1.0, 0)


def test_a_first_start_without_any_table_is_refused(tmp_path: Path) -> None:
    """There is no last good version to keep."""
    with pytest.raises(SluiceError):
        watch_of(QuotasTable(str(tmp_path / "none")), tmp_path)


def test_only_the_newest_snapshots_are_kept(tmp_path: Path) -> None:
    """A few versions, for replays; not all there ever were."""
    snapshots = QuotaSnapshots(CheckpointFolder(str(tmp_path)))
    for version in range(12):
        snapshots.save(version, [entry(version + 1.0)])

    assert snapshots.versions() == [7, 8, 9, 10, 11]
    assert snapshots.load(11).resolve(KIND, "alice", "").limit == 12.0


def test_a_snapshot_keeps_defaults_and_names_apart(tmp_path: Path) -> None:
    """The user `<default>` is not the default user."""
    from state.entity import DEFAULT

    entries = [
        QuotaEntry(QuotaEntity(user="<default>"), KIND, 1.0),
        QuotaEntry(QuotaEntity(user=DEFAULT), KIND, 2.0, shadow=True),
    ]
    snapshots = QuotaSnapshots(CheckpointFolder(str(tmp_path)))
    snapshots.save(1, entries)

    quotas = snapshots.load(1)

    named, default = (quotas.resolve(KIND, user, "") for user in ("<default>", "anyone"))
    assert (named.limit, named.shadow) == (1.0, False)
    assert (default.limit, default.shadow) == (2.0, True)
