"""A job of Spark's that loads what a first micro-batch would wait for: on a driver that stands by."""

import logging
from collections.abc import Iterator
from threading import Event

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice.configs.settings import Settings
from sluice.kafka_io.background import BackgroundService
from sluice.kafka_io.client import error_line
from sluice.kafka_io.clock import now_ms
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.enforce import stages
from sluice.streaming.enforce.rehearsal import rehearse
from sluice.streaming.java_bridge import executors
from sluice.streaming.runtime.kafka import kafka_since

log = logging.getLogger("sluice.warm_up")

WARM = "warm: "
"""The beginning of the line in the log that tells of warm executors."""

_PAUSE_S = 20.0
"""Spark ends a Python worker that was idle for a minute, and with it what it has loaded."""

_POLL_S = 0.25
_SINCE_MS = 10_000


def warm_up(spark: SparkSession, settings: Settings) -> BackgroundService:
    """A service that lets the executors decide some requests once, then keeps their Python alive, stages loaded.

    With a cluster master that gives all cores to the driver that leads, executors come as soon as that one has gone. A
    failure changes nothing. When it is stopped no further job begins, and a rehearsal ends; any other job is short.
    """

    def steps() -> Iterator[float]:
        rehearsed = False
        while True:
            pause_s = _PAUSE_S
            try:
                if not executors(spark):  # Spark would complain all the time of a job without any
                    pause_s = _POLL_S
                else:
                    _load_stages(spark, settings)
                    if not rehearsed:
                        rehearsed = True
                        _rehearse(spark, settings, service.stopped)
            except Exception as error:  # of any class: PySpark's depends on the executors
                log.debug("not warm: %s", error_line(error))
            yield pause_s

    service = BackgroundService("warm-up", steps, _PAUSE_S, log=log, stop_timeout_s=0.0)
    return service


def _load_stages(spark: SparkSession, settings: Settings) -> None:
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    requests = kafka_since(spark, settings, [settings.topics.requests], now_ms() - _SINCE_MS).select("value")
    requests.repartition(partitions).mapInArrow(_loaded, stages.PLANNED_SCHEMA).collect()


def _rehearse(spark: SparkSession, settings: Settings, stopped: Event) -> None:
    """Not with a path, whose driver has no leader to wait for."""
    decided = 0
    try:
        if not Checkpoint(settings.enforce.checkpoint).is_local:
            decided = rehearse(spark, settings, stopped)
    except Exception as error:  # of any class: without a rehearsal the first micro-batch takes longer, no more
        log.warning("no rehearsal: %s", error_line(error))
    log.info("%s%d executors have loaded the stages, and rehearsed %d micro-batches", WARM, executors(spark), decided)


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """No rows. Python imports this module to call it, and the stages with it."""
    for _ in batches:
        yield from ()
