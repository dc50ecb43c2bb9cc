"""A job of Spark's that loads what a first micro-batch would wait for: on a driver that stands by."""

import logging
from collections.abc import Iterator
from threading import Thread

import pyarrow as pa
from pyspark.sql import SparkSession

from configs.kafka import error_line
from streaming.enforce import stages

log = logging.getLogger("sluice.warm_up")


def warm_up(spark: SparkSession) -> None:
    """Let each executor start its Python and load the stages, in a thread of its own.

    With a cluster master that gives all cores to the driver that leads, the job waits, and runs as soon as that one has
    gone. Its failure changes nothing.
    """
    Thread(target=_run, args=(spark,), name="warm-up", daemon=True).start()


def _run(spark: SparkSession) -> None:
    try:
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        spark.range(partitions, numPartitions=partitions).mapInArrow(_loaded, stages.PLANNED_SCHEMA).collect()
    except Exception as error:  # of any class: the session may have been stopped meanwhile
        log.debug("not warm: %s", error_line(error))


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """No rows. Python imports this module to call it, and the stages with it."""
    for _ in batches:
        yield from ()
