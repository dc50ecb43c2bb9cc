"""The records that leave the job, and the forms in which rows travel between the stages of the pipeline."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from sluice.state.contract.records import (
    HEARTBEAT_API,
    CountedEntity,
    DeadLetter,
    DecidedHeartbeat,
    FieldError,
    Request,
    SourceRecord,
    Sums,
    WaitRecord,
)
from sluice.state.decisions.decision import Waits
from sluice.state.decisions.waits import wait_key, wait_value
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind


class Source(msgspec.Struct, frozen=True, gc=False):
    """The Kafka record of an event; `timestamp_ms` is the record's, in epoch milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def record_id(self) -> str:
        """`topic-partition-offset`: the `decision_id`, and the default `request_id`.

        The only place that builds it. `sluice.sinks.tables.decisions` is the only one that splits it.
        """
        return f"{self.topic}-{self.partition}-{self.offset}"


MAX_DEAD_LETTER_VALUE_BYTES = 4 * 1024 * 1024
"""Longest value that a dead letter keeps: in base64, with its reason, it fits the 8 MiB that the topic allows."""

_MAX_ROW_BYTES = 1024 * 1024
"""Bytes of values in one packed row; a larger value has a row of its own."""

_BUCKETS = 64
"""Groups that partial decisions travel in, all of a request in one: at most this many tasks combine."""


class OutputRecord(NamedTuple):
    """A finished Kafka record: a decision or a dead letter."""

    topic: str
    key: bytes | None
    value: bytes


class WaitOutput(NamedTuple):
    """A Kafka record of the compacted waits topic; no value says that the counter waits no more."""

    topic: str
    key: bytes
    value: bytes | None


class ChargeRow(msgspec.Struct, array_like=True, gc=False):
    """One request on one counter, flat: all that is known before the counter is charged is text already.

    It is row `part` of `parts`: the number of this counter among the request's counters. `shape` and `amounts` are its
    charges (`sluice.state.arithmetic.shapes`), none of them amounts if they reset the counter; `entity` is the
    counter's as JSON. `gateway`, `applied` and `sums_up` are what the event says of its gateway
    (`sluice.state.shares.sums.SummedRow`). Row 0 alone carries the record's key, the decision before and after its
    charges (`sluice.state.decisions.decision.Said`), and `asked_by`, the instance of a gateway that waits for it.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: str
    entity: bytes
    shape: bytes
    amounts: list[float]
    part: int
    parts: int
    purgatory_ms: int
    record_key: bytes | None
    front: bytes
    back: bytes
    gateway: bytes
    applied: dict[str, int] | None = None
    sums_up: bool = False
    asked_by: bytes | None = None


class PageBatch(msgspec.Struct, array_like=True):
    """Rows that travel to one page together: one Spark row per page batch is far cheaper than one per event."""

    charge_rows: list[ChargeRow] = []
    records: list[OutputRecord] = []


class DecisionPart(msgspec.Struct, array_like=True, gc=False):
    """The charges of a row as JSON, for a request that charges several counters, and the waits that they ask for.

    Only part 0 carries the record's key, the decision before and after its charges, and the gateway that waits for it.
    """

    partition: int
    offset: int
    part: int
    timestamp_ms: int
    purgatory_ms: int
    record_key: bytes | None
    front: bytes
    back: bytes
    charges: bytes
    waits: Waits | None
    asked_by: bytes | None = None


class PackedRow(NamedTuple):
    """One row that leaves the stateful operator: records of one topic, or, if `partial`, groups of encoded parts.

    Parts have no topic, and their group's number as key.
    """

    partial: bool
    topic: str | None
    keys: list[bytes | None]
    values: list[bytes | None]


_JSON = msgspec.json.Encoder()
_PACK = msgspec.msgpack.Encoder()
_PAGE_BATCH = msgspec.msgpack.Decoder(PageBatch)
_PARTS = msgspec.msgpack.Decoder(list[DecisionPart])
_ENTITY = msgspec.json.Decoder(CountedEntity)


def wait_output(topic: str, kind: QuotaKind, entity: bytes, wait: WaitRecord | None) -> WaitOutput:
    """The record of a counter, whose entity is JSON: its wait, or that it waits no more."""
    key = wait_key((kind, Tags.of(_ENTITY.decode(entity))))
    return WaitOutput(topic, key, None if wait is None else wait_value(wait))


MAX_ANSWER_BYTES = 1024 * 1024
"""Longest decision on mutations that goes to its gateway; without it the gateway's share answers."""


def heartbeat_record(topic: str, request: Request) -> OutputRecord | None:
    """The record of the sums topic for a gateway's heartbeat; None for any other request."""
    if request.api != HEARTBEAT_API or request.instance is None:
        return None
    heartbeat = DecidedHeartbeat(request.instance, request.request_id or "", request.timestamp_ms or 0)
    return OutputRecord(topic, request.instance.encode(), _JSON.encode(Sums(heartbeat=heartbeat)))


def answer_record(topic: str, asked_by: bytes, decision: bytes) -> OutputRecord | None:
    """The record of the sums topic for a decision that a gateway waits for; None if it is too long."""
    if len(decision) > MAX_ANSWER_BYTES:
        return None
    return OutputRecord(topic, asked_by, b'{"answer":%b}' % decision)


def dead_letter_record(topic: str, value: bytes | None, source: Source, error: InvalidRequestError) -> OutputRecord:
    """The record of an event that can't be decided, with the reason; of a giant event only the beginning is kept."""
    kept = value[:MAX_DEAD_LETTER_VALUE_BYTES] if value is not None else None
    letter = DeadLetter(
        SourceRecord(source.topic, source.partition, source.offset),
        FieldError(error.field, error.problem, error.expected),
        kept,
        None if value is None else len(value),
    )
    return OutputRecord(topic, None, _JSON.encode(letter))


def encode_page_batch(page_batch: PageBatch) -> bytes:
    """The page batch in msgpack, for its way to a page."""
    return _PACK.encode(page_batch)


def decode_page_batch(payload: bytes) -> PageBatch:
    """The page batch of `encode_page_batch`."""
    return _PAGE_BATCH.decode(payload)


def decode_parts(payload: bytes) -> list[DecisionPart]:
    """The parts in one value of a partial row."""
    return _PARTS.decode(payload)


def packed(
    records: Iterable[OutputRecord], parts: Iterable[DecisionPart], waits: Iterable[WaitOutput] = ()
) -> list[PackedRow]:
    """Records and parts in few rows.

    PySpark pads the state that it returns to the number of output rows, so every row out of the operator is expensive.
    """
    groups: dict[int, list[DecisionPart]] = {}
    for part in parts:
        groups.setdefault((part.partition + part.offset) % _BUCKETS, []).append(part)
    encoded = ((None, b"%d" % number, _PACK.encode(group)) for number, group in groups.items())
    return _rows(records, partial=False) + _rows(waits, partial=False) + _rows(encoded, partial=True)


def _rows(entries: Iterable[tuple[str | None, bytes | None, bytes | None]], partial: bool) -> list[PackedRow]:
    """The entries (topic, key, value) in rows, each of one topic."""
    rows: list[PackedRow] = []
    unfilled: dict[str | None, PackedRow] = {}
    free_bytes: dict[str | None, int] = {}
    for topic, key, value in entries:
        size = len(value or b"")
        free = free_bytes.get(topic, -1) - size
        if free < 0:
            unfilled[topic] = PackedRow(partial, topic, [], [])
            rows.append(unfilled[topic])
            free = _MAX_ROW_BYTES - size
        free_bytes[topic] = free
        row = unfilled[topic]
        row.keys.append(key)
        row.values.append(value)
    return rows
