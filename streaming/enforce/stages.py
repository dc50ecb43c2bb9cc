"""The Python stages of the enforce query: thin adapters between Arrow or pandas and the pipeline."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from configs.settings import Settings
from state.errors import StateError
from state.store.codec import entities_of
from state.store.shard import Shard
from streaming.balances.imported import ImportedBalances
from streaming.checkpoint.folder import Checkpoint
from streaming.checkpoint.shard_keys import shard_of_spark_key, spark_key_of_shard
from streaming.enforce import pipeline
from streaming.enforce.batch_properties import BatchProperties
from streaming.enforce.garbage_collection import collection_paused
from streaming.enforce.known_entities import EntitiesByShard
from streaming.enforce.pipeline_settings import PipelineSettings
from streaming.enforce.source import Source
from streaming.enforce.wire import PackedRow, Parcel, decode_parcel, decode_parts, encode_parcel, packed

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql.streaming.state import GroupState

PLANNED_SCHEMA = "shard_key int, payload binary"
DECIDED_SCHEMA = "partial boolean, topic string, keys array<binary>, values array<binary>"
COMBINED_SCHEMA = "topic string, key binary, value binary"
STATE_SCHEMA = "v int, payload binary"
"""Can never change, because PySpark can't evolve this operator's state; the codec inside `payload` has a version."""

_STATE_VERSION = 1
_PLANNED = pa.schema([("shard_key", pa.int32()), ("payload", pa.binary())])
_COMBINED = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])

ArrowStage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
ShardStage = Callable[[tuple[int], Iterable[pd.DataFrame], "GroupState"], Iterator[pd.DataFrame]]


def planner(settings: Settings, pipeline_settings: PipelineSettings) -> ArrowStage:
    """Step plan: Kafka records (value, timestamp_ms, partition, offset) to parcels, each with its shard's Spark key."""
    checkpoint = Checkpoint(settings.enforce.checkpoint).location

    def plan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        properties = BatchProperties.of_task()
        quotas = properties.quotas(checkpoint)
        events = (event for batch in batches for event in _events(batch, pipeline_settings.requests_topic))
        with collection_paused():
            for parcels in pipeline.plan(events, quotas, pipeline_settings, properties.decided_at_ms):
                yield _planned(parcels)

    return plan


def shard_decider(
    settings: Settings, pipeline_settings: PipelineSettings, known: "Accumulator[EntitiesByShard] | None" = None
) -> ShardStage:
    """Step decide, the stateful operator: a shard's parcels of a micro-batch, charged to the counters in its state.

    `known` is told how many entities the shard holds then.
    """
    imported = ImportedBalances.of(settings)
    shards, idle_expiry_ms, quota = pipeline_settings.shards, pipeline_settings.idle_expiry_ms, pipeline_settings.quota

    def decide(key: tuple[int], frames: Iterable[pd.DataFrame], state: "GroupState") -> Iterator[pd.DataFrame]:
        with collection_paused():
            spark_key = int(key[0])
            shard = (
                stored_shard(spark_key, state.get[1], shards)
                if state.exists
                else imported.shard(shard_of_spark_key(spark_key))
            )
            parcels = (decode_parcel(payload) for frame in frames for payload in frame["payload"])
            records, parts, waits = pipeline.decide(shard, parcels, pipeline_settings)
            if parts and not BatchProperties.of_task().combined:  # otherwise they would be written to Kafka as records
                raise RuntimeError("there are partial decisions in a micro-batch whose plan doesn't combine them")
            payload = shard.to_bytes(shards, idle_expiry_ms, quota)
            state.update((_STATE_VERSION, payload))
            if known is not None:
                known.add({int(key[0]): entities_of(payload)})
            yield pd.DataFrame(packed(records, parts, waits), columns=PackedRow._fields)

    return decide


def stored_shard(spark_key: int, payload: bytes, shards: int) -> Shard:
    """The shard in Spark's state under this key. Raises StateError, which names the shard, if it is unreadable."""
    try:
        return Shard.from_bytes(payload, shards)
    except StateError as error:
        raise StateError(f"shard {shard_of_spark_key(spark_key)}: {error}") from error


def combiner(settings: PipelineSettings) -> ArrowStage:
    """Step combine: finished records pass untouched; parts, all of a request in one group, become records.

    Parts stay encoded until all are there, and are decoded group by group: decoded they take many times the memory.
    """

    def combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups: dict[bytes, list[bytes]] = {}
        with collection_paused():
            for batch in batches:
                partial = batch.column("partial")
                yield batch.filter(pc.invert(partial)).select(_COMBINED.names)
                encoded = batch.filter(partial)
                for key, payload in zip(
                    encoded.column("key").to_pylist(), encoded.column("value").to_pylist(), strict=True
                ):
                    groups.setdefault(key, []).append(payload)
            while groups:
                parts = [part for payload in groups.popitem()[1] for part in decode_parts(payload)]
                columns = zip(*pipeline.combine(parts, settings), strict=True)
                arrays = [pa.array(column, kind) for column, kind in zip(columns, _COMBINED.types, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=_COMBINED)

    return combine


def _events(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[bytes | None, Source]]:
    numbers = (batch.column(name).to_numpy().tolist() for name in ("partition", "offset", "timestamp_ms"))
    for value, partition, offset, timestamp_ms in zip(batch.column("value").to_pylist(), *numbers, strict=True):
        yield value, Source(topic, partition, offset, timestamp_ms)


def _planned(parcels: Mapping[int, Parcel]) -> pa.RecordBatch:
    keys = pa.array(map(spark_key_of_shard, parcels), pa.int32())
    payloads = pa.array(map(encode_parcel, parcels.values()), pa.binary())
    return pa.RecordBatch.from_arrays([keys, payloads], schema=_PLANNED)
