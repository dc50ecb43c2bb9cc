"""The audit query: decisions and dead letters, as gateways saw them, to the Delta tables."""

import logging
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from configs.settings import Settings
from sinks.tables import dead_letters, decisions
from sinks.tables.delta import RECORD, AuditFeed, Commit, RequestsTopic, create_table, new_rows, source_spans
from sinks.tables.quota_metrics import quota_metrics_table
from sinks.tables.unreadable import FAULT, TimeBounds, append_unreadable, fault, unreadable_rows, unreadable_table
from streaming.audit.epochs_seen import EpochsSeen, with_fenced
from streaming.audit.request_ends import RequestEnds, current_ends
from streaming.checkpoint.folder import Checkpoint
from streaming.runtime.epochs import epoch_header
from streaming.runtime.gated_query import GatedQuery
from streaming.runtime.kafka import kafka_source

log = logging.getLogger("sluice.audit")

QUERY_NAME = "audit"

_DAY_MS = 86_400_000
_SHORTEST_RETENTION_MS = 30 * _DAY_MS
"""A topic that existed before keeps its records as long as it was created with, not as the settings say."""

_LONGEST_RETENTION_MS = 3_653 * _DAY_MS
"""Ten years stand for a topic that keeps its records for ever."""

_MAX_CLOCK_DIFFERENCE_MS = _DAY_MS
"""How far the clocks of gateways, broker and job may differ; a clock that is wrong by hours forges nothing."""


_ANOTHER_ANSWER = ("value", "answers an event that has another answer already")


class AuditQuery(GatedQuery):
    """The running query: a few large, idempotent commits instead of one commit per micro-batch of decisions."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        super().__init__(QUERY_NAME, settings.audit.checkpoint, settings.audit.trigger_s * 1000)
        self._spark = spark
        self._settings = settings
        self._feeds = audit_feeds(settings)
        self._unreadable = unreadable_table(settings.delta.unreadable)
        checkpoint = Checkpoint(settings.audit.checkpoint)
        self._request_ends = RequestEnds(checkpoint)
        self._epochs = EpochsSeen(checkpoint)

    def _rows(self) -> DataFrame:
        """Records of all feeds' topics; their tables are created if there are none."""
        for table in [self._unreadable, *(table for feed in self._feeds for table in feed.tables)]:
            create_table(self._spark, table)
        topics = [feed.topic for feed in self._feeds]
        records = kafka_source(self._spark, self._settings, topics, "earliest", self._settings.audit, headers=True)
        # In a stream this is the time of the micro-batch, which Spark's log keeps: a repeated one is judged as before.
        read_at = F.current_timestamp().alias("read_at")
        epoch = epoch_header().alias("epoch")
        return records.select("topic", "partition", "offset", "timestamp", "key", "value", read_at, epoch)

    def _write_batch(self, records: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, feed by feed and table by table; each table is one commit."""
        # The query's id is the checkpoint's: a new checkpoint counts its batches from 0 again.
        query_id = records.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        commit = Commit(f"sluice-audit-{query_id}", batch_id)
        requests = self._requests(batch_id)
        records.persist()
        try:
            counted = with_fenced(records, self._settings.topics.decisions, self._epochs, batch_id)
            write_records(counted, requests, self._feeds, self._unreadable.path, commit)
        finally:
            records.unpersist()

    def _requests(self, batch_id: int) -> RequestsTopic:
        """The requests topic as it is now, after all answers of the micro-batch were written."""
        ends = self._request_ends.of_batch(batch_id, current_ends(self._settings))
        return RequestsTopic(self._settings.topics.requests, ends)


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


def write_records(
    records: DataFrame, requests: RequestsTopic, feeds: list[AuditFeed], unreadable: str, commit: Commit
) -> None:
    """Write the records of one micro-batch into the tables of their feeds, and into the table at `unreadable`.

    Records have the columns of Kafka, `read_at`, the time of the micro-batch, and `fenced`. They answer events of
    `requests`.
    """
    for feed in feeds:
        _write(feed, records.where(records.topic == feed.topic), requests, unreadable, commit)


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
