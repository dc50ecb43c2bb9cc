"""The job: topics, tables and session made ready, then both queries until it is asked to stop."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.sql import SparkSession

from configs.settings import Settings
from sinks.quotas_table import QuotasTable
from sinks.topics import ensure_topics
from state.errors import SluiceError
from streaming import audit, enforce
from streaming.audit import AuditQuery
from streaming.checkpoint import CheckpointFolder, QuotaSnapshots, check_origin
from streaming.checkpoint_lock import locked
from streaming.enforce import EnforceQuery
from streaming.errors import JobError
from streaming.health import HealthServer, JobHealth
from streaming.maintenance import MaintenanceSchedule
from streaming.progress import write_status
from streaming.quota_watch import QuotaWatch, ensure_quotas_table
from streaming.session import start_session
from streaming.spark_files import check_enforce_checkpoint, check_spark_files
from streaming.supervision import QueryState, SupervisedQuery, times

log = logging.getLogger("sluice.job")

_LOOK_SECONDS = 0.25


class Job:
    """One running Sluice."""

    def __init__(self, settings: Settings, status_file: Path | None = None) -> None:
        self._settings = settings
        self._status_file = status_file
        self._stop = Event()
        self._status: dict[str, Any] = {"state": "starting"}
        self._health = JobHealth()

    def request_stop(self) -> None:
        """Ask the job to end after the current micro-batch; safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Run until asked to stop. Raises a SluiceError if it can't start, or the enforce query can't be kept going."""
        self._tell(state="starting")
        for topic in ensure_topics(self._settings):
            log.info("created topic %s", topic)
        table = ensure_quotas_table(self._settings)
        check_enforce_checkpoint(self._settings)
        folder = CheckpointFolder(self._settings.enforce.checkpoint)
        with locked(folder):
            check_origin(folder, self._settings)
            self._run_on(folder, table)

    def _run_on(self, folder: CheckpointFolder, table: QuotasTable) -> None:
        watch = QuotaWatch(table, QuotaSnapshots(folder), self._settings.quotas.poll_ms)
        with _health_server(self._health, self._settings.health.port):
            spark = start_session(self._settings)
            try:
                self._run_queries(spark, watch)
            finally:
                spark.stop()
                self._tell(state="stopped")

    def _run_queries(self, spark: SparkSession, watch: QuotaWatch) -> None:
        queries = supervised_queries(spark, self._settings, watch)
        maintenance = MaintenanceSchedule(self._settings.delta, CheckpointFolder(self._settings.audit.checkpoint))
        try:
            watch.start()
            maintenance.start()
            for query in queries:
                query.start()
            self._tell(state="running", quota_version=watch.quotas.version)
            log.info("running with quotas version %d", watch.quotas.version)
            self._follow(queries, watch)
        finally:
            self._tell(state="stopping")
            maintenance.stop()
            watch.stop()
            for query in queries:
                query.stop()
            for query in queries:
                query.join()

    def _follow(self, queries: list[SupervisedQuery], watch: QuotaWatch) -> None:
        told: dict[str, QueryState] = {}
        while not self._stop.wait(_LOOK_SECONDS):
            for batch in [batch for query in queries for batch in query.new_batches()]:
                log.info("batch", extra={"fields": batch})
                self._health.batch(batch)
                self._tell(quota_version=watch.quotas.version, **{str(batch["query"]): batch})
            states = {query.name: query.state for query in queries}
            self._health.beat(states, watch.quotas.version)
            if states != told:
                told = states
                self._tell(queries=self._health.queries())
            _check(states[enforce.QUERY_NAME])

    def _tell(self, **changes: Any) -> None:
        self._status |= {**changes, "at_ms": time.time_ns() // 1_000_000}
        if self._status_file is None:
            return
        try:
            write_status(self._status_file, self._status)
        except OSError as error:  # such as a full disk: no reason to end, and the next one may be written
            log.warning("can't write %s: %s", self._status_file, error.strerror)


def supervised_queries(spark: SparkSession, settings: Settings, watch: QuotaWatch) -> list[SupervisedQuery]:
    """Both queries, each on its own: without the audit query, which is tried again for ever, requests are decided."""

    def make_enforce() -> EnforceQuery:
        _create_topics_again(settings)
        check_enforce_checkpoint(settings)
        return EnforceQuery(spark, settings, watch)

    def make_audit() -> AuditQuery:
        check_spark_files(settings.audit.checkpoint)
        return AuditQuery(spark, settings)

    return [
        SupervisedQuery(enforce.QUERY_NAME, make_enforce, settings.restart),
        SupervisedQuery(audit.QUERY_NAME, make_audit, settings.restart, gives_up=False),
    ]


def _create_topics_again(settings: Settings) -> None:
    """Topics that were deleted since the start; without them the query would fail again."""
    try:
        for topic in ensure_topics(settings):
            log.error("topic %s was deleted; it is created again, empty", topic)
    except SluiceError as error:  # no broker, say: the query waits for it, or fails with the reason
        log.warning("can't look for missing topics: %s", error)


@contextmanager
def _health_server(health: JobHealth, port: int) -> Iterator[None]:
    """The health server while the job runs, if the settings want one."""
    if not port:
        yield
        return
    server = HealthServer(health, port)
    server.start()
    try:
        yield
    finally:
        server.stop()


def _check(enforce_state: QueryState) -> None:
    """Raises JobError with the reason when the enforce query is given up."""
    if enforce_state.state == "given up":
        raise JobError(
            f"query {enforce.QUERY_NAME} ended {times(enforce_state.failures_in_a_row)} and can't go on:"
            f" {enforce_state.reason}"
        )
