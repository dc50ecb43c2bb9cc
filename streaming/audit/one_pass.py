"""One pass over the decisions of a micro-batch in Python's workers: they read, judge and measure them and write files.

No row comes back to Java, which takes most of the time of Spark's way (`writer.py`). What is left to the
driver are the commits. They are those of Spark's way: the same batch numbers, in the same order. A micro-batch is left
to Spark's way if one of its records may have a fault, counts no more or answers an event that has an answer, or if a
file can't be written.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.sinks.tables.decision_rows import DoubtError, read_rows
from sluice.sinks.tables.delta import SOURCE_COLUMNS, AuditTable, Commit, RequestsTopic
from sluice.sinks.tables.delta_files import DataFile, DayFiles, add_files, remove_files
from sluice.sinks.tables.measures import add_up, measure, metrics_rows
from sluice.sinks.tables.quota_metrics import MAX_MERGED_ROWS, merge_metrics
from sluice.sinks.tables.unreadable import TimeBounds
from sluice.state.decisions.leader_epochs import EpochSpan, FencedFrom, read_epoch

log = logging.getLogger("sluice.audit")

_FILE_ROWS = 50_000
"""Decisions that are worth a task and a file of their own."""

_CHUNK_ROWS = 50_000
"""Records that a task has in memory at once, if they aren't large."""

_CHUNK_BYTES = 64 * 1024 * 1024
"""Bytes of records from which on a task has no more of them in memory: a forged decision may be as large as Kafka
takes records."""

_MAX_KNOWN = 10_000_000
"""Most rows that are looked up at once; if answered events are farther apart, one is old, or forged."""

_MAX_SPANS = 200
"""More source partitions than that are looked up without their names, which would make too large a condition."""

_WRITER_VERSION = 2
"""Delta's protocol without any feature that files would have to heed: constraints, column mapping and the like."""

_RESULT = pa.schema([pa.field("result", pa.binary())])

FencedOf = Callable[[list[EpochSpan]], list[FencedFrom]]
"""Which epochs don't count in a micro-batch, by where its records have which."""

_Offsets = dict[int, npt.NDArray[np.int64]]
"""By source partition the offsets of the events that are answered."""


class TaskResult(msgspec.Struct):
    """What a task wrote, or why Spark has to judge; `others` counts the records of other topics.

    `measures` is an Arrow stream, `offsets` are 64-bit integers by source partition, and `epochs` have partition,
    header, first and last offset.
    """

    doubt: str | None = None
    decisions: int = 0
    others: int = 0
    files: list[DataFile] = []
    measures: bytes | None = None
    offsets: dict[int, bytes] = {}
    epochs: list[tuple[int, bytes, int, int]] = []


class Plan(NamedTuple):
    """What each task is given."""

    topic: str
    requests: RequestsTopic
    bounds: TimeBounds
    path: str
    storage_options: dict[str, str]
    columns: pa.Schema
    looked_up_by: Sequence[str]
    window_s: int


class OnePass:
    """Writes the decisions of micro-batches into the tables of decisions and of metrics."""

    def __init__(
        self,
        topic: str,
        table: AuditTable,
        metrics: str,
        storage_options: dict[str, str],
        window_s: int,
        bounds: TimeBounds,
    ) -> None:
        """For the decisions topic, the decisions table and the path of the metrics; needs a Spark session."""
        columns = StructType.fromDDL(table.ddl)
        self._fields = columns.jsonValue()
        self._columns = to_arrow_schema(columns)  # type: ignore[arg-type] # the DDL is of columns, so this is a struct
        self._topic = topic
        self._table = table
        self._metrics = metrics
        self._storage_options = storage_options
        self._window_s = window_s
        self._bounds = bounds
        self._tasks: int | None = None

    def write(self, records: DataFrame, requests: RequestsTopic, commit: Commit, fenced: FencedOf) -> int | None:
        """Write the decisions among a micro-batch's records; returns how many records are of other topics.

        Records have the columns of Kafka, `read_at` and `epoch`. Returns None if nothing was written: Spark's way has
        to judge them.
        """
        delta = DeltaTable(self._table.path, storage_options=self._storage_options)
        if not self._is_usual(delta):
            return None
        results = self._run(records, requests)
        measured = [_measures(result) for result in results if result.measures]
        metrics = metrics_rows(add_up(measured), self._window_s) if measured else None
        doubt = self._doubt(delta, requests.name, results, metrics, fenced)
        files = [file for result in results for file in result.files]
        if doubt is not None:
            log.info("micro-batch %d is judged by Spark: %s", commit.batch_id, doubt)
            remove_files(self._table.path, self._storage_options, files)
            return None
        if metrics is not None:
            merge_metrics(metrics, self._metrics, self._storage_options, commit)
        if files:
            add_files(delta, files, commit)
        self._tasks = 1 + sum(result.decisions for result in results) // _FILE_ROWS
        return sum(result.others for result in results)

    def _is_usual(self, delta: DeltaTable) -> bool:
        """Whether the table is as this release makes it: one of an earlier release gets its new columns from Spark."""
        fields = json.loads(delta.schema().to_json())
        return bool(fields == self._fields and delta.protocol().min_writer_version <= _WRITER_VERSION)

    def _run(self, records: DataFrame, requests: RequestsTopic) -> list[TaskResult]:
        """Let tasks do their part, as many as the micro-batch before was worth."""
        plan = Plan(
            self._topic,
            requests,
            self._bounds,
            self._table.path,
            self._storage_options,
            self._columns,
            self._table.looked_up_by,
            self._window_s,
        )
        read = records.select("topic", "partition", "offset", "value", "read_at", "epoch")
        tasks = read if self._tasks is None else read.coalesce(self._tasks)
        found = tasks.mapInArrow(lambda batches: write_part(batches, plan), "result BINARY").collect()
        return [msgspec.msgpack.decode(row["result"], type=TaskResult) for row in found]

    def _doubt(
        self,
        delta: DeltaTable,
        topic: str,
        results: Sequence[TaskResult],
        metrics: pa.Table | None,
        fenced: FencedOf,
    ) -> str | None:
        """Why Spark's way has to judge the micro-batch, if it has."""
        if doubts := [result.doubt for result in results if result.doubt is not None]:
            return doubts[0]
        if metrics is not None and len(metrics) > MAX_MERGED_ROWS:
            return f"it has more than {MAX_MERGED_ROWS} rows of metrics"
        if fenced(_epoch_spans(results)):
            return "it has decisions of a driver that was replaced"
        offsets = _offsets(results)
        if _most_known(offsets) > _MAX_KNOWN:
            return "it answers events that are far apart"
        if offsets and not _are_first_answers(delta, topic, offsets):
            return "an event is answered twice"
        return None


def write_part(batches: Iterator[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """The part of one task: a row with its TaskResult in msgpack."""
    files = DayFiles(plan.path, plan.storage_options, plan.columns, plan.looked_up_by)
    part = _Part(plan, files)
    try:
        for chunk in _chunks(batches):
            part.take(chunk)
        result = part.result()
    except (DoubtError, OSError, DeltaError) as error:
        # Spark's own files may get through where these can't, such as past a dead data node.
        files.remove()
        result = TaskResult(doubt=f"{type(error).__name__}: {error}")
    yield pa.record_batch([pa.array([msgspec.msgpack.encode(result)], pa.binary())], schema=_RESULT)


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= _CHUNK_ROWS or sum(part.nbytes for part in held) >= _CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


class _Part:
    """What one task has written and measured so far."""

    def __init__(self, plan: Plan, files: DayFiles) -> None:
        self._plan = plan
        self._files = files
        self._decisions = self._others = 0
        self._measures: list[pa.Table] = []
        self._offsets: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
        self._epochs: dict[tuple[int, bytes], tuple[int, int]] = {}

    def take(self, records: pa.Table) -> None:
        """Write the decisions among these records. Raises DoubtError."""
        plan = self._plan
        ours = records.filter(pc.equal(records["topic"], plan.topic))
        self._others += len(records) - len(ours)
        self._note_epochs(ours)
        ours = ours.filter(pc.invert(_are_markers(ours)))
        if not len(ours):
            return
        read_at_ms = ours["read_at"][0].cast(pa.timestamp("ms", "UTC"), safe=False).value
        rows = read_rows(ours["value"].to_pylist(), plan.columns, plan.requests, plan.bounds, read_at_ms)
        self._decisions += len(rows)
        self._files.write(rows)
        self._measures = [add_up([*self._measures, measure(rows, plan.window_s)])]
        partitions, offsets = (rows[name].to_numpy() for name in SOURCE_COLUMNS[1:])
        for partition in np.unique(partitions).tolist():
            self._offsets[partition].append(offsets[partitions == partition])

    def result(self) -> TaskResult:
        """What was done, once all records are taken."""
        return TaskResult(
            None,
            self._decisions,
            self._others,
            self._files.close(),
            _as_stream(self._measures[0]) if self._measures else None,
            {partition: np.concatenate(offsets).tobytes() for partition, offsets in self._offsets.items()},
            [(partition, header, *span) for (partition, header), span in self._epochs.items()],
        )

    def _note_epochs(self, records: pa.Table) -> None:
        """Only what is an epoch: other headers may be of any length, and each different."""
        spans = records.group_by(["partition", "epoch"]).aggregate([("offset", "min"), ("offset", "max")])
        for span in spans.to_pylist():
            if read_epoch(span["epoch"]) is not None:
                _widen(self._epochs, (span["partition"], span["epoch"]), span["offset_min"], span["offset_max"])


def _are_markers(records: pa.Table) -> pa.ChunkedArray:
    """Which records only say from where on a newer driver writes: those with an epoch and without a value."""
    epochs = [header for header in pc.unique(records["epoch"]).to_pylist() if read_epoch(header) is not None]
    return pc.and_(pc.is_null(records["value"]), pc.is_in(records["epoch"], pa.array(epochs, pa.binary())))


def _as_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _measures(result: TaskResult) -> pa.Table:
    return pa.ipc.open_stream(result.measures).read_all()


def _epoch_spans(results: Sequence[TaskResult]) -> list[EpochSpan]:
    """Where the micro-batch has which epochs; a partition of the topic may have been read by several tasks."""
    spans: dict[tuple[int, bytes], tuple[int, int]] = {}
    for partition, header, first, last in (span for result in results for span in result.epochs):
        _widen(spans, (partition, header), first, last)
    return [
        EpochSpan(partition, epoch, *span)
        for (partition, header), span in spans.items()
        if (epoch := read_epoch(header)) is not None
    ]


def _widen(spans: dict[tuple[int, bytes], tuple[int, int]], key: tuple[int, bytes], first: int, last: int) -> None:
    known_first, known_last = spans.get(key, (first, last))
    spans[key] = min(first, known_first), max(last, known_last)


def _offsets(results: Sequence[TaskResult]) -> _Offsets:
    parts: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
    for result in results:
        for partition, offsets in result.offsets.items():
            parts[partition].append(np.frombuffer(offsets, np.int64))
    return {partition: np.concatenate(offsets) for partition, offsets in parts.items()}


def _are_first_answers(delta: DeltaTable, topic: str, offsets: _Offsets) -> bool:
    """Whether each of these source records of a topic has one row at most, those of the table included."""
    if any(len(np.unique(answered)) < len(answered) for answered in offsets.values()):
        return False
    known = QueryBuilder().register("decisions", delta).execute(_known_query(topic, offsets)).read_all()
    partitions, rows = (pa.chunked_array(known[name]).to_numpy() for name in SOURCE_COLUMNS[1:])
    return not any(np.isin(rows[partitions == number], answered).any() for number, answered in offsets.items())


def _known_query(topic: str, offsets: _Offsets) -> str:
    """SQL for the table's rows near these source records. DataFusion skips files in Rust, PyArrow one by one."""
    spans = [(number, int(answered.min()), int(answered.max())) for number, answered in offsets.items()]
    if len(spans) <= _MAX_SPANS:
        near = [
            f"source_partition = {number} AND source_offset BETWEEN {first} AND {last}" for number, first, last in spans
        ]
    else:
        near = [f"source_offset BETWEEN {min(first for _, first, _ in spans)} AND {max(last for *_, last in spans)}"]
    quoted = topic.replace("'", "''")
    where = " OR ".join(f"({condition})" for condition in near)
    return f"SELECT source_partition, source_offset FROM decisions WHERE source_topic = '{quoted}' AND ({where})"  # noqa: S608 - numbers and a quoted text


def _most_known(offsets: _Offsets) -> int:
    """Most rows that the table can have near these source records."""
    first, last = ([int(bound(answered)) for answered in offsets.values()] for bound in (np.min, np.max))
    if len(offsets) > _MAX_SPANS:
        return (max(last) - min(first) + 1) * len(offsets)
    return sum(last) - sum(first) + len(offsets)
