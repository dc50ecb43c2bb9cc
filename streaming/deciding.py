"""Deciding the rows of one shard: the heart of the stateful operator, without Spark."""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from state.decision import combine, decide_charges
from state.quota import QuotaSettings
from state.shard import Shard
from streaming.records import (
    ChargeRow,
    OutputRecord,
    PartialRow,
    decision_record,
    encode_partial,
)

_PLACE = attrgetter("partition", "offset")


class OperatorRow(NamedTuple):
    """What leaves the operator: a finished record, or (topic None) a part of a decision keyed by its id."""

    topic: str | None
    key: bytes | None
    value: bytes


def decide_rows(
    shard: Shard, rows: Iterable[ChargeRow | OutputRecord], decisions_topic: str, settings: QuotaSettings
) -> Iterator[OperatorRow]:
    """Charge the shard's counters with all rows of a micro-batch, in order, and say what came of each."""
    charge_rows: list[ChargeRow] = []
    for row in rows:
        if isinstance(row, OutputRecord):
            yield OperatorRow(*row)
        else:
            charge_rows.append(row)
    shard.load(row.key for row in charge_rows)
    for row in in_order(charge_rows):
        yield _decide_row(shard, row, decisions_topic, settings)


def in_order(rows: Sequence[ChargeRow]) -> list[ChargeRow]:
    """The rows in the order in which each counter is charged.

    Records of one source partition keep their offset order, whatever their times say; partitions are merged by event
    time. The order of a counter's rows depends on that counter's rows alone, so neither the number of shards nor
    other entities can change a decision.
    """
    by_offset = sorted(rows, key=_PLACE)
    if len({row.partition for row in rows}) <= 1:
        return by_offset
    newest_ms: dict[tuple[str, int], int] = {}
    merged = []
    for place, row in enumerate(by_offset):
        lane = (row.key, row.partition)
        newest_ms[lane] = max(row.timestamp_ms, newest_ms.get(lane, row.timestamp_ms))
        merged.append((newest_ms[lane], place, row))
    merged.sort()
    return [row for _, _, row in merged]


def _decide_row(shard: Shard, row: ChargeRow, decisions_topic: str, settings: QuotaSettings) -> OperatorRow:
    partial = decide_charges(shard.meters(row.key), row.tags, row.charges, row.timestamp_ms, settings)
    if row.parts == 1 and row.head is not None:
        decision = combine(row.head, row.timestamp_ms, [partial], settings)
        return OperatorRow(*decision_record(decisions_topic, decision))
    source_key = f"{row.partition}-{row.offset}".encode()
    return OperatorRow(None, source_key, encode_partial(PartialRow(row.part, row.timestamp_ms, row.head, partial)))


def combine_rows(rows: Iterable[PartialRow], decisions_topic: str, settings: QuotaSettings) -> OutputRecord:
    """The decision of one request from what all its counters said, in the order of its charges."""
    ordered = sorted(rows, key=lambda row: row.part)
    head = ordered[0].head
    if head is None:
        raise ValueError("the first part of a request carries its head")
    partials = [row.partial for row in ordered]
    return decision_record(decisions_topic, combine(head, ordered[0].timestamp_ms, partials, settings))
