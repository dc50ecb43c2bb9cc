"""The enforce query reads requests and writes decisions and dead letters. It does nothing slow.

Its plan: source -> planner -> shuffle by page -> PageOperator, and then, where `write_batch` asks for it, shuffle by
group of partial decisions -> combiner; last, the Kafka sink.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from sluice.configs.settings import Settings, event_bounds_ms
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.decisions.leader_epochs import HEADER, LeaderEpoch
from sluice.streaming.balances.starting_offsets import starting_offsets
from sluice.streaming.checkpoint.batch_log import Batch, BatchLog, BatchSettings
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import grown_pages, job_identity, new_pages
from sluice.streaming.checkpoint.page_keys import can_split
from sluice.streaming.checkpoint.spark_files import read_offsets
from sluice.streaming.checkpoint.store import Leadership
from sluice.streaming.enforce.batch_properties import BatchProperties
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.quota_watch import QuotaWatch
from sluice.streaming.enforce.repetition import (
    ANSWERED_SCHEMA,
    BatchAnswers,
    answered_places,
    places_in,
    topic_ids_of_answers,
    without_answered,
)
from sluice.streaming.enforce.requests_topic import RequestsTopicWatch
from sluice.streaming.enforce.stages import (
    COMBINED_SCHEMA,
    DECIDED_SCHEMA,
    PLANNED_SCHEMA,
    STATE_SCHEMA,
    PageOperator,
    combiner,
    planner,
)
from sluice.streaming.errors import CheckpointError, JobError
from sluice.streaming.java_bridge import KafkaSink
from sluice.streaming.queries.gated_query import GatedQuery
from sluice.streaming.runtime.capacities import CapacityFile
from sluice.streaming.runtime.kafka import epoch_header, kafka_since, requests_source, sink_properties
from sluice.streaming.workers.engine_start import are_batched, unbatched
from sluice.streaming.workers.release import package_digest

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from sluice.streaming.enforce.tracked_entities import Tracked


log = logging.getLogger("sluice.enforce")

QUERY_NAME = "enforce"

# A schema in text would be parsed for each query, and Spark would load its parser at the start for it.
_PLANNED, _DECIDED, _STATE = map(from_arrow_schema, (PLANNED_SCHEMA, DECIDED_SCHEMA, STATE_SCHEMA))
_COMBINED, _ANSWERED = map(from_arrow_schema, (COMBINED_SCHEMA, ANSWERED_SCHEMA))

_PARTITIONS = "spark.sql.shuffle.partitions"
"""In the session of a micro-batch, those that the checkpoint was made with."""

_MAX_CLOCK_DIFFERENCE_MS = 60_000
"""Largest lag of the broker's clock behind the job's. A larger value makes a repeated micro-batch read more records."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The session, settings and quotas of a running job. A driver with a `leadership` decides as `epoch`.

    Both are None for a checkpoint that is a path.
    """

    spark: SparkSession
    settings: Settings
    watch: QuotaWatch
    leadership: Leadership | None = None
    epoch: LeaderEpoch | None = None

    def may_decide(self) -> bool:
        """True while no other driver decides."""
        return self.leadership is None or self.leadership.may_decide()


class EnforceQuery(GatedQuery):
    """The running query. Each micro-batch uses the quotas that are in force when it begins."""

    def __init__(
        self,
        job: JobContext,
        tracked: "Accumulator[Tracked] | None" = None,
        limits_now: Callable[[], Overrides | None] = lambda: None,  # how far limits give way
        topic: RequestsTopicWatch | None = None,
        max_record_bytes: int | None = None,
        start: int = 0,
    ) -> None:
        """`tracked` is told the number of entities of each page, and the numbers evicted.

        A micro-batch waits until the job may decide. Records carry the job's epoch, whose markers are written, and the
        id of the requests topic that `topic` knows; the query ends if that changes. No answer is larger than
        `max_record_bytes`, without which the settings say it. `start` counts the starts of the query in this process.
        """
        settings = self._settings = job.settings
        super().__init__(QUERY_NAME, settings.enforce.checkpoint, settings.enforce.trigger_ms, job.may_decide)
        self._spark = job.spark
        self._watch = job.watch
        self._limits_now = limits_now
        self._tracked = tracked
        self._told_of_pages = False
        checkpoint = Checkpoint(settings.enforce.checkpoint)
        self._epoch = job.epoch
        self._sink = KafkaSink(job.spark, sink_properties(settings, start))
        store = checkpoint.store
        create = None if store is None else store.file_creator(job.spark, checkpoint.location)
        self._log = BatchLog(checkpoint, create)
        self._topic = topic
        pipeline = PipelineSettings.of(settings, limits=CapacityFile(settings).limits())
        age_ms, ahead_ms = event_bounds_ms(settings)
        self.pipeline = pipeline._replace(
            limits=pipeline.limits._replace(max_age_ms=age_ms, max_ahead_ms=ahead_ms),
            job_id=job_identity(checkpoint).job_id,
            topic_id=topic.id if topic is not None else None,
            max_record_bytes=max_record_bytes or settings.topics.max_message_bytes,
        )
        self._batch_settings = self.pipeline.batch_settings(f"{version('sluice-kafka')} ({package_digest()})")

    def _rows(self) -> DataFrame:
        """Rows (partial, topic, key, value): finished records, and groups of partial ones, which have no topic."""
        settings = self._settings
        requests = requests_source(self._spark, settings, starting_offsets(settings)).select(
            "value", "partition", "offset", F.unix_millis("timestamp").alias("timestamp_ms")
        )
        planned = requests.mapInArrow(planner(settings, self.pipeline), _PLANNED)
        operator = PageOperator(settings, self.pipeline, self._tracked)
        decided = planned.groupBy("shard_key").applyInPandasWithState(operator, _DECIDED, _STATE, "append", "NoTimeout")
        return decided.select("partial", "topic", F.inline(F.arrays_zip("keys", "values")).alias("key", "value"))

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Decide and write one micro-batch, in one action: a second action would run the stateful operator again.

        1. Choose the number of pages, and record it with quotas, overrides, settings and time of the batch; a repeated
           batch uses the recorded ones.
        2. Tell the tasks, before anything runs.
        3. Combine partial decisions, unless every request charges one entity. A repeated batch always combines: its
           quotas may be older than those in force now.
        4. Leave out the answers that a repeated batch has written before.
        5. Write. Rows that stay as they were decided are written by Spark's own plan of the micro-batch, which saves
           planning it again.

        Spark stores the pages' new version before the answers are flushed. It counts once the micro-batch is committed,
        after this method: a repeated one begins with the version before.
        """
        if self._topic is not None and self._topic.id != self.pipeline.topic_id:
            raise JobError(f"topic {self._settings.topics.requests} has another id than before; the query starts anew")
        in_force, first_pages = self._watch.now, self.pipeline.pages
        pages = self._grown(self._log.last.pages or first_pages, rows)
        batch, repeated = self._log.begin(
            batch_id, in_force.version, now_ms(), pages, self._limits_now(), in_force.digest, self._batch_settings
        )
        batch_settings = batch.batch_settings or self._batch_settings
        combined = repeated or not in_force.quotas.charges_one_entity()
        pages, pages_before = (number or first_pages for number in (batch.pages, batch.pages_before))
        properties = BatchProperties(
            batch.quota_version,
            batch.decided_at_ms,
            combined,
            pages,
            pages_before,
            batch_id,
            overrides=batch.overrides,
            quota_digest=batch.quota_digest,
            batch_settings=batch_settings if batch_settings != self._batch_settings else None,
        )
        properties.announce(self._spark.sparkContext)
        if properties.splits:
            log.info("micro-batch %d splits %d pages into %d", batch_id, pages_before, pages)
        if combined:
            rows = self._combined(rows, properties.settings(self.pipeline))
        if repeated:
            log.warning("micro-batch %d is repeated; what it wrote before is left out", batch_id)
            if batch_settings.release != self._batch_settings.release:
                told = "micro-batch %d was begun by release %s; the events that it has left are decided by this one, %s"
                log.warning(told, batch_id, batch_settings.release, self._batch_settings.release)
            rows = self._unwritten(rows, batch, batch_settings)
        if combined or self._epoch is not None or self._query is None:  # None: it has begun before start() returned
            self.publish(rows)
        else:
            self._sink.write_batch(self._query)

    def _grown(self, pages: int, rows: DataFrame) -> int:
        """The pages of the next micro-batch. They stay as they are if no task has all that a page becomes."""
        if self._tracked is None or not are_batched(self._settings.enforce.batched_workers):
            return pages
        grown = grown_pages(pages, self.pipeline.pages, self._tracked.value.total())
        if grown == pages:
            return pages
        partitions = int(rows.sparkSession.conf.get(_PARTITIONS) or 1)
        if can_split(partitions):
            return grown
        if not self._told_of_pages:
            self._told_of_pages = True
            told = "%d shuffle partitions can't split %d pages; `sluice state import` moves the balances to %d"
            log.warning(told, partitions, pages, grown)
        return pages

    def publish(self, rows: DataFrame) -> None:
        """Write records; a driver with an epoch says in each that it is its own."""
        if self._epoch is not None:
            header = F.struct(F.lit(HEADER).alias("key"), F.lit(self._epoch.header()).alias("value"))
            rows = rows.withColumn("headers", F.array(header))
        self._sink.write(rows)

    def _combined(self, rows: DataFrame, settings: PipelineSettings) -> DataFrame:
        """Finished records as they are, and those that partial decisions make; these are brought together by key."""
        together = rows.repartition("key")
        return together.mapInArrow(combiner(settings, is_native=self._settings.enforce.native), _COMBINED)

    def _unwritten(self, records: DataFrame, batch: Batch, batch_settings: BatchSettings) -> DataFrame:
        """The records but for answers that the topics have received since the batch began for the first time.

        An answer counts as received only if it counts for those who read it. Only those to the batch's own events are
        kept: after a restored backup of the checkpoint any number of records may have been written since.
        """
        answers = self.answers_of(batch, batch_settings)
        since_ms = batch.decided_at_ms - _MAX_CLOCK_DIFFERENCE_MS
        written = kafka_since(self._spark, self._settings, sorted(answers.topics), since_ms)
        if self._epoch is not None:
            written = self._counting(written, self._epoch)
        answered = written.select("value").mapInArrow(answered_places(answers), _ANSWERED).toArrow()
        return records.mapInArrow(without_answered(answers, places_in(answered)), _COMBINED)

    def answers_of(self, batch: Batch, batch_settings: BatchSettings) -> BatchAnswers:
        """The marks of answers to the events of a micro-batch that is repeated. Raises CheckpointError."""
        checkpoint, topics = Checkpoint(self._settings.enforce.checkpoint), self._settings.topics
        before = read_offsets(checkpoint, batch.batch_id - 1) if batch.batch_id else {}
        return BatchAnswers(
            frozenset((topics.decisions, topics.dead_letters)),
            topics.requests,
            topic_ids_of_answers(self.pipeline.topic_id, batch_settings.topic_id),
            self.pipeline.job_id,
            before.get(topics.requests, {}),
            read_offsets(checkpoint, batch.batch_id).get(topics.requests, {}),
        )

    def _counting(self, written: DataFrame, epoch: LeaderEpoch) -> DataFrame:
        """Without answers that another driver wrote after this one's markers, and without the markers.

        Only drivers that led before can have written them: after a later one this driver's answers don't count.
        """
        text = epoch_header()
        own = F.coalesce(text == F.lit(epoch.header()), F.lit(False))
        markers = written.where(own & F.col("value").isNull())
        marked = markers.groupBy("topic", "partition").agg(F.min("offset").alias("first")).collect()
        # Without a marker in what was read, all of that came after it.
        after = F.coalesce(*map(_marker_of_record, marked), F.lit(-1))
        fenced = ~own & text.isNotNull() & (F.col("offset") > after)
        return written.where(F.col("value").isNotNull() & ~fenced)


def _marker_of_record(marker: Row) -> Column:
    """The offset of a marker (topic, partition, first); null for records of other partitions."""
    is_there = (F.col("topic") == marker["topic"]) & (F.col("partition") == marker["partition"])
    return F.when(is_there, F.lit(marker["first"]))


def check_can_split(pending: Batch, settings: Settings) -> None:
    """Raises CheckpointError if a micro-batch that will be repeated splits pages, and the workers can't.

    It was begun by batched workers, and its decisions may be written already.
    """
    pages_before = pending.pages_before or new_pages(settings)
    if (pending.pages or pages_before) == pages_before or are_batched(settings.enforce.batched_workers):
        return
    cure = "set enforce.batched_workers: true until that micro-batch is done"
    if settings.enforce.batched_workers:
        cure = f"start the job once with the release of PySpark that began it ({unbatched()})"
    raise CheckpointError(
        f"micro-batch {pending.batch_id}, which will be repeated, splits {pages_before} pages into {pending.pages}, and"
        f" only batched workers can; {cure}"
    )
