"""Files of a Delta table that Python writes, and the commit that adds them."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from sluice.process.clock import now_ms
from sluice.sinks.tables.delta import AuditTable, Commit
from sluice.sinks.tables.faults import as_mask, where

_STATISTICS_CHARACTERS = 32
"""Characters of a text that statistics keep, as Delta's own do."""

_LAST_CHARACTER = "\U0010ffff"


class DataFile(msgspec.Struct, frozen=True):
    """A file of one day: its path in the table's folder, its size in bytes, and Delta's statistics of it in JSON."""

    path: str
    size: int
    date: str
    statistics: str


class _Bounds:
    """The least and the greatest value of a column, and how many are null."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self.nulls = 0

    def add(self, column: pa.ChunkedArray) -> None:
        found = pc.min_max(column)
        self._values += [found["min"].as_py(), found["max"].as_py()] if found["min"].is_valid else []
        self.nulls += column.null_count

    def least(self) -> Any:
        least = min(self._values, default=None)
        return least[:_STATISTICS_CHARACTERS] if isinstance(least, str) else least

    def greatest(self) -> Any:
        """A long text is cut and gets the last character there is, so that no value is greater; or None."""
        greatest = max(self._values, default=None)
        if not isinstance(greatest, str) or len(greatest) <= _STATISTICS_CHARACTERS:
            return greatest
        kept, next_character = greatest[:_STATISTICS_CHARACTERS], greatest[_STATISTICS_CHARACTERS]
        return None if next_character == _LAST_CHARACTER else kept + _LAST_CHARACTER


class _DayWriter:
    """The file of one day that is being written."""

    def __init__(self, storage: fs.FileSystem, day: date, columns: pa.Schema, looked_up_by: Sequence[str]) -> None:
        self._day = day.isoformat()
        self.path = f"date={self._day}/part-{uuid.uuid4()}.snappy.parquet"
        self._storage = storage
        self._stream = storage.open_output_stream(self.path)
        self._writer = pq.ParquetWriter(self._stream, columns)
        self._columns = columns
        self._bounds = {name: _Bounds() for name in looked_up_by}
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows.select(self._columns.names).cast(self._columns))
        for name, bounds in self._bounds.items():
            bounds.add(rows[name])
        self._rows += len(rows)

    def close(self) -> DataFile:
        self._writer.close()
        self._stream.close()
        size = self._storage.get_file_info(self.path).size
        least = {name: bounds.least() for name, bounds in self._bounds.items()}
        greatest = {name: bounds.greatest() for name, bounds in self._bounds.items()}
        statistics = {
            "numRecords": self._rows,
            "minValues": {name: value for name, value in least.items() if value is not None},
            "maxValues": {name: value for name, value in greatest.items() if value is not None},
            "nullCount": {name: bounds.nulls for name, bounds in self._bounds.items()},
        }
        return DataFile(self.path, size, self._day, msgspec.json.encode(statistics).decode())


class DayFiles:
    """Writes rows of a table into a new file for each day, with statistics of what they are looked up by.

    The files are rows of the table once `add_files` has committed them.
    """

    def __init__(self, table: AuditTable, storage_options: Mapping[str, str]) -> None:
        self._storage = _storage(table.path, storage_options)
        self._columns = table.columns.remove(table.columns.get_field_index("date"))
        self._looked_up_by = table.looked_up_by
        self._writers: dict[date, _DayWriter] = {}

    def write(self, rows: pa.Table) -> None:
        """Write rows with the table's columns; `date` says which file they go to."""
        for day in pc.unique(rows["date"]).to_pylist():
            if day not in self._writers:
                self._writers[day] = _DayWriter(self._storage, day, self._columns, self._looked_up_by)
            self._writers[day].write(where(as_mask(pc.equal(rows["date"], day)), rows))

    def close(self) -> list[DataFile]:
        """The files, complete. Raises OSError or DeltaError where the storage does."""
        return [writer.close() for writer in self._writers.values()]

    def remove(self) -> None:
        """Remove all files, complete or not, as far as the storage lets."""
        for writer in self._writers.values():
            with suppress(OSError, DeltaError):
                writer.close()
            _remove(self._storage, writer.path)


def remove_files(path: str, storage_options: Mapping[str, str], files: Iterable[DataFile]) -> None:
    """Remove files that won't be committed. One that can't be removed stays until the table is vacuumed."""
    storage = _storage(path, storage_options)
    for file in files:
        _remove(storage, file.path)


def add_files(table: DeltaTable, files: Sequence[DataFile], commit: Commit, *also: Commit) -> None:
    """Add files to a table, unless that was the last thing its application did; the table knows `also` from then on."""
    if commit.is_in(table):
        return
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, {"date": file.date}, now_ms(), data_change=True, stats=file.statistics)
        for file in files
    ]
    properties = commit.properties(*also)
    table.create_write_transaction(actions, "append", table.schema(), ["date"], commit_properties=properties)


def empty_commits(path: str, storage_options: Mapping[str, str]) -> list[str]:
    """The names of commits without content in the log of a table; none where there is no table to look at."""
    try:
        log = _storage(path, storage_options).get_file_info(fs.FileSelector("_delta_log", allow_not_found=True))
    except (OSError, DeltaError):  # what reads the table says why
        return []
    return sorted(info.base_name for info in log if info.base_name.endswith(".json") and not info.size)


def _remove(storage: fs.FileSystem, path: str) -> None:
    with suppress(OSError, DeltaError):
        storage.delete_file(path)


def _storage(path: str, storage_options: Mapping[str, str]) -> fs.FileSystem:
    return fs.PyFileSystem(DeltaStorageHandler(path, dict(storage_options)))
