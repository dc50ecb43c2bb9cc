"""A job whose session has started: both queries with the services beside them, until the job is asked to stop."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Event

from sluice.configs.settings import Settings
from sluice.jvm.driver import LAST_WORDS
from sluice.kafka_io.topics import ensure_topics
from sluice.process.background import BackgroundService
from sluice.sinks.limits import limits_publisher
from sluice.sinks.tables.overrides import OverridesTable
from sluice.sinks.waits import ended_waits_remover
from sluice.state.errors import SluiceError
from sluice.state.troubles import Facts, is_stale
from sluice.streaming.audit import query as audit
from sluice.streaming.audit.query import AuditQuery
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import job_identity
from sluice.streaming.checkpoint.spark_files import check_enforce_checkpoint, check_spark_files, pending_batch
from sluice.streaming.enforce import query as enforce
from sluice.streaming.enforce.query import EnforceQuery, JobContext, check_can_split
from sluice.streaming.enforce.record_bound import RecordBound
from sluice.streaming.enforce.requests_topic import RequestsTopicWatch
from sluice.streaming.enforce.tracked_entities import EntitiesReport, tracked_entities
from sluice.streaming.errors import JobError, SparkStoppedError
from sluice.streaming.overrides.watch import OverridesWatch
from sluice.streaming.queries.reasons import Cause, QueryState, RunState
from sluice.streaming.queries.supervision import SupervisedQuery, times
from sluice.streaming.runtime.answers_watch import ForeignDecisions, dead_letters_watch, decisions_watch
from sluice.streaming.runtime.capacities import CapacityFile
from sluice.streaming.runtime.health import JobHealth, JobStatus
from sluice.streaming.runtime.job_parts import JobView, parts_of_extras
from sluice.streaming.runtime.observers import NEWEST_DECISIONS, Guarded, observers_of
from sluice.streaming.runtime.run_folder import run_folder

log = logging.getLogger("sluice.job")

_POLL_S = 0.25

_MEND_SPARK = "mend what section spark gives it, such as a listener, or leave that out, and start the job again"


class RunningJob:
    """The queries and services of the job."""

    def __init__(self, job: JobContext, health: JobHealth, status: JobStatus) -> None:
        settings, watch = job.settings, job.watch
        self._job = job
        self._settings = settings
        self._watch = watch
        self._health = health
        self._status = status
        self._tracked = tracked_entities(job.spark.sparkContext)
        self._entities = EntitiesReport(settings.state.max_entities, health.report_known)
        identity = job_identity(Checkpoint(settings.enforce.checkpoint))
        self._topic = RequestsTopicWatch(settings)
        self._foreign = ForeignDecisions(settings.topics.decisions, identity)
        self.capacities = CapacityFile(settings, partial(health.report_input, "capacities"))
        self._of_extras = parts_of_extras(
            JobView(
                settings, lambda: watch.quotas, lambda: watch.in_force()[1], self.capacities.limits, health.report_input
            )
        )
        table = OverridesTable(settings.delta.overrides, settings.delta.storage_options)
        report = partial(health.report_input, "overrides")
        self.overrides = OverridesWatch(self._of_extras.deciders, table, settings.metrics.top_clients, report=report)

    def run(self, stop: Event) -> None:
        """Run until `stop` is set. Raises JobError if the enforce query can't be kept running, LeadershipError."""
        self._status.wait_for("queries", "the queries to start")
        queries = self._queries()
        with ExitStack() as stack:  # the end is in reverse: queries are told to stop first and waited for last
            stack.callback(self._note_end, queries)
            for query in queries:
                stack.callback(query.join)
            for service in self._services():
                stack.enter_context(service)
            for query in queries:
                stack.callback(query.stop)
            stack.callback(self._status.stop)
            for query in queries:
                query.start()
            self._status.run(self._watch.quotas.version)
            self._follow(queries, stop)

    def _note_end(self, queries: list[SupervisedQuery]) -> None:
        self._health.heartbeat({query.name: query.state for query in queries}, self._watch.quotas.version)
        self._status.publish(queries=self._health.queries())

    def _services(self) -> list[BackgroundService]:
        settings, topics, kafka = self._settings, self._settings.topics, self._settings.kafka
        for metrics in (*self._of_extras.metrics, self.overrides):
            self._health.registry.register(metrics)
        return [
            BackgroundService("quota-watch", self._watch.poll, settings.quotas.poll_ms / 1000.0),
            limits_publisher(topics, kafka, self._watch.in_force, lambda: self.overrides.said, self.overrides.remember),
            ended_waits_remover(topics.waits, kafka),
            *self._of_extras.services,
            *self.capacities.services(),
            *self.overrides.services(topics, kafka),
            self._topic.service(),
            self._decisions_watch(),
            dead_letters_watch(topics.dead_letters, kafka, self._health.count_dead_letters),
        ]

    def _decisions_watch(self) -> BackgroundService:
        """Looks for foreign decisions, and feeds observers if somebody can ask for their metrics."""
        settings, foreign, extras = self._settings, self._foreign, self._of_extras
        topic, kafka, facts = settings.topics.decisions, settings.kafka, extras.facts or Facts
        if not settings.health.port:
            return decisions_watch(topic, kafka, [foreign.on_decision])
        observers = [*observers_of(settings), *(Guarded(*named) for named in extras.observers.items())]
        for observer in observers:
            self._health.registry.register(observer)
            observer.watch_age(lambda now_ms: is_stale(facts().flow, now_ms))
        self._health.report_facts(lambda: replace(facts(), overrides=self.overrides.said))
        return decisions_watch(
            topic, kafka, [foreign.on_decision, *(each.on_record for each in observers)], NEWEST_DECISIONS
        )

    def _queries(self) -> list[SupervisedQuery]:
        """Both queries, each supervised by itself: requests are decided without the audit query.

        That one gives up only where a new process helps it.
        The audit query starts second: clients wait for the first decisions, and nobody for the tables.
        """
        settings, starts, bound = self._settings, count(), RecordBound(self._settings)

        def make_enforce() -> EnforceQuery:
            _create_topics_again(settings)
            if start := next(starts):  # the job has looked before the first
                check_enforce_checkpoint(settings)
            self._topic.begin()
            if (pending := pending_batch(Checkpoint(settings.enforce.checkpoint))) is not None:
                check_can_split(pending, settings)
                self._watch.keep_snapshot_of(pending)
            most = bound.poll(deciding.last_cause is Cause.TOO_LARGE)
            return EnforceQuery(self._job, self._tracked, self.overrides.limits_now, self._topic, most, start)

        def make_audit() -> AuditQuery:
            check_spark_files(Checkpoint(settings.audit.checkpoint))
            return AuditQuery(self._job.spark, settings)

        def check() -> None:
            if (why := LAST_WORDS.stopped_by()) is not None:
                raise SparkStoppedError(f"Spark has stopped itself by {why}; {_MEND_SPARK}")
            run_folder(settings.enforce.checkpoint).check()

        deciding = SupervisedQuery(enforce.QUERY_NAME, make_enforce, settings.restart, check_process=check)
        auditing = SupervisedQuery(
            audit.QUERY_NAME, make_audit, settings.restart, gives_up=False, after=deciding, check_process=check
        )
        return [deciding, auditing]

    def _follow(self, queries: list[SupervisedQuery], stop: Event) -> None:
        published: dict[str, QueryState] = {}
        leadership = self._job.leadership
        while not stop.wait(_POLL_S):
            # raises once another driver leads
            waits_for = leadership.waits_for() if leadership is not None else None
            version = self._watch.quotas.version
            for batch in [batch for query in queries for batch in query.new_batches()]:
                log.info("batch", extra={"fields": batch})
                self._health.count_batch(batch)
                self._status.publish(quota_version=version, **{str(batch["query"]): batch})
            states = {query.name: query.state for query in queries}
            quiet_s = next(query.quiet_s() for query in queries if query.name == enforce.QUERY_NAME)
            self._health.heartbeat(states, version, quiet_s, waits_for)
            self._health.report_foreign(self._foreign.count, self._foreign.jobs)
            self._entities.report(self._tracked.value)
            if states != published:
                published = states
                self._status.publish(queries=self._health.queries())
            check_runs(states)
        check_runs({query.name: query.state for query in queries})  # one that was given up as the stop came


def check_runs(states: Mapping[str, QueryState]) -> None:
    """Raises JobError with the reason when a query is given up: the audit query only where a new process helps it."""
    for name, found in states.items():
        if found.state is RunState.GIVEN_UP:
            raise JobError(f"query {name} ended {times(found.failures_in_a_row)} and can't go on: {found.reason}")


def _create_topics_again(settings: Settings) -> None:
    """Create topics that were deleted since the start; without them the query would fail again."""
    try:
        for topic in ensure_topics(settings.topics, settings.kafka):
            log.error("topic %s was deleted; it is created again, empty", topic)
    except SluiceError as error:  # such as no broker: the query waits for it, or fails with the reason
        log.warning("can't look for missing topics: %s", error)
