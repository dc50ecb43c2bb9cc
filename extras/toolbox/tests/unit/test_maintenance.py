"""Few large files instead of many small ones, the same rows, and the history of quotas untouched."""

import logging
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.configs.settings import DeltaSettings, Properties
from sluice.sinks.tables.quotas import QuotasTable
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice_toolbox.maintenance import MaintenanceSchedule, TableMaintenanceError, maintain


@pytest.fixture
def delta(tmp_path: Path) -> DeltaSettings:
    """Decisions of five commits, quotas, and tables that don't exist yet."""
    audited = ("decisions", "quota_metrics", "dead_letters", "unreadable")
    paths = {name: str(tmp_path / name) for name in ("quotas", *audited, "overrides")}
    for number in range(5):
        write_deltalake(paths["decisions"], pa.table({"source_offset": [number]}), mode="append")
    QuotasTable(paths["quotas"]).create([], changed_by="test", at=datetime.now(UTC))
    return DeltaSettings(**paths, storage_options=Properties(), maintain_every_hours=24, retention_hours=168)


def test_tables_are_compacted_and_old_files_removed(delta: DeltaSettings) -> None:
    quota_files = sorted(Path(delta.quotas).rglob("*"))

    done, *_ = maintain(delta, retention_hours=0)

    assert (done.files_before, done.files_after, done.files_removed) == (5, 1, 5)
    assert len(list(Path(delta.decisions).glob("*.parquet"))) == 1
    offsets = DeltaTable(delta.decisions).to_pyarrow_table()["source_offset"].to_pylist()
    assert sorted(offsets) == [0, 1, 2, 3, 4]
    assert sorted(Path(delta.quotas).rglob("*")) == quota_files


def test_files_in_use_lately_are_kept(delta: DeltaSettings) -> None:
    """A reader of an older version isn't disturbed."""
    done, *_ = maintain(delta, retention_hours=1)

    assert done.files_removed == 0
    assert DeltaTable(delta.decisions, version=4).to_pyarrow_table().num_rows == 5


def test_maintenance_says_what_it_did_to_each_table(delta: DeltaSettings) -> None:
    """Also where that is nothing: an operator can tell it from a command that did not look."""
    write_deltalake(delta.dead_letters, pa.table({"source_offset": [0]}))

    first, again = ([str(done) for done in maintain(delta, retention_hours=0)] for _ in range(2))

    assert first == [
        f"{delta.decisions}: 5 files became 1, 5 files of older versions removed",
        f"{delta.quota_metrics}: nothing to do, there is no table yet",
        f"{delta.dead_letters}: nothing to do, 1 file in use",
        f"{delta.unreadable}: nothing to do, there is no table yet",
        f"{delta.overrides}: nothing to do, there is no table yet",
        f"{delta.quotas}-holds: nothing to do, there is no table yet",
    ]
    assert again[0] == f"{delta.decisions}: nothing to do, 1 file in use"


def test_rows_of_old_days_are_deleted_if_that_is_asked_for(delta: DeltaSettings) -> None:
    """Their files go with the next removal of files that nobody needs."""
    days = [date(2026, 11, day) for day in (1, 2, 3)]
    table = pa.table({"date": days, "source_offset": [0, 1, 2]})
    write_deltalake(delta.dead_letters, table, partition_by=["date"])
    write_deltalake(delta.decisions, table, partition_by=["date"], mode="overwrite", schema_mode="overwrite")

    done = {each.table: each for each in maintain(delta, retention_hours=0, first_day=days[1])}

    assert DeltaTable(delta.dead_letters).to_pyarrow_table()["date"].to_pylist() in (days[1:], days[:0:-1])
    assert str(done[delta.dead_letters]) == (
        f"{delta.dead_letters}: 1 rows of old days deleted, 3 files became 2, 1 file of older versions removed"
    )
    assert not done[delta.quota_metrics].exists
    assert [each.rows_deleted for each in maintain(delta, retention_hours=0)] == [0] * 6


def test_a_broken_table_is_one_line(delta: DeltaSettings) -> None:
    break_table(delta.decisions)

    with pytest.raises(TableMaintenanceError, match=r"decisions can't be maintained .*try again$"):
        list(maintain(delta, retention_hours=1))


class Clock:
    """The job's maintenance over several starts; times are hours since the first call."""

    def __init__(self, delta: DeltaSettings, folder: Path) -> None:
        self._delta = delta
        self._folder = Checkpoint(str(folder)).sluice
        self.restart()

    def restart(self) -> None:
        self._schedule = MaintenanceSchedule(self._delta, self._folder)

    def maintain_if_due(self, hour: float) -> None:
        list(self._schedule.maintain_if_due(1_700_000_000.0 + hour * 3600.0))


def files(path: str) -> int:
    return len(DeltaTable(path).file_uris())


def break_table(path: str) -> None:
    for commit in (Path(path) / "_delta_log").iterdir():
        commit.write_text("no commit")


def test_the_job_maintains_its_tables_every_so_many_hours(delta: DeltaSettings, tmp_path: Path) -> None:
    """Counted from the last maintenance, not from the start, so a job that is restarted daily does it too."""
    clock = Clock(delta, tmp_path / "audit")
    clock.maintain_if_due(0)
    clock.restart()
    clock.maintain_if_due(23.9)
    assert files(delta.decisions) == 5

    clock.maintain_if_due(24)
    assert files(delta.decisions) == 1

    write_deltalake(delta.decisions, pa.table({"source_offset": [5]}), mode="append")
    clock.restart()
    clock.maintain_if_due(47.9)
    assert files(delta.decisions) == 2
    clock.maintain_if_due(48)
    assert files(delta.decisions) == 1


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Maintenance's entries in the log; Kafka clients of earlier tests may still log failed connections."""
    return [record for record in caplog.records if record.name == "sluice.maintenance"]


def test_a_table_that_cannot_be_maintained_is_a_line_in_the_log(
    delta: DeltaSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other tables are maintained, the thread survives, and the next attempt is an hour later."""
    write_deltalake(delta.dead_letters, pa.table({"source_offset": [0]}), mode="append")
    write_deltalake(delta.dead_letters, pa.table({"source_offset": [1]}), mode="append")
    break_table(delta.decisions)
    clock = Clock(delta, tmp_path / "audit")
    clock.maintain_if_due(0)

    for hour in (24, 24.5, 25):
        clock.maintain_if_due(hour)

    lines = [record.getMessage() for record in said(caplog) if record.levelname == "ERROR"]
    assert len(lines) == 2
    assert all("decisions can't be maintained" in line and "\n" not in line for line in lines)
    assert files(delta.dead_letters) == 1


def test_a_folder_that_cannot_be_written_does_not_end_it(
    delta: DeltaSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as on a full disk: one log line, and another attempt later."""
    (tmp_path / "audit").write_text("no folder")

    Clock(delta, tmp_path / "audit").maintain_if_due(0)

    (line,) = [record.getMessage() for record in said(caplog)]
    assert "maintained.json" in line
