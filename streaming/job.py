"""The job's start, step by step: broker, leadership, tables, session; then it runs until it is asked to stop."""

import logging
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Event

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from sluice.configs.extras import quota_source
from sluice.configs.settings import Settings
from sluice.jvm.driver import DriverJava
from sluice.kafka_io.topics import ensure_topics, note_differences
from sluice.process.background import BackgroundService
from sluice.state.errors import SluiceError
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.folder import Checkpoint, locked
from sluice.streaming.checkpoint.origin import check_origin, with_pages
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.checkpoint.spark_files import check_enforce_checkpoint
from sluice.streaming.checkpoint.store import Leadership
from sluice.streaming.enforce import query as enforce
from sluice.streaming.enforce.query import JobContext
from sluice.streaming.enforce.quota_watch import QuotaWatch, SourceOfQuotas, ensure_quotas_table
from sluice.streaming.java_bridge import has_java, is_stopped
from sluice.streaming.running_job import RunningJob
from sluice.streaming.runtime.capacities import CapacityFile
from sluice.streaming.runtime.health import JobHealth, JobStatus, health_server
from sluice.streaming.runtime.job_parts import JobView, parts_of_extras
from sluice.streaming.runtime.properties import start_java
from sluice.streaming.runtime.run_folder import run_folder
from sluice.streaming.runtime.session import start_session
from sluice.streaming.workers.engine_start import engine_missing
from sluice.streaming.workers.release import package_digest

log = logging.getLogger("sluice.job")


class _StopRequestedError(Exception):
    """The job is asked to stop while it starts."""


class Job:
    """One running Sluice."""

    def __init__(
        self, settings: Settings, status_file: Path | None = None, standby: bool = False, java: DriverJava | None = None
    ) -> None:
        """With `standby` it waits until no other driver works on the checkpoint, if that is a URI.

        `java` is the driver's, if it is started already. Raises InvalidSettingsError for an extra that is needed, or
        doesn't fit.
        """
        package_digest()  # that of the files which this process has loaded
        self._settings = settings
        parts_of_extras(JobView(settings, Quotas))  # one that doesn't fit ends the job before it waits for anything
        source = settings.quotas.source
        self._source: SourceOfQuotas | None = None if source == "table" else quota_source(source)
        self._standby = standby
        self._stop = Event()
        self.stopped_by = ""  # the signal's name
        self._java = java
        self._spark: SparkSession | None = None
        self._health = JobHealth(enforce.QUERY_NAME, settings.health.stalled_after_s)
        self._status = JobStatus(status_file, self._health)

    def request_stop(self, by: str) -> None:
        """Ask the job to stop after the current micro-batch; safe to call from a signal handler.

        A session that is starting is not waited for: nothing is decided yet.
        """
        if not self._stop.is_set():  # of many signals the first one counts: handlers interrupt each other
            self.stopped_by = by
            self._stop.set()
            self._end_java()

    def run(self) -> None:
        """Run until asked to stop. Raises SluiceError if it can't start or can't keep the enforce query running."""
        checkpoint, health = Checkpoint(self._settings.enforce.checkpoint), self._settings.health
        # Probes are answered before anything is waited for, and a second job learns first whose checkpoint it has.
        with ExitStack() as stack, suppress(_StopRequestedError):
            stack.callback(self._end_java)
            if checkpoint.is_local:  # else another driver may write to it, until this one leads
                check_enforce_checkpoint(self._settings)
            stack.enter_context(locked(checkpoint))
            if checkpoint.is_local:
                run_folder(self._settings.enforce.checkpoint).remove_others()
            if health.port:
                server = health_server(self._health, health.port, health.address)
                server.start()
                stack.callback(server.stop)
            stack.callback(self._status.publish, state="stopped")
            stack.callback(self._stop_session)
            self._create_topics()
            self._run_queries(checkpoint, self._lead(checkpoint, stack), stack)

    def _create_topics(self) -> None:
        self._status.wait_for("broker", f"the broker at {self._settings.kafka['bootstrap.servers']}")
        topics, kafka = self._settings.topics, self._settings.kafka
        try:
            created = ensure_topics(topics, kafka)
            for topic in created:
                log.info("created topic %s", topic)
            in_shared_storage = not Checkpoint(self._settings.enforce.checkpoint).is_local
            note_differences(topics, kafka, created, in_shared_storage=in_shared_storage)
        except SluiceError:
            if not self._stop.is_set():
                raise
        if self._stop.is_set():
            log.info("stopped while waiting for the broker")
            raise _StopRequestedError

    def _lead(self, checkpoint: Checkpoint, stack: ExitStack) -> Leadership | None:
        """Lead the checkpoint until the stack ends; a path has its lock, and None."""
        if (store := checkpoint.store) is None:
            return None
        leadership = store.leadership(self._settings, checkpoint.location, standby=self._standby)
        self._status.wait_for("leadership", f"other drivers to leave {checkpoint.location}")
        if not leadership.acquire(self._stop):
            raise _StopRequestedError
        leadership.start()
        stack.callback(leadership.stop)
        return leadership

    def _run_queries(self, checkpoint: Checkpoint, leadership: Leadership | None, stack: ExitStack) -> None:
        """Prepare tables and session, and run the queries. The session ends before the lease is released."""
        if self._stop.is_set():
            raise _StopRequestedError
        if not checkpoint.is_local:
            check_enforce_checkpoint(self._settings)
        settings = self._settings = with_pages(self._settings)
        check_origin(checkpoint, settings)
        CapacityFile(settings).limits()  # before Spark starts
        self._health.report_native(missing=settings.enforce.native and engine_missing() is not None)
        table = ensure_quotas_table(settings)
        watch = QuotaWatch(table, QuotaSnapshots(checkpoint), partial(self._health.report_input, "quotas"))
        if self._source is not None:
            stack.enter_context(self._mirror(self._source, watch))
        stack.callback(self._stop_session)
        spark, epoch = self._started_session(), None
        if leadership is not None:
            epoch = leadership.begin_epoch(spark)
            log.info("decides as epoch %d", epoch.number)
        job = JobContext(spark, settings, watch, leadership, epoch)
        RunningJob(job, self._health, self._status).run(self._stop)

    def _mirror(self, source: SourceOfQuotas, watch: QuotaWatch) -> BackgroundService:
        """The service that keeps the table as the cluster has its quotas, which are in force before it begins."""
        self._status.wait_for("quotas", f"the client quotas at {self._settings.kafka['bootstrap.servers']}")
        service = source(self._settings, watch.in_force, self._health.report_mirror)
        watch.poll()
        return service

    def _started_session(self) -> SparkSession:
        if self._spark is None or is_stopped(self._spark):
            self._stop_session()
            self._status.wait_for("session", "Java and Spark to start")
            self._spark = self._new_session()
        if self._stop.is_set():
            raise _StopRequestedError
        return self._spark

    def _new_session(self) -> SparkSession:
        """A session; a stop meanwhile ends its Java."""
        is_new = not has_java()
        if is_new and self._java is None:
            self._java = start_java(self._settings)
        if self._stop.is_set():  # which looked for a Java before there was this one
            raise _StopRequestedError
        try:
            session = start_session(self._settings, self._java)
        except Exception:  # of any class: PySpark's depends on how far Java had come
            if not self._stop.is_set():
                raise
            log.info("stopped while Java was starting")
            raise _StopRequestedError from None
        java, self._java = self._java, None
        if is_new and java is None:
            raise _StopRequestedError
        return session

    def _stop_session(self) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            with suppress(Py4JError, ConnectionError):  # of a Java that was killed, whose end has been told
                spark.stop()

    def _end_java(self) -> None:
        """End a Java whose session has not started yet."""
        java, self._java = self._java, None
        if java is not None:
            java.end()
