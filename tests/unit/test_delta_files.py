"""Files that Python adds to a Delta table are there once, also if two processes add them."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from sluice.sinks.tables.delta import AuditTable, Commit
from sluice.sinks.tables.delta_files import DataFile, DayFiles, add_files

COLUMNS = pa.schema([("offset", pa.int64()), ("date", pa.date32())])


@pytest.fixture
def path(tmp_path: Path) -> str:
    DeltaTable.create(str(tmp_path), schema=COLUMNS, partition_by=["date"])
    return str(tmp_path)


def written(path: str, *offsets: int) -> list[DataFile]:
    """Complete files that no commit has added yet."""
    files = DayFiles(AuditTable(path, COLUMNS, ["offset"]), {})
    files.write(pa.table([offsets, [date(2026, 1, 31)] * len(offsets)], schema=COLUMNS))
    return files.close()


def offsets(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["offset"].to_pylist())


def test_files_are_rows_once_they_are_added(path: str) -> None:
    files = written(path, 1, 2)
    assert offsets(path) == []

    add_files(DeltaTable(path), files, Commit("audit", 0))

    assert offsets(path) == [1, 2]


def test_a_batch_that_was_written_before_is_not_added_again(path: str) -> None:
    """Another one is, whatever its number: numbers have no order."""
    add_files(DeltaTable(path), written(path, 1), Commit("audit", 5))

    add_files(DeltaTable(path), written(path, 1), Commit("audit", 5))
    add_files(DeltaTable(path), written(path, 2), Commit("audit", 4))

    assert offsets(path) == [1, 2]


def test_of_two_drivers_that_write_one_batch_at_a_time_one_is_refused(path: str) -> None:
    """Both have looked at the table before either writes: only the storage can tell who was first."""
    one, other = DeltaTable(path), DeltaTable(path)
    add_files(one, written(path, 1), Commit("audit", 5))

    with pytest.raises(CommitFailedError):
        add_files(other, written(path, 1), Commit("audit", 5))

    assert offsets(path) == [1]
