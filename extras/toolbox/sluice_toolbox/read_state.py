"""The counters of a checkpoint as a DataFrame, by Spark's own state reader."""

import os
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sluice.state.arithmetic.counter import EntityCounters
from sluice.state.quotas.kinds import Family
from sluice.state.store.codec import decode
from sluice.streaming.errors import CheckpointError
from sluice.streaming.java_bridge import hadoop_configuration, java
from sluice_toolbox.client_balances import tags_of_key

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


def read_state(spark: SparkSession, checkpoint: str | os.PathLike[str], batch_id: int | None = None) -> DataFrame:
    """One row of COUNTER for each counter after a micro-batch; after the last committed one without `batch_id`.

    It only reads, beside a running job too; Spark keeps the last 100 micro-batches. SQL has the function DECODER
    afterwards, which takes `value.groupState.payload` of `format("statestore")`. The Python of the workers
    (PYSPARK_PYTHON) needs this package.

    Raises CheckpointError without such a micro-batch, and for a path that Spark's reader can't take. Spark raises its
    own errors for a checkpoint of another query, and, once rows are asked for, for damaged files and pages; a folder
    of `state` that is gone has no rows, without an error.
    """
    location = os.fspath(checkpoint)
    spark.streams.active  # noqa: B018 - begins the coordinator that Spark's reader of RocksDB asks for, and doesn't begin
    reader = spark.read.format("statestore")
    try:
        stored = (reader if batch_id is None else reader.option("batchId", batch_id)).load(location)
    except PySparkException as error:
        if error.getCondition() != "STDS_COMMITTED_BATCH_UNAVAILABLE":
            raise
        raise CheckpointError(_why_none(spark, location, batch_id)) from error
    decoder = spark.udf.register(DECODER, counters_of_page, f"array<struct<{COUNTER}>>")
    return stored.select(decoder("value.groupState.payload").alias("counters")).selectExpr("inline(counters)")


def counters_of_page(page: bytes | None) -> list[dict[str, Any]] | None:
    """The counters of a stored page, as the fields of COUNTER; None for null. Raises StateError for other bytes."""
    return None if page is None else [row for key, one in decode(page, None).items() for row in _rows(key, one)]


def _why_none(spark: SparkSession, location: str, batch_id: int | None) -> str:
    """The reason why Spark's reader finds no committed micro-batch, and what would be right."""
    folder = java(spark).org.apache.hadoop.fs.Path(f"{location}/commits")
    files = folder.getFileSystem(hadoop_configuration(spark))
    names = [each.getPath().getName() for each in files.listStatus(folder)] if files.exists(folder) else []
    committed = sorted(int(name) for name in names if name.isdigit())
    if not committed:
        return f"{location} has no committed micro-batch; name the enforce.checkpoint of a job that has run"
    if batch_id is not None and batch_id not in committed:
        return f"{location} has no micro-batch {batch_id}, but {committed[0]} to {committed[-1]}"
    return f"Spark's state reader takes no path with a blank, % or others that URIs escape; name a link to {location}"


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
