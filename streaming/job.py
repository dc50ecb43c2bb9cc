"""The job: prepares topics, tables and session, then runs both queries until it is asked to stop."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from sluice.configs.settings import HealthSettings, Settings
from sluice.kafka_io.clock import now_ms
from sluice.kafka_io.cluster_quotas import ClusterQuotasReader
from sluice.kafka_io.topics import ensure_claims_topic, ensure_topics
from sluice.sinks.limits import LimitsPublisher
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.decisions.epochs import Epoch
from sluice.state.errors import SluiceError
from sluice.state.store.pages import Evicted
from sluice.streaming.audit import query as audit
from sluice.streaming.audit.query import AuditQuery
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.job_identity import JobIdentity, job_identity
from sluice.streaming.checkpoint.lock import locked
from sluice.streaming.checkpoint.origin import check_origin, with_pages
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.checkpoint.spark_files import check_enforce_checkpoint, check_spark_files
from sluice.streaming.enforce import query as enforce
from sluice.streaming.enforce.known_entities import Known, known_entities
from sluice.streaming.enforce.query import EnforceQuery
from sluice.streaming.enforce.quota_mirror import QuotaMirror
from sluice.streaming.enforce.quota_watch import QuotaWatch, ensure_quotas_table
from sluice.streaming.enforce.warm_up import WarmUp
from sluice.streaming.errors import JobError
from sluice.streaming.leadership.epoch_files import new_epoch
from sluice.streaming.leadership.epoch_markers import write_markers
from sluice.streaming.leadership.leadership import Leadership
from sluice.streaming.leadership.shared_files import creator
from sluice.streaming.runtime.client_metrics import NEWEST_DECISIONS, ClientMetrics
from sluice.streaming.runtime.dead_letters_watch import DeadLettersWatch
from sluice.streaming.runtime.decisions_watch import DecisionsWatch
from sluice.streaming.runtime.foreign_decisions import ForeignDecisions
from sluice.streaming.runtime.health import JobHealth, health_server
from sluice.streaming.runtime.maintenance import MaintenanceSchedule
from sluice.streaming.runtime.progress import write_status
from sluice.streaming.runtime.query_state import QueryState, RunState
from sluice.streaming.runtime.session import is_stopped, start_session
from sluice.streaming.runtime.supervision import SupervisedQuery, times

log = logging.getLogger("sluice.job")

_POLL_S = 0.25


class Job:
    """One running Sluice."""

    def __init__(
        self, settings: Settings, status_file: Path | None = None, standby: bool = False, warm: bool = False
    ) -> None:
        """With `standby` it waits until no other driver works on the checkpoint, if that is a URI.

        A `warm` one starts Java, Spark and executors before.
        """
        self._settings = settings
        self._standby = standby
        self._warm = warm
        self._status_file = status_file
        self._stop = Event()
        self._status: dict[str, Any] = {"state": "starting"}
        self._evicted = Evicted()
        self._spark: SparkSession | None = None
        self._warm_up: WarmUp | None = None
        self._health = JobHealth(enforce.QUERY_NAME, settings.health.stalled_after_s)

    def request_stop(self) -> None:
        """Ask the job to stop after the current micro-batch; safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Run until asked to stop. Raises SluiceError if it can't start or can't keep the enforce query running."""
        checkpoint = Checkpoint(self._settings.enforce.checkpoint)
        if checkpoint.is_local:  # else another driver may write to it, until this one leads
            check_enforce_checkpoint(self._settings)
        # Probes are answered before anything is waited for, and a second job learns first whose checkpoint it has.
        with locked(checkpoint), _health_server(self._health, self._settings.health):
            try:
                if self._topics_are_there():
                    if self._warm:
                        self._warm_session()
                    with self._led(checkpoint) as leadership:
                        if not self._stop.is_set():
                            self._prepare_and_run(checkpoint, leadership)
            finally:
                self._stop_session()
                self._publish_status(state="stopped")

    @contextmanager
    def _led(self, checkpoint: Checkpoint) -> Iterator[Leadership | None]:
        """Lead the checkpoint in this block, unless the job is to stop; a path has its lock, and None."""
        if checkpoint.is_local:
            yield None
            return
        leadership = Leadership(
            self._settings.topics.claims, self._settings.kafka, checkpoint.location, standby=self._standby
        )
        ensure_claims_topic(self._settings.topics, self._settings.kafka)
        self._wait_for("leadership", f"other drivers to leave {checkpoint.location}")
        if not leadership.acquire(self._stop):
            yield None
            return
        leadership.start()
        try:
            yield leadership
        finally:
            leadership.stop()

    def _prepare_and_run(self, checkpoint: Checkpoint, leadership: Leadership | None) -> None:
        self._end_warm_up()
        if not checkpoint.is_local:
            check_enforce_checkpoint(self._settings)
        table = ensure_quotas_table(self._settings)
        self._settings = with_pages(self._settings)
        check_origin(checkpoint, self._settings)
        self._run_on(checkpoint, table, leadership)

    def _topics_are_there(self) -> bool:
        """Create the topics that are missing; False when the job is to stop meanwhile."""
        servers = self._settings.kafka["bootstrap.servers"]
        self._wait_for("broker", f"the broker at {servers}")
        try:
            for topic in ensure_topics(self._settings.topics, self._settings.kafka):
                log.info("created topic %s", topic)
        except SluiceError:
            if not self._stop.is_set():
                raise
        if self._stop.is_set():
            log.info("stopped while waiting for the broker")
        return not self._stop.is_set()

    def _run_on(self, checkpoint: Checkpoint, table: QuotasTable, leadership: Leadership | None) -> None:
        watch = QuotaWatch(table, QuotaSnapshots(checkpoint), self._settings.quotas.poll_ms)
        identity = job_identity(checkpoint)
        foreign = ForeignDecisions(self._settings.topics.decisions, identity)
        with self._mirrored_cluster(table, watch):
            try:
                spark = self._started_session()
                if spark is not None and not self._stop.is_set():
                    may_decide = leadership.may_decide if leadership is not None else lambda: True
                    epoch = self._epoch(spark, checkpoint, identity, leadership) if leadership is not None else None
                    self._run_queries(spark, watch, foreign, may_decide, epoch)
            finally:
                self._stop_session()

    def _epoch(
        self, spark: SparkSession, checkpoint: Checkpoint, identity: JobIdentity, leadership: Leadership
    ) -> Epoch:
        """An epoch of this driver's own, with its markers written: no decision of one that led before counts then."""
        create = creator(spark, checkpoint) or checkpoint.sluice.create
        epoch = Epoch(identity.job_id, new_epoch(checkpoint, create))
        leadership.confirm()  # last: who leads after this gets a higher epoch
        write_markers(self._settings.topics.decisions, self._settings.kafka, epoch)
        log.info("decides as epoch %d", epoch.number)
        return epoch

    @contextmanager
    def _mirrored_cluster(self, table: QuotasTable, watch: QuotaWatch) -> Iterator[None]:
        """Keep the table a mirror of the cluster's quotas in this block, which begins with them in force."""
        quotas, kafka = self._settings.quotas, self._settings.kafka
        if quotas.source != "kafka":
            yield
            return
        reader = ClusterQuotasReader(kafka)
        mirror = QuotaMirror(reader, table, watch.in_force, quotas.poll_ms, self._health.report_mirror)
        self._wait_for("quotas", f"the client quotas at {kafka['bootstrap.servers']}")
        mirror.look()
        watch.poll()
        mirror.start()
        try:
            yield
        finally:
            mirror.stop()

    def _warm_session(self) -> None:
        """Start Java, Spark and the executors' Python while another driver leads. Nothing of the checkpoint is read."""
        spark = self._started_session()
        if spark is not None:
            self._warm_up = WarmUp(spark, self._settings)
            self._warm_up.start()

    def _started_session(self) -> SparkSession | None:
        """The session, a new one unless there is one that runs.

        None when the job is to stop and Java has ended at the same signal, as it does at first.
        """
        if self._spark is not None and not is_stopped(self._spark):
            return self._spark
        self._stop_session()
        self._wait_for("session", "Java and Spark to start")
        try:
            self._spark = start_session(self._settings)
        except Exception:  # of any class: PySpark's depends on how far Java had come
            if not self._stop.is_set():
                raise
            log.info("stopped while Java was starting")
        return self._spark

    def _end_warm_up(self) -> None:
        if self._warm_up is not None:
            self._warm_up.stop()

    def _stop_session(self) -> None:
        self._end_warm_up()
        spark, self._spark = self._spark, None
        if spark is not None:
            spark.stop()

    def _run_queries(
        self,
        spark: SparkSession,
        watch: QuotaWatch,
        foreign: ForeignDecisions,
        may_decide: Callable[[], bool],
        epoch: Epoch | None,
    ) -> None:
        known = known_entities(spark.sparkContext)
        queries = supervised_queries(spark, self._settings, watch, known, may_decide, epoch)
        maintenance = MaintenanceSchedule(self._settings.delta, Checkpoint(self._settings.audit.checkpoint).sluice)
        topics, kafka = self._settings.topics, self._settings.kafka
        limits = LimitsPublisher(topics, kafka, watch.in_force)
        decisions = self._decisions_watch(foreign)
        dead_letters = DeadLettersWatch(topics.dead_letters, kafka, self._health.count_dead_letters)
        self._wait_for("queries", "the queries to start")
        try:
            watch.start()
            limits.start()
            decisions.start()
            dead_letters.start()
            maintenance.start()
            for query in queries:
                query.start()
            self._publish_status(state="running", waiting_for=None, quota_version=watch.quotas.version)
            self._health.report_phase(None)
            log.info("running with quotas version %d", watch.quotas.version)
            self._follow(queries, watch, foreign, known, may_decide)
        finally:
            self._publish_status(state="stopping")
            self._health.report_phase("stopping")
            maintenance.stop()
            for query in queries:
                query.stop()
            limits.stop()
            decisions.stop()
            dead_letters.stop()
            watch.stop()
            for query in queries:
                query.join()

    def _decisions_watch(self, foreign: ForeignDecisions) -> DecisionsWatch:
        """Reads decisions for `foreign`, and for metrics of single clients if somebody can ask for them."""
        settings = self._settings
        topic, kafka, top = settings.topics.decisions, settings.kafka, settings.metrics.top_clients
        if not top or not settings.health.port:
            return DecisionsWatch(topic, kafka, [foreign.take])
        clients = ClientMetrics(settings.quota, top)
        self._health.registry.register(clients)
        return DecisionsWatch(topic, kafka, [foreign.take, clients.on_record], NEWEST_DECISIONS)

    def _follow(
        self,
        queries: list[SupervisedQuery],
        watch: QuotaWatch,
        foreign: ForeignDecisions,
        known: Accumulator[Known],
        may_decide: Callable[[], bool],
    ) -> None:
        published: dict[str, QueryState] = {}
        while not self._stop.wait(_POLL_S):
            may_decide()  # raises once another driver leads
            for batch in [batch for query in queries for batch in query.new_batches()]:
                log.info("batch", extra={"fields": batch})
                self._health.count_batch(batch)
                self._publish_status(quota_version=watch.quotas.version, **{str(batch["query"]): batch})
            states = {query.name: query.state for query in queries}
            quiet_s = next(query.quiet_s() for query in queries if query.name == enforce.QUERY_NAME)
            self._health.heartbeat(states, watch.quotas.version, quiet_s)
            self._health.report_foreign(foreign.count, foreign.jobs)
            self._report_entities(known.value)
            if states != published:
                published = states
                self._publish_status(queries=self._health.queries())
            _check(states[enforce.QUERY_NAME])

    def _report_entities(self, known: Known) -> None:
        """Report how many are stored, and how many had to leave; the first ones of each kind also in the log."""
        self._health.report_known(known.total(), known.evicted)
        most = self._settings.state.max_entities
        before, self._evicted = self._evicted, known.evicted
        if known.evicted.at_rest and not before.at_rest:
            log.warning("there are more than state.max_entities = %d entities; those at rest leave early", most)
        if known.evicted.owing and not before.owing:
            log.error("more than state.max_entities = %d entities are active; the oldest lose their balances", most)

    def _wait_for(self, what: str, words: str) -> None:
        """Say in log, status file and health checks what the start waits for."""
        log.info("waiting for %s", words)
        self._publish_status(waiting_for=what)
        self._health.report_phase(f"waiting for {words}")

    def _publish_status(self, **changes: Any) -> None:
        self._status |= {**changes, "at_ms": now_ms()}
        if self._status_file is None:
            return
        try:
            write_status(self._status_file, self._status)
        except OSError as error:  # such as a full disk: no reason to stop deciding
            log.warning("can't write %s: %s", self._status_file, error.strerror)


def supervised_queries(
    spark: SparkSession,
    settings: Settings,
    watch: QuotaWatch,
    known: Accumulator[Known],
    may_decide: Callable[[], bool],
    epoch: Epoch | None,
) -> list[SupervisedQuery]:
    """Both queries, each supervised by itself: requests are decided without the audit query, which never gives up.

    The audit query starts second: clients wait for the first decisions, and nobody for the tables.
    """

    def make_enforce() -> EnforceQuery:
        _create_topics_again(settings)
        check_enforce_checkpoint(settings)
        return EnforceQuery(spark, settings, watch, known, may_decide, epoch)

    def make_audit() -> AuditQuery:
        check_spark_files(Checkpoint(settings.audit.checkpoint))
        return AuditQuery(spark, settings)

    deciding = SupervisedQuery(enforce.QUERY_NAME, make_enforce, settings.restart)
    auditing = SupervisedQuery(audit.QUERY_NAME, make_audit, settings.restart, gives_up=False, after=deciding)
    return [deciding, auditing]


def _create_topics_again(settings: Settings) -> None:
    """Create topics that were deleted since the start; without them the query would fail again."""
    try:
        for topic in ensure_topics(settings.topics, settings.kafka):
            log.error("topic %s was deleted; it is created again, empty", topic)
    except SluiceError as error:  # such as no broker: the query waits for it, or fails with the reason
        log.warning("can't look for missing topics: %s", error)


@contextmanager
def _health_server(health: JobHealth, settings: HealthSettings) -> Iterator[None]:
    """Run the health server in this block; port 0 is none."""
    if not settings.port:
        yield
        return
    server = health_server(health, settings.port, settings.address)
    server.start()
    try:
        yield
    finally:
        server.stop()


def _check(enforce_state: QueryState) -> None:
    """Raises JobError with the reason when the enforce query is given up."""
    if enforce_state.state is RunState.GIVEN_UP:
        raise JobError(
            f"query {enforce.QUERY_NAME} ended {times(enforce_state.failures_in_a_row)} and can't go on:"
            f" {enforce_state.reason}"
        )
