"""The engine of the enforce query: it plans events, decides pages and combines partial decisions, from bytes to bytes.

`PythonEngine` is the rule. Another engine may do the same faster: it makes the same decisions, sums, waits and stored
pages, to the byte, and what it declines is its own business, which is to say that it asks Python.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple, Protocol

import pyarrow as pa

from sluice.state.contract.gateway_topics import Overrides
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import Evicted, Page, max_entities_of_page
from sluice.streaming.enforce import pipeline
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Keyed, KeyedArrays, Outputs, Source, decode_group, encoded_groups
from sluice.streaming.workers.engine_start import EngineStart, found_engine


class PlannedPages(NamedTuple):
    """Page batches: the number of the page of each, and their bytes."""

    pages: Sequence[int]
    payloads: pa.Array


class PageToDecide(NamedTuple):
    """A page: its number, its stored form, if it has one, and its page batches."""

    number: int
    payload: bytes | None
    page_batches: Sequence[bytes]


class SumsMade(Protocol):
    """Sums of what was decided, for gateways."""

    def records(self, job_id: str | None, batch: int, quota_version: int, decided_at_ms: int = 0) -> Iterator[bytes]:
        """The records of the sums topic, as `sluice.state.shares.sums.DecidedSums` makes them."""


class Made(NamedTuple):
    """The result for some pages: finished records by topic, those in `outputs` as lists that may grow.

    `partial_decisions` are encoded, by the number of their group. `sums` are what gateways need to know.
    """

    records: Mapping[str, KeyedArrays]
    outputs: Outputs
    partial_decisions: Keyed
    sums: SumsMade


class DecidedPages(NamedTuple):
    """The result for all pages, in one piece or more; the new stored form of each, in order; the counters evicted."""

    made: Sequence[Made]
    stored: Sequence[bytes]
    evicted: Evicted


class Engine(EngineStart):
    """Plans, decides and combines, in the tasks of a micro-batch. An extra gives one by an entry point (`EngineStart`).

    A worker process has one engine for all its tasks, which come one after another, with the quotas and settings of
    their micro-batch. A task may be repeated, in this process or in another one, and has to give the same bytes again.
    So an engine may keep what follows from quotas and settings. It must not keep anything of an event or a page, look
    at the clock, read or write a file, start a thread, or change what it was given.
    """

    @abstractmethod
    def plan(
        self,
        batches: Iterable[pa.RecordBatch],
        quotas: Quotas,
        settings: PipelineSettings,
        decided_at_ms: int,
        overrides: Overrides | None,
    ) -> Iterator[PlannedPages]:
        """Page batches of Kafka records (value, partition, offset, timestamp_ms), as `pipeline.plan` makes them.

        Called once in a task, before the rows of pages come together. An event that can't be read becomes the record
        of a dead letter, never an error.
        """

    @abstractmethod
    def decide(self, pages: Sequence[PageToDecide], settings: PipelineSettings) -> DecidedPages:
        """Charge the counters of some pages with all rows that a micro-batch has for them.

        Called with all pages of a task, or with some at a time. Raises StateError, which names the page, if a stored
        one is unreadable.
        """

    @abstractmethod
    def combine(
        self, payloads: Sequence[pa.Buffer], settings: PipelineSettings
    ) -> Mapping[str, Keyed] | Mapping[str, KeyedArrays]:
        """The records of encoded partial decisions by topic; all of a request are among them.

        Called for each group of them, in micro-batches alone where a request may charge several entities.
        """


class PythonEngine(Engine):
    """The rule: `pipeline`, on the values in Arrow's columns."""

    @property
    def place(self) -> str:
        """The rule needs no other one."""
        return "Python"

    def plan(
        self,
        batches: Iterable[pa.RecordBatch],
        quotas: Quotas,
        settings: PipelineSettings,
        decided_at_ms: int,
        overrides: Overrides | None,
    ) -> Iterator[PlannedPages]:
        """As `pipeline.plan`."""
        events = chain.from_iterable(_events(batch, settings.requests_topic) for batch in batches)
        for page_batches in pipeline.plan(events, quotas, settings, decided_at_ms, overrides):
            yield PlannedPages([*page_batches], pa.array(page_batches.values(), pa.binary()))

    def decide(self, pages: Sequence[PageToDecide], settings: PipelineSettings) -> DecidedPages:
        """As `pipeline.decide`, with the pages' store."""
        charger, stored, evicted = pipeline.PageCharger(settings), list[bytes](), Evicted()
        most = max_entities_of_page(settings.max_entities, settings.pages)
        for each in pages:  # one after another: counters of all pages would not fit in the CPU cache
            page = Page(each.number, settings.pages, each.payload)
            charger.charge(page, each.page_batches)
            stored.append(page.to_bytes(settings.idle_expiry_ms, settings.quota, most))
            evicted = evicted.plus(page.evicted)
        outputs, partial_decisions, sums = charger.made()
        made = Made({}, outputs, encoded_groups(partial_decisions), sums)
        return DecidedPages([made], stored, evicted)

    def combine(
        self, payloads: Sequence[pa.Buffer], settings: PipelineSettings
    ) -> Mapping[str, Keyed] | Mapping[str, KeyedArrays]:
        """As `pipeline.combine`."""
        return pipeline.combine(chain.from_iterable(map(decode_group, payloads)), settings)


_PYTHON = PythonEngine()


def engine_of(*, is_native: bool) -> Engine:
    """The engine of this process: that of an extra, if native code is wanted and there is one, else Python's."""
    found = found_engine().engine if is_native else None
    return found if isinstance(found, Engine) else _PYTHON


def _events(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[bytes | None, Source]]:
    numbers = (batch.column(name).to_numpy().tolist() for name in ("partition", "offset", "timestamp_ms"))
    return zip(batch.column("value").to_pylist(), map(Source, repeat(topic), *numbers), strict=True)
