"""A job of Spark's that loads what a first micro-batch would wait for: on a driver that stands by."""

import logging
import time
from collections.abc import Iterator
from threading import Thread

import pyarrow as pa
from pyspark.sql import SparkSession

from configs.kafka import error_line
from configs.settings import Settings
from streaming.enforce import stages
from streaming.runtime.kafka import kafka_since
from streaming.runtime.session import executors

log = logging.getLogger("sluice.warm_up")

WARM = "warm: "
"""How the line of the log begins that says that it is done."""

_POLL_S = 0.25
_SINCE_MS = 10_000


def warm_up(spark: SparkSession, settings: Settings) -> None:
    """Let each executor start its Python, load the stages and read the requests topic, in a thread of its own.

    With a cluster master that gives all cores to the driver that leads, executors come as soon as that one has gone. A
    failure changes nothing.
    """
    Thread(target=_run, args=(spark, settings), name="warm-up", daemon=True).start()


def _run(spark: SparkSession, settings: Settings) -> None:
    try:
        while not executors(spark):  # a job without any would complain of it all the time
            time.sleep(_POLL_S)
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        since_ms = time.time_ns() // 1_000_000 - _SINCE_MS
        requests = kafka_since(spark, settings, [settings.topics.requests], since_ms).select("value")
        requests.repartition(partitions).mapInArrow(_loaded, stages.PLANNED_SCHEMA).collect()
        log.info("%s%d executors have loaded the stages", WARM, executors(spark))
    except Exception as error:  # of any class: the session may have been stopped meanwhile
        log.debug("not warm: %s", error_line(error))


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """No rows. Python imports this module to call it, and the stages with it."""
    for _ in batches:
        yield from ()
