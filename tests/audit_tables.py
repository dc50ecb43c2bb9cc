"""Micro-batches of the audit query for tests, written into tables of their own, without Spark or with it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from sluice.configs.settings import Settings
from sluice.sinks.tables.delta import Commit, create_table
from sluice.sinks.tables.faults import RequestsTopic
from sluice.streaming.audit.query import AuditWriter
from sluice.streaming.checkpoint.folder import Checkpoint
from tests.audit_records import READ_AT_MS, REQUESTS, T0, Record
from tests.builders import DEFAULTS, Json, changed

Pass = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class Tasks:
    """Stands for a DataFrame: gives its records to tasks, in this process."""

    def __init__(self, records: pa.Table, count: int = 1) -> None:
        self._records = records
        self._count = count
        self._reports: list[Json] = []

    def coalesce(self, count: int) -> "Tasks":
        return Tasks(self._records, min(count, self._count))

    def mapInArrow(self, work: Pass, _schema: str) -> "Tasks":  # noqa: N802 - Spark's name
        found = Tasks(self._records, self._count)
        for number in range(self._count):
            mine = self._records.take(list(range(number, len(self._records), self._count)))
            found._reports += [row for batch in work(iter(mine.to_batches())) for row in batch.to_pylist()]
        return found

    def collect(self) -> list[Json]:
        return self._reports


def records(values: Sequence[Record], first: int = 0, at_ms: int = T0, epochs: Sequence[bytes | None] = ()) -> pa.Table:
    """Kafka records of one partition from offset `first`, all of one time, read a minute later."""
    count, time = len(values), pa.timestamp("us", "UTC")
    return pa.table(
        {
            "topic": pa.array([topic for topic, _ in values], pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array([at_ms * 1000] * count, time),
            "key": pa.array([b"key"] * count, pa.binary()),
            "value": pa.array([value for _, value in values], pa.binary()),
            "read_at": pa.array([READ_AT_MS * 1000] * count, time),
            "epoch": pa.array(epochs or [None] * count, pa.binary()),
        }
    )


def tables_in(folder: Path) -> Settings:
    """Settings with tables in this folder, which are created."""
    paths: Any = {name: str(folder / name) for name in ("decisions", "quota_metrics", "dead_letters", "unreadable")}
    settings = changed(DEFAULTS, "delta", **paths)
    for table in audit_writer(settings).tables:
        create_table(table, {})
    return settings


def audit_writer(settings: Settings) -> AuditWriter:
    """The writer of the audit query, as a start of it finds its checkpoint."""
    return AuditWriter(settings, Checkpoint(f"{settings.delta.decisions}-audit"))


def write(
    settings: Settings,
    batch: pa.Table | DataFrame,
    batch_id: int,
    query: str = "query",
    requests: RequestsTopic = REQUESTS,
    tasks: int = 1,
) -> None:
    """Write a micro-batch as the audit query does."""
    given = batch if isinstance(batch, DataFrame) else cast(DataFrame, Tasks(batch, tasks))
    covered = batch_id if isinstance(batch, DataFrame) else _coverage(batch, batch_id)
    writer = audit_writer(settings)
    writer.write_batch(
        given, requests, batch_id, Commit(query, covered), {each.path: DeltaTable(each.path) for each in writer.tables}
    )


def _coverage(batch: pa.Table, batch_id: int) -> int:
    """A number for what a micro-batch covers, as Spark's file of its offsets gives it."""
    return 1 + crc32(repr((batch_id, batch.select(["topic", "offset"]).to_pydict())).encode())


def rows(path: str) -> list[Json]:
    found: list[Json] = DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist()
    return found


def offsets(path: str, column: str = "source_offset") -> list[int]:
    return sorted(row[column] for row in rows(path))
