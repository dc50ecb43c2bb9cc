"""The pipeline of the enforce query, in pure Python.

    events ── plan ──► charge rows, by page ── decide ──► records, and partial decisions ── combine ──► records

A charge row is one request's charges on the counters of one entity; a page batch has those of a page. A record is
finished, as a decision is; a partial decision is the result of one row of a request with several. The rows of a page
come together before `decide`, the partial decisions of a request before `combine`. Spark (`stages`), `sluice simulate`
(`Simulation`) and the tests drive these functions, so they all decide alike.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec

from sluice.state.arithmetic.counter import Outcome, charge_mutations
from sluice.state.contract.gateway_topics import Overrides, WaitRecord
from sluice.state.contract.records import MAX_TIMESTAMP_MS, ChargeResult, CountedEntity, Decision
from sluice.state.decisions.decision import (
    Waits,
    charge_result,
    clamp_throttle_ms,
    request_outcome,
    set_outcome,
    wait_after_purgatory_ms,
)
from sluice.state.decisions.wait_records import LONG_WAIT_MS
from sluice.state.quotas.entity import COMMON_MARK
from sluice.state.quotas.kinds import Family, QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.counter_share import Metering
from sluice.state.shares.sums import DecidedSums, Reported, SummedCharge
from sluice.state.store.pages import Page
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.planning import Planner, read_event
from sluice.streaming.enforce.wire import (
    OVERHEAD_BYTES,
    ChargeRow,
    GrowingPageBatch,
    Keyed,
    OutputRecord,
    Outputs,
    PartialDecision,
    Source,
    awaited_decision_record,
    decode_page_batch,
    oversized_decision_record,
    wait_record,
)

_MAX_PAGE_BATCH_BYTES = 16 * 1024
"""Bytes of events for each page after which page batches are sent. More rows would not fit in the CPU cache."""

_MAX_PLANNED_BYTES = 8 * 1024 * 1024
"""Bytes of events after which page batches are sent, however many pages there are: they are objects until then."""

LEAST_EVENT_BYTES = 64
"""Bytes that an event counts at least: a dead letter is longer than an event without bytes."""

_LONGEST_KEY = 8
"""A key, of names as they are in the value but URL-encoded, is no longer than so many values."""

_JSON = msgspec.json.Encoder()
_DECISION = msgspec.json.Decoder(Decision)
_CHARGES = msgspec.json.Decoder(list[ChargeResult])
_ENTITY = msgspec.json.Decoder(CountedEntity)


class ChargedRows(NamedTuple):
    """The result of `decide`: finished records, and partial decisions that `combine` has to make records of.

    The waits topic has at most one record for each counter. `sums` are what gateways need to know.
    """

    outputs: Outputs
    partial_decisions: list[PartialDecision]
    sums: DecidedSums


def plan(
    events: Iterable[tuple[bytes | None, Source]],
    quotas: Quotas,
    settings: PipelineSettings,
    decided_at_ms: int,
    overrides: Overrides | None = None,
) -> Iterator[dict[int, bytes]]:
    """One encoded page batch for each page; new page batches after `most_planned_bytes` of events.

    A record that needs no counter goes with the page batch of page `offset % pages`, so that all pages get some.
    `overrides` say how far limits give way.
    """
    max_bytes = most_planned_bytes(settings)
    page_batches: defaultdict[int, GrowingPageBatch] = defaultdict(GrowingPageBatch)
    planned_bytes, planner = 0, Planner(quotas, settings)
    batch = planner.batch_fields(decided_at_ms, overrides)
    for value, source in events:
        event = read_event(value, source, settings, decided_at_ms)
        planned = [event] if isinstance(event, OutputRecord) else planner.plan(event, source, batch)
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


def most_planned_bytes(settings: PipelineSettings) -> int:
    """Bytes of events after which page batches are sent."""
    return min(_MAX_PAGE_BATCH_BYTES * settings.pages, _MAX_PLANNED_BYTES)


def _encoded(page_batches: Mapping[int, GrowingPageBatch]) -> dict[int, bytes]:
    return {page: page_batch.encoded() for page, page_batch in page_batches.items()}


def decide(page: Page, page_batches: Iterable[bytes], settings: PipelineSettings) -> ChargedRows:
    """The result for one page alone."""
    charger = PageCharger(settings)
    charger.charge(page, page_batches)
    return charger.made()


class PageCharger:
    """Charges rows, page by page, and makes of their outcomes what leaves the job."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings, self._outputs = settings, Outputs()
        self._partial_decisions: list[PartialDecision] = []
        self._sums = DecidedSums(Metering.of(settings.quota).span_ms, MAX_TIMESTAMP_MS)
        self._waits: dict[tuple[QuotaKind, str], tuple[bytes, WaitRecord | None]] = {}
        """Entity, as JSON, and news for the waits topic of each counter that has any."""

    def charge(self, page: Page, page_batches: Iterable[bytes]) -> None:
        """Charge the counters of a page with all its rows. Mutations of members of tenants come last."""
        rows_by_key: dict[str, list[ChargeRow]] = {}
        for page_batch in map(decode_page_batch, page_batches):
            for record in page_batch.records:
                self._outputs[record.topic].add(record.key, record.value)
            for row in page_batch.charge_rows:
                rows_by_key.setdefault(row.key, []).append(row)
        of_tenants: dict[str, Sequence[ChargeRow]] = {}
        for key, unordered in rows_by_key.items():
            rows = in_charge_order(unordered)
            if COMMON_MARK in key:
                of_tenants[key] = rows
                continue
            counters = page.counters(key)
            for row in rows:
                self._add(row, counters.charge_request(row.charges(), row.timestamp_ms, self._settings.quota))
        for request in _mutations_of_tenants(of_tenants):
            self._charge_together(page, request)

    def _charge_together(self, page: Page, request: Mapping[str, ChargeRow]) -> None:
        """Charge a request for mutations of a tenant's member: all counters are asked before one is charged.

        Its rows, by key, are of the tenant, and of its member if that has a counter of its own. They have no other
        charges.
        """
        quota = self._settings.quota
        pairs = [(page.counters(key), charge) for key, row in request.items() for charge in row.charges()]
        timestamp_ms = next(iter(request.values())).timestamp_ms
        if all(charge.amounts for _, charge in pairs):  # else an unmute's: resets
            outcomes = charge_mutations(pairs, timestamp_ms, quota.controller_window)
        else:
            outcomes = [counters.charge(charge, timestamp_ms, quota) for counters, charge in pairs]
        for row, outcome in zip(request.values(), outcomes, strict=True):
            self._add(row, [outcome])

    def _add(self, row: ChargeRow, outcomes: Sequence[Outcome]) -> None:
        """Take in the outcomes of a row: its decision, finished or partial, its sums, and news of long waits."""
        entity, waits = _ENTITY.decode(row.entity), None
        self._sums.base_ms = min(self._sums.base_ms, row.timestamp_ms)
        charges = [charge_result(outcome, entity) for outcome in outcomes]
        if any(outcome.violated or outcome.samples is not None for outcome in outcomes):
            waits = Waits.of(outcomes)
        if row.rows > 1:
            self._partial_decisions.append(
                PartialDecision(
                    partition=row.partition,
                    offset=row.offset,
                    index=row.index,
                    timestamp_ms=row.timestamp_ms,
                    purgatory_ms=row.purgatory_ms,
                    record_key=row.record_key,
                    decision=row.decision,
                    charges=_JSON.encode(charges),
                    waits=waits,
                    asked_by=row.asked_by,
                )
            )
        else:
            _add_decision(self._outputs, row, charges, waits, self._settings)
        for outcome in outcomes:
            charge = outcome.charge
            if charge.shadow:
                continue
            self._note_wait(row, outcome)
            if charge.limit is not None or not charge.amounts:
                self._sums.add(row.entity, _summed(row, outcome))

    def _note_wait(self, row: ChargeRow, outcome: Outcome) -> None:
        """Keep what the waits topic has to say of the counter after its last charge.

        A charge without a long wait matters only after one, or if it is a reset. A wait for tokens has no rate, as they
        come back at the limit (`sluice.state.decisions.waits.wait_under_limit_ms`).
        """
        charge = outcome.charge
        counter, is_long = (charge.kind, row.key), outcome.wait_ms > LONG_WAIT_MS
        if not (is_long or not charge.amounts or counter in self._waits):
            return
        wait = None
        if is_long:
            throttle_ms = clamp_throttle_ms(outcome.wait_ms)
            wait = WaitRecord(
                until_ms=row.timestamp_ms + throttle_ms,
                throttle_ms=throttle_ms,
                limit=charge.limit,
                rate=None if charge.kind.family is Family.MUTATIONS else outcome.rate,
                timestamp_ms=row.timestamp_ms,
                offset=row.offset,
            )
        self._waits[counter] = row.entity, wait

    def made(self) -> ChargedRows:
        """The result for all rows so far."""
        for (kind, _), (entity, wait) in self._waits.items():
            self._outputs[self._settings.waits_topic].add(*wait_record(kind, entity, wait))
        _bound_decisions(self._outputs, self._settings)
        return ChargedRows(self._outputs, self._partial_decisions, self._sums)


def _summed(row: ChargeRow, outcome: Outcome) -> SummedCharge:
    """The charge as gateways need to know it."""
    charge, reported, wait_ms = outcome.charge, row.reported or Reported({}), outcome.wait_ms
    if charge.kind.family is Family.MUTATIONS:
        wait_ms = wait_after_purgatory_ms(wait_ms, outcome.refused, row.purgatory_ms)
    return SummedCharge(
        charge.kind,
        charge.limit,
        outcome.value,
        row.timestamp_ms,
        row.offset,
        row.gateway,
        applied_ms=reported.applied.get(charge.kind, 0),
        sums_up=reported.sums_up,
        wait_ms=wait_ms,
        rate=outcome.rate,
        withheld=charge.withheld,
        is_reset=not charge.amounts,
    )


def _bound_decisions(outputs: Outputs, settings: PipelineSettings) -> None:
    """Replace each decision that no Kafka record takes by a dead letter: the query would fail at each attempt."""
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


def _add_decision(
    outputs: Outputs,
    first: ChargeRow | PartialDecision,
    charges: Sequence[ChargeResult],
    waits: Waits | None,
    settings: PipelineSettings,
) -> None:
    """Add the record of a decision, and that for a gateway which waits for it; `first` is the first of its request."""
    decision = _DECISION.decode(first.decision)
    decision.charges = [*charges, *decision.charges]
    if waits is not None:
        outcome = request_outcome(waits, first.purgatory_ms, first.timestamp_ms, settings.quota)
        set_outcome(outcome, decision, waits.refused)
    value = _JSON.encode(decision)
    outputs[settings.decisions_topic].add(first.record_key, value)
    if first.asked_by is not None:
        awaited = awaited_decision_record(settings.sums_topic, first.asked_by, value, settings.max_record_bytes)
        if awaited is not None:
            outputs[awaited.topic].add(awaited.key, awaited.value)


def combine(partial_decisions: Iterable[PartialDecision], settings: PipelineSettings) -> Outputs:
    """One decision per request, from all its partial ones, and what a gateway that waits for it has to know."""
    by_request: dict[tuple[int, int], list[PartialDecision]] = {}
    for each in partial_decisions:
        by_request.setdefault((each.partition, each.offset), []).append(each)
    outputs = Outputs()
    for of_request in by_request.values():
        of_request.sort(key=attrgetter("index"))
        if not of_request[0].decision:
            raise ValueError("the first row of a request carries its decision")
        charges = [charge for each in of_request for charge in _CHARGES.decode(each.charges)]
        _add_decision(outputs, of_request[0], charges, _joined(of_request), settings)
    _bound_decisions(outputs, settings)
    return outputs


def _joined(of_request: list[PartialDecision]) -> Waits | None:
    """The waits of all partial decisions of a request, None if there are none."""
    joined = None
    for each in of_request:
        if each.waits is not None:
            if joined is None:
                joined = each.waits
            else:
                joined.join(each.waits)
    return joined


def in_charge_order(rows: Sequence[ChargeRow]) -> Sequence[ChargeRow]:
    """The rows of an entity in the order in which they are charged.

    Rows of one source partition keep their offset order, whatever their event times are. Partitions are merged by the
    newest event time seen in each. The order of an entity's rows depends on those rows alone, so neither the number of
    pages nor other entities can change a decision.
    """
    if len(rows) == 1:
        return rows
    newest_ms: dict[int, int] = {}
    timed: list[tuple[int, ChargeRow]] = []
    for row in sorted(rows, key=attrgetter("partition", "offset")):
        newest_ms[row.partition] = max(row.timestamp_ms, newest_ms.get(row.partition, row.timestamp_ms))
        timed.append((newest_ms[row.partition], row))
    return [row for _, row in sorted(timed, key=itemgetter(0))]
