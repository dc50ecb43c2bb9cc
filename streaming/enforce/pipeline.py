"""The pipeline of the enforce query, in pure Python.

    events ── plan ──► charge rows, by page ── decide ──► records, and partial decisions ── combine ──► records

A record is finished: a decision or a dead letter. A partial decision is the result of one counter for a request that
charges several. Rows are shuffled between the steps: the rows of a page come together before `decide`, the partial
decisions of a request before `combine`. Spark (`stages`), `sluice simulate` (`simulation`) and the tests drive these
functions, so they all decide alike.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from sluice.configs.settings import Settings
from sluice.state.arithmetic.counter import Outcome
from sluice.state.contract.records import MAX_TIMESTAMP_MS, Request
from sluice.state.decisions.decision import combine as combine_request
from sluice.state.decisions.decision import decide as decide_request
from sluice.state.decisions.decision import partial_decision
from sluice.state.decisions.wait_records import LONG_WAIT_MS
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import Pages, page_of_entity
from sluice.streaming.enforce.planning import PipelineSettings, plan_event, plan_request, plan_unmute, read_event
from sluice.streaming.enforce.wire import (
    ChargeRow,
    DecisionPart,
    OutputRecord,
    PageBatch,
    Source,
    WaitOutput,
    decision_record,
    wait_output,
)

MAX_PAGE_BATCH_BYTES = 16 * 1024
"""Bytes of events for each page after which page batches are sent. More rows would not fit in the CPU cache."""

_MAX_PLANNED_BYTES = 8 * 1024 * 1024
"""Bytes of events after which page batches are sent, however many pages there are: they are objects until then."""

_OFFSET_ORDER = attrgetter("partition", "offset")
_PART_ORDER = attrgetter("part")


class Decided(NamedTuple):
    """The result of `decide`: finished records, and partial decisions that `combine` has to make records of.

    `waits` are the records of the waits topic, at most one for each counter.
    """

    records: list[OutputRecord]
    parts: list[DecisionPart]
    waits: list[WaitOutput]


def plan(
    events: Iterable[tuple[bytes | None, Source]],
    quotas: Quotas,
    settings: PipelineSettings,
    decided_at_ms: int,
    max_page_batch_bytes: int = MAX_PAGE_BATCH_BYTES,
) -> Iterator[dict[int, PageBatch]]:
    """One page batch for each page; new page batches after `max_page_batch_bytes` of events for each page.

    A record that needs no counter goes with the page batch of page `offset % pages`, so that all pages get some.
    """
    max_bytes = min(max_page_batch_bytes * settings.pages, _MAX_PLANNED_BYTES)
    page_batches: defaultdict[int, PageBatch] = defaultdict(PageBatch)
    planned_bytes = 0
    for value, source in events:
        planned = plan_event(value, source, quotas, settings, decided_at_ms)
        if isinstance(planned, OutputRecord):
            page_batches[source.offset % settings.pages].records.append(planned)
        else:
            for row in planned:
                page_batches[page_of_entity(row.key, settings.pages)].charge_rows.append(row)
        planned_bytes += len(value or b"")
        if planned_bytes >= max_bytes:
            yield page_batches
            page_batches, planned_bytes = defaultdict(PageBatch), 0
    yield page_batches


def decide(counters: Pages, page_batches: Iterable[PageBatch], settings: PipelineSettings) -> Decided:
    """Charge the counters of some pages with all rows that a micro-batch has for them."""
    records: list[OutputRecord] = []
    parts: list[DecisionPart] = []
    rows_by_key: dict[str, list[ChargeRow]] = {}
    for page_batch in page_batches:
        records.extend(page_batch.records)
        for row in page_batch.charge_rows:
            rows_by_key.setdefault(row.key, []).append(row)
    waits: dict[tuple[QuotaKind, str], WaitOutput] = {}
    ordered = {key: in_charge_order(rows) for key, rows in rows_by_key.items()}
    for row, outcomes in counters.charge(ordered, settings.quota):
        if row.parts == 1 and row.head is not None:
            decision = decide_request(row.head, row.timestamp_ms, outcomes, row.tags, settings.quota)
            records.append(decision_record(settings.decisions_topic, decision, settings.job_id))
        else:
            partial = partial_decision(outcomes, row.tags)
            parts.append(DecisionPart(row.partition, row.offset, row.part, row.timestamp_ms, row.head, partial))
        for outcome in outcomes:
            # The last outcome of a counter counts; one without a long wait matters only after another one or a reset.
            if outcome.wait_ms > LONG_WAIT_MS or waits or not outcome.charge.amounts:
                _note_wait(waits, row, outcome, settings.waits_topic)
    return Decided(records, parts, list(waits.values()))


def _note_wait(waits: dict[tuple[QuotaKind, str], WaitOutput], row: ChargeRow, outcome: Outcome, topic: str) -> None:
    """Keep what the waits topic has to say of a counter after this charge; the charges of a counter come in order."""
    charge = outcome.charge
    counter = (charge.kind, row.key)
    is_new = outcome.wait_ms > LONG_WAIT_MS or not charge.amounts
    if not charge.shadow and (is_new or counter in waits):
        waits[counter] = wait_output(topic, row, outcome)


def combine(parts: Iterable[DecisionPart], settings: PipelineSettings) -> Iterator[OutputRecord]:
    """One decision per request, from all its partial decisions."""
    parts_by_request: dict[tuple[int, int], list[DecisionPart]] = {}
    for part in parts:
        parts_by_request.setdefault((part.partition, part.offset), []).append(part)
    for of_request in parts_by_request.values():
        of_request.sort(key=_PART_ORDER)
        first = of_request[0]
        if first.head is None:
            raise ValueError("the first part of a request carries its head")
        partials = [part.partial for part in of_request]
        decision = combine_request(first.head, first.timestamp_ms, partials, settings.quota)
        yield decision_record(settings.decisions_topic, decision, settings.job_id)


def in_charge_order(rows: list[ChargeRow]) -> list[ChargeRow]:
    """One counter's rows in the order in which they are charged.

    Rows of one source partition keep their offset order, whatever their event times are. Partitions are merged by the
    newest event time seen in each. The order of a counter's rows depends on those rows alone, so neither the number of
    pages nor other entities can change a decision.
    """
    if len(rows) == 1:
        return rows
    by_offset = sorted(rows, key=_OFFSET_ORDER)
    if by_offset[0].partition == by_offset[-1].partition:
        return by_offset
    newest_ms: dict[int, int] = {}
    merged = []
    for index, row in enumerate(by_offset):
        newest_ms[row.partition] = max(row.timestamp_ms, newest_ms.get(row.partition, row.timestamp_ms))
        merged.append((newest_ms[row.partition], index))
    merged.sort()
    return [by_offset[index] for _, index in merged]


class Simulation:
    """One source partition and one page: events are decided in the order given."""

    def __init__(self, quotas: Quotas, settings: Settings) -> None:
        self._quotas = quotas
        pipeline_settings = PipelineSettings.of(settings)
        # An event's own time stands for its record's, so no event can lie in the future or the past.
        limits = pipeline_settings.limits._replace(max_future_ms=MAX_TIMESTAMP_MS, max_past_ms=MAX_TIMESTAMP_MS)
        self._settings = pipeline_settings._replace(limits=limits)
        self._counters = Pages()
        self._newest_ms = 0
        self._next_offset = 0

    def decide(self, events: Iterable[bytes]) -> Iterator[OutputRecord]:
        """A decision or dead letter per event. An event without a time gets the time of the previous request."""
        for value in events:
            yield self._decide(value, Source(self._settings.requests_topic, 0, self._next_offset, self._newest_ms))
            self._next_offset += 1

    def _decide(self, value: bytes, source: Source) -> OutputRecord:
        event = read_event(value, source, self._settings)
        if isinstance(event, OutputRecord):
            return event
        if isinstance(event, Request):
            self._newest_ms = event.timestamp_ms or 0
            planned = plan_request(event, source, self._quotas, self._settings, decided_at_ms=self._newest_ms)
        else:
            planned = plan_unmute(event, source, self._quotas, self._settings, decided_at_ms=self._newest_ms)
        if isinstance(planned, OutputRecord):
            return planned
        records, parts, _ = decide(self._counters, [PageBatch(planned)], self._settings)
        (record,) = [*records, *combine(parts, self._settings)]
        return record
