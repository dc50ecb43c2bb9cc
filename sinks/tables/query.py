"""Read-only SQL over the Delta tables, for `sluice sql` and reports, by DataFusion, which delta-rs has; no Java."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.sinks.errors import EarlierTableError, NoTableError, QueryError, UnreadableTableError
from sluice.sinks.tables.decisions import decisions_table
from sluice.sinks.tables.delta import SOURCE_ID, lacking_columns
from sluice.sinks.tables.trouble import lost_files, missing_rights, table_trouble

_USAGE = """
SELECT to_timestamp_millis(d.timestamp_ms) AS time, d.date, d.user, d.client_id, d.api, d.gateway, d.verdict,
  d.throttle_time_ms, coalesce(d.amounts['requests'], 1) AS requests,
  coalesce(a.bytes_in, CASE WHEN d.api = 'Produce' THEN d.amounts['bytes'] END) AS bytes_in,
  CASE WHEN NOT coalesce(d.amounts['withheld'], false)
       THEN coalesce(a.bytes_out, CASE WHEN d.api = 'Fetch' THEN d.amounts['bytes'] END)
       WHEN d.api = 'Fetch' THEN 0 END AS bytes_out,
  coalesce(
    a.request_points,
    (d.amounts['request_time_ns'] + coalesce(d.amounts['network_time_ns'], 0)) / CAST(1e7 AS DOUBLE)
  ) AS request_points,
  coalesce(a.mutations, d.amounts['mutations_charged']) AS mutations
FROM decisions d LEFT JOIN (
  SELECT date, decision_id, source_topic_id,
    sum(value) FILTER (WHERE quota = 'producer.byte.rate') AS bytes_in,
    sum(value) FILTER (WHERE quota = 'consumer.byte.rate') AS bytes_out,
    sum(value) FILTER (WHERE quota IN ('request_percentage', 'exempt-request-time')) AS request_points,
    coalesce(
      sum(value) FILTER (WHERE quota = 'controller_mutation_rate'), sum(value) FILTER (WHERE quota = 'said')
    ) AS mutations
  FROM (
    SELECT date, decision_id, source_topic_id, charge['quota'] AS quota, max(charge['value']) AS value
    FROM (SELECT date, decision_id, source_topic_id, unnest(charges) AS charge FROM decisions)
    GROUP BY
      date, decision_id, source_topic_id, charge['quota'], charge['entity']['topic'], charge['entity']['partition']
    UNION ALL
    SELECT date, decision_id, source_topic_id, 'said' AS quota, CAST(said['partitions'] AS DOUBLE) AS value
    FROM (
      SELECT date, decision_id, source_topic_id, unnest(amounts['mutations']) AS said FROM decisions
      WHERE amounts['mutations'] IS NOT NULL AND NOT coalesce(amounts['validate_only'], false)
    )
  )
  GROUP BY date, decision_id, source_topic_id
) a ON a.date = d.date AND a.decision_id = d.decision_id AND a.source_topic_id IS NOT DISTINCT FROM d.source_topic_id
WHERE d.api IS DISTINCT FROM 'GatewayHeartbeat'
"""
"""The view `usage`: a row for each event of clients, with the amounts charged to it, each amount once.

Several counters may be charged for the same amount, so the greatest of a quota counts: for topic quotas in each
topic-partition, whose sum is the request's bytes also for clients without any quota. Withheld bytes were delivered to
nobody. Request time and mutations of a client without any quota aren't charged: the event's amounts stand for them.
"""

MOST_MEMORY = "2G"
"""Memory of a query, in DataFusion's words. Sums, sorts and joins of more go on in files, as far as they can."""

_SORTED_JOINS = {"datafusion.optimizer.prefer_hash_join": "false"}
"""A hash join has to keep one side in memory: the view `usage` of 10 million decisions needs 1.7 GiB without it."""

_NO_MEMORY = "Resources exhausted"
"""DataFusion's words for a limit of memory that was hit."""

_ADDS_ROWS = {"WRITE", "MERGE", "STREAMING UPDATE"}
"""Delta's names of the operations that add rows; maintenance has others."""

_NEWEST_COMMITS = 100

_ERRORS = (pa.ArrowException, DeltaError, OSError, ValueError, OverflowError)
"""Errors of reading rows."""


class Rows:
    """The rows of an answer, batch by batch, the names of their columns, and how many were given so far."""

    def __init__(self, reader: pa.RecordBatchReader, failed: Callable[[Exception], QueryError]) -> None:
        self.columns: list[str] = reader.schema.names
        self.count = 0
        self._reader = reader
        self._failed = failed

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Each row in Python's types. Raises QueryError."""
        try:
            for batch in self._reader:
                self.count += batch.num_rows
                yield from zip(*(_in_microseconds(column).to_pylist() for column in batch.columns), strict=True)
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
    """The answer to a query over the tables at these paths, by name. Raises QueryError for all else than a query."""
    query = query.strip().rstrip(";")
    engine, missing = _engine(query, paths, storage_options)

    def failed(error: Exception, *, is_planned: bool = True) -> QueryError:
        for path in (paths[name] for name in tables_of(query, paths) if is_planned):
            if reason := missing_rights(path) or lost_files(path):
                return UnreadableTableError(f"the table {path} can't be read: {reason}")
        if missing:
            return NoTableError(*(f"{name} ({path})" for name, path in missing.items()))
        if "decisions" in tables_of(query, paths) and (lacking := _lacking(paths["decisions"], storage_options, query)):
            return EarlierTableError(paths["decisions"], lacking)
        if _NO_MEMORY in str(error):
            return QueryError(
                f"the query needs more than {MOST_MEMORY} of memory; ask for a shorter time (WHERE timestamp_ms >= ...)"
                " or fewer columns, or for sums by `sluice usage`"
            )
        tables = "" if tables_of(query, paths) else f"; the tables are {', '.join(paths)}, the view is usage"
        return QueryError(f"the query fails: {' '.join(str(error).split()) or type(error).__name__}{tables}")

    try:
        if "usage" in query.lower() and "decisions" not in missing:
            engine.execute(f"CREATE VIEW usage AS {_usage(engine)}").read_all()
        if not query.lower().startswith("describe "):
            # Only a query can be part of one: whatever would change a table, or write a file, is refused here.
            engine.execute(f"SELECT 1 FROM (\n{query}\n) LIMIT 0")  # noqa: S608 - the query is the user's own
        return Rows(pa.RecordBatchReader.from_stream(engine.execute(query)), failed)
    except Exception as error:  # deltalake and arro3 raise no narrower class
        raise failed(error, is_planned=False) from error


def _usage(engine: QueryBuilder) -> str:
    """The view over a table of any release: earlier ones had no ids of topics."""
    found = pa.RecordBatchReader.from_stream(engine.execute("SELECT * FROM decisions LIMIT 0")).schema.names
    if SOURCE_ID in found:
        return _USAGE
    with_null = f"FROM (SELECT *, CAST(NULL AS VARCHAR) AS {SOURCE_ID} FROM decisions)"  # noqa: S608 - a name
    return _USAGE.replace("FROM decisions", with_null)


def tables_of(query: str, paths: Mapping[str, str]) -> set[str]:
    """The tables among `paths` that the query may read: those whose name, or that of a view of theirs, is in it."""
    said = query.lower()
    return {table for table in paths if table in said or (table == "decisions" and "usage" in said)}


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
    for name in sorted(tables_of(query, paths)):
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
    """A column that a decision has today, this table lacks, and the query or its view names; None if none is."""
    said = query + (_USAGE.replace(SOURCE_ID, "") if "usage" in query.lower() else "")
    table = decisions_table(path)
    found = DeltaTable(path, storage_options=dict(storage_options)).schema().to_arrow()
    lacking = lacking_columns(table, pa.schema(found))
    return next((name for name in lacking if name.rpartition(".")[2] in said), None)


def _in_microseconds(column: pa.Array) -> pa.Array:
    """Python's times have no nanoseconds."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column
