"""A job of Spark's that loads what a first micro-batch would wait for: on a driver that stands by."""

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice.configs.settings import Settings
from sluice.kafka_io.background import BackgroundThread
from sluice.kafka_io.client import error_line
from sluice.kafka_io.clock import now_ms
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.enforce import stages
from sluice.streaming.enforce.rehearsal import rehearse
from sluice.streaming.runtime.kafka import kafka_since
from sluice.streaming.runtime.session import executors

log = logging.getLogger("sluice.warm_up")

WARM = "warm: "
"""How the line of the log begins that says that executors are warm."""

_PAUSE_S = 20.0
"""Spark ends a Python worker that was idle for a minute, and with it what it has loaded."""

_POLL_S = 0.25
_SINCE_MS = 10_000


class WarmUp:
    """Lets the executors decide some requests once, then keeps their Python alive with the stages loaded.

    With a cluster master that gives all cores to the driver that leads, executors come as soon as that one has gone. A
    failure changes nothing.
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark, self._settings = spark, settings
        self._rehearsed = False
        self._thread = BackgroundThread("warm-up", self._run, _PAUSE_S, _report)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no further job, and end a rehearsal. Any other job is short."""
        self._thread.stop(timeout_s=0)

    def _run(self) -> None:
        while not executors(self._spark):  # a job without any would complain of it all the time
            if self._thread.stopped.wait(_POLL_S):
                return
        partitions = int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1)
        since_ms = now_ms() - _SINCE_MS
        requests = kafka_since(self._spark, self._settings, [self._settings.topics.requests], since_ms).select("value")
        requests.repartition(partitions).mapInArrow(_loaded, stages.PLANNED_SCHEMA).collect()
        if not self._rehearsed:
            self._rehearsed = True
            self._rehearse()

    def _rehearse(self) -> None:
        """Once, whether it succeeds or not; not with a path, whose driver has no leader to wait for."""
        decided = 0
        try:
            if not Checkpoint(self._settings.enforce.checkpoint).is_local:
                decided = rehearse(self._spark, self._settings, self._thread.stopped)
        except Exception as error:  # of any class: without a rehearsal the first micro-batch takes longer, no more
            log.warning("no rehearsal: %s", error_line(error))
        log.info(
            "%s%d executors have loaded the stages, and rehearsed %d micro-batches",
            WARM,
            executors(self._spark),
            decided,
        )


def _report(error: Exception) -> None:
    log.debug("not warm: %s", error_line(error))


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """No rows. Python imports this module to call it, and the stages with it."""
    for _ in batches:
        yield from ()
