"""The quotas in force: a new version replaces the old one, an error keeps the last readable one."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.errors import SluiceError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.quota_watch import QuotaWatch

AT = datetime(2026, 1, 1, tzinfo=UTC)
KIND = QuotaKind.PRODUCER_BYTE_RATE


def entry(value: float) -> QuotaEntry:
    return QuotaEntry(QuotaEntity(user="alice"), KIND, value)


def made_table(folder: Path) -> QuotasTable:
    table = QuotasTable(str(folder / "quotas"))
    table.create([entry(1.0)], "test", AT)
    return table


def watch_of(table: QuotasTable, folder: Path) -> QuotaWatch:
    return QuotaWatch(table, QuotaSnapshots(Checkpoint(str(folder / "checkpoint"))))


def limit(watch: QuotaWatch) -> float | None:
    return watch.quotas.resolve_client(KIND, "alice", "").limit


def test_a_new_version_is_in_force_after_a_poll(tmp_path: Path) -> None:
    """The log names it."""
    table = made_table(tmp_path)
    watch = watch_of(table, tmp_path)
    table.alter(lambda _: [entry(2.0)], "test", AT)

    assert (limit(watch), watch.quotas.version) == (1.0, 0)
    watch.look()

    assert (limit(watch), watch.quotas.version) == (2.0, 1)
    assert watch.in_force() == (1, [entry(2.0)])


@pytest.mark.parametrize("trouble", ["removed", "log damaged", "data file removed"])
def test_a_missing_or_broken_table_keeps_the_last_good_version(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line; the new version is in force once the table is readable again."""
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
    """The snapshot in the checkpoint outlives the process."""
    table = made_table(tmp_path)
    watch_of(table, tmp_path)
    shutil.rmtree(tmp_path / "quotas")

    restarted = watch_of(table, tmp_path)

    assert (limit(restarted), restarted.quotas.version) == (1.0, 0)
    assert restarted.in_force() == (0, [entry(1.0)])


def test_a_first_start_without_any_table_is_refused(tmp_path: Path) -> None:
    """No readable version is stored."""
    with pytest.raises(SluiceError):
        watch_of(QuotasTable(str(tmp_path / "none")), tmp_path)


def test_only_the_newest_snapshots_are_kept(tmp_path: Path) -> None:
    """Only a few versions are kept, for repeated micro-batches."""
    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path)))
    for version in range(12):
        snapshots.save(version, [entry(version + 1.0)])

    assert snapshots.versions() == [7, 8, 9, 10, 11]
    assert snapshots.load(11).resolve_client(KIND, "alice", "").limit == 12.0


def test_a_snapshot_keeps_defaults_and_names_apart(tmp_path: Path) -> None:
    """A user named `<default>` is not the default user."""
    from sluice.state.quotas.entity import DEFAULT

    entries = [
        QuotaEntry(QuotaEntity(user="<default>"), KIND, 1.0),
        QuotaEntry(QuotaEntity(user=DEFAULT), KIND, 2.0),
    ]
    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path)))
    snapshots.save(1, entries)

    quotas = snapshots.load(1)

    named, default = (quotas.resolve_client(KIND, user, "") for user in ("<default>", "anyone"))
    assert (named.limit, default.limit) == (1.0, 2.0)


def test_a_snapshot_has_both_modes_of_a_quota(tmp_path: Path) -> None:
    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path)))
    snapshots.save(1, [entry(1024.0), QuotaEntry(QuotaEntity(user="alice"), KIND, 512.0, shadow=True)])

    quotas = snapshots.load(1)

    assert quotas.shadow is not None
    assert quotas.resolve_client(KIND, "alice", "").limit == 1024.0
    assert quotas.shadow.resolve_client(KIND, "alice", "").limit == 512.0


def test_a_snapshot_of_an_older_release_is_read(tmp_path: Path) -> None:
    """Its bytes, from before the modes were apart: a quota of alice's, and a shadow quota of everybody's."""
    checkpoint = Checkpoint(str(tmp_path))
    stored = (
        b"\x92\x94\x81\xa4user\xa5alice\xb2producer_byte_rate\xcb@\x90\x00\x00\x00\x00\x00\x00\xc2"
        b"\x94\x81\xa4user\xc0\xb2producer_byte_rate\xcb@\x80\x00\x00\x00\x00\x00\x00\xc3"
    )
    checkpoint.sluice.write(f"quotas/{1:020d}.msgpack", stored)

    quotas = QuotaSnapshots(checkpoint).load(1)

    assert quotas.shadow is not None
    assert quotas.resolve_client(KIND, "alice", "").limit == 1024.0
    assert quotas.resolve_client(KIND, "bob", "").limit is None
    assert quotas.shadow.resolve_client(KIND, "bob", "").limit == 512.0
