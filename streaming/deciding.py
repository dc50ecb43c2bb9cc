"""Deciding the rows of one shard: the heart of the stateful operator, without Spark."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from state.decision import PartialDecision, combine, decide, partial_decision
from state.quota import QuotaSettings
from state.shard import Shard
from streaming.records import (
    ChargeRow,
    OutputRecord,
    Parcel,
    PartialRow,
    decision_record,
    encode_partials,
)

_PLACE = attrgetter("partition", "offset")
_PART = attrgetter("part")

_BUCKETS = 64
"""Parts of decisions travel to the combining step in so many groups: at most so many tasks combine."""


def decide_rows(
    shard: Shard, parcels: Iterable[Parcel], decisions_topic: str, settings: QuotaSettings
) -> list[OutputRecord]:
    """Charge the shard's counters with all rows of a micro-batch, and say what came of each.

    Finished records; and for requests that other counters have a say in too, rows with topic None: groups of parts of
    decisions, all parts of a request under the same key.
    """
    records: list[OutputRecord] = []
    partial_rows: dict[int, list[PartialRow]] = {}
    rows_by_key: dict[str, list[ChargeRow]] = {}
    for parcel in parcels:
        records.extend(parcel.records)
        for row in parcel.charge_rows:
            rows_by_key.setdefault(row.key, []).append(row)
    for row, outcomes in shard.charge({key: in_order(rows) for key, rows in rows_by_key.items()}, settings):
        if row.parts == 1 and row.head is not None:
            decision = decide(row.head, row.timestamp_ms, outcomes, row.tags, settings)
            records.append(decision_record(decisions_topic, decision))
        else:
            partial = partial_decision(outcomes, row.tags)
            partial_rows.setdefault((row.partition + row.offset) % _BUCKETS, []).append(_partial_row(row, partial))
    records.extend(OutputRecord(None, b"%d" % key, encode_partials(rows)) for key, rows in partial_rows.items())
    return records


def in_order(rows: list[ChargeRow]) -> list[ChargeRow]:
    """One counter's rows in the order in which they are charged.

    Records of one source partition keep their offset order, whatever their times say; partitions are merged by event
    time. The order of a counter's rows depends on that counter's rows alone, so neither the number of shards nor
    other entities can change a decision.
    """
    if len(rows) == 1:
        return rows
    by_offset = sorted(rows, key=_PLACE)
    if by_offset[0].partition == by_offset[-1].partition:
        return by_offset
    newest_ms: dict[int, int] = {}
    merged = []
    for place, row in enumerate(by_offset):
        newest_ms[row.partition] = max(row.timestamp_ms, newest_ms.get(row.partition, row.timestamp_ms))
        merged.append((newest_ms[row.partition], place))
    merged.sort()
    return [by_offset[place] for _, place in merged]


def by_request(rows: Iterable[PartialRow]) -> Iterable[Sequence[PartialRow]]:
    """The parts of each request."""
    parts: dict[tuple[int, int], list[PartialRow]] = {}
    for row in rows:
        parts.setdefault((row.partition, row.offset), []).append(row)
    return parts.values()


def combine_rows(rows: Iterable[PartialRow], decisions_topic: str, settings: QuotaSettings) -> OutputRecord:
    """The decision of one request from what all its counters said, in the order of its charges."""
    ordered = sorted(rows, key=_PART)
    head = ordered[0].head
    if head is None:
        raise ValueError("the first part of a request carries its head")
    partials = [row.partial for row in ordered]
    return decision_record(decisions_topic, combine(head, ordered[0].timestamp_ms, partials, settings))


def _partial_row(row: ChargeRow, partial: PartialDecision) -> PartialRow:
    return PartialRow(row.partition, row.offset, row.part, row.timestamp_ms, row.head, partial)
