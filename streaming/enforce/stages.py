"""The Python stages of the enforce query: thin adapters between Arrow or pandas and the pipeline."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from sluice.configs.settings import Settings
from sluice.state.errors import StateError
from sluice.state.shares.sums import DecidedSums
from sluice.state.store.codec import entities_of
from sluice.state.store.pages import Evicted, Pages, part_of_page, reshard
from sluice.streaming.balances.imported import ImportedBalances
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.page_keys import page_of_spark_key, spark_key_of_page
from sluice.streaming.enforce import pipeline
from sluice.streaming.enforce.batch_properties import BatchProperties
from sluice.streaming.enforce.garbage_collection import collection_paused
from sluice.streaming.enforce.native_decide import PageToDecide, native_decider
from sluice.streaming.enforce.native_plan import native_planner
from sluice.streaming.enforce.planning import PipelineSettings
from sluice.streaming.enforce.planning import planner as planner_of
from sluice.streaming.enforce.tracked_entities import Tracked
from sluice.streaming.enforce.wire import (
    OVERHEAD_BYTES,
    Keyed,
    KeyedArrays,
    Outputs,
    PackedRow,
    PageBatch,
    Source,
    decode_parts,
    encode_page_batch,
    encoded_parts,
    packed,
)
from sluice.streaming.workers.batched import Decided, Groups

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql.streaming.state import GroupState

PLANNED_SCHEMA = "shard_key int, payload binary"
"""`shard_key` is the page's Spark key: stored state keeps the name under which it was first written."""

DECIDED_SCHEMA = "partial boolean, topic string, keys array<binary>, values array<binary>"
COMBINED_SCHEMA = "topic string, key binary, value binary"
STATE_SCHEMA = "v int, payload binary"
"""Can never change, because PySpark can't evolve this operator's state; the codec inside `payload` has a version."""

_STATE_VERSION = 1
_PLANNED = pa.schema([("shard_key", pa.int32()), ("payload", pa.binary())])
_COMBINED = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])

ReadT = TypeVar("ReadT")
ArrowStage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def planner(settings: Settings, pipeline_settings: PipelineSettings) -> ArrowStage:
    """Step plan: Kafka records (value, timestamp_ms, partition, offset) to page batches with their Spark keys."""
    checkpoint, is_native = Checkpoint(settings.enforce.checkpoint).location, settings.enforce.native

    def plan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        properties = BatchProperties.of_task()
        quotas = properties.quotas(checkpoint)
        own = properties.settings(pipeline_settings)
        of_batch = properties.decided_at_ms, properties.overrides
        native = native_planner(planner_of(quotas, own), own) if is_native else None
        with collection_paused():
            if native is None:
                events = chain.from_iterable(_events(batch, own.requests_topic) for batch in batches)
                for page_batches in pipeline.plan(events, quotas, own, *of_batch):
                    yield _planned(page_batches, pipeline_settings.pages)
            else:
                for planned in native.plan(batches, *of_batch):
                    yield _joined(planned.pages.tolist(), planned.payloads, pipeline_settings.pages)
            if properties.splits:
                empty = encode_page_batch(PageBatch())
                yield _planned(dict.fromkeys(range(properties.pages), empty), pipeline_settings.pages)

    return plan


class StoredPage(NamedTuple):
    """One page of a micro-batch: its Spark key, its stored form if it has one, and its page batches."""

    spark_key: int
    payload: bytes | None
    page_batches: list[bytes]


class PageDecider:
    """Step decide, the stateful operator: page batches of a micro-batch, charged to the counters in their pages' state.

    PySpark's own workers call it with one page, Sluice's batched workers (`streaming/workers/batched.py`) with many. It
    decides the same: the counters of a page know nothing of those of another.
    """

    def __init__(
        self,
        settings: Settings,
        pipeline_settings: PipelineSettings,
        tracked: "Accumulator[Tracked] | None" = None,
    ) -> None:
        """`tracked` is told the number of entities of each page, and the numbers evicted."""
        self._imported = ImportedBalances.of(settings)
        self._settings = pipeline_settings
        self._tracked = tracked
        self._is_native = settings.enforce.native

    @overload
    def __call__(self, key: tuple[()], rows: Groups, state: None) -> Decided: ...

    @overload
    def __call__(
        self, key: tuple[int, ...], rows: Iterable[pd.DataFrame], state: "GroupState"
    ) -> Iterator[pd.DataFrame]: ...

    def __call__(
        self, key: tuple[int, ...], rows: Iterable[pd.DataFrame] | Groups, state: "GroupState | None"
    ) -> Iterator[pd.DataFrame] | Decided:
        """The function of `applyInPandasWithState`, for one group or for many."""
        if isinstance(rows, Groups):
            return self._decide_groups(rows)
        if state is None:
            raise TypeError("PySpark gives each group its state")
        return self._decide_group(key[0], rows, state)

    def _decide_group(self, key: int, frames: Iterable[pd.DataFrame], state: "GroupState") -> Iterator[pd.DataFrame]:
        with collection_paused():
            page_batches = [payload for frame in frames for payload in frame["payload"]]
            page = StoredPage(int(key), state.get[1] if state.exists else None, page_batches)
            rows, (payload,) = self._decide([page])
            state.update((_STATE_VERSION, payload))
            yield pd.DataFrame([row.with_lists() for row in rows], columns=PackedRow._fields)

    def _decide_groups(self, groups: Groups) -> Decided:
        with collection_paused():
            pages = [StoredPage(key, state[1] if state else None, page_batches) for key, state, page_batches in groups]
            rows, payloads = self._decide(pages)
            return Decided(rows, [(_STATE_VERSION, payload) for payload in payloads])

    def _decide(self, pages: Sequence[StoredPage]) -> tuple[list[PackedRow], list[bytes]]:
        """Rows to emit, and the new stored form of each page.

        A page is split where all pages are that it becomes: `page_keys` gives them to one task, `batched` to one call.
        """
        properties = BatchProperties.of_task()
        settings = properties.settings(self._settings)
        stored = {page_of_spark_key(page.spark_key, self._settings.pages): page.payload for page in pages}
        if properties.splits and not stored.keys() >= {number % properties.stored_pages for number in stored}:
            raise RuntimeError("a page is split without the page that has its entities; batched workers have both")
        payloads = {number: payload for number, payload in stored.items() if payload is not None}
        payloads |= self._imported.pages(stored.keys() - payloads.keys())  # never charged here
        if properties.splits:
            split = partial(reshard, before=properties.stored_pages, after=properties.pages)
            payloads = _read_pages(payloads, split)
        to_decide = {
            number: PageToDecide(number, payloads.get(number), page.page_batches)
            for number, page in zip(stored, pages, strict=True)
        }
        rows, written, evicted, dropped = list[PackedRow](), dict[int, bytes](), Evicted(), 0
        native = native_decider(settings) if self._is_native else None
        if native is not None:
            made = native.decide(list(to_decide.values()))
            written = {number: new for number, new in zip(stored, made.stored, strict=True) if new is not None}
            to_decide = {number: page for number, page in to_decide.items() if number not in written}
            evicted = made.evicted
            rows += packed(made.records)
            dropped += _finish(rows, made.waits, made.parts, made.sums, settings, properties)
        if to_decide:
            of_rest = {number: payload for number, payload in payloads.items() if number not in written}
            counters = stored_pages(of_rest, properties.pages)
            page_batches = (payload for page in to_decide.values() for payload in page.page_batches)
            outputs, parts, sums = pipeline.decide(counters, page_batches, settings)
            part = part_of_page(settings.max_entities, settings.pages)
            new = counters.to_bytes(list(to_decide), settings.pages, settings.idle_expiry_ms, settings.quota, part)
            written |= zip(to_decide, new, strict=True)
            evicted = evicted.plus(counters.evicted)
            dropped += _finish(rows, outputs, encoded_parts(parts), sums, settings, properties)
        in_order = [written[number] for number in stored]
        if self._tracked is not None:
            entities = {page.spark_key: entities_of(new) for page, new in zip(pages, in_order, strict=True)}
            self._tracked.add(Tracked(entities, evicted, dropped))
        return rows, in_order


def _finish(
    rows: list[PackedRow],
    outputs: Outputs,
    parts: Keyed,
    sums: DecidedSums,
    settings: PipelineSettings,
    properties: BatchProperties,
) -> int:
    """Add the rows of what was decided; the number of records of sums that were dropped, as no topic takes them."""
    if parts.keys and not properties.combined:  # otherwise they would be written to Kafka as records
        raise RuntimeError("there are partial decisions in a micro-batch whose plan doesn't combine them")
    key, dropped = b"%d" % properties.task, 0  # the key is the same for a counter in all micro-batches
    of_batch = properties.batch_id, properties.quota_version, properties.decided_at_ms
    for value in sums.records(settings.job_id, *of_batch):
        if len(value) + OVERHEAD_BYTES > settings.max_record_bytes:
            dropped += 1
        else:
            outputs[settings.sums_topic].add(key, value)
    rows += packed(outputs, parts)
    return dropped


def stored_pages(payloads: Mapping[int, bytes], pages: int) -> Pages:
    """The counters in these stored pages, by number. Raises StateError, which names the page, if one is unreadable."""
    return _read_pages(payloads, partial(Pages.from_bytes, pages=pages))


def _read_pages(payloads: Mapping[int, bytes], read: Callable[[Iterable[bytes]], ReadT]) -> ReadT:
    try:
        return read(payloads.values())
    except StateError:
        for number, payload in payloads.items():
            try:
                read([payload])
            except StateError as error:
                raise StateError(f"page {number}: {error}") from error
        raise


def combiner(settings: PipelineSettings, *, is_native: bool) -> ArrowStage:
    """Step combine: finished records pass untouched; parts, all of a request in one group, become records.

    Parts stay encoded until all are there, and are decoded group by group: decoded they take many times the memory.
    """

    def combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups: dict[bytes, list[pa.Buffer]] = {}
        with collection_paused():
            for batch in batches:
                partial, keys, values = (batch.column(name) for name in ("partial", "key", "value"))
                if partial.true_count < len(batch):
                    yield batch.filter(pc.invert(partial)).select(_COMBINED.names)
                for place in pc.indices_nonzero(partial).to_pylist():
                    groups.setdefault(keys[place].as_py(), []).append(values[place].as_buffer())
            native = native_decider(settings) if is_native and groups else None
            while groups:
                payloads = groups.popitem()[1]
                records: Mapping[str, Keyed | KeyedArrays] | None = native.combine(payloads) if native else None
                if records is None:
                    parts = [part for payload in payloads for part in decode_parts(payload)]
                    records = pipeline.combine(parts, settings)
                for topic, keyed in records.items():
                    columns = [topic] * len(keyed.keys), keyed.keys, keyed.values
                    arrays = [pa.array(column, kind) for column, kind in zip(columns, _COMBINED.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=_COMBINED)

    return combine


def _events(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[bytes | None, Source]]:
    numbers = (batch.column(name).to_numpy().tolist() for name in ("partition", "offset", "timestamp_ms"))
    return zip(batch.column("value").to_pylist(), map(Source, repeat(topic), *numbers), strict=True)


def _planned(page_batches: Mapping[int, bytes], first_pages: int) -> pa.RecordBatch:
    return _joined(page_batches, pa.array(page_batches.values(), pa.binary()), first_pages)


def _joined(pages: Iterable[int], payloads: pa.Array, first_pages: int) -> pa.RecordBatch:
    """The page batches of these pages, with their Spark keys."""
    keys = pa.array([spark_key_of_page(page, first_pages) for page in pages], pa.int32())
    return pa.RecordBatch.from_arrays([keys, payloads], schema=_PLANNED)
