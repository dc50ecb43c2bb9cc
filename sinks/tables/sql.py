"""Queries over the Delta tables in SQL, by DataFusion, which delta-rs has: no Java, and nothing can be changed."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from sinks.errors import QueryError

_SAID = {"requests": "1", "withheld": "false", "bytes": "NULL"}
"""What the view needs of the events' `amounts`, and what stands for it where an event, or an older table, has none."""


def usage_query(columns: Collection[str]) -> str:
    """The view `usage`: a row for each event of clients, with what it was charged, each amount once.

    Several counters may be charged for the same amount, so that of a quota the greatest counts: for topic quotas in
    each topic-partition, whose sum is the request's bytes also for clients without any quota. Bytes that were withheld
    were delivered to nobody. `columns` are those of the decisions table.
    """
    said = dict(_SAID)
    if "amounts" in columns:
        said = {name: f"coalesce(d.amounts['{name}'], {default})" for name, default in _SAID.items()}
    return _USAGE.format(**said)


_USAGE = """
SELECT to_timestamp_millis(d.timestamp_ms) AS time, d.date, d.user, d.client_id, d.api, d.gateway, d.verdict,
  d.throttle_time_ms, {requests} AS requests,
  coalesce(a.bytes_in, CASE WHEN d.api = 'Produce' THEN {bytes} END) AS bytes_in,
  CASE WHEN NOT {withheld} THEN coalesce(a.bytes_out, CASE WHEN d.api = 'Fetch' THEN {bytes} END)
       WHEN d.api = 'Fetch' THEN 0 END AS bytes_out,
  a.request_points, a.mutations
FROM decisions d LEFT JOIN (
  SELECT date, decision_id,
    sum(value) FILTER (WHERE quota = 'producer.byte.rate') AS bytes_in,
    sum(value) FILTER (WHERE quota = 'consumer.byte.rate') AS bytes_out,
    sum(value) FILTER (WHERE quota IN ('request_percentage', 'exempt-request-time')) AS request_points,
    sum(value) FILTER (WHERE quota = 'controller_mutation_rate') AS mutations
  FROM (
    SELECT date, decision_id, charge['quota'] AS quota, max(charge['value']) AS value
    FROM (SELECT date, decision_id, unnest(charges) AS charge FROM decisions)
    GROUP BY date, decision_id, charge['quota'], charge['entity']['topic'], charge['entity']['partition']
  )
  GROUP BY date, decision_id
) a ON a.date = d.date AND a.decision_id = d.decision_id
WHERE d.api IS DISTINCT FROM 'GatewayHeartbeat'
"""

_VIEWS = {"usage": ("decisions", usage_query)}
"""View -> the table it reads, and its query for the columns of that."""


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
                yield from zip(*(_in_microseconds(column).to_pylist() for column in batch.columns), strict=True)
        except (pa.ArrowException, DeltaError, OSError, ValueError, OverflowError) as error:
            raise self._failed(error) from error


def run_query(query: str, paths: Mapping[str, str], storage_options: Mapping[str, str]) -> Rows:
    """The answer to a query over the tables at these paths, by name. Raises QueryError for all else than a query."""
    query = query.strip().rstrip(";")
    engine, missing = _engine(query, paths, storage_options)

    def failed(error: Exception) -> QueryError:
        hint = f"; there is no table yet for {', '.join(missing)}" if missing else ""
        return QueryError(f"the query fails: {' '.join(str(error).split()) or type(error).__name__}{hint}")

    try:
        if not query.lower().startswith("describe "):
            # Only a query can be part of one: whatever would change a table, or write a file, is refused here.
            engine.execute(f"SELECT 1 FROM (\n{query}\n) LIMIT 0")  # noqa: S608 - the query is the user's own
        return Rows(pa.RecordBatchReader.from_stream(engine.execute(query)), failed)
    except Exception as error:  # deltalake and arro3 raise no narrower class
        raise failed(error) from error


def _engine(query: str, paths: Mapping[str, str], storage_options: Mapping[str, str]) -> tuple[QueryBuilder, list[str]]:
    """The engine with the tables that the query may mean, and those of them that don't exist yet, with their paths."""
    engine, missing, said = QueryBuilder(), [], query.lower()
    columns: dict[str, list[str]] = {}
    views = [(name, *view) for name, view in _VIEWS.items() if name in said]
    needed = {table for table in paths if table in said} | {table for _, table, _ in views}
    for name in sorted(needed):
        path = paths[name]
        try:
            table = DeltaTable(path, storage_options=dict(storage_options))
            engine.register(name, table)
            columns[name] = [field.name for field in table.schema().fields]
        except TableNotFoundError:
            missing.append(f"{name} ({path})")
        except (DeltaError, OSError, ValueError) as error:
            raise QueryError(f"the table {path} can't be read: {' '.join(str(error).split())}") from error
    for name, source, view in views:
        if source in columns:
            engine.execute(f"CREATE VIEW {name} AS {view(columns[source])}").read_all()
    return engine, missing


def _in_microseconds(column: pa.Array) -> pa.Array:
    """Python's times have no nanoseconds."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column
