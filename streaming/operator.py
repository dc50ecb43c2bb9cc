"""The Python stages of the enforce query: thin adapters between Arrow or pandas frames and the pure code."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa

from configs.settings import Settings
from state.quota import QuotaSettings
from state.resolution import Quotas
from state.shard import Shard
from streaming.checkpoint import CheckpointFolder, QuotaSnapshots
from streaming.deciding import combine_rows, decide_rows
from streaming.events import Source
from streaming.planning import PlanSettings, plan_event
from streaming.records import decode_partial, decode_payload, encode_payload

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

PLANNED_SCHEMA = "shard int, payload binary"
DECIDED_SCHEMA = "topic string, key binary, value binary"
STATE_SCHEMA = "v int, payload binary"
"""For good: PySpark can't evolve the state of this operator, so the versioned codec inside `payload` does."""

_STATE_VERSION = 1
_PLANNED = pa.schema([("shard", pa.int32()), ("payload", pa.binary())])
_DECIDED = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])

QUOTA_VERSION_PROPERTY = "sluice.quota_version"
DECIDED_AT_PROPERTY = "sluice.decided_at_ms"
"""How a micro-batch tells its tasks which quotas are in force and when it was begun."""

ArrowStage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def planner(settings: Settings) -> ArrowStage:
    """Kafka records (value, timestamp_ms, partition, offset) to sharded charge rows."""
    plan_settings = PlanSettings.of(settings)
    checkpoint = CheckpointFolder(settings.enforce.checkpoint).checkpoint

    def plan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        quota_version, decided_at_ms = _batch_properties()
        quotas = _quotas(checkpoint, quota_version)
        for batch in batches:
            shards: list[int] = []
            payloads: list[bytes] = []
            for value, source in _records(batch, plan_settings.requests_topic):
                for shard, row in plan_event(value, source, quotas, plan_settings, decided_at_ms):
                    shards.append(shard)
                    payloads.append(encode_payload(row))
            columns = [pa.array(shards, pa.int32()), pa.array(payloads, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=_PLANNED)

    return plan


def shard_decider(
    settings: Settings,
) -> Callable[[tuple[int], Iterable[pd.DataFrame], "GroupState"], Iterator[pd.DataFrame]]:
    """The stateful operator: one shard's rows of a micro-batch, charged to the counters in its state."""
    decisions_topic, quota, shards = settings.topics.decisions, settings.quota, settings.state.shards
    idle_expiry_ms = settings.state.idle_expiry_s * 1000

    def decide(_: tuple[int], frames: Iterable[pd.DataFrame], state: "GroupState") -> Iterator[pd.DataFrame]:
        shard = Shard.from_bytes(state.get[1], shards) if state.exists else Shard()
        payloads = (payload for frame in frames for payload in frame["payload"])
        decided = list(decide_rows(shard, map(decode_payload, payloads), decisions_topic, quota))
        state.update((_STATE_VERSION, shard.to_bytes(shards, idle_expiry_ms, quota)))
        yield pd.DataFrame(decided, columns=["topic", "key", "value"])

    return decide


def combiner(decisions_topic: str, quota: QuotaSettings) -> ArrowStage:
    """Parts of decisions, all parts of a request in one partition, to whole decisions."""

    def combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts_by_request: dict[bytes, list[bytes]] = {}
        for batch in batches:
            for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                parts_by_request.setdefault(key, []).append(value)
        records = [
            combine_rows(map(decode_partial, parts), decisions_topic, quota) for parts in parts_by_request.values()
        ]
        yield pa.RecordBatch.from_pylist([record._asdict() for record in records], schema=_DECIDED)

    return combine


def _records(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[bytes | None, Source]]:
    columns = (batch.column(name).to_pylist() for name in ("value", "partition", "offset", "timestamp_ms"))
    for value, partition, offset, timestamp_ms in zip(*columns, strict=True):
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
    return QuotaSnapshots(CheckpointFolder(checkpoint)).load(version)
