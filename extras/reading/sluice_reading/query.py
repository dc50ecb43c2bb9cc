"""Read-only SQL over the Delta tables, by DataFusion, which delta-rs has; no Java. Queries are Sluice's own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.sinks.tables.decisions import decisions_table
from sluice.sinks.tables.delta import lacking_columns
from sluice.sinks.tables.trouble import lost_files, missing_rights, table_trouble
from sluice_reading.errors import BadQueryError, EarlierTableError, NoTableError, QueryError, UnreadableTableError

MOST_MEMORY = "2G"
"""Memory of a query, in DataFusion's words. Sums, sorts and joins of more go on in files, as far as they can."""

_SORTED_JOINS = {"datafusion.optimizer.prefer_hash_join": "false"}
"""A hash join has to keep one side in memory."""

_NO_MEMORY = "Resources exhausted"
"""DataFusion's words for a limit of memory that was hit."""

_ADDS_ROWS = {"WRITE", "MERGE", "STREAMING UPDATE"}
"""Delta's names of the operations that add rows; maintenance has others."""

_NEWEST_COMMITS = 100

_ERRORS = (pa.ArrowException, DeltaError, OSError, ValueError, OverflowError)
"""Errors of reading rows."""


class Rows:
    """The rows of an answer, batch by batch, and the names of their columns."""

    def __init__(self, reader: pa.RecordBatchReader, failed: Callable[[Exception], QueryError]) -> None:
        self.columns: list[str] = reader.schema.names
        self._reader = reader
        self._failed = failed

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Each row in Python's types. Raises QueryError."""
        try:
            for batch in self._reader:
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
        except _ERRORS as error:
            raise self._failed(error) from error


class Tables(NamedTuple):
    """The tables of decisions and quotas: folders or URIs, and the options of delta-rs for them."""

    decisions: str
    quotas: str
    storage_options: Mapping[str, str]

    def rows(self, query: str) -> Rows:
        """The answer to a query over the table `decisions`. Raises QueryError."""
        return run_query(query, {"decisions": self.decisions}, self.storage_options)

    def mappings(self, query: str) -> list[dict[str, Any]]:
        """All rows of a short answer, by column. Raises QueryError."""
        rows = self.rows(query)
        return [dict(zip(rows.columns, row, strict=True)) for row in rows]


def literal(text: str) -> str:
    """Text as SQL, whatever is in it.

    >>> literal("o'neil")
    "'o''neil'"
    """
    return "'" + text.replace("'", "''") + "'"


def run_query(query: str, paths: Mapping[str, str], storage_options: Mapping[str, str]) -> Rows:
    """The answer to a query over the tables at these paths, by name. Raises QueryError."""
    engine, missing = _engine(query, paths, storage_options)

    def failed(error: Exception, *, is_planned: bool = True) -> QueryError:
        for path in (paths[name] for name in _tables_of(query, paths) if is_planned):
            if reason := missing_rights(path) or lost_files(path):
                return UnreadableTableError(f"the table {path} can't be read: {reason}")
        if missing:
            return NoTableError(*(f"{name} ({path})" for name, path in missing.items()))
        if "decisions" in _tables_of(query, paths) and (
            lacking := _lacking(paths["decisions"], storage_options, query)
        ):
            return EarlierTableError(paths["decisions"], lacking)
        if _NO_MEMORY in str(error):
            return BadQueryError(f"the answer needs more than {MOST_MEMORY} of memory; ask for fewer decisions at once")
        return BadQueryError(f"the query fails: {' '.join(str(error).split()) or type(error).__name__}")

    try:
        return Rows(pa.RecordBatchReader.from_stream(engine.execute(query)), failed)
    except Exception as error:  # deltalake and arro3 raise no narrower class
        raise failed(error, is_planned=False) from error


def _tables_of(query: str, paths: Mapping[str, str]) -> set[str]:
    """The tables among `paths` that the query may read: those whose name is in it."""
    said = query.lower()
    return {table for table in paths if table in said}


def last_written(paths: Iterable[str], storage_options: Mapping[str, str]) -> datetime | None:
    """The time of the newest rows in any of these tables; None if there are none. Unreadable tables don't count."""
    times = [
        commit["timestamp"]
        for path in paths
        for commit in _newest_commits(path, storage_options)
        if commit.get("operation") in _ADDS_ROWS
    ]
    return datetime.fromtimestamp(max(times) / 1000, UTC) if times else None


def _newest_commits(path: str, storage_options: Mapping[str, str]) -> list[dict[str, Any]]:
    try:
        return DeltaTable(path, storage_options=dict(storage_options)).history(_NEWEST_COMMITS)
    except (DeltaError, OSError, ValueError):  # TableNotFoundError among them
        return []


def _engine(
    query: str, paths: Mapping[str, str], storage_options: Mapping[str, str]
) -> tuple[QueryBuilder, dict[str, str]]:
    """The engine with the tables that the query may mean, and the paths of those of them that don't exist yet."""
    engine, missing = QueryBuilder(_SORTED_JOINS), {}
    engine.execute(f"SET datafusion.runtime.memory_limit = '{MOST_MEMORY}'").read_all()
    for name in sorted(_tables_of(query, paths)):
        path = paths[name]
        try:
            engine.register(name, DeltaTable(path, storage_options=dict(storage_options)))
        except TableNotFoundError:
            if reason := missing_rights(path):
                raise UnreadableTableError(f"the table {path} can't be read: {reason}") from None
            missing[name] = path
        except (DeltaError, OSError, ValueError) as error:
            raise UnreadableTableError(f"the table {path} can't be read: {table_trouble(path, error)}") from error
    return engine, missing


def _lacking(path: str, storage_options: Mapping[str, str], query: str) -> str | None:
    """A column that a decision has today, this table lacks, and the query names; None if none is."""
    table = decisions_table(path)
    found = DeltaTable(path, storage_options=dict(storage_options)).schema().to_arrow()
    lacking = lacking_columns(table, pa.schema(found))
    return next((name for name in lacking if name.rpartition(".")[2] in query), None)
