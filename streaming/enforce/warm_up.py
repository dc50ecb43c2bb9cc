"""A job of Spark's that loads what a first micro-batch would wait for: on a driver that stands by."""

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice.configs.settings import Settings
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.process.format import error_line
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.enforce import stages
from sluice.streaming.java_bridge import executors
from sluice.streaming.runtime.kafka import kafka_since, kafka_writer

log = logging.getLogger("sluice.warm_up")

WARM = "warm: "
"""The beginning of the line in the log that tells of warm executors."""

_PAUSE_S = 20.0
"""Spark ends a Python worker that was idle for a minute, and with it what it has loaded."""

_POLL_S = 0.25
_SINCE_MS = 10_000


def warm_up(spark: SparkSession, settings: Settings) -> BackgroundService:
    """A service that lets the executors read some requests, then keeps their Python alive, stages loaded.

    With a cluster master that gives all cores to the driver that leads, executors come as soon as that one has gone. A
    failure changes nothing. When it is stopped no further job begins; each is short.
    """

    def steps() -> Iterator[float]:
        told = False
        while True:
            pause_s = _PAUSE_S
            try:
                count = executors(spark)
                if not count:  # Spark would complain all the time of a job without any
                    pause_s = _POLL_S
                else:
                    _load_stages(spark, settings)
                    if not told:
                        _load_state(spark, settings)
                        told = True
                        log.info("%s%d executors have loaded the stages", WARM, count)
            except Exception as error:  # of any class: PySpark's depends on the executors
                log.debug("not warm: %s", error_line(error))
            yield pause_s

    return BackgroundService("warm-up", steps, _PAUSE_S, log=log, stop_timeout_s=0.0)


def _load_stages(spark: SparkSession, settings: Settings) -> None:
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    requests = kafka_since(spark, settings, [settings.topics.requests], now_ms() - _SINCE_MS).select("value")
    nothing = requests.repartition(partitions).mapInArrow(_loaded, stages.COMBINED_SCHEMA)
    kafka_writer(nothing.write, settings).save()


def _load_state(spark: SparkSession, settings: Settings) -> None:
    """Read the state that the leader has committed last: Java loads RocksDB and the client of the storage for it."""
    _ = spark.streams.active  # makes the driver's coordinator of state stores, which executors ask
    spark.read.format("statestore").load(Checkpoint(settings.enforce.checkpoint).location).count()


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """No rows. Python imports this module to call it, and the stages with it."""
    for _ in batches:
        yield from ()
