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

from sluice.state.arithmetic.counter import Outcome
from sluice.state.decisions.decision import combine as combine_request
from sluice.state.decisions.decision import decide as decide_request
from sluice.state.decisions.decision import partial_decision
from sluice.state.decisions.wait_records import LONG_WAIT_MS
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import Pages, page_of_entity
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.planning import plan_event
from sluice.streaming.enforce.source import Source
from sluice.streaming.enforce.wire import (
    ChargeRow,
    DecisionPart,
    OutputRecord,
    Parcel,
    WaitOutput,
    decision_record,
    wait_output,
)

MAX_PARCEL_BYTES = 16 * 1024
"""Bytes of events for each page after which parcels are sent. With more, the rows would not fit in the CPU cache."""

_MAX_PLANNED_BYTES = 8 * 1024 * 1024
"""Bytes of events after which parcels are sent, however many pages there are: they are objects until then."""

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
    max_parcel_bytes: int = MAX_PARCEL_BYTES,
) -> Iterator[dict[int, Parcel]]:
    """One parcel for each page; new parcels after `max_parcel_bytes` of events for each page.

    A record that needs no counter goes with the parcel of page `offset % pages`, so that all pages get some.
    """
    max_bytes = min(max_parcel_bytes * settings.pages, _MAX_PLANNED_BYTES)
    parcels: defaultdict[int, Parcel] = defaultdict(Parcel)
    planned_bytes = 0
    for value, source in events:
        planned = plan_event(value, source, quotas, settings, decided_at_ms)
        if isinstance(planned, OutputRecord):
            parcels[source.offset % settings.pages].records.append(planned)
        else:
            for row in planned:
                parcels[page_of_entity(row.key, settings.pages)].charge_rows.append(row)
        planned_bytes += len(value or b"")
        if planned_bytes >= max_bytes:
            yield parcels
            parcels, planned_bytes = defaultdict(Parcel), 0
    yield parcels


def decide(counters: Pages, parcels: Iterable[Parcel], settings: PipelineSettings) -> Decided:
    """Charge the counters of some pages with all rows that a micro-batch has for them."""
    records: list[OutputRecord] = []
    parts: list[DecisionPart] = []
    rows_by_key: dict[str, list[ChargeRow]] = {}
    for parcel in parcels:
        records.extend(parcel.records)
        for row in parcel.charge_rows:
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
