"""The pipeline of the enforce query, in pure Python.

    events ── plan ──► charge rows, by page ── decide ──► records, and partial decisions ── combine ──► records

A record is finished: a decision or a dead letter. A partial decision is the result of one counter for a request that
charges several. Rows are shuffled between the steps: the rows of a page come together before `decide`, the partial
decisions of a request before `combine`. Spark (`stages`), `sluice simulate` (`simulation`) and the tests drive these
functions, so they all decide alike.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from sluice.configs.settings import Settings
from sluice.state.arithmetic.columns import integers
from sluice.state.arithmetic.shapes import Shapes
from sluice.state.contract.records import MAX_TIMESTAMP_MS, Overrides, Request, WaitRecord
from sluice.state.decisions.charge_texts import charge_of, charge_texts, number_texts, waits_of
from sluice.state.decisions.decision import Waits, answered, clamp_throttle_ms, with_answer, with_charges
from sluice.state.decisions.waits import LONG_WAIT_MS
from sluice.state.quotas.entity import COMMON_MARK
from sluice.state.quotas.kinds import Family, QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.counter_share import Metering
from sluice.state.shares.sums import DecidedSums
from sluice.state.store.pages import ChargedRows, Pages
from sluice.streaming.enforce.planning import PipelineSettings, Planned, Planner, planner, read_event
from sluice.streaming.enforce.wire import (
    OVERHEAD_BYTES,
    ChargeRow,
    DecisionPart,
    GrowingPageBatch,
    Keyed,
    OutputRecord,
    Outputs,
    Source,
    answer_record,
    decode_page_batch,
    oversized_decision_record,
    wait_record,
)

MAX_PAGE_BATCH_BYTES = 16 * 1024
"""Bytes of events for each page after which page batches are sent. More rows would not fit in the CPU cache."""

_MAX_PLANNED_BYTES = 8 * 1024 * 1024
"""Bytes of events after which page batches are sent, however many pages there are: they are objects until then."""

LEAST_EVENT_BYTES = 64
"""Bytes that an event counts at least: a dead letter is longer than an event without bytes."""

_LONGEST_KEY = 8
"""A key, of names as they are in the value but URL-encoded, is no longer than so many values."""

_PART_ORDER = attrgetter("part")


class Decided(NamedTuple):
    """The result of `decide`: finished records, and partial decisions that `combine` has to make records of.

    The waits topic has at most one record for each counter. `sums` are what gateways need to know.
    """

    outputs: Outputs
    parts: list[DecisionPart]
    sums: DecidedSums


def plan(
    events: Iterable[tuple[bytes | None, Source]],
    quotas: Quotas,
    settings: PipelineSettings,
    decided_at_ms: int,
    overrides: Overrides | None = None,
    max_page_batch_bytes: int = MAX_PAGE_BATCH_BYTES,
) -> Iterator[dict[int, bytes]]:
    """One encoded page batch for each page; new page batches after `max_page_batch_bytes` of events for each page.

    A record that needs no counter goes with the page batch of page `offset % pages`, so that all pages get some.
    `overrides` say how far limits give way.
    """
    max_bytes = most_planned_bytes(settings, max_page_batch_bytes)
    page_batches: defaultdict[int, GrowingPageBatch] = defaultdict(GrowingPageBatch)
    planned_bytes, plans = 0, planner(quotas, settings)
    batch = plans.batch(decided_at_ms, overrides)
    for value, source in events:
        event = read_event(value, source, settings)
        planned = [event] if isinstance(event, OutputRecord) else plans.plan(event, source, decided_at_ms, batch)
        for each in planned:
            if isinstance(each, OutputRecord):
                page_batches[source.offset % settings.pages].records.append(each)
            else:
                page, row = each
                page_batches[page].add(row)
        planned_bytes += max(len(value or b""), LEAST_EVENT_BYTES)
        if planned_bytes >= max_bytes:
            yield _encoded(page_batches)
            page_batches, planned_bytes = defaultdict(GrowingPageBatch), 0
    yield _encoded(page_batches)


def most_planned_bytes(settings: PipelineSettings, max_page_batch_bytes: int = MAX_PAGE_BATCH_BYTES) -> int:
    """Bytes of events after which page batches are sent."""
    return min(max_page_batch_bytes * settings.pages, _MAX_PLANNED_BYTES)


def _encoded(page_batches: Mapping[int, GrowingPageBatch]) -> dict[int, bytes]:
    return {page: page_batch.encoded() for page, page_batch in page_batches.items()}


def decide(counters: Pages, page_batches: Iterable[bytes], settings: PipelineSettings) -> Decided:
    """Charge the counters of some pages with all rows that a micro-batch has for them, in encoded page batches."""
    outputs, base_ms = Outputs(), MAX_TIMESTAMP_MS
    rows_by_key: dict[str, list[ChargeRow]] = {}
    for page_batch in map(decode_page_batch, page_batches):
        for topic, key, value in page_batch.records:
            outputs[topic].add(key, value)
        for row in page_batch.charge_rows:
            rows = rows_by_key.get(row.key)
            if rows is None:
                rows_by_key[row.key] = [row]
            else:
                rows.append(row)
            base_ms = row.timestamp_ms if row.timestamp_ms < base_ms else base_ms
    repeated = {key: rows for key, rows in rows_by_key.items() if len(rows) > 1}
    if repeated:
        rows_by_key |= in_charge_order(repeated)
    made = Decided(outputs, [], DecidedSums(Metering.of(settings.quota).span_ms, base_ms))
    shapes, waits = Shapes(), dict[tuple[QuotaKind, str], _Wait]()
    of_tenants = [key for key in rows_by_key if COMMON_MARK in key]
    requests = _mutations_of_tenants({key: rows_by_key.pop(key) for key in of_tenants}) if of_tenants else []
    all_charged = [counters.charge(rows_by_key, shapes, settings.quota)]
    if requests:
        all_charged.append(counters.charge_together(requests, shapes, settings.quota))
    for charged in all_charged:
        values = {kind: number_texts(outcomes.values) for kind, outcomes in charged.outcomes.items()}
        _decide(charged, values, shapes, settings, made)
        _note_waits(charged, shapes, waits)
        made.sums.add_rows(charged.rows, charged.outcomes, values, shapes, repeated)
    for wait in waits.values():
        outputs[settings.waits_topic].add(*wait_record(*wait))
    _bound_decisions(outputs, settings)
    return made


def _bound_decisions(outputs: Outputs, settings: PipelineSettings) -> None:
    """Make a decision that no record takes the dead letter of its event: it would end the query at each attempt."""
    keyed, most = outputs.get(settings.decisions_topic), settings.max_record_bytes
    if keyed is None or _LONGEST_KEY * max((len(value or b"") for value in keyed.values), default=0) <= most:
        return
    kept = Keyed()
    for key, value in zip(keyed.keys, keyed.values, strict=True):
        if value is None or len(key or b"") + len(value) + OVERHEAD_BYTES <= most:
            kept.add(key, value)
        else:
            letter = oversized_decision_record(settings.dead_letters_topic, value, most, settings.topic_id)
            outputs[letter.topic].add(letter.key, letter.value)
    outputs[settings.decisions_topic] = kept


def _mutations_of_tenants(rows_by_key: Mapping[str, Sequence[ChargeRow]]) -> list[dict[str, ChargeRow]]:
    """The requests for mutations of members of tenants, each with the rows of its client, if any, and its tenant.

    They come in the order in which those of each tenant are charged.
    """
    members: dict[tuple[str, int, int], tuple[str, ChargeRow]] = {}
    for key, rows in rows_by_key.items():
        if not key.endswith(COMMON_MARK):
            tenant_key = key[: key.index(COMMON_MARK) + 1]
            members |= {(tenant_key, row.partition, row.offset): (key, row) for row in rows}
    requests = []
    for key, rows in rows_by_key.items():
        if key.endswith(COMMON_MARK):
            for row in rows:
                own = members.get((key, row.partition, row.offset))
                requests.append({key: row} if own is None else {own[0]: own[1], key: row})
    return requests


def _decide(
    charged: ChargedRows[ChargeRow],
    values: Mapping[QuotaKind, Sequence[bytes]],
    shapes: Shapes,
    settings: PipelineSettings,
    made: Decided,
) -> None:
    """Make the record of each row, or its part of one; `values` are those of its charges as JSON."""
    outputs, parts = made.outputs, made.parts
    texts = charge_texts(charged.rows, charged.outcomes, values, shapes)
    waits = waits_of(charged.rows, charged.outcomes, shapes)
    decisions = outputs[settings.decisions_topic]
    keys, decided = decisions.keys, decisions.values
    for number, (row, charges) in enumerate(zip(charged.rows, texts, strict=True)):
        if row.parts > 1:
            parts.append(
                DecisionPart(
                    row.partition,
                    row.offset,
                    row.part,
                    row.timestamp_ms,
                    row.purgatory_ms,
                    row.record_key,
                    row.said,
                    charges,
                    waits.get(number),
                    row.asked_by,
                )
            )
        elif number in waits or row.asked_by is not None:
            _add_decision(outputs, row, charges, waits.get(number), settings)
        else:
            keys.append(row.record_key)
            decided.append(with_charges(row.said, charges))


def _add_decision(
    outputs: Outputs,
    row: ChargeRow | DecisionPart,
    charges: bytes,
    waits: Waits | None,
    settings: PipelineSettings,
) -> None:
    """Add the record of a decision, and that for a gateway which waits for it; the row is the first of its request."""
    text = row.said
    if waits is not None:
        answer = answered(waits, row.purgatory_ms, row.timestamp_ms, settings.quota)
        text = with_answer(text, answer, waits.refused, row.timestamp_ms)
    value = with_charges(text, charges)
    outputs[settings.decisions_topic].add(row.record_key, value)
    if row.asked_by is not None:
        told = answer_record(settings.sums_topic, row.asked_by, value, settings.max_record_bytes)
        if told is not None:
            outputs[told.topic].add(told.key, told.value)


class _Wait(NamedTuple):
    """News of a counter, whose entity is JSON, for the waits topic."""

    kind: QuotaKind
    entity: bytes
    record: WaitRecord | None


def _note_waits(charged: ChargedRows[ChargeRow], shapes: Shapes, waits: dict[tuple[QuotaKind, str], _Wait]) -> None:
    """Keep what the waits topic has to say of each counter after its last charge, which come in order.

    A charge without a long wait matters only after one, or if it is a reset.
    """
    for kind, outcomes in charged.outcomes.items():
        long_ms = {
            position: clamp_throttle_ms(violation.wait_ms)
            for position, violation in outcomes.violations.items()
            if violation.wait_ms > LONG_WAIT_MS
        }
        if not (long_ms or outcomes.resets or waits):
            continue
        for position, number in enumerate(outcomes.rows):
            row = charged.rows[number]
            counter = kind, row.key
            if position not in long_ms and position not in outcomes.resets and counter not in waits:
                continue
            charge = charge_of(shapes[row.shape], kind)
            if not charge.shadow:
                rate = None if kind.family is Family.MUTATIONS else outcomes.rates[position]
                record = _wait_record(row, long_ms[position], charge.limit, rate) if position in long_ms else None
                waits[counter] = _Wait(kind, row.entity, record)


def _wait_record(row: ChargeRow, throttle_ms: int, limit: float | None, rate: float | None) -> WaitRecord:
    """A wait that the row's request leads to. One for tokens has no rate, as they come back at the limit
    (`sluice.state.decisions.waits.wait_under_limit_ms`)."""
    return WaitRecord(row.timestamp_ms + throttle_ms, throttle_ms, limit, rate, row.timestamp_ms, row.offset)


def combine(parts: Iterable[DecisionPart], settings: PipelineSettings) -> Outputs:
    """One decision per request, from all its parts, and what a gateway that waits for it has to know."""
    parts_by_request: dict[tuple[int, int], list[DecisionPart]] = {}
    for part in parts:
        parts_by_request.setdefault((part.partition, part.offset), []).append(part)
    outputs = Outputs()
    for of_request in parts_by_request.values():
        of_request.sort(key=_PART_ORDER)
        if not of_request[0].said:
            raise ValueError("the first part of a request carries its decision")
        charges = b",".join([part.charges for part in of_request])
        _add_decision(outputs, of_request[0], charges, _joined(of_request), settings)
    _bound_decisions(outputs, settings)
    return outputs


def _joined(parts: list[DecisionPart]) -> Waits | None:
    """The waits of all parts of a request, None if there are none."""
    joined = None
    for part in parts:
        if part.waits is not None:
            if joined is None:
                joined = part.waits
            else:
                joined.join(part.waits)
    return joined


def in_charge_order(rows_by_key: Mapping[str, Sequence[ChargeRow]]) -> dict[str, list[ChargeRow]]:
    """The rows of each of k counters in the order in which they are charged.

    Rows of one source partition keep their offset order, whatever their event times are. Partitions are merged by the
    newest event time seen in each. The order of a counter's rows depends on those rows alone, so neither the number of
    pages nor other entities can change a decision.
    """
    lengths = integers(map(len, rows_by_key.values()))
    rows = [row for of_counter in rows_by_key.values() for row in of_counter]
    counters = np.repeat(np.arange(len(lengths)), lengths)
    partitions, offsets = integers(row.partition for row in rows), integers(row.offset for row in rows)
    by_offset = np.lexsort((offsets, partitions, counters))
    # The newest time so far of each counter and partition: their number makes that of the next one newer than all.
    times = np.unique(integers(row.timestamp_ms for row in rows), return_inverse=True)[1][by_offset]
    changes = (np.diff(counters[by_offset]) != 0) | (np.diff(partitions[by_offset]) != 0)
    first = np.concatenate([[0], np.cumsum(changes)]) * len(rows)
    newest = np.maximum.accumulate(first + times) - first
    order = by_offset[np.lexsort((newest, counters))].tolist()  # by_offset has the counters in their order
    ends = np.cumsum(lengths).tolist()
    return {
        key: [rows[number] for number in order[end - len(own) : end]]
        for (key, own), end in zip(rows_by_key.items(), ends, strict=True)
    }


class Simulation:
    """One source partition and one page: events are decided in the order given. `job_id` marks what is decided."""

    def __init__(self, quotas: Quotas, settings: Settings, job_id: str | None = None) -> None:
        pipeline_settings = PipelineSettings.of(settings, pages=1)
        # An event's own time stands for its record's, so no event can lie in the future or the past.
        limits = pipeline_settings.limits._replace(max_future_ms=MAX_TIMESTAMP_MS, max_past_ms=MAX_TIMESTAMP_MS)
        self._settings = pipeline_settings._replace(limits=limits, job_id=job_id)
        self._planner = Planner(quotas, self._settings)
        self._counters = Pages()
        self._newest_ms = 0
        self._next_offset = 0

    def decide(self, events: Iterable[bytes]) -> Iterator[OutputRecord]:
        """A decision or dead letter per event. An event without a time gets the time of the previous request."""
        return (record for record in self.records(events) if record.topic != self._settings.sums_topic)

    def records(self, events: Iterable[bytes]) -> Iterator[OutputRecord]:
        """All records of the job but waits: each event is a micro-batch, and its decision comes first."""
        for value in events:
            yield from self._decide(value, Source(self._settings.requests_topic, 0, self._next_offset, self._newest_ms))
            self._next_offset += 1

    def _decide(self, value: bytes, source: Source) -> Iterator[OutputRecord]:
        event = read_event(value, source, self._settings)
        planned: Planned
        if isinstance(event, Request):
            self._newest_ms = event.timestamp_ms or 0
        if isinstance(event, OutputRecord):
            planned = [event]
        else:
            planned = self._planner.plan(event, source, self._newest_ms, self._planner.batch(self._newest_ms))
        page_batch = GrowingPageBatch()
        for each in planned:
            if isinstance(each, OutputRecord):
                page_batch.records.append(each)
            else:
                page_batch.add(each[1])
        outputs, parts, sums = decide(self._counters, [page_batch.encoded()], self._settings)
        outputs.pop(self._settings.waits_topic, None)
        yield from [*outputs.records(), *combine(parts, self._settings).records()]
        for record in sums.records(self._settings.job_id, source.offset, self._planner.quotas.version):
            yield OutputRecord(self._settings.sums_topic, b"0", record)
