"""The events of clients in a span, out of the Parquet files of the table of decisions.

Of each column only the fields that a report asks for are decoded: DataFusion decodes whole columns, and `amounts` and
`throttled_by` alone take it longer than all else that a report does. Delta's log says which files count, and which of
their rows were deleted.
"""

import heapq
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from sluice.sinks.tables.decisions import decisions_table
from sluice.sinks.tables.delta import lacking_columns
from sluice.sinks.tables.trouble import missing_rights, table_trouble
from sluice.state.contract.records import HEARTBEAT_API, UNMUTE_API
from sluice_insight.arrays import Flags
from sluice_insight.reports.columns import coded, column_of, numbers
from sluice_insight.reports.span import Span
from sluice_reading.errors import BadQueryError, EarlierTableError, NoTableError, QueryError, UnreadableTableError

_TIME, _API, _ORDER = "timestamp_ms", "api", "decided_at_ms"
_OF_NO_CLIENT = (HEARTBEAT_API, UNMUTE_API)

EVENTS_AT_ONCE = 250_000
"""Events that a report takes at once."""

MAX_ROWS = 200_000
"""Rows of a file from which its row groups are read one by one."""

_LIST = re.compile(r"\.list\.(element|item)")
"""Parquet's levels between the name of a list and those of the fields of its items."""

_MAPPING = "delta.columnMapping.mode"
"""Delta's property under which files name columns otherwise than the table does."""


class FilePart(NamedTuple):
    """A file, or a row group of it, and when the first micro-batch of its rows began, in epoch milliseconds."""

    path: str
    first_ms: int
    row_group: int | None = None


class _File(NamedTuple):
    """A file as Delta's log has it; without statistics the first and last time of its events are None."""

    first_ms: int | None
    last_ms: int | None
    size: int
    rows: int | None
    order_ms: int | None


class Events:
    """The events of a span. Heartbeats and control records are left out.

    A batch has the asked fields, as the table of today has them, null where a file lacks one; texts are dictionaries.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str], span: Span, fields: Collection[str]) -> None:
        """Open the table; `fields` are columns, or fields in them, such as `amounts.bytes`.

        Raises NoTableError, EarlierTableError for a table that lacks one of the fields, and QueryError.
        """
        self._path = path
        self._span = span
        self._fields = frozenset((*fields, _TIME, _API))
        today = decisions_table(path)
        self._schema = pa.schema(_chosen(today.columns, self._fields))
        try:
            table = DeltaTable(path, storage_options=dict(storage_options))
            lacking = lacking_columns(today, pa.schema(table.schema().to_arrow()))
            files = _files(table)
            self._files = {name: file for name, file in files.items() if _overlaps(span, file.first_ms, file.last_ms)}
            self._undeleted = _undeleted(table)
        except TableNotFoundError as error:
            raise (self._unreadable(error) if missing_rights(path) else NoTableError(f"decisions ({path})")) from None
        except (DeltaError, OSError, ValueError) as error:
            raise self._unreadable(error) from error
        if table.metadata().configuration.get(_MAPPING, "none") != "none":
            raise BadQueryError(f"the table {path} has {_MAPPING}, under which reports can't read it; expected none")
        for name in lacking:
            if any(asked == name or asked.startswith(f"{name}.") for asked in self._fields):
                raise EarlierTableError(path, name)
        sizes = {name: file.size for name, file in self._files.items()}
        self._storage = PyFileSystem(DeltaStorageHandler(table.table_uri, dict(storage_options), sizes))

    @property
    def most_rows(self) -> int:
        """The rows of all files that may have events of the span."""
        return sum(file.rows or MAX_ROWS for file in self._files.values())

    def batches(self, least: int) -> Iterator[pa.RecordBatch]:
        """All events, in batches of at least so many, but for the last. Raises QueryError."""
        kept: list[pa.RecordBatch] = []
        for part, _ in self.parts():
            kept += self.read(part)
            if sum(map(len, kept)) >= least:
                yield joined(kept)
                kept = []
        if kept:
            yield joined(kept)

    def parts(self) -> Iterator[tuple[FilePart, int | None]]:
        """Files and row groups by their first micro-batch, each with that of the next one. Raises QueryError."""
        due: list[tuple[int, int, FilePart, bool]] = []
        numbered = count()

        def add(part: FilePart, whole: bool) -> None:
            heapq.heappush(due, (part.first_ms, next(numbered), part, whole))

        for name, file in self._files.items():
            is_small = (file.rows or MAX_ROWS) < MAX_ROWS or _name(name) in self._undeleted
            add(FilePart(name, file.order_ms or 0), is_small)
        while due:
            *_, part, whole = heapq.heappop(due)
            if whole:
                yield part, due[0][0] if due else None
                continue
            for group in self._row_groups(part):
                add(group, True)

    def read(self, part: FilePart) -> Iterator[pa.RecordBatch]:
        """The events of a part, if there are any, in one batch. Raises QueryError."""
        found = self._decoded(part)
        kept = self._are_kept(part, found)
        if kept.all():
            yield found
        elif kept.any():
            yield found.filter(column_of(kept))

    def _row_groups(self, part: FilePart) -> Iterator[FilePart]:
        with self._opened(part, whole=False) as (_, file):
            found = file.metadata
        places = {found.schema.column(place).path: place for place in range(found.num_columns)}
        for number in range(found.num_row_groups):
            group = found.row_group(number)
            statistics = [group.column(places[name]).statistics if name in places else None for name in (_TIME, _ORDER)]
            times, order = (each if each is not None and each.has_min_max else None for each in statistics)
            if times is None or _overlaps(self._span, times.min, times.max):
                yield FilePart(part.path, part.first_ms if order is None else order.min, number)

    def _decoded(self, part: FilePart) -> pa.RecordBatch:
        with self._opened(part, whole=part.row_group is None) as (source, file):
            columns = [file.schema.column(place) for place in range(file.metadata.num_columns)]
            columns = [column for column in columns if _is_asked(column.path, self._fields)]
            paths = [column.path for column in columns]
            if part.row_group is None:
                found = file.read(paths, use_threads=False)
            else:
                texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
                file = pq.ParquetFile(source, metadata=file.metadata, read_dictionary=texts)
                found = file.read_row_group(part.row_group, paths)
        rows, known = found.num_rows, found.schema.names
        columns = [found[each.name] if each.name in known else pa.nulls(rows, each.type) for each in self._schema]
        table = pa.table(columns, self._schema.names).cast(self._schema).combine_chunks()
        return table.to_batches()[0] if rows else pa.RecordBatch.from_pylist([], self._schema)

    @contextmanager
    def _opened(self, part: FilePart, whole: bool) -> Iterator[tuple[pa.NativeFile, pq.ParquetFile]]:
        """The file of a part, for this block. Raises QueryError for all that goes wrong with it there."""
        try:
            with self._storage.open_input_file(part.path) as file:
                # at once if all of it is read: one call for a small file, instead of one for each column
                source = pa.BufferReader(file.read_buffer()) if whole else file
                yield source, pq.ParquetFile(source, pre_buffer=not whole)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def _are_kept(self, part: FilePart, found: pa.RecordBatch) -> Flags:
        times_ms = numbers(found[_TIME], default=self._span.end_ms)
        apis, places = coded(found[_API])
        of_client = np.array([api not in _OF_NO_CLIENT for api in apis])
        kept: Flags = (times_ms >= self._span.start_ms) & (times_ms < self._span.end_ms) & of_client[places]
        undeleted = self._undeleted.get(_name(part.path))
        if undeleted is not None:
            kept[: len(undeleted)] &= undeleted
        return kept

    def _unreadable(self, error: Exception) -> QueryError:
        return UnreadableTableError(f"the table {self._path} can't be read: {table_trouble(self._path, error)}")


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of batches with the same columns, at least one of them, in one."""
    found = pa.Table.from_batches(batches).combine_chunks().to_batches()  # none without rows
    return batches[0] if len(batches) == 1 or not found else found[0]


def _chosen(fields: Iterable[pa.Field], asked: Collection[str]) -> Iterator[pa.Field]:
    """The asked ones of some fields, with the asked ones of theirs; texts as dictionaries."""
    for each in fields:
        inner = None if each.name in asked else {name.partition(".")[2] for name in asked if _is_in(name, each.name)}
        if inner is None or inner:
            yield pa.field(each.name, _type(each.type, inner))


def _type(kind: pa.DataType, asked: Collection[str] | None) -> pa.DataType:
    """A type with the asked ones of its fields; None stands for all."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type(kind.value_type, asked)))
    if pa.types.is_struct(kind):
        return pa.struct(list(_chosen(kind, [each.name for each in kind] if asked is None else asked)))
    return pa.dictionary(pa.int32(), kind) if pa.types.is_string(kind) else kind


@lru_cache(1024)
def _is_asked(path: str, fields: frozenset[str]) -> bool:
    """True for Parquet's path of a field that is asked for, or is in one that is."""
    name = _LIST.sub("", path)
    return any(name == asked or _is_in(name, asked) for asked in fields)


def _is_in(path: str, field: str) -> bool:
    """True for the path of a field in this one, or in one of its fields."""
    return path.startswith(f"{field}.")


def _files(table: DeltaTable) -> dict[str, _File]:
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    columns = ["path", f"min.{_TIME}", f"max.{_TIME}", "size_bytes", "num_records", f"min.{_ORDER}"]
    known = [actions[name].to_pylist() if name in actions.schema.names else [None] * len(actions) for name in columns]
    return {path: _File(*facts) for path, *facts in zip(*known, strict=True)}


def _undeleted(table: DeltaTable) -> dict[str, Flags]:
    """Flags for the first rows of each file of which rows were deleted, true for those that count, by its name."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    files, flags = (vectors[name].to_pylist() for name in ("filepath", "selection_vector"))
    return {_name(file): np.array(each, np.bool_) for file, each in zip(files, flags, strict=True)}


def _name(path: str) -> str:
    """The name of a file, which no other file of a table has."""
    return path.rpartition("/")[2]


def _overlaps(span: Span, first_ms: int | None, last_ms: int | None) -> bool:
    return (last_ms is None or last_ms >= span.start_ms) and (first_ms is None or first_ms < span.end_ms)
