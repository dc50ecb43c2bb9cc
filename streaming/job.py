"""The job: topics, tables and session made ready, then both queries until something ends them."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from configs.settings import Settings
from sinks.topics import ensure_topics
from streaming.audit import AuditQuery
from streaming.checkpoint import CheckpointFolder, QuotaSnapshots, check_origin
from streaming.enforce import EnforceQuery
from streaming.errors import JobError
from streaming.progress import QueryProgress, write_status
from streaming.quota_watch import QuotaWatch, ensure_quotas_table
from streaming.session import start_session

log = logging.getLogger("sluice.job")

_LOOK_SECONDS = 0.25


class Job:
    """One running Sluice."""

    def __init__(self, settings: Settings, status_file: Path | None = None) -> None:
        self._settings = settings
        self._status_file = status_file
        self._stop = Event()
        self._status: dict[str, Any] = {"state": "starting"}

    def request_stop(self) -> None:
        """Ask the job to end after the current micro-batch; safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Run until asked to stop. Raises a SluiceError if it can't start, or a query ends by itself."""
        self._tell(state="starting")
        for topic in ensure_topics(self._settings):
            log.info("created topic %s", topic)
        table = ensure_quotas_table(self._settings)
        folder = CheckpointFolder(self._settings.enforce.checkpoint)
        check_origin(folder, self._settings)
        watch = QuotaWatch(table, QuotaSnapshots(folder), self._settings.quotas.poll_ms)
        spark = start_session(self._settings)
        queries = _Queries(spark, self._settings, watch)
        try:
            watch.start()
            queries.start()
            self._tell(state="running", quota_version=watch.quotas.version)
            log.info("running with quotas version %d", watch.quotas.version)
            self._follow(queries, watch)
        finally:
            self._tell(state="stopping")
            watch.stop()
            queries.stop()
            spark.stop()
            self._tell(state="stopped")

    def _follow(self, queries: "_Queries", watch: QuotaWatch) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for batch in queries.new_batches():
                log.info("batch", extra={"fields": batch})
                self._tell(quota_version=watch.quotas.version, **{str(batch["query"]): batch})
            queries.check()

    def _tell(self, **changes: Any) -> None:
        self._status |= {**changes, "at_ms": time.time_ns() // 1_000_000}
        if self._status_file is not None:
            write_status(self._status_file, self._status)


@dataclass
class _Queries:
    """The two queries, followed together."""

    spark: SparkSession
    settings: Settings
    watch: QuotaWatch
    _running: list[StreamingQuery] = field(default_factory=list)
    _progress: list[QueryProgress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._enforce = EnforceQuery(self.spark, self.settings, self.watch)
        self._audit = AuditQuery(self.spark, self.settings)

    def start(self) -> None:
        self._running = [self._enforce.start(), self._audit.start()]
        self._progress = [QueryProgress(query) for query in self._running]

    def new_batches(self) -> list[dict[str, Any]]:
        return [batch for progress in self._progress for batch in progress.new_batches()]

    def check(self) -> None:
        """Raises JobError with the reason when a query ended by itself."""
        for query in self._running:
            if not query.isActive:
                raise JobError(f"query {query.name} ended: {_reason(query.exception())}")

    def stop(self) -> None:
        self._enforce.stop()
        self._audit.stop()


def _reason(exception: StreamingQueryException | None) -> str:
    """The line of a query's error that says what happened."""
    if exception is None:
        return "no error was given"
    lines = [line.strip() for line in str(exception).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or lines or ["no error was given"])[-1 if telling else 0]
