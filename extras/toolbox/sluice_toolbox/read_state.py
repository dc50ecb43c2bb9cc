"""The counters of a checkpoint as a DataFrame, by Spark's own state reader."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sluice.state.arithmetic.counter import EntityCounters
from sluice.state.quotas.kinds import Family
from sluice.state.store.codec import decode, pages_of
from sluice_toolbox.client_balances import tags_of_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE = "start_ms: bigint, last_event_ms: bigint, value: double"
COUNTER = (
    "user: string, client_id: string, topic: string, partition: int, tenant: string, shadow: boolean, quota: string,"
    f" last_event_ms: bigint, samples: array<struct<{SAMPLE}>>, tokens: double, tokens_ms: bigint"
)
"""Types of a counter: one quota of one entity. `value` is in the quota's unit: bytes, requests, points or partitions.

`tokens` are those of `controller_mutation_rate` at `tokens_ms`, None without a bucket; all times are in epoch
milliseconds. A name is "" where the counter is kept for all of them, the partition -1.
"""

DECODER = "sluice_counters"
"""The function of SQL that has the counters of a stored page."""


def read_state(spark: "SparkSession", checkpoint: str, batch_id: int | None = None) -> "DataFrame":
    """One row of COUNTER for each counter after a micro-batch; after the last committed one without `batch_id`.

    It only reads, beside a running job too; Spark keeps the last 100 micro-batches. SQL has the function DECODER
    afterwards, which takes `value.groupState.payload` of `format("statestore")`. The Python of the workers
    (PYSPARK_PYTHON) needs this package.

    Spark raises what it has for a checkpoint that isn't there or not of a stateful query; StateError is for a page of
    another release.
    """
    spark.streams.active  # noqa: B018 - begins the coordinator that Spark's reader of RocksDB asks for, and doesn't begin
    reader = spark.read.format("statestore")
    stored = (reader if batch_id is None else reader.option("batchId", batch_id)).load(checkpoint)
    decoder = spark.udf.register(DECODER, counters_of_page, f"array<struct<{COUNTER}>>")
    return stored.select(decoder("value.groupState.payload").alias("counters")).selectExpr("inline(counters)")


def counters_of_page(page: bytes) -> list[dict[str, Any]]:
    """The counters of a stored page, as the fields of COUNTER. Raises StateError for a page that can't be read."""
    return [row for key, counters in decode(page, pages_of(page)).items() for row in _rows(key, counters)]


def _rows(key: str, counters: EntityCounters) -> Iterator[dict[str, Any]]:
    tags, is_shadow = tags_of_key(key)
    names = {"user": tags.user, "client_id": tags.client_id, "topic": tags.topic or "", "tenant": tags.tenant}
    for kind, rate in counters.rates.items():
        bucket = counters.bucket if kind.family is Family.MUTATIONS else None
        samples = zip(rate.starts_ms, rate.last_events_ms, rate.values, strict=True)
        yield names | {
            "partition": tags.partition,
            "shadow": is_shadow,
            "quota": kind.value,
            "last_event_ms": counters.last_event_ms,
            "samples": [{"start_ms": start, "last_event_ms": last, "value": value} for start, last, value in samples],
            "tokens": None if bucket is None else bucket.tokens,
            "tokens_ms": None if bucket is None else bucket.last_ms,
        }
