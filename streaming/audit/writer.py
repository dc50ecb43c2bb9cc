"""Writing a micro-batch of decisions and dead letters into the Delta tables, each table by one commit."""

import logging
from collections.abc import Sequence
from functools import partial, reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.configs.settings import Settings
from sluice.sinks.tables import dead_letters, decisions
from sluice.sinks.tables.delta import RECORD, AuditFeed, AuditTable, Commit, RequestsTopic, new_rows, source_spans
from sluice.sinks.tables.quota_metrics import quota_metrics_table
from sluice.sinks.tables.unreadable import (
    FAULT,
    TimeBounds,
    append_unreadable,
    fault,
    unreadable_rows,
    unreadable_table,
)
from sluice.streaming.audit.one_pass import OnePass
from sluice.streaming.leadership.epochs_seen import EpochsSeen, with_fenced

log = logging.getLogger("sluice.audit")

_DAY_MS = 86_400_000
_SHORTEST_RETENTION_MS = 30 * _DAY_MS
"""A topic that existed before keeps its records as long as it was created with, not as the settings say."""

_LONGEST_RETENTION_MS = 3_653 * _DAY_MS
"""Ten years stand for a topic that keeps its records for ever."""

_MAX_CLOCK_DIFFERENCE_MS = _DAY_MS
"""How far the clocks of gateways, broker and job may differ; a clock that is wrong by hours forges nothing."""

_ANOTHER_ANSWER = ("value", "answers an event that has another answer already")


class AuditWriter:
    """Writes micro-batches: decisions that need no judging in one pass, all other records by Spark, table by table."""

    def __init__(self, settings: Settings, epochs: EpochsSeen) -> None:
        """Needs a Spark session, and the tables before the first `write`."""
        self._decisions_topic = settings.topics.decisions
        self._epochs = epochs
        self._feeds = audit_feeds(settings)
        self._unreadable = unreadable_table(settings.delta.unreadable)
        self._one_pass = _one_pass(settings)

    @property
    def topics(self) -> list[str]:
        """The topics whose records are written."""
        return [feed.topic for feed in self._feeds]

    @property
    def tables(self) -> list[AuditTable]:
        """All tables that are written."""
        return [self._unreadable, *(table for feed in self._feeds for table in feed.tables)]

    def write(self, records: DataFrame, requests: RequestsTopic, commit: Commit) -> None:
        """Write one micro-batch; to write it again changes nothing.

        Records have the columns of Kafka, `read_at`, the time of the micro-batch, and `epoch`, their header's value.
        They answer events of `requests`.
        """
        others = self._one_pass.write(records, requests, commit, partial(self._epochs.take, commit.batch_id))
        if others is None:
            self._write_feeds(records, requests, self._feeds, commit)
        elif others:
            left = records.where(records.topic != self._decisions_topic)
            self._write_feeds(
                left, requests, [feed for feed in self._feeds if feed.topic != self._decisions_topic], commit
            )

    def _write_feeds(
        self, records: DataFrame, requests: RequestsTopic, feeds: Sequence[AuditFeed], commit: Commit
    ) -> None:
        records.persist()
        try:
            counted = with_fenced(records, self._decisions_topic, self._epochs, commit.batch_id)
            for feed in feeds:
                _write(feed, counted.where(counted.topic == feed.topic), requests, self._unreadable.path, commit)
        finally:
            records.unpersist()


def _one_pass(settings: Settings) -> OnePass:
    delta = settings.delta
    return OnePass(
        settings.topics.decisions,
        decisions.decisions_table(delta.decisions),
        delta.quota_metrics,
        dict(delta.storage_options),
        settings.audit.metrics_window_s,
        _time_bounds(settings),
    )


def audit_feeds(settings: Settings) -> list[AuditFeed]:
    """All tables that the query writes but `unreadable`.

    Metrics count the decisions that the decisions table doesn't have yet, so they are written before it: a crash in
    between repeats both commits and counts nothing twice.
    """
    topics, delta, bounds = settings.topics, settings.delta, _time_bounds(settings)
    metrics = quota_metrics_table(delta.quota_metrics, delta.storage_options, settings.audit.metrics_window_s)
    return [
        AuditFeed(
            topics.dead_letters,
            partial(dead_letters.parse_dead_letters, bounds=bounds),
            [dead_letters.dead_letters_table(delta.dead_letters)],
            ["recorded_at", "date"],
        ),
        AuditFeed(
            topics.decisions,
            partial(decisions.parse_decisions, bounds=bounds),
            [metrics, decisions.decisions_table(delta.decisions)],
            ["date"],
        ),
    ]


def _write(feed: AuditFeed, records: DataFrame, requests: RequestsTopic, unreadable: str, commit: Commit) -> None:
    parsed = feed.parse(records, requests).persist()
    try:
        spans, has_faults = source_spans(parsed)
        good = parsed.where(F.col(FAULT).isNull()).drop(FAULT)
        faults = [parsed.where(F.col(FAULT).isNotNull()).select(RECORD, FAULT)] if has_faults else []
        if not spans:
            _write_unreadable(feed.topic, records, faults, unreadable, commit)
            return
        rows = new_rows(good, spans, feed.tables[-1].path, feed.own)
        try:
            if rows.contradicting is not None:
                faults.append(rows.contradicting.select(RECORD, fault(F.lit(True), *_ANOTHER_ANSWER).alias(FAULT)))
            _write_unreadable(feed.topic, records, faults, unreadable, commit)
            for table in feed.tables:
                table.write(rows.first.drop(RECORD), commit)
        finally:
            rows.release()
    finally:
        parsed.unpersist()


def _write_unreadable(topic: str, records: DataFrame, faults: list[DataFrame], path: str, commit: Commit) -> None:
    if not faults:
        return
    found = reduce(DataFrame.unionByName, faults)
    # Both feeds append to the table in one micro-batch, and each is an application of its own.
    own = Commit(f"{commit.application}-{topic}", commit.batch_id)
    for field, reason, count in append_unreadable(unreadable_rows(records, found), own, path):
        log.warning("%d records of topic %s are unreadable (%s %s); they are in %s", count, topic, field, reason, path)


def _time_bounds(settings: Settings) -> TimeBounds:
    """How old and how new genuine records can be when they are read, with generous margins."""
    topics, enforce = settings.topics, settings.enforce
    retentions = (topics.requests_retention_ms, max(topics.decisions_retention_ms, topics.dead_letters_retention_ms))
    if -1 in (*retentions, topics.decisions_retention_ms, topics.dead_letters_retention_ms):
        kept_ms = _LONGEST_RETENTION_MS
    else:
        kept_ms = min(max(sum(retentions), _SHORTEST_RETENTION_MS), _LONGEST_RETENTION_MS)
    return TimeBounds(
        past_ms=min(enforce.max_past_ms, _LONGEST_RETENTION_MS) + kept_ms + _MAX_CLOCK_DIFFERENCE_MS,
        future_ms=min(enforce.max_future_ms, _LONGEST_RETENTION_MS) + _MAX_CLOCK_DIFFERENCE_MS,
    )
