"""The Python stages of the enforce query: thin adapters between Arrow or pandas frames and the pure code."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from configs.settings import Settings
from state.quota import QuotaSettings
from state.resolution import Quotas
from state.shard import Shard
from streaming.checkpoint import CheckpointFolder, QuotaSnapshots
from streaming.deciding import by_request, combine_rows, decide_rows
from streaming.events import Source
from streaming.planning import PlanSettings, parcels_of
from streaming.records import OutputRecord, PartialRow, decode_parcel, decode_partials
from streaming.seed import Seeds
from streaming.shard_keys import key_of, shard_at

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

PLANNED_SCHEMA = "shard_key int, payload binary"
DECIDED_SCHEMA = "topic string, keys array<binary>, values array<binary>"
COMBINED_SCHEMA = "topic string, key binary, value binary"
STATE_SCHEMA = "v int, payload binary"
"""For good: PySpark can't evolve the state of this operator, so the versioned codec inside `payload` does."""

_STATE_VERSION = 1
_PLANNED = pa.schema([("shard_key", pa.int32()), ("payload", pa.binary())])
_COMBINED = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])

QUOTA_VERSION_PROPERTY = "sluice.quota_version"
DECIDED_AT_PROPERTY = "sluice.decided_at_ms"
"""How a micro-batch tells its tasks which quotas are in force and when it was begun."""

_MOST_ROW_BYTES = 1024 * 1024
"""Bytes of records that leave the stateful operator in one row; a larger record has a row of its own."""

ArrowStage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def planner(settings: Settings) -> ArrowStage:
    """Kafka records (value, timestamp_ms, partition, offset) to sharded charge rows."""
    plan_settings = PlanSettings.of(settings)
    checkpoint = CheckpointFolder(settings.enforce.checkpoint).checkpoint

    def plan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        quota_version, decided_at_ms = _batch_properties()
        quotas = _quotas(checkpoint, quota_version)
        records = (record for batch in batches for record in _records(batch, plan_settings.requests_topic))
        with _no_garbage():
            for parcels in parcels_of(records, quotas, plan_settings, decided_at_ms):
                yield _planned(parcels)

    return plan


def shard_decider(
    settings: Settings,
) -> Callable[[tuple[int], Iterable[pd.DataFrame], "GroupState"], Iterator[pd.DataFrame]]:
    """The stateful operator: one shard's rows of a micro-batch, charged to the counters in its state."""
    decisions_topic, quota, shards = settings.topics.decisions, settings.quota, settings.state.shards
    idle_expiry_ms = settings.state.idle_expiry_s * 1000
    seeds = Seeds.of(settings)

    def decide(key: tuple[int], frames: Iterable[pd.DataFrame], state: "GroupState") -> Iterator[pd.DataFrame]:
        with _no_garbage():
            shard = Shard.from_bytes(state.get[1], shards) if state.exists else seeds.shard(shard_at(int(key[0])))
            parcels = (decode_parcel(payload) for frame in frames for payload in frame["payload"])
            records = decide_rows(shard, parcels, decisions_topic, quota)
            state.update((_STATE_VERSION, shard.to_bytes(shards, idle_expiry_ms, quota)))
            yield packed(records)

    return decide


def combiner(decisions_topic: str, quota: QuotaSettings) -> ArrowStage:
    """Parts of decisions, all parts of a request in one partition, to whole decisions."""

    def combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[PartialRow] = []
        with _no_garbage():
            for batch in batches:
                whole = pc.is_valid(batch.column("topic"))
                yield batch.filter(whole)
                for payload in batch.filter(pc.invert(whole)).column("value").to_pylist():
                    rows.extend(decode_partials(payload))
            if rows:
                records = [combine_rows(parts, decisions_topic, quota) for parts in by_request(rows)]
                columns = [
                    pa.array(column, kind)
                    for column, kind in zip(zip(*records, strict=True), _COMBINED.types, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=_COMBINED)

    return combine


@contextmanager
def _no_garbage() -> Iterator[None]:
    """No search for garbage meanwhile: thousands of rows and no cycle among them, it would take a third of the time."""
    _keep_imports()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def _keep_imports() -> None:
    """Once a worker process: PySpark searches for garbage after every task, 40 ms and more with all that pandas is."""
    _keep_everything()


def _keep_everything() -> None:
    """Searches for garbage pass over all that is there by now."""
    gc.collect()
    gc.freeze()


def packed(records: list[OutputRecord]) -> pd.DataFrame:
    """Records of a topic in one row: PySpark pads what it stores to the rows it gives out, so each of those is dear."""
    rows: list[_PackedRow] = []
    unfilled: dict[str | None, _PackedRow] = {}
    for topic, key, value in records:
        row = unfilled.get(topic)
        if row is None or row.value_bytes + len(value) > _MOST_ROW_BYTES:
            row = unfilled[topic] = _PackedRow(topic)
            rows.append(row)
        row.add(key, value)
    return pd.DataFrame([(row.topic, row.keys, row.values) for row in rows], columns=["topic", "keys", "values"])


class _PackedRow:
    """Records of one topic."""

    __slots__ = ("keys", "topic", "value_bytes", "values")

    def __init__(self, topic: str | None) -> None:
        self.topic = topic
        self.keys: list[bytes | None] = []
        self.values: list[bytes] = []
        self.value_bytes = 0

    def add(self, key: bytes | None, value: bytes) -> None:
        """Put in one more record."""
        self.keys.append(key)
        self.values.append(value)
        self.value_bytes += len(value)


def _planned(parcels: Mapping[int, bytes]) -> pa.RecordBatch:
    columns = [pa.array(map(key_of, parcels), pa.int32()), pa.array(parcels.values(), pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_PLANNED)


def _records(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[bytes | None, Source]]:
    numbers = (batch.column(name).to_numpy().tolist() for name in ("partition", "offset", "timestamp_ms"))
    for value, partition, offset, timestamp_ms in zip(batch.column("value").to_pylist(), *numbers, strict=True):
        yield value, Source(topic, partition, offset, timestamp_ms)


def _batch_properties() -> tuple[int, int]:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("the planner runs inside a Spark task only")
    values = (context.getLocalProperty(name) for name in (QUOTA_VERSION_PROPERTY, DECIDED_AT_PROPERTY))
    quota_version, decided_at_ms = (int(value) for value in values if value is not None)
    return quota_version, decided_at_ms


@lru_cache(maxsize=2)
def _quotas(checkpoint: str, version: int) -> Quotas:
    """The quotas of a version, read once a worker process."""
    quotas = QuotaSnapshots(CheckpointFolder(checkpoint)).load(version)
    _keep_everything()
    return quotas
