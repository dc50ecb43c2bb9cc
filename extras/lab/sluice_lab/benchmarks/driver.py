"""Spark driver of the bench: queries that run one after another in one session, in a process of its own.

The enforce and audit queries are the job's own, started as sluice.streaming.job starts them. The baseline is a copy
without state, which moves as much data as the enforce query and decides nothing.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from sluice.configs.settings import Properties, Settings, load_settings, reach_stores
from sluice.jvm.jars import SPARK_JARS
from sluice.jvm.java import find_java
from sluice.process.background import BackgroundService
from sluice.state.errors import SluiceError
from sluice.streaming.audit.query import AuditQuery
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import check_origin, with_pages
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.query import EnforceQuery, JobContext
from sluice.streaming.enforce.quota_watch import QuotaWatch, ensure_quotas_table
from sluice.streaming.enforce.tracked_entities import tracked_entities
from sluice.streaming.queries.supervision import summarize
from sluice.streaming.runtime.kafka import requests_source, sink_properties
from sluice.streaming.runtime.session import start_session
from sluice_demo.job import Json
from sluice_lab.testbed.processes import compiler_cpu_s, descendants, resident_mib, thread_cpu_s

_POLL_S = 0.02
_EVENT_SCHEMA = (
    "request_id string, timestamp_ms long, user string, client_id string, api string, api_version int, "
    "validate_only boolean, cluster_action boolean, authenticating boolean, request_time_ns long, "
    "network_time_ns long, purgatory_ms long, gateway string, "
    "topic_partitions array<struct<topic: string, partition: int, bytes: long>>, "
    "mutations array<struct<topic: string, partitions: long>>"
)
"""Request event as docs/request.schema.json defines it."""

_PLAIN_CLIENTS = {"max.poll.records": "500", "max.partition.fetch.bytes": "1048576", "batch.size": "16384"}
"""Kafka's defaults for the properties that the job sets itself: those of an untuned copy."""


def start_stock_session(settings: Settings) -> SparkSession:
    """A session as Spark's users start it, with its Kafka connector and Spark's defaults, but only on loopback."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    find_java()
    builder = SparkSession.builder.appName("copy").master(settings.spark["spark.master"])
    return (
        builder.config("spark.jars", ",".join(map(str, SPARK_JARS.paths())))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def start_copy(spark: SparkSession, settings: Settings, checkpoint: str, padding_bytes: int) -> StreamingQuery:
    """Copy each parsed event from Kafka to Kafka; `padding_bytes` make its record as large as a decision."""
    settings = replace(settings, kafka=Properties(_PLAIN_CLIENTS | settings.kafka))
    requests = requests_source(spark, settings, settings.enforce.starting_offsets)
    events = requests.select(F.from_json(F.col("value").cast("string"), _EVENT_SCHEMA).alias("event"))
    copies = events.select(
        F.concat_ws("|", "event.user", "event.client_id").alias("key"),
        F.to_json(F.struct("event.*", F.lit("x" * padding_bytes).alias("padding"))).alias("value"),
    )
    stream = copies.writeStream.queryName("copy").option("checkpointLocation", checkpoint)
    options = {f"kafka.{name}": value for name, value in sink_properties(settings).items()}
    return stream.format("kafka").options(**options, topic=settings.topics.decisions).start()


class BenchError(SluiceError):
    """Something can't be measured."""


class Driver:
    """One Spark session, and the query or queries in it. Call `session` first, then `start`, then `drain` or `stop`."""

    _spark: SparkSession
    _query: StreamingQuery

    def __init__(self) -> None:
        self._stops: list[Callable[[], object]] = []
        self._began_s = 0.0
        self._sampled_batch, self._sampled_cpu_s = -1, dict[str, float]()
        self._cpu_before: dict[str, float] = {}

    def session(self, settings: Path, stock: bool = False) -> None:
        """Start the session that all queries share: the job's, or a `stock` one with Spark's own defaults."""
        loaded = load_settings(settings)
        reach_stores(loaded)
        self._spark = start_stock_session(loaded) if stock else start_session(loaded)

    def start(self, query: str, settings: Path, audited: bool = False) -> None:
        """Start `enforce`, `audit` or `both`.

        The batches of `both` are those of the audit query, the last to finish an event. With `audited` the audit query
        runs too, and the batches are those of the enforce query.
        """
        loaded = self._begin(settings)
        if query in ("enforce", "both"):
            self._start_enforce(loaded)
        if query in ("audit", "both") or audited:
            audit = AuditQuery(self._spark, loaded)
            started = audit.start()
            self._query = self._query if audited else started
            self._stops.append(audit.stop)

    def start_copy(self, settings: Path, checkpoint: Path, padding_bytes: int) -> None:
        """Start the baseline."""
        self._query = start_copy(self._spark, self._begin(settings), str(checkpoint), padding_bytes)
        self._stops.append(self._query.stop)

    def drain(self, events: int) -> Json:
        """Stop the query once it has committed this many events; returns the same as `stop`."""
        while sum(batch["events"] for batch in self._batches()) < events:
            self._check()
            time.sleep(_POLL_S)
        return self.stop()

    def stop(self) -> Json:
        """Stop between two micro-batches: the batches, seconds since the start, and CPU seconds.

        They are those of Java, of them those of its compiler, and those of Python.
        """
        self._check()
        took_s = time.monotonic() - self._began_s
        for stop in self._stops:
            stop()
        self._stops.clear()
        spent = {f"{part}_cpu_s": cpu_s - self._cpu_before[part] for part, cpu_s in self._cpu_s().items()}
        return {"batches": self._batches(), "took_s": took_s, **spent}

    def sample(self) -> Json:
        """The micro-batches since the last sample: Spark's milliseconds, jobs and CPU time; see parts_of."""
        batches = self._batches()
        batch_id, cpu_s = batches[-1]["batch_id"] if batches else -1, self._part_cpu_s()
        number, before_s = batch_id - self._sampled_batch, self._sampled_cpu_s
        self._sampled_batch, self._sampled_cpu_s = batch_id, cpu_s
        kept = batches[-number:] if number else []
        return {
            "batches": [batch["stages_ms"] for batch in kept],
            "jobs": self._jobs(len(kept)),
            "number": number,
            "cpu_ms": {part: 1000 * (spent_s - before_s.get(part, 0.0)) for part, spent_s in cpu_s.items()},
        }

    def resident_mib(self) -> float:
        """Resident memory of Java and of all Python processes."""
        return resident_mib([os.getpid(), *descendants(os.getpid())])

    def _begin(self, settings: Path) -> Settings:
        self._began_s, self._cpu_before = time.monotonic(), self._cpu_s()
        self._sampled_batch = -1
        return with_pages(load_settings(settings))

    def _start_enforce(self, settings: Settings) -> None:
        folder = Checkpoint(settings.enforce.checkpoint)
        check_origin(folder, settings)
        watch = QuotaWatch(ensure_quotas_table(settings), QuotaSnapshots(folder))
        watching = BackgroundService("quota-watch", watch.poll, settings.quotas.poll_ms / 1000)
        enforce = EnforceQuery(JobContext(self._spark, settings, watch), tracked_entities(self._spark.sparkContext))
        watching.start()
        self._query = enforce.start()
        self._stops += [watching.stop, enforce.stop]

    def _cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of Java, its compiler, and the Python processes below it, also those that have ended."""
        gateway = self._spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public way to its JVM
        java = psutil.Process(gateway.proc.pid)  # type: ignore[union-attr] # a started context has its gateway
        workers = [process.cpu_times() for process in java.children(recursive=True)]
        python_s = sum(each.user + each.system + each.children_user + each.children_system for each in workers)
        return {"java": sum(java.cpu_times()[:2]), "compiler": compiler_cpu_s(java.pid), "python": python_s}

    def _part_cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of each part of Java, and of Python."""
        gateway = self._spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public way to its JVM
        return thread_cpu_s(gateway.proc.pid) | {"Python": self._cpu_s()["python"]}  # type: ignore[union-attr]

    def _jobs(self, number: int) -> list[Json]:
        """Milliseconds of the newest jobs and of the stages of each, from what Spark keeps for its UI."""
        store = self._spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - PySpark has no public way to it
        jobs, found = store.jobsList(None), list[Json]()
        for job in map(jobs.apply, range(min(number, jobs.size()))):
            stages = sorted(map(job.stageIds().apply, range(job.stageIds().size())))
            found.append(
                {"ms": _took_ms(job), "stages_ms": [_took_ms(store.lastStageAttempt(each)) for each in stages]}
            )
        return found

    def _batches(self) -> list[Json]:
        return [summarize(progress) for progress in self._query.recentProgress if progress["numInputRows"]]

    def _check(self) -> None:
        if not self._query.isActive:
            raise BenchError(f"query {self._query.name} ended: {str(self._query.exception())[-800:]}")


def _took_ms(part: Any) -> int:
    """Milliseconds of a job or stage of Spark's status store; 0 for one that runs."""
    times = part.submissionTime(), part.completionTime()
    if any(time.isEmpty() for time in times):
        return 0
    begin_ms, end_ms = (time.get().getTime() for time in times)
    return int(end_ms - begin_ms)


class DriverManager(BaseManager):
    """Process of a driver; `Driver` returns a proxy of it."""


DriverManager.register("Driver", Driver)


def run_apart(log: Path) -> None:
    """Prepare the driver's process: its output goes to the log, Ctrl-C is the bench's, and it ends with the bench."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
