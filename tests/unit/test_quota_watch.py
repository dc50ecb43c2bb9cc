"""The quotas in force: a new version replaces the old one, an error keeps the last readable one."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.checkpoint.batch_log import Batch, BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.quota_watch import QuotaWatch
from sluice.streaming.errors import CheckpointError
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_shared_storage.stores import create_by_link
from tests.builders import quota

AT = datetime(2026, 1, 1, tzinfo=UTC)
KIND = QuotaKind.PRODUCER_BYTE_RATE


def entry(value: float) -> QuotaEntry:
    return quota(KIND, value, user="alice")


def only(value: float, _: object) -> list[QuotaEntry]:
    return [entry(value)]


def made_table(folder: Path) -> QuotasAdmin:
    table = QuotasAdmin(str(folder / "quotas"))
    table.create([entry(1.0)], "test", AT)
    return table


def watch_of(table: QuotasAdmin, folder: Path) -> QuotaWatch:
    return QuotaWatch(table, QuotaSnapshots(Checkpoint(str(folder / "checkpoint"))))


def limit(watch: QuotaWatch) -> float | None:
    return watch.quotas.resolve_client(KIND, "alice", "").limit


def test_a_new_version_is_in_force_after_a_poll(tmp_path: Path) -> None:
    """The log names it."""
    table = made_table(tmp_path)
    watch = watch_of(table, tmp_path)
    table.alter(lambda _: [entry(2.0)], "test", AT)

    assert (limit(watch), watch.quotas.version) == (1.0, 0)
    watch.poll()

    assert (limit(watch), watch.quotas.version) == (2.0, 1)
    assert watch.in_force() == (1, [entry(2.0)])


def test_a_version_whose_snapshot_could_not_be_stored_is_in_force_once_it_can(tmp_path: Path) -> None:
    """As after a full disk: the poll that follows doesn't take it for known."""
    table = made_table(tmp_path)
    watch = watch_of(table, tmp_path)
    table.alter(partial(only, 2.0), "test", AT)
    snapshots = Path(Checkpoint(str(tmp_path / "checkpoint")).location) / "sluice" / "quotas"
    snapshots.rename(tmp_path / "away")
    snapshots.touch()

    watch.poll()
    watch.poll()
    assert limit(watch) == 1.0
    snapshots.unlink()
    (tmp_path / "away").rename(snapshots)
    watch.poll()

    assert (limit(watch), watch.quotas.version) == (2.0, 1)


def test_only_the_newest_snapshots_are_kept(tmp_path: Path) -> None:
    """Only a few are kept, for micro-batches that are about to begin."""
    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path)))
    for version in range(14):
        snapshots.save(version, [entry(version + 1.0)])

    assert snapshots.versions() == [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert snapshots.load(13).resolve_client(KIND, "alice", "").limit == 14.0


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_snapshot_of_a_begun_micro_batch_stays_whatever_comes_after_it(tmp_path: Path, is_shared: bool) -> None:
    """It may be repeated after any number of changes; in storage that drivers share, the one before it too."""
    checkpoint = Checkpoint(str(tmp_path))
    snapshots = QuotaSnapshots(checkpoint)
    log = BatchLog(checkpoint, partial(create_by_link, checkpoint.location) if is_shared else None)
    for batch, version in ((7, 3), (8, 4)):
        digest = snapshots.save(version, [entry(version)]).digest
        log.begin(batch, version, now_ms=1000, quota_digest=digest)

    for version in range(5, 40):
        snapshots.save(version, [entry(version)])

    assert snapshots.versions() == [*([3] if is_shared else []), 4, *range(30, 40)]


def test_a_table_with_lower_versions_comes_into_force_with_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Moved, restored or made anew: its newest version is kept, and those of the other table for micro-batches."""
    table = made_table(tmp_path)
    watch = watch_of(table, tmp_path)
    for value in range(2, 30):
        table.alter(partial(only, value), "test", AT)
        watch.poll()
    moved = QuotasAdmin(str(tmp_path / "moved"))
    moved.create([entry(50.0)], "seed", AT)

    again = watch_of(moved, tmp_path)

    assert (limit(again), again.quotas.version) == (50.0, 0)
    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path / "checkpoint")))
    assert snapshots.load(0, again.now.digest).resolve_client(KIND, "alice", "").limit == 50.0
    assert [record.message for record in caplog.records if "another" in record.message] == [
        f"the quotas table {moved.path} is another one than before: after version 28 its version 0 is in force"
    ]
    caplog.clear()
    moved.alter(lambda _: [entry(51.0)], "test", AT)
    again.poll()
    assert watch_of(moved, tmp_path).quotas.version == 1
    assert not any("another" in record.message for record in caplog.records)


def test_another_table_at_the_path_is_noticed_even_with_the_same_version(tmp_path: Path) -> None:
    """While the job runs, and at a start. A micro-batch that was begun before has the quotas that it was begun with."""
    table = made_table(tmp_path)
    watch = watch_of(table, tmp_path)
    before = watch.now
    shutil.rmtree(tmp_path / "quotas")
    table.create([entry(9.0)], "seed", AT)

    watch.poll()

    assert (limit(watch), watch.quotas.version) == (9.0, 0)
    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path / "checkpoint")))
    assert snapshots.entries(0, before.digest) == [entry(1.0)]
    assert snapshots.entries(0, watch.now.digest) == snapshots.entries(0) == [entry(9.0)]
    shutil.rmtree(tmp_path / "quotas")
    table.create([entry(1.0)], "seed", AT)
    assert limit(watch_of(table, tmp_path)) == 1.0


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-3])])
def test_the_lost_snapshot_of_a_pending_micro_batch_is_made_from_the_history_of_the_table(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    """Gone or damaged: the start doesn't give up while the table has these quotas."""
    table = made_table(tmp_path)
    watch = watch_of(table, tmp_path)
    pending = Batch(7, 0, 1000, quota_digest=watch.now.digest)
    (snapshot,) = (tmp_path / "checkpoint/sluice/quotas").iterdir()
    table.alter(lambda _: [entry(2.0)], "test", AT)
    watch.poll()
    harm(snapshot)

    watch_of(table, tmp_path).keep_snapshot_of(pending)

    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path / "checkpoint")))
    assert snapshots.entries(0, pending.quota_digest) == [entry(1.0)]


@pytest.mark.parametrize("version", [0, 5])
def test_a_pending_micro_batch_never_gets_the_quotas_of_another_table(tmp_path: Path, version: int) -> None:
    """The error says what the table lacks."""
    watch = watch_of(made_table(tmp_path), tmp_path)

    with pytest.raises(CheckpointError, match="micro-batch 7 can't be repeated") as raised:
        watch.keep_snapshot_of(Batch(7, version, 1000, quota_digest="0123456789abcdef"))

    reason = f"version {version} of the quotas table" if version == 0 else f"has no version {version}"
    assert reason in str(raised.value)
    assert "restart" not in str(raised.value)


def test_a_snapshot_keeps_defaults_and_names_and_both_modes_of_a_quota_apart(tmp_path: Path) -> None:
    """A user named `<default>` is not the default user."""
    entries = [quota(KIND, 1.0, user="<default>"), quota(KIND, 2.0, user=DEFAULT)]
    entries += [entry(1024.0), quota(KIND, 512.0, user="alice", shadow=True)]
    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path)))
    snapshots.save(1, entries)

    quotas = snapshots.load(1)

    assert quotas.shadow is not None
    found = [quotas.resolve_client(KIND, user, "").limit for user in ("<default>", "anyone", "alice")]
    assert found == [1.0, 2.0, 1024.0]
    assert quotas.shadow.resolve_client(KIND, "alice", "").limit == 512.0
