"""The pass of Spark's Python workers over a micro-batch: they read, check and measure its records and write files.

No row comes back to Java, which would take most of the time. Each task reports what its records answer to the driver,
which commits the files, or lets the tasks do it again without the records that count for no answer (`answers.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha1
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sinks.tables.delta import SOURCE_ID, AuditTable, Offsets, are_among, columns
from sluice.sinks.tables.delta_files import DataFile, DayFiles
from sluice.sinks.tables.faults import Faults, Mask, RequestsTopic, TimeBounds, as_mask, where
from sluice.sinks.tables.measures import add_up, measure
from sluice.sinks.tables.unreadable import unreadable_rows
from sluice.state.decisions.leader_epochs import MAX_STEP, FencedFrom, read_epoch

_CHUNK_ROWS = 50_000
"""Records that a task has in memory at once, if they aren't large."""

_CHUNK_BYTES = 64 * 1024 * 1024
"""Bytes of records from which on a task has no more of them in memory: a forged decision may be as large as Kafka
takes records."""

ANSWERS = columns("""
    partition INT, offset BIGINT, timestamp_ms BIGINT, source_partition INT, source_offset BIGINT, digest BIGINT,
    source_topic_id STRING
""")
"""A record, the event that it answers, and the digest of its content or 0; these are null if it is unreadable."""

REPORT_SCHEMA = pa.schema([pa.field("report", pa.binary())])

_FENCED = {
    False: ("epoch", "is of a driver that had been replaced"),
    True: ("epoch", f"is more than {MAX_STEP} above the highest of its job before it"),
}
_CONTRADICTS = ("value", "answers an event that has another answer already")


class Feed(NamedTuple):
    """A topic of answers and the table that is made from it.

    `rows` makes a row of each record and says what is in it, but for when it was made: rows that say the same are the
    same answer. `content` says it of a row of the table. Decisions are measured.
    """

    topic: str
    table: AuditTable
    rows: Callable[[pa.Table, Faults, RequestsTopic, TimeBounds, int], tuple[pa.Table, list[bytes]]]
    content: Callable[[dict[str, Any]], bytes]
    of_decisions: bool


class Exclusions(NamedTuple):
    """Records that count for no answer, each with its topic: fenced, left out, or contradicting an answer.

    Contents are only `compared` if an event is answered again, for the digests take time.
    """

    fenced: Sequence[tuple[str, FencedFrom]] = ()
    compared: bool = False
    left_out: Sequence[tuple[str, Offsets]] = ()
    contradicting: Sequence[tuple[str, Offsets]] = ()


class TaskWork(NamedTuple):
    """The work of each task."""

    feeds: Sequence[Feed]
    unreadable: AuditTable
    storage_options: Mapping[str, str]
    requests: RequestsTopic
    bounds: TimeBounds
    window_s: int
    exclusions: Exclusions


class TaskReport(msgspec.Struct):
    """The work that a task has done.

    `files` are by path of their table, `answers` (ANSWERS) by topic, in Arrow streams as `measures` are. `epochs` have
    topic, partition, header, first and last offset, `faults` topic, field, reason and the number of such records.
    """

    files: dict[str, list[DataFile]]
    answers: dict[str, bytes]
    measures: bytes | None
    epochs: list[tuple[str, int, bytes, int, int]]
    faults: list[tuple[str, str, str, int]]


def run_task(batches: Iterator[pa.RecordBatch], work: TaskWork) -> Iterator[pa.RecordBatch]:
    """Do the work of one task; yields a row with its TaskReport in msgpack.

    The records have Kafka's `topic`, `partition`, `offset`, `timestamp`, `key` and `value`, the time of the micro-batch
    `read_at`, and their header `epoch`.
    """
    writer = _TaskWriter(work)
    try:
        for chunk in _chunks(batches):
            writer.write_records(chunk)
        report = writer.report()
    except BaseException:
        writer.remove_files()
        raise
    yield pa.record_batch([pa.array([msgspec.msgpack.encode(report)], pa.binary())], schema=REPORT_SCHEMA)


def content_digest(contents: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """A number for each of these contents."""
    digests = b"".join([sha1(content, usedforsecurity=False).digest() for content in contents])
    return np.frombuffer(digests, np.uint8).reshape(-1, 20)[:, :8].copy().view(np.int64)[:, 0]


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    read: list[pa.RecordBatch] = []
    for batch in batches:
        read.append(batch)
        if sum(map(len, read)) >= _CHUNK_ROWS or sum(each.nbytes for each in read) >= _CHUNK_BYTES:
            yield pa.Table.from_batches(read)
            read = []
    if read:
        yield pa.Table.from_batches(read)


class _TaskWriter:
    """Writes the files of one task, and has what it reports."""

    def __init__(self, work: TaskWork) -> None:
        self._work = work
        self._files: dict[str, DayFiles] = {}
        self._answers: dict[str, list[pa.Table]] = defaultdict(list)
        self._measures: list[pa.Table] = []
        self._epochs: dict[tuple[str, int, bytes], tuple[int, int]] = {}
        self._faults: Counter[tuple[str, str, str]] = Counter()

    def write_records(self, records: pa.Table) -> None:
        """Write these records into files."""
        for name in ("timestamp", "read_at"):
            time = records[name].cast(pa.timestamp("us", "UTC"))
            records = records.set_column(records.column_names.index(name), name, time)
        at_ms = records["timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        records = records.append_column("timestamp_ms", at_ms)
        for feed in self._work.feeds:
            self._write_feed(feed, where(as_mask(pc.equal(records["topic"], feed.topic)), records))

    def report(self) -> TaskReport:
        """Complete the files, and report on all records."""
        return TaskReport(
            {path: files.close() for path, files in self._files.items()},
            {topic: _as_stream(pa.concat_tables(answers)) for topic, answers in self._answers.items()},
            _as_stream(self._measures[0]) if self._measures else None,
            [(*key, *span) for key, span in self._epochs.items()],
            [(*fault, count) for fault, count in self._faults.items()],
        )

    def remove_files(self) -> None:
        """Remove the files, complete or not, as far as the storage lets."""
        for files in self._files.values():
            files.remove()

    def _write_feed(self, feed: Feed, records: pa.Table) -> None:
        work = self._work
        left_out = _are_among(work.exclusions.left_out, feed.topic, records)
        self._note_epochs(feed.topic, records)
        left_out |= _are_markers(records)
        records = where(~left_out, records)
        if not len(records):
            return
        faults = Faults(len(records))
        fenced = [each for topic, each in work.exclusions.fenced if topic == feed.topic]
        for is_far, fault in _FENCED.items():
            faults.add(_are_fenced([each for each in fenced if each.is_far == is_far], records), *fault)
        faults.add(_are_among(work.exclusions.contradicting, feed.topic, records), *_CONTRADICTS)
        read_at_ms = records["read_at"][0].cast(pa.timestamp("ms", "UTC"), safe=False).value
        rows, contents = feed.rows(records, faults, work.requests, work.bounds, read_at_ms)
        good = faults.good
        digests = content_digest(contents) if work.exclusions.compared else np.zeros(len(records), np.int64)
        rows_ids = work.requests.ids(rows[SOURCE_ID])
        self._answers[feed.topic].append(_answers(records, rows, rows_ids, digests, good))
        rows = where(good, rows)
        if not good.all():
            self._write_unreadable(feed.topic, unreadable_rows(records, faults))
        self._files_of(feed.table).write(rows)
        if feed.of_decisions:
            self._measures = [add_up([*self._measures, measure(rows, work.window_s)])]

    def _write_unreadable(self, topic: str, rows: pa.Table) -> None:
        self._files_of(self._work.unreadable).write(rows)
        faults = zip(rows["field"].to_pylist(), rows["reason"].to_pylist(), strict=True)
        self._faults.update((topic, field, reason) for field, reason in faults)

    def _files_of(self, table: AuditTable) -> DayFiles:
        if table.path not in self._files:
            self._files[table.path] = DayFiles(table, self._work.storage_options)
        return self._files[table.path]

    def _note_epochs(self, topic: str, records: pa.Table) -> None:
        """Note headers that are epochs: others may be of any length, and each different."""
        spans = records.group_by(["partition", "epoch"]).aggregate([("offset", "min"), ("offset", "max")])
        for span in spans.to_pylist():
            if read_epoch(span["epoch"]) is not None:
                key = topic, span["partition"], span["epoch"]
                widen(self._epochs, key, span["offset_min"], span["offset_max"])


def widen(
    spans: dict[tuple[str, int, bytes], tuple[int, int]], key: tuple[str, int, bytes], first: int, last: int
) -> None:
    """Let the span of a topic, partition and header have these offsets too."""
    known_first, known_last = spans.get(key, (first, last))
    spans[key] = min(first, known_first), max(last, known_last)


def _answers(
    records: pa.Table, rows: pa.Table, ids: pa.ChunkedArray, digests: npt.NDArray[np.int64], good: Mask
) -> pa.Table:
    about = {name: records[name] for name in ANSWERS.names[:3]}
    about |= {name: pc.if_else(pa.array(good), rows[name], None) for name in ANSWERS.names[3:5]}
    about |= {"digest": pa.array(digests, mask=~good), SOURCE_ID: pc.if_else(pa.array(good), ids, None)}
    return pa.table(about, ANSWERS)


def _are_among(excluded: Sequence[tuple[str, Offsets]], topic: str, records: pa.Table) -> Mask:
    among = np.zeros(len(records), np.bool_)
    for found_in, found in excluded:
        if found_in == topic:
            among |= are_among(found, records["partition"], records["offset"])
    return among


def _are_markers(records: pa.Table) -> Mask:
    """True for records that only say from where on a newer driver writes: those with an epoch and without a value."""
    epochs = [header for header in pc.unique(records["epoch"]).to_pylist() if read_epoch(header) is not None]
    return as_mask(pc.and_(pc.is_null(records["value"]), pc.is_in(records["epoch"], pa.array(epochs, pa.binary()))))


def _are_fenced(fenced: Sequence[FencedFrom], records: pa.Table) -> Mask:
    found = np.zeros(len(records), np.bool_)
    for each in fenced:
        late = pc.and_(pc.equal(records["partition"], each.partition), pc.greater(records["offset"], each.after))
        found |= as_mask(pc.and_(late, pc.equal(records["epoch"], pa.scalar(each.epoch.header(), pa.binary()))))
    return found


def _as_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content
