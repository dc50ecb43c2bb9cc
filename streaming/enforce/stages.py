"""The Python stages of the enforce query: thin adapters between Arrow or pandas and the pipeline."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from sluice.configs.settings import Settings
from sluice.state.store.codec import entities_of
from sluice.state.store.pages import reshard
from sluice.streaming.balances.imported import ImportedBalances
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.page_keys import page_of_spark_key, spark_key_of_page
from sluice.streaming.enforce.batch_properties import BatchProperties
from sluice.streaming.enforce.engine import Made, PageToDecide, PlannedPages, engine_of
from sluice.streaming.enforce.garbage_collection import collection_paused
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.tracked_entities import Tracked
from sluice.streaming.enforce.wire import OVERHEAD_BYTES, PackedRow, PageBatch, encode_page_batch, packed

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql.streaming.state import GroupState

PLANNED_SCHEMA = pa.schema([("shard_key", pa.int32()), ("payload", pa.binary())])
"""`shard_key` is the page's Spark key: stored state keeps the name under which it was first written."""

DECIDED_SCHEMA = pa.schema(
    [("partial", pa.bool_()), ("topic", pa.string()), *((name, pa.list_(pa.binary())) for name in ("keys", "values"))]
)
COMBINED_SCHEMA = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])
STATE_SCHEMA = pa.schema([("v", pa.int32()), ("payload", pa.binary())])
"""Can never change, because PySpark can't evolve this operator's state; the codec inside `payload` has a version."""

_STATE_VERSION = 1

ArrowStage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def planner(settings: Settings, pipeline_settings: PipelineSettings) -> ArrowStage:
    """Step plan: Kafka records (value, timestamp_ms, partition, offset) to page batches with their Spark keys."""
    checkpoint, is_native = Checkpoint(settings.enforce.checkpoint).location, settings.enforce.native

    def plan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        properties = BatchProperties.of_task()
        quotas = properties.quotas(checkpoint)
        own = properties.settings(pipeline_settings)
        of_batch = properties.decided_at_ms, properties.overrides
        with collection_paused():
            for planned in engine_of(is_native=is_native).plan(batches, quotas, own, *of_batch):
                yield _page_rows(planned, pipeline_settings.pages)
            if properties.splits:  # then each page is read, also one without rows
                empty = pa.array([encode_page_batch(PageBatch())] * properties.pages, pa.binary())
                yield _page_rows(PlannedPages(range(properties.pages), empty), pipeline_settings.pages)

    return plan


class StoredPage(NamedTuple):
    """One page of a micro-batch: its Spark key, its stored form if it has one, and its page batches."""

    spark_key: int
    payload: bytes | None
    page_batches: list[bytes]


class PageOperator:
    """Step decide, the stateful operator: page batches of a micro-batch, charged to the counters in their pages' state.

    PySpark's own workers call it with one page, workers of an extra `decide_groups` with many. It decides the same: the
    counters of a page know nothing of those of another.
    """

    def __init__(
        self, settings: Settings, pipeline_settings: PipelineSettings, tracked: "Accumulator[Tracked] | None" = None
    ) -> None:
        """`pipeline_settings` has the checkpoint's first pages. `tracked` is told its entities, and those evicted."""
        self._imported = ImportedBalances.of(settings)
        self._settings = pipeline_settings
        self._tracked = tracked
        self._is_native = settings.enforce.native

    def __call__(
        self, key: tuple[int, ...], frames: Iterable[pd.DataFrame], state: "GroupState"
    ) -> Iterator[pd.DataFrame]:
        """The function of `applyInPandasWithState`, for one group."""
        with collection_paused():
            page_batches = [payload for frame in frames for payload in frame["payload"]]
            page = StoredPage(int(key[0]), state.get[1] if state.exists else None, page_batches)
            rows, (payload,) = self._decide([page])
            state.update((_STATE_VERSION, payload))
            yield pd.DataFrame([row.with_lists() for row in rows], columns=PackedRow._fields)

    def decide_groups(
        self, groups: Iterable[tuple[int, tuple[Any, ...] | None, list[bytes]]]
    ) -> tuple[list[PackedRow], list[tuple[Any, ...]]]:
        """Rows and new states of many groups: each is its key, its state if it has one, and its page batches."""
        with collection_paused():
            pages = [StoredPage(key, state[1] if state else None, page_batches) for key, state, page_batches in groups]
            rows, payloads = self._decide(pages)
            return rows, [(_STATE_VERSION, payload) for payload in payloads]

    def _decide(self, pages: Sequence[StoredPage]) -> tuple[list[PackedRow], Sequence[bytes]]:
        """Rows to emit, and the new stored form of each page.

        A page is split where all that it becomes are: `page_keys` gives those to one task, batched workers to one call.
        """
        properties = BatchProperties.of_task()
        settings = properties.settings(self._settings)
        stored = {page_of_spark_key(page.spark_key, self._settings.pages): page.payload for page in pages}
        if properties.splits and not stored.keys() >= {number % properties.pages_before for number in stored}:
            raise RuntimeError("a page is split without the page that has its entities; batched workers have both")
        payloads = {number: payload for number, payload in stored.items() if payload is not None}
        payloads |= self._imported.pages(stored.keys() - payloads.keys())  # never charged here
        if properties.splits:
            payloads = reshard(payloads, properties.pages_before, properties.pages)
        to_decide = [
            PageToDecide(number, payloads.get(number), page.page_batches)
            for number, page in zip(stored, pages, strict=True)
        ]
        decided = engine_of(is_native=self._is_native).decide(to_decide, settings)
        rows, dropped = list[PackedRow](), 0
        for made in decided.made:
            rows += packed(made.records)
            dropped += _finish(rows, made, settings, properties)
        if self._tracked is not None:
            entities = {page.spark_key: entities_of(new) for page, new in zip(pages, decided.stored, strict=True)}
            self._tracked.add(Tracked(entities, decided.evicted, dropped))
        return rows, decided.stored


def _finish(rows: list[PackedRow], made: Made, settings: PipelineSettings, properties: BatchProperties) -> int:
    """Add the rows of what was decided; the number of records of sums that were dropped, as no topic takes them."""
    if made.partial_decisions.keys and not properties.combined:  # otherwise they would be written to Kafka as records
        raise RuntimeError("there are partial decisions in a micro-batch whose plan doesn't combine them")
    key, dropped = b"%d" % properties.task, 0  # the key is the same for a counter in all micro-batches
    of_batch = properties.batch_id, properties.quota_version, properties.decided_at_ms
    for value in made.sums.records(settings.job_id, *of_batch):
        if len(value) + OVERHEAD_BYTES > settings.max_record_bytes:
            dropped += 1
        else:
            made.outputs[settings.sums_topic].add(key, value)
    rows += packed(made.outputs, made.partial_decisions)
    return dropped


def combiner(settings: PipelineSettings, *, is_native: bool) -> ArrowStage:
    """Step combine: finished records pass untouched; partial decisions, by group, become records.

    A group has all of a request. It stays encoded until all are there: decoded they take many times the memory.
    """

    def combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups: dict[bytes, list[pa.Buffer]] = {}
        with collection_paused():
            for batch in batches:
                partial, keys, values = (batch.column(name) for name in ("partial", "key", "value"))
                if partial.true_count < len(batch):
                    yield batch.filter(pc.invert(partial)).select(COMBINED_SCHEMA.names)
                for place in pc.indices_nonzero(partial).to_pylist():
                    groups.setdefault(keys[place].as_py(), []).append(values[place].as_buffer())
            engine = engine_of(is_native=is_native)
            while groups:
                records = engine.combine(groups.popitem()[1], settings)
                for topic, keyed in records.items():
                    columns = {"topic": [topic] * len(keyed.keys), "key": keyed.keys, "value": keyed.values}
                    yield pa.record_batch(columns, COMBINED_SCHEMA)

    return combine


def _page_rows(planned: PlannedPages, first_pages: int) -> pa.RecordBatch:
    keys = pa.array([spark_key_of_page(page, first_pages) for page in planned.pages], pa.int32())
    return pa.RecordBatch.from_arrays([keys, planned.payloads], schema=PLANNED_SCHEMA)
