"""The enforce query as a driver runs it that takes over, but on a checkpoint of its own and without output."""

import secrets
import time
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.configs.settings import Settings
from sluice.kafka_io.clock import now_ms
from sluice.state.decisions.leader_epochs import LeaderEpoch
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.batch_log import Batch
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import with_pages
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.batch_properties import BatchProperties
from sluice.streaming.enforce.query import EnforceQuery
from sluice.streaming.java_bridge import hadoop_configuration, java

_EVENTS = 1000
"""Requests in a micro-batch."""

_BATCHES = 2
"""Micro-batches: the second one reads state that the first one wrote."""

_LONGEST_S = 60.0
_POLL_S = 0.25
_EPOCH = LeaderEpoch("rehearsal", 0)
_QUOTA_VERSION = 0
_QUOTAS = [
    QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.PRODUCER_BYTE_RATE, 1e9),
    QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.CONSUMER_BYTE_RATE, 1e9),
    QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.REQUEST_PERCENTAGE, 100.0),
]
"""In force in a rehearsal: those of the job are known to the driver that leads."""


def rehearse(spark: SparkSession, settings: Settings, stopped: Event) -> int:
    """Decide some of the oldest requests as a repeated micro-batch, so that Java, Spark and Python have loaded all.

    The checkpoint lies beside the job's and is removed at the end; nothing of the job's is read or written. Returns how
    many micro-batches were decided; fewer than usual if it takes a minute, `stopped` is set, or there are no requests.
    """
    location = f"{Checkpoint(settings.enforce.checkpoint).location}-rehearsal-{secrets.token_hex(4)}"
    enforce = replace(
        settings.enforce,
        checkpoint=location,
        trigger_ms=0,
        max_offsets_per_trigger=_EVENTS,
        starting_offsets="earliest",
        fail_on_data_loss=False,
    )
    try:
        QuotaSnapshots(Checkpoint(location)).save(_QUOTA_VERSION, _QUOTAS)
        return _run(_Rehearsal(spark, with_pages(replace(settings, enforce=enforce))).start(), stopped)
    finally:
        _remove(spark, location)


class _InForce(NamedTuple):
    quotas: Quotas


class _Rehearsal(EnforceQuery):
    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        super().__init__(spark, settings, _InForce(Quotas(_QUOTAS, _QUOTA_VERSION)), epoch=_EPOCH)
        self._name = "rehearsal"

    def _write_batch(self, rows: DataFrame, batch_id: int) -> None:
        batch = Batch(batch_id, _QUOTA_VERSION, now_ms())
        pages = self._pipeline.pages
        properties = BatchProperties(batch.quota_version, batch.decided_at_ms, True, pages, pages)
        properties.announce(self._spark.sparkContext)
        self._unwritten(self._combined(rows), batch).write.format("noop").mode("append").save()


def _run(query: StreamingQuery, stopped: Event) -> int:
    deadline = time.monotonic() + _LONGEST_S
    try:
        while query.isActive and _decided(query) < _BATCHES and time.monotonic() < deadline:
            if stopped.wait(_POLL_S):
                break
        return _decided(query)
    finally:
        query.stop()


def _decided(query: StreamingQuery) -> int:
    return sum("addBatch" in progress["durationMs"] for progress in query.recentProgress)


def _remove(spark: SparkSession, location: str) -> None:
    """Remove the folder with Spark's own files in it, on whatever storage."""
    path = java(spark).org.apache.hadoop.fs.Path(location)
    with suppress(Py4JJavaError):  # what is left is some kilobytes
        path.getFileSystem(hadoop_configuration(spark)).delete(path, True)
