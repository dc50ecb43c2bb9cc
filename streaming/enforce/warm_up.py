"""A job of Spark's that loads what a first micro-batch would wait for: on a driver that stands by."""

import logging
import time
from collections.abc import Iterator
from threading import Thread

import pyarrow as pa
from pyspark.sql import SparkSession

from configs.kafka import error_line
from streaming.enforce import stages
from streaming.runtime.session import executors

log = logging.getLogger("sluice.warm_up")

_POLL_S = 0.25


def warm_up(spark: SparkSession) -> None:
    """Let each executor start its Python and load the stages, in a thread of its own.

    With a cluster master that gives all cores to the driver that leads, executors come as soon as that one has gone. A
    failure changes nothing.
    """
    Thread(target=_run, args=(spark,), name="warm-up", daemon=True).start()


def _run(spark: SparkSession) -> None:
    try:
        while not executors(spark):  # a job without any would complain of it all the time
            time.sleep(_POLL_S)
        tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        spark.range(tasks, numPartitions=tasks).mapInArrow(_loaded, stages.PLANNED_SCHEMA).collect()
        log.info("warm: %d executors have loaded the stages", executors(spark))
    except Exception as error:  # of any class: the session may have been stopped meanwhile
        log.debug("not warm: %s", error_line(error))


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """No rows. Python imports this module to call it, and the stages with it."""
    for _ in batches:
        yield from ()
