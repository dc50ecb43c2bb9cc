"""PySpark's private names: its only way to the driver's Java. No other module has them."""

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.traceback_utils import SCCallSiteSync


def java(spark: SparkSession | SparkContext) -> Any:
    """The driver's Java: packages and classes are its attributes."""
    return _context(spark)._jvm  # noqa: SLF001


def has_java() -> bool:
    """True if PySpark has a Java, which it keeps for all sessions of this process."""
    return SparkContext._gateway is not None  # noqa: SLF001


def keep_process(context: SparkContext, process: "subprocess.Popen[bytes]") -> None:
    """Keep the process of a Java that PySpark has found, as it does with its own: else Java's input would end."""
    context._gateway.proc = process  # type: ignore[union-attr] # noqa: SLF001 - a started context has its gateway


def end_java(longest_s: float) -> None:
    """End the Java that PySpark has, if it has one, and wait for it: then it has removed its temporary files."""
    gateway, SparkContext._gateway = SparkContext._gateway, None  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    process.stdin.close()  # which ends it
    with suppress(subprocess.TimeoutExpired):
        process.wait(longest_s)


def hadoop_configuration(spark: SparkSession) -> Any:
    """Hadoop's configuration of the session, with which Spark opens its own files."""
    return _java_context(spark).hadoopConfiguration()


def forget_hadoop_defaults(spark: SparkSession) -> None:
    """Leave Hadoop's configuration of the session nothing but what Spark's properties set: `spark.hadoop.*`.

    Spark copies and writes it in each micro-batch (docs/decisions/0014-cost-of-a-micro-batch.md). On a local disk
    Hadoop goes by its own defaults. Call it once the session has its state: classes loaded for that fill it again.
    """
    configuration, prefix = hadoop_configuration(spark), "spark.hadoop."
    configuration.clear()
    files_of_names = configuration.getClass().getDeclaredField("updatingResource")  # clear() leaves it
    files_of_names.setAccessible(True)
    files_of_names.get(configuration).clear()
    for name, value in spark.sparkContext.getConf().getAll():
        if name.startswith(prefix):
            configuration.set(name.removeprefix(prefix), value)


def forget_launch(spark: SparkSession) -> None:
    """Remove from the session the properties that launch Java, such as its class path: each task gets all of them."""
    properties = spark._jsparkSession.sessionState().conf()  # noqa: SLF001
    for name, _ in spark.sparkContext.getConf().getAll():
        if name.startswith(("spark.driver.", "spark.executor.", "spark.jars")):
            properties.unsetConf(name)


class NamedStages(SCCallSiteSync):
    """Gives the stages of PySpark's actions in this block a name in Spark's UI, instead of a line of its own code."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._context, self._call_site = spark.sparkContext, name


class KafkaSink:
    """Writes rows to Kafka as Spark writes a stream. To write a table it reads large classes in each micro-batch."""

    def __init__(self, spark: SparkSession, properties: Mapping[str, str]) -> None:
        """`properties` are the producer's. A name of Java's is asked for once, as Java looks for it in all jars."""
        packages = java(spark)
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        serializers = {"key.serializer": serializer, "value.serializer": serializer}
        self._properties = packages.java.util.HashMap({**properties, **serializers})
        self._none, self._no_metrics = packages.scala.Option.empty(), packages.PythonUtils.toSeq([])
        self._context = spark.sparkContext
        self._kafka_write = packages.org.apache.spark.sql.kafka010.KafkaStreamingWrite
        self._batch_write = packages.org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite
        self._writing_plan = packages.org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec

    def write(self, rows: DataFrame) -> None:
        """Write rows (topic, key, value, headers if any), each to its own topic, in one action of this thread."""
        self._write_rows_of(rows._jdf.queryExecution())  # noqa: SLF001

    def write_batch(self, query: StreamingQuery) -> None:
        """Write the rows of the micro-batch that a query is in, by the plan that makes them, as `write` does.

        The data frame that `foreachBatch` is given lies over them: Spark would analyze and plan it once more.
        """
        self._write_rows_of(query._jsq.streamingQuery().lastExecution())  # noqa: SLF001

    def _write_rows_of(self, execution: Any) -> None:
        self._context.setLocalProperty("callSite.short", "decide requests and write the answers")  # for Spark's UI
        plan = execution.executedPlan()
        write = self._batch_write(0, self._kafka_write(self._none, self._properties, plan.schema()))
        self._writing_plan(write, None, plan, self._no_metrics, self._none).writeWithV2(write)


def newest_reports(query: StreamingQuery, batch_id: int) -> list[StreamingQueryProgress]:
    """Spark's reports on the micro-batches after `batch_id`, oldest first. PySpark's own way brings over all 100."""
    reports = query._jsq.recentProgress()  # noqa: SLF001
    newest_first = (reports[place] for place in reversed(range(len(reports))))
    newer = [*takewhile(lambda report: report.batchId() > batch_id, newest_first)]
    return [StreamingQueryProgress.fromJson(json.loads(report.json())) for report in reversed(newer)]


def is_stopped(spark: SparkSession) -> bool:
    """True if Spark has stopped the session by itself, as it does when no master answers for long."""
    return bool(_java_context(spark).sc().isStopped())


def _java_context(spark: SparkSession) -> Any:
    return _context(spark)._jsc  # noqa: SLF001


def _context(spark: SparkSession | SparkContext) -> Any:
    return spark.sparkContext if isinstance(spark, SparkSession) else spark
