"""The audit query: decisions and dead letters, as gateways saw them, to the Delta tables."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType

from sluice.configs.settings import CLOCK_DIFFERENCE_MS, Settings, event_bounds_ms, kept_ms
from sluice.process.format import error_line
from sluice.sinks.errors import TableReadError
from sluice.sinks.tables.dead_letters import dead_letters_table, letter_content, letter_rows
from sluice.sinks.tables.decisions import decision_content, decision_rows, decisions_table
from sluice.sinks.tables.delta import AuditTable, Commit, topic_ids
from sluice.sinks.tables.delta_files import add_files, remove_files
from sluice.sinks.tables.faults import RequestsTopic, TimeBounds
from sluice.sinks.tables.measures import add_up, metrics_rows
from sluice.sinks.tables.quota_metrics import counted, merge_metrics, quota_metrics_table, take_back_metrics
from sluice.sinks.tables.unreadable import known_records, unreadable_table
from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.errors import SluiceError
from sluice.streaming.audit.answers import RequestEnds, current_ends, epoch_spans, further_answers, reported_answers
from sluice.streaming.audit.epochs_seen import EpochsSeen
from sluice.streaming.audit.worker_pass import REPORT_SCHEMA, Exclusions, Feed, TaskReport, TaskWork, run_task
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.own_tables import OwnTables
from sluice.streaming.checkpoint.spark_files import coverage
from sluice.streaming.errors import JobError
from sluice.streaming.java_bridge import NamedStages
from sluice.streaming.queries.gated_query import GatedQuery
from sluice.streaming.runtime.kafka import epoch_header, kafka_source
from sluice.streaming.runtime.recorded import see_tables

QUERY_NAME = "audit"

log = logging.getLogger("sluice.audit")

_FILE_ROWS = 50_000
"""Records that are worth a task and a file of their own."""

_Open = Callable[[str], DeltaTable]
"""Opens the table at a path."""


class AuditWriter:
    """Writes micro-batches into the audit tables."""

    def __init__(self, settings: Settings, checkpoint: Checkpoint) -> None:
        """Needs the tables before the first `write`. Raises CheckpointError if its files are damaged."""
        self._delta = settings.delta
        self._feeds = (
            Feed(
                settings.topics.dead_letters,
                dead_letters_table(settings.delta.dead_letters),
                letter_rows,
                letter_content,
                of_decisions=False,
            ),
            Feed(
                settings.topics.decisions,
                decisions_table(settings.delta.decisions),
                decision_rows,
                decision_content,
                of_decisions=True,
            ),
        )
        self._unreadable = unreadable_table(settings.delta.unreadable)
        self._window_s = settings.audit.metrics_window_s
        self._bounds = time_bounds(settings)
        self._epochs = {
            settings.topics.dead_letters: EpochsSeen(checkpoint, "epochs_seen_of_dead_letters.json"),
            settings.topics.decisions: EpochsSeen(checkpoint),
        }
        self._tasks: int | None = None
        self._looked_back = False

    @property
    def topics(self) -> list[str]:
        """The topics whose records are written."""
        return [feed.topic for feed in self._feeds]

    @property
    def tables(self) -> list[AuditTable]:
        """All tables that are written, in the order in which a micro-batch opens them.

        Metrics come before the tables in which answers are looked up: what is no answer there isn't counted there.
        """
        return [quota_metrics_table(self._delta.quota_metrics), self._unreadable, *(feed.table for feed in self._feeds)]

    def write_batch(
        self,
        records: DataFrame,
        requests: RequestsTopic,
        batch_id: int,
        commit: Commit,
        tables: Mapping[str, DeltaTable],
    ) -> None:
        """Write one micro-batch; to write it again changes nothing.

        Records have the columns of Kafka, `read_at`, the time of the micro-batch, and `epoch`, their header's value.
        They answer events of `requests`. `tables` were just opened, by their paths.
        """
        open_table = tables.__getitem__
        exclusions = Exclusions()
        while True:
            reports = self._run(records, requests, exclusions)
            found = self._excluded(reports, exclusions, requests, batch_id, open_table)
            if found is None:
                break
            # Rare: the tasks know now what counts for no answer, and write the others.
            self._remove_files(reports)
            exclusions = found
        self._commit(reports, commit, open_table)
        answers = sum(len(reported_answers(reports, topic)) for topic in self.topics)
        self._tasks = 1 + answers // _FILE_ROWS

    def _run(self, records: DataFrame, requests: RequestsTopic, exclusions: Exclusions) -> list[TaskReport]:
        """Let tasks do the work, as many as the micro-batch before was worth."""
        options = dict(self._delta.storage_options)
        work = TaskWork(self._feeds, self._unreadable, options, requests, self._bounds, self._window_s, exclusions)
        tasks = records if self._tasks is None else records.coalesce(self._tasks)
        found = tasks.mapInArrow(lambda batches: run_task(batches, work), from_arrow_schema(REPORT_SCHEMA)).collect()
        return [msgspec.msgpack.decode(row["report"], type=TaskReport) for row in found]

    def _excluded(
        self,
        reports: Sequence[TaskReport],
        known: Exclusions,
        requests: RequestsTopic,
        batch_id: int,
        open_table: _Open,
    ) -> Exclusions | None:
        """All that is known to count for no answer after these reports; None if they show nothing new."""
        fenced = [
            (of, each)
            for of, epochs in self._epochs.items()
            for each in epochs.fenced(batch_id, epoch_spans(reports, of))
        ]
        if fenced and not known.fenced:
            return known._replace(fenced=fenced)
        # Decisions come first, as gateways act on them: of two answers in a micro-batch the decision stays.
        answers = [(feed, reported_answers(reports, feed.topic)) for feed in reversed(self._feeds)]
        good = [(feed, found.filter(pc.is_valid(found["digest"]))) for feed, found in answers]
        repeating, others = further_answers(good, open_table, requests)
        if (repeating or others) and not known.compared:
            return known._replace(compared=True)
        left_out, contradicting = [*known.left_out, *repeating], [*known.contradicting, *others]
        for feed, found in answers:
            if len(unreadable := found.filter(pc.is_null(found["digest"]))):
                written = known_records(open_table(self._unreadable.path), feed.topic, unreadable)
                left_out += [(feed.topic, written)] if written else []
        if len(left_out) == len(known.left_out) and len(contradicting) == len(known.contradicting):
            return None
        return known._replace(left_out=left_out, contradicting=contradicting)

    def _commit(self, reports: Sequence[TaskReport], commit: Commit, open_table: _Open) -> None:
        """Commit table by table: a crash in between repeats all commits, and those that are there change nothing.

        Metrics count the decisions that the decisions table doesn't have yet, so they are merged before it.
        """
        letters, decisions = (feed.table for feed in self._feeds)
        for table in (self._unreadable, letters):
            self._add_files(table, reports, commit, open_table)
        self._log_unreadable(reports)
        measures = [pa.ipc.open_stream(report.measures).read_all() for report in reports if report.measures]
        rows = metrics_rows(add_up(measures), self._window_s) if measures else None
        if not rows:
            self._add_files(decisions, reports, commit, open_table)
            return
        metrics = open_table(self._delta.quota_metrics)
        before = metrics.transaction_version(commit.application)
        metrics.update_incremental()
        if metrics.transaction_version(commit.application) != before:
            raise JobError("another driver of the audit query goes on with its checkpoint")
        self._take_back_metrics(metrics, open_table(decisions.path), commit)
        merge_metrics(rows, metrics, commit)
        self._add_files(decisions, reports, commit, open_table, counted(commit))

    def _take_back_metrics(self, metrics: DeltaTable, decisions: DeltaTable, commit: Commit) -> None:
        """Before the first metrics of this writer, undo those of decisions that never became rows."""
        if self._looked_back:
            return
        path = self._delta.quota_metrics
        try:
            if take_back_metrics(metrics, decisions, commit):
                log.warning(
                    "%s had counted decisions that never became rows, as a new checkpoint or a backup took the place of"
                    " theirs; that is taken back, and they are counted when they are rows",
                    path,
                )
        except CommitFailedError:  # another writer was faster: the micro-batch is repeated
            raise
        except DeltaError as error:
            log.error("%s counts some decisions twice, as that can't be taken back (%s)", path, error_line(error))
        self._looked_back = True

    def _add_files(
        self, table: AuditTable, reports: Sequence[TaskReport], commit: Commit, open_table: _Open, *also: Commit
    ) -> None:
        if files := [file for report in reports for file in report.files.get(table.path, [])]:
            add_files(open_table(table.path), files, commit, *also)

    def _remove_files(self, reports: Sequence[TaskReport]) -> None:
        for report in reports:
            for path, files in report.files.items():
                remove_files(path, self._delta.storage_options, files)

    def _log_unreadable(self, reports: Sequence[TaskReport]) -> None:
        counts: Counter[tuple[str, str, str]] = Counter()
        for report in reports:
            counts.update({(topic, field, reason): count for topic, field, reason, count in report.faults})
        for (topic, field, reason), count in counts.items():
            path = self._unreadable.path
            log.warning(
                "%d records of topic %s are unreadable (%s %s); they are in %s", count, topic, field, reason, path
            )


def time_bounds(settings: Settings) -> TimeBounds:
    """Bounds on the age of genuine records when they are read: what is decided is a row, however late it is read."""
    (age_ms, ahead_ms), topics = event_bounds_ms(settings), settings.topics
    answers_ms = kept_ms(topics.decisions_retention_ms, topics.dead_letters_retention_ms)
    return TimeBounds(past_ms=age_ms + answers_ms + CLOCK_DIFFERENCE_MS, future_ms=ahead_ms + CLOCK_DIFFERENCE_MS)


def figures(settings: Settings) -> list[Column]:
    """Figures of a micro-batch's rows for anybody's StreamingQueryListener, by the text of records, which isn't parsed.

    `throttled` are those among the `decisions` of requests that wait or are refused, by the job or inline.
    """
    text, topics = F.col("value").cast(StringType()), settings.topics  # "string" would load Spark's parser
    is_decision = (F.col("topic") == topics.decisions) & ~text.contains(f'"api":"{HEARTBEAT_API}"')
    is_throttled = ~text.contains('"verdict":"ALLOW"') | text.contains('"throttled_by":[{')
    lag_ms = F.unix_millis("read_at") - F.unix_millis("timestamp")
    return [
        F.count_if(is_decision).alias("decisions"),
        F.count_if(is_decision & is_throttled).alias("throttled"),
        F.count_if(F.col("topic") == topics.dead_letters).alias("dead_letters"),
        F.max(lag_ms).alias("lag_ms"),
    ]


class AuditQuery(GatedQuery):
    """The running query: a few large, idempotent commits instead of one commit per micro-batch of decisions."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        super().__init__(QUERY_NAME, settings.audit.checkpoint, settings.audit.trigger_s * 1000)
        self._spark = spark
        self._settings = settings
        checkpoint = self._files = Checkpoint(settings.audit.checkpoint)
        self._request_ends = RequestEnds(checkpoint, settings.topics.requests, self._known_topics)
        self.writer = AuditWriter(settings, checkpoint)
        self._tables = OwnTables(checkpoint, self.writer.tables, settings.delta.storage_options)

    def _rows(self) -> DataFrame:
        """Records of the topics of answers; tables are created where there are none."""
        self._tables.begin()
        topics = self.writer.topics
        records = kafka_source(self._spark, self._settings, topics, "earliest", self._settings.audit, headers=True)
        # In a stream this is the time of the micro-batch, which Spark's log keeps: a repeated one is treated as before.
        read_at = F.current_timestamp().alias("read_at")
        epoch = epoch_header().alias("epoch")
        rows = records.select("topic", "partition", "offset", "timestamp", "key", "value", read_at, epoch)
        return rows.observe("sluice", *figures(self._settings))

    def write_batch(self, records: DataFrame, batch_id: int) -> None:
        # A restored backup has the same id: `coverage`, and not the micro-batch's number, says what is covered.
        query_id = records.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        commit = Commit(f"sluice-audit-{query_id}-covered", coverage(self._files, batch_id))
        try:
            with NamedStages(self._spark, "record answers in the tables"):
                # as the topic is now, after all answers of the micro-batch were written
                requests = self._request_ends.of_batch(batch_id, *current_ends(self._settings))
                self.writer.write_batch(records, requests, batch_id, commit, self._tables.opened())
        except SluiceError:
            raise
        except Exception as error:  # of delta-rs, a worker or Spark, which don't say what is wrong with a table
            if reasons := list(filter(None, see_tables(self._settings)[1].values())):
                raise TableReadError("; ".join(reasons)) from error
            raise

    def _known_topics(self) -> set[str]:
        delta = self._settings.delta
        options = dict(delta.storage_options)
        paths = delta.decisions, delta.dead_letters
        return {each for path in paths for each in topic_ids(DeltaTable(path, storage_options=options))}
