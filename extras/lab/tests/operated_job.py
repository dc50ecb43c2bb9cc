"""The job in an operator's hands: its own queries on real checkpoints and real Delta tables.

Kafka and Spark are stood in for in memory, as far as the job sees them: topics of one partition, micro-batches whose
offsets, commits and state are in the checkpoint's files. A micro-batch can be killed, or its driver paused, before any
record that it publishes and before any commit to a table.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from sluice.configs.settings import Settings
from sluice.kafka_io.client import TopicSettings
from sluice.sinks.tables import delta_files, quota_metrics
from sluice.sinks.tables.delta import create_table
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.decisions.leader_epochs import MARKER_KEY, Fence, LeaderEpoch, read_epoch
from sluice.state.quotas.entry import QuotaEntry
from sluice.streaming.audit.query import AuditQuery
from sluice.streaming.balances.imported import read_imported_start
from sluice.streaming.checkpoint.batch_log import Batch, BatchSettings
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import check_origin, job_identity, with_pages
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.checkpoint.spark_files import (
    check_enforce_checkpoint,
    check_spark_files,
    pending_batch,
    read_offsets,
)
from sluice.streaming.enforce import batch_properties
from sluice.streaming.enforce.batch_properties import BatchProperties
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.query import EnforceQuery, JobContext
from sluice.streaming.enforce.quota_watch import QuotaWatch, ensure_quotas_table
from sluice.streaming.enforce.repetition import answered_places, places_in, without_answered
from sluice.streaming.enforce.requests_topic import RequestsTopicWatch
from sluice.streaming.enforce.stages import PageOperator, combiner, planner
from sluice.streaming.enforce.wire import OVERHEAD_BYTES
from sluice.streaming.errors import CheckpointError
from sluice.streaming.queries.gated_query import GatedQuery
from sluice_shared_storage.leader_epochs import new_epoch
from sluice_shared_storage.stores import create_by_link
from sluice_toolbox.balances import read_balances, store_imported, write_balances
from sluice_toolbox.extract import stored_balances
from sluice_toolbox.maintenance import maintain
from tests.audit_records import DAY_MS, T0
from tests.audit_tables import Tasks

AUDIT_TABLES = ("decisions", "quota_metrics", "dead_letters", "unreadable")

ENFORCE, AUDIT, TABLES = {0}, {1}, {2, 3, 4, 5}
"""Parts of a backup: checkpoints and audit tables."""

STATE = "state/0/0"
"""The folder of the one state store."""


Event = tuple[str, int]
"""The id of its topic, and its offset."""


class Record(NamedTuple):
    """A record of Kafka; `epoch` is its header's value."""

    at_ms: int
    key: bytes | None
    value: bytes | None
    epoch: bytes | None = None


class Topic:
    """A topic of one partition; one that is made again is another."""

    def __init__(self) -> None:
        self.id = str(uuid4())
        self.first = 0
        self.records: list[Record] = []

    @property
    def end(self) -> int:
        """The offset after the newest record."""
        return len(self.records)

    def counting(self, since_ms: int = 0) -> list[tuple[int, Record]]:
        """Offset and record of those that count: neither markers nor of a driver that was replaced."""
        fence, counting = Fence(), []
        for offset, record in enumerate(self.records):
            if fence.passes(0, read_epoch(record.epoch), record.value, record.key) and record.at_ms >= since_ms:
                counting.append((offset, record))
        return counting


Made = tuple[str, bytes | None, bytes | None]
"""Topic, key and value of a record."""


class KilledError(BaseException):
    """The driver is killed, or ends: nothing of it goes on."""


class Kafka(dict[str, Topic]):
    """The cluster's topics by name, and the clock of all machines."""

    now_ms = T0

    def publish(self, topic: str, value: bytes | None, key: bytes | None = None, epoch: bytes | None = None) -> Event:
        """Append a record; returns its place, by which an event is known."""
        self[topic].records.append(Record(self.now_ms, key, value, epoch))
        return self[topic].id, self[topic].end - 1


@dataclass
class Fuse:
    """Calls `then` before the effect that comes after `effects` others: a record published, a commit to a table."""

    effects: int
    then: Callable[[], None]

    def burn(self) -> None:
        """Tell it that the next effect comes."""
        self.effects -= 1
        if self.effects == -1:
            self.then()


class Context:
    """Stands for Spark's context, on the driver and in tasks."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._jsc = self  # PySpark's actions give stages a name by it

    def setCallSite(self, name: str | None) -> None:  # noqa: N802 - Spark's name
        """Spark's UI is not there."""

    def setLocalProperty(self, name: str, value: str) -> None:  # noqa: N802 - Spark's name
        """Tell all tasks that follow."""
        self._properties[name] = value

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        """The value that they were told."""
        return self._properties.get(name)

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        """The number of the only task."""
        return 0


class Stream:
    """Runs the micro-batches of a query as Spark does: planned in `offsets`, done in `commits`."""

    def __init__(self, query: GatedQuery, checkpoint: Checkpoint, cluster: "Cluster", topics: Sequence[str]) -> None:
        self._query = query
        self._checkpoint = checkpoint
        self._cluster = cluster
        self._kafka = cluster.kafka
        self._topics = {name: cluster.kafka[name] for name in topics}
        if checkpoint.spark.read("metadata") is None:
            checkpoint.spark.write("metadata", b'{"id":"%s"}' % uuid4().hex.encode())

    @property
    def query_id(self) -> str:
        """The id that stays with the checkpoint."""
        return str(json.loads(self._checkpoint.spark.read("metadata") or b"")["id"])

    def advance(self, records: Callable[[str, Sequence[tuple[int, Record]], int], Any]) -> bool:
        """Run the next micro-batch, or again the one that isn't committed; False if there is nothing new.

        The query gets what `records` makes of each topic's records and of the micro-batch's time, added up.
        """
        files, batches = self._checkpoint.spark, check_spark_files(self._checkpoint)
        number = batches.committed + 1
        begins = ends_of(self._checkpoint, number - 1, self._topics)
        if batches.planned < number:
            ends = {name: self._kafka[name].end for name in self._topics}
            if ends == begins:
                return False
            about = {"batchTimestampMs": self._kafka.now_ms, "conf": {"spark.sql.shuffle.partitions": "1"}}
            sources = {name: {"0": end} for name, end in ends.items()}
            files.write(f"offsets/{number}", f"v1\n{json.dumps(about)}\n{json.dumps(sources)}".encode())
        ends = ends_of(self._checkpoint, number, self._topics)
        at_ms = json.loads((files.read(f"offsets/{number}") or b"").splitlines()[1])["batchTimestampMs"]
        for name in self._topics:
            topic = self._kafka[name]
            assert topic.first <= begins[name] <= ends[name] <= topic.end, f"Kafka no longer has records of {name}"
        found = [
            records(name, list(enumerate(self._kafka[name].records))[begins[name] : ends[name]], at_ms)
            for name in self._topics
        ]
        self._query._begin_batch(sum(found[1:], found[0]), number)
        self._cluster.burn()
        if files.read(f"commits/{number}") is not None:
            raise KilledError("another driver has committed it")
        files.write(f"commits/{number}", b"v1\n{}")
        return True


def ends_of(checkpoint: Checkpoint, batch_id: int, topics: Mapping[str, Topic]) -> dict[str, int]:
    """The offset after the last record of a micro-batch, or before the first one of all, by topic."""
    if batch_id < 0:
        start = read_imported_start(checkpoint)
        return {name: start.offsets[0] if start else topic.first for name, topic in topics.items()}
    return {name: ends[0] for name, ends in read_offsets(checkpoint, batch_id).items()}


class Requests(list[tuple[int, Record]]):
    """Stands for the DataFrame of a micro-batch of requests."""

    sparkSession: Any = None  # noqa: N815 - Spark's name
    combined_by: PipelineSettings | None = None
    repeated: Batch | None = None


class Enforce(EnforceQuery):
    """The enforce query, whose stages run in this process."""

    def __init__(
        self,
        cluster: "Cluster",
        settings: Settings,
        watch: QuotaWatch,
        epoch: LeaderEpoch | None,
        topic: RequestsTopicWatch,
    ) -> None:
        self._cluster = cluster
        self.header = epoch.header() if epoch is not None else None
        self.is_native = settings.enforce.native
        job = JobContext(cluster.spark, settings, watch, epoch=epoch)
        super().__init__(job, topic=topic, max_record_bytes=cluster.max_record_bytes)
        self._files = Checkpoint(settings.enforce.checkpoint).spark
        self._planner = planner(settings, self.pipeline)
        self._decider = PageOperator(settings, self.pipeline)

    def _rows(self) -> DataFrame:
        raise NotImplementedError

    def _combined(self, rows: Any, settings: PipelineSettings) -> Any:
        rows.combined_by = settings
        return rows

    def _unwritten(self, records: Any, *repeated: Any) -> Any:
        records.repeated = repeated
        return records

    def publish(self, rows: Any) -> None:
        made = self._decided(rows)
        if rows.repeated is not None:
            made = self._left(made, *rows.repeated)
        for topic, key, value in made:
            self._cluster.burn()
            self._cluster.kafka.publish(topic, value, key, self.header)

    def _left(self, made: list[Made], batch: Batch, batch_settings: BatchSettings) -> list[Made]:
        """The records that aren't written yet; others are the same, unless topics take none of their size now."""
        answers, topics = self.answers_of(batch, batch_settings), self._cluster.kafka
        since_ms = batch.decided_at_ms - 60_000
        written = [record for name in answers.topics for _, record in topics[name].counting(since_ms)]
        found = answered_places(answers)(iter([_batch([(record.value,) for record in written], ("value",))]))
        before = {answers.place(record.value): record for record in written}
        for topic, _, value in made:
            known = before.get(answers.place(value)) if topic in answers.topics else None
            if known is not None and value is not None and not self._is_too_large(known):
                assert known.value == value, f"repeated, {known.value!r:.500} became {value!r:.500} in {topic}"
        leave_out = without_answered(answers, places_in(pa.Table.from_batches(found)))
        return _rows(leave_out(iter([_batch(made, ("topic", "key", "value"))])))

    def _is_too_large(self, record: Record) -> bool:
        sizes = len(record.key or b""), len(record.value or b""), OVERHEAD_BYTES
        return sum(sizes) > self.pipeline.max_record_bytes

    def _decided(self, requests: Requests) -> list[Made]:
        """Topic, key and value of all records of a micro-batch; its state is stored."""
        batch_id = BatchProperties.of_task().batch_id
        stored = msgspec.msgpack.decode(self._files.read(f"{STATE}/{batch_id}") or b"\x80", type=dict[int, bytes])
        page_batches: dict[int, list[bytes]] = {}
        events = [(record.value, 0, offset, record.at_ms) for offset, record in requests]
        for planned in self._planner(iter([_batch(events, ("value", "partition", "offset", "timestamp_ms"))])):
            for row in planned.to_pylist():
                page_batches.setdefault(row["shard_key"], []).append(row["payload"])
        groups = [(key, (1, stored[key]) if key in stored else None, rows) for key, rows in page_batches.items()]
        decided, states = self._decider.decide_groups(groups)
        for key, (_, payload) in zip(page_batches, states, strict=True):
            stored[key] = payload
        self._files.write(f"{STATE}/{batch_id + 1}", msgspec.msgpack.encode(stored))
        rows = [
            (partial, topic, key, value)
            for partial, topic, keys, values in decided
            for key, value in zip(keys, values, strict=True)
        ]
        names = ("partial", "topic", "key", "value")
        if requests.combined_by is None:
            return _rows([_batch(rows, names)])
        combine = combiner(requests.combined_by, is_native=self.is_native)
        return _rows(combine(iter([_batch(rows, names)])))


class Driver:
    """A process that runs the job: what it does at its start, and its micro-batches."""

    def __init__(self, cluster: "Cluster") -> None:
        settings, kafka = cluster.settings, cluster.kafka
        batch_properties.snapshot_quotas.cache_clear()  # of the workers, which are new
        checkpoint, audit_checkpoint = Checkpoint(settings.enforce.checkpoint), Checkpoint(settings.audit.checkpoint)
        check_enforce_checkpoint(settings)
        settings = with_pages(settings)
        check_origin(checkpoint, settings)
        self.watch = QuotaWatch(ensure_quotas_table(settings), QuotaSnapshots(checkpoint))
        if (pending := pending_batch(checkpoint)) is not None:
            self.watch.keep_snapshot_of(pending)
        epoch = None if checkpoint.is_local else self._new_epoch(kafka, settings.topics, checkpoint)
        topic = RequestsTopicWatch(settings)
        topic.begin()
        enforce, audit = Enforce(cluster, settings, self.watch, epoch, topic), AuditQuery(cluster.spark, settings)
        for table in audit.writer.tables:
            if not Path(table.path).exists():  # to look into each takes long
                create_table(table, {})
        self._context = cluster.context
        self._enforce = Stream(enforce, checkpoint, cluster, [settings.topics.requests])
        self._audit = Stream(audit, audit_checkpoint, cluster, audit.writer.topics)

    def _new_epoch(self, kafka: Kafka, topics: TopicSettings, checkpoint: Checkpoint) -> LeaderEpoch:
        job_id = job_identity(checkpoint).job_id
        known = [read_epoch(record.epoch) for record in kafka[topics.decisions].records]
        published = max((epoch.number for epoch in known if epoch and epoch.job_id == job_id), default=0)
        epoch = LeaderEpoch(job_id, new_epoch(checkpoint, partial(create_by_link, checkpoint.location), published))
        for name in (topics.decisions, topics.dead_letters, topics.sums):
            kafka.publish(name, None, MARKER_KEY, epoch.header())
        kafka.publish(topics.waits, b"", MARKER_KEY, epoch.header())
        return epoch

    def decide(self) -> None:
        """Decide all requests."""

        def requests(_: str, records: Sequence[tuple[int, Record]], __: int) -> Requests:
            found = Requests(records)
            found.sparkSession = SimpleNamespace(sparkContext=self._context)
            return found

        while self._enforce.advance(requests):
            pass

    def write(self) -> None:
        """Write all answers to the tables."""
        while self._audit.advance(self._answers):
            pass

    def _answers(self, topic: str, records: Sequence[tuple[int, Record]], at_ms: int) -> "AnswerTasks":
        self._context.setLocalProperty("sql.streaming.queryId", self._audit.query_id)
        return AnswerTasks(self._context, _records(topic, records, at_ms))


class AnswerTasks(Tasks):
    """Stands for the DataFrame of a micro-batch of answers."""

    def __init__(self, context: Context, records: pa.Table) -> None:
        super().__init__(records)
        self.sparkSession = SimpleNamespace(sparkContext=context)
        self._context = context

    def __add__(self, other: "AnswerTasks") -> "AnswerTasks":
        return AnswerTasks(self._context, pa.concat_tables([self._records, other._records]))


class Backup(NamedTuple):
    """Copies of both checkpoints and of the audit tables; `pages` is the setting of that time, as `topics` are ids."""

    folder: Path
    pages: int | None
    topics: dict[str, str]
    requests_topics: int


class Cluster:
    """One installation of the job in a folder: its topics, checkpoints and tables, and the driver that runs."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.settings = settings
        self.context = Context()
        self.spark = cast(SparkSession, SimpleNamespace(sparkContext=self.context))
        topics = settings.topics
        names = (topics.requests, topics.decisions, topics.dead_letters, topics.sums, topics.waits)
        self.kafka = Kafka({name: Topic() for name in names})
        self.max_record_bytes = topics.max_message_bytes
        self._past_topics: list[tuple[str, Topic]] = []
        self.driver: Driver | None = None
        self._folder = folder
        self._fuse: Fuse | None = None
        self._names = count(1)
        self._patches = ExitStack()
        for target, value in (
            ("sluice.streaming.enforce.query.now_ms", lambda: self.kafka.now_ms),
            ("sluice.streaming.enforce.query.KafkaSink", lambda *_: None),  # it is Java's; see Enforce.publish
            ("sluice.streaming.enforce.batch_properties.TaskContext", SimpleNamespace(get=lambda: self.context)),
            ("sluice.streaming.audit.query.current_ends", lambda _: self._requests_end()),
            ("sluice.streaming.enforce.requests_topic.connect", lambda *_: nullcontext()),
            ("sluice.streaming.enforce.requests_topic.topic_id_now", lambda _, name: self.kafka[name].id),
            ("sluice.streaming.audit.query.add_files", self._burning(delta_files.add_files)),
            ("sluice.streaming.audit.query.merge_metrics", self._burning(quota_metrics.merge_metrics)),
            ("sluice_toolbox.stored_state.stored_pages", stored_pages),
        ):
            self._patches.enter_context(patch(target, value))

    def _requests_end(self) -> tuple[list[int], str]:
        topic = self.kafka[self.settings.topics.requests]
        return [topic.end], topic.id

    def close(self) -> None:
        """Give the job its own parts back."""
        self._patches.close()

    def topics(self, *names: str) -> Iterator[Topic]:
        """The topics of these names that there were, and that there are."""
        yield from (topic for name, topic in [*self._past_topics, *self.kafka.items()] if name in names)

    def settle(self) -> None:
        """Start the job if it doesn't run, and let it decide and write all there is."""
        self.driver = self.driver or Driver(self)
        self.driver.watch.poll()
        self.driver.decide()
        self.driver.write()

    def stop(self) -> None:
        """Stop the job by SIGTERM, with nothing under way."""
        self.settle()
        self.driver = None

    def kill(self, effects: int) -> None:
        """Kill the job in its next micro-batches, before the effect that comes after so many others."""

        def end() -> None:
            raise KilledError

        with suppress(KilledError):
            self._cut(effects, end)
        self.driver = None

    def uncommitted(self) -> set[Event]:
        """The events of a micro-batch that was begun, and that the next start repeats."""
        checkpoint, name = Checkpoint(self.settings.enforce.checkpoint), self.settings.topics.requests
        batches, topic = check_spark_files(checkpoint), self.kafka[name]
        begin, end = (ends_of(checkpoint, each, {name: topic})[name] for each in (batches.committed, batches.planned))
        return {(topic.id, offset) for offset in range(begin, end)}

    def pause(self, effects: int) -> None:
        """Pause the driver before an effect; it wakes up once another has taken over and done all there is."""

        def take_over() -> None:
            self.driver = Driver(self)
            self.settle()

        with suppress(KilledError, DeltaError):
            self._cut(effects, take_over)

    def burn(self) -> None:
        """The next effect comes."""
        if self._fuse is not None:
            self._fuse.burn()

    def back_up(self) -> Backup:
        """Copy the checkpoints and audit tables as they are."""
        folder = self._folder / f"backup-{next(self._names)}"
        for number, source in enumerate(self._copied()):
            if source.exists():
                shutil.copytree(source, folder / str(number))
        ids = {name: topic.id for name, topic in self.kafka.items()}
        return Backup(folder, self.settings.state.pages, ids, len(list(self.topics(self.settings.topics.requests))))

    def restore(self, backup: Backup, parts: set[int]) -> None:
        """Put these parts of a backup in the place of what is there, but for those of a topic that was made again.

        Tables alone know the id of a requests topic that came after the backup and went before its restore.

        Tables without the audit checkpoint of their time get a new one, which reads all that the topics have.
        """
        self.driver = None
        made_again = {name for name, topic in self.kafka.items() if topic.id != backup.topics[name]}
        parts = parts - (ENFORCE if self.settings.topics.requests in made_again else set())
        since = len(list(self.topics(self.settings.topics.requests))) - backup.requests_topics
        is_unknown = bool(TABLES & parts) and since > 1
        parts -= AUDIT | TABLES if self.settings.topics.decisions in made_again or is_unknown else set()
        if TABLES & parts and not AUDIT & parts:
            self.set("audit", checkpoint=self._new_name(self.settings.audit.checkpoint))
        if ENFORCE & parts:
            self.set("state", pages=backup.pages)
        for number, target in enumerate(self._copied()):
            if number in parts:
                shutil.rmtree(target, ignore_errors=True)
                if (backup.folder / str(number)).exists():
                    shutil.copytree(backup.folder / str(number), target)

    def make_again(self, names: Iterable[str]) -> None:
        """Delete and create topics while the job is down; what reads them gets a new checkpoint, as the start says."""
        self.driver = None
        for name in names:
            self._past_topics.append((name, self.kafka[name]))
            self.kafka[name] = Topic()
            if name == self.settings.topics.requests:
                with pytest.raises(CheckpointError, match="is another one"):
                    Driver(self)
                self.set("enforce", checkpoint=self._new_name(self.settings.enforce.checkpoint))
            else:
                self.set("audit", checkpoint=self._new_name(self.settings.audit.checkpoint))

    def move_quotas(self, entries: list[QuotaEntry], in_place: bool) -> None:
        """Have the quotas in a table made anew, in the old one's place or another."""
        self.driver = None
        if in_place:
            shutil.rmtree(self.settings.delta.quotas)
        else:
            self.set("delta", quotas=self._new_name(self.settings.delta.quotas))
        QuotasTable(self.settings.delta.quotas).create(entries, "seed", date(self.kafka.now_ms))

    def export_and_import(self, pages: int) -> None:
        """Go on in a new checkpoint with the balances of the old one."""
        self.stop()
        file = self._folder / f"balances-{next(self._names)}"
        write_balances(file, stored_balances(self.settings))
        self.set("state", pages=pages)
        self.set("enforce", checkpoint=self._new_name(self.settings.enforce.checkpoint))
        store_imported(Checkpoint(self.settings.enforce.checkpoint), read_balances(file).resharded(pages))

    def maintain(self) -> None:
        """Compact the tables, as `sluice maintain` does while the job runs or is down."""
        for _ in maintain(self.settings.delta, self.settings.delta.retention_hours):
            pass

    def pass_retention(self) -> None:
        """Let two days pass: topics lose the records that were read, and tables the rows of old days."""
        self.settle()
        self.kafka.now_ms += 2 * DAY_MS
        for topic in self.kafka.values():
            topic.first = topic.end
        for _ in maintain(self.settings.delta, 0, date(self.kafka.now_ms).date()):
            pass

    def set(self, section: str, **values: Any) -> None:
        """Change settings, for the next driver."""
        changed: Any = replace(getattr(self.settings, section), **values)
        self.settings = replace(self.settings, **{section: changed})

    def _cut(self, effects: int, then: Callable[[], None]) -> None:
        self._fuse = Fuse(effects, then)
        try:
            self.settle()
        finally:
            self._fuse = None

    def _copied(self) -> list[Path]:
        """The folders of a backup: checkpoints of enforce and audit, and audit tables."""
        settings, delta = self.settings, self.settings.delta
        places = (
            settings.enforce.checkpoint,
            settings.audit.checkpoint,
            *(getattr(delta, name) for name in AUDIT_TABLES),
        )
        return [Path(place.removeprefix("file://")) for place in places]

    def _new_name(self, place: str) -> str:
        return f"{place}-{next(self._names)}"

    def _burning(self, commit: Callable[..., None]) -> Callable[..., None]:
        def burn_and_commit(*arguments: Any) -> None:
            self.burn()
            commit(*arguments)

        return burn_and_commit


def stored_pages(_: Settings, checkpoint: Checkpoint, batch_id: int, __: int) -> dict[int, bytes]:
    """The pages after a micro-batch, by Spark's key, which a Java would read."""
    content = checkpoint.spark.read(f"{STATE}/{batch_id + 1}") or b""
    return msgspec.msgpack.decode(content, type=dict[int, bytes])


def date(at_ms: int) -> datetime:
    """The time of these epoch milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _batch(rows: Sequence[Sequence[object]], names: Sequence[str]) -> pa.RecordBatch:
    kinds = {"value": pa.binary(), "key": pa.binary(), "topic": pa.string(), "partial": pa.bool_()}
    columns = [pa.array([row[place] for row in rows], kinds.get(name)) for place, name in enumerate(names)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _rows(batches: Iterable[pa.RecordBatch]) -> list[Made]:
    """Topic, key and value of these records."""
    return [(row["topic"], row["key"], row["value"]) for batch in batches for row in batch.to_pylist()]


def _records(topic: str, records: Sequence[tuple[int, Record]], read_at_ms: int) -> pa.Table:
    """Records as the audit query reads them."""
    time = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "topic": pa.array([topic] * len(records), pa.string()),
            "partition": pa.array([0] * len(records), pa.int32()),
            "offset": pa.array([offset for offset, _ in records], pa.int64()),
            "timestamp": pa.array([record.at_ms * 1000 for _, record in records], time),
            "key": pa.array([record.key for _, record in records], pa.binary()),
            "value": pa.array([record.value for _, record in records], pa.binary()),
            "read_at": pa.array([read_at_ms * 1000] * len(records), time),
            "epoch": pa.array([record.epoch for _, record in records], pa.binary()),
        }
    )
