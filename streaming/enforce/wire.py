"""The records that leave the job, and the forms in which rows travel between the stages of the pipeline."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.state.arithmetic.counter import Charge
from sluice.state.contract.decision_id import DecisionId
from sluice.state.contract.gateway_topics import DecidedHeartbeat, Sums, WaitRecord
from sluice.state.contract.records import (
    HEARTBEAT_API,
    MAX_INSTANCE_CHARACTERS,
    CountedEntity,
    DeadLetter,
    FieldError,
    Request,
    SourceRecord,
)
from sluice.state.decisions.decision import Waits
from sluice.state.decisions.wait_records import wait_key, wait_value
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import Family, QuotaKind
from sluice.state.shares.load import BrokerLimits, broker_load
from sluice.state.shares.sums import UNKNOWN_GATEWAY, Reported


class Source(msgspec.Struct, frozen=True, gc=False):
    """The Kafka record of an event; `timestamp_ms` is the record's, in epoch milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


MAX_DEAD_LETTER_VALUE_BYTES = 4 * 1024 * 1024
"""Longest value that a dead letter keeps: in base64, with its reason, it fits the 8 MiB that the topic allows."""

_MAX_ROW_BYTES = 1024 * 1024
"""Bytes of values in one packed row; a larger value has a row of its own."""

GROUPS = 64
"""Groups that partial decisions travel in, all of a request in one: at most this many tasks combine."""


class OutputRecord(NamedTuple):
    """A finished Kafka record: a decision, a dead letter, sums, a wait, a heartbeat or what a gateway waits for."""

    topic: str
    key: bytes | None
    value: bytes


@dataclass(slots=True)
class Keyed:
    """Keys and values of the records of one topic, in order."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Append a record."""
        self.keys.append(key)
        self.values.append(value)


class KeyedArrays(NamedTuple):
    """Keys and values of the records of one topic as Arrow's binary arrays: native code makes no objects of them."""

    keys: pa.Array
    values: pa.Array


class Outputs(dict[str, Keyed]):
    """Finished records by topic: two lists for each are far cheaper than an object for each record."""

    def __missing__(self, topic: str) -> Keyed:
        """Begin with a topic."""
        keyed = self[topic] = Keyed()
        return keyed

    def records(self) -> Iterator[OutputRecord]:
        """All records but those without a value, topic by topic."""
        for topic, keyed in self.items():
            for key, value in zip(keyed.keys, keyed.values, strict=True):
                if value is not None:
                    yield OutputRecord(topic, key, value)


class ChargeRow(msgspec.Struct, array_like=True, gc=False):
    """The charges of one request on the counters of one entity.

    It is row `index`, from 0, of the request's `rows`, one for each entity. `entity` is that as JSON, `shape` are its
    charges without `amounts` (`encode_shape`); `gateway` and `reported` are what the event says of its gateway
    (`sluice.state.shares.sums`). Row 0 alone carries the record's key, the decision as JSON as if nothing were charged
    (`decision.undecided`), and `asked_by`, the instance of a gateway that waits for it.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: str
    entity: bytes
    shape: bytes
    amounts: list[float]
    record_key: bytes | None
    decision: bytes
    gateway: bytes = UNKNOWN_GATEWAY
    index: int = 0
    rows: int = 1
    purgatory_ms: int = 0
    reported: Reported | None = None
    asked_by: bytes | None = None

    def charges(self) -> list[Charge]:
        """The charges; without any amount they reset the counters.

        >>> time = Charge(QuotaKind.REQUEST_PERCENTAGE, "user", 9.0, False, [1.0, 0.5])
        >>> topics = Charge(QuotaKind.CONTROLLER_MUTATION_RATE, "user", 5.0, False, [3.0, 4.0])
        >>> row = ChargeRow(0, 7, 5, "alice|", b"{}", encode_shape([topics, time]), [3.0, 4.0, 1.0, 0.5], b"", b"")
        >>> row.charges() == [topics, time]
        True
        """
        charges = _SHAPE.decode(self.shape)
        if len(charges) == 1:
            charges[0].amounts = self.amounts
            return charges
        widths = [_AMOUNTS.get(charge.kind.family, 1) for charge in charges]
        more, first = len(self.amounts) - sum(widths), 0
        for charge, width in zip(charges, widths, strict=True):
            is_mutations = charge.kind.family is Family.MUTATIONS  # one amount for each topic; no row has two
            last = first + width + more * is_mutations
            charge.amounts, first = self.amounts[first:last], last
        return charges


_AMOUNTS = {Family.REQUEST_TIME: 2}
"""Number of amounts of a charge, if not one."""


def encode_shape(charges: Iterable[Charge]) -> bytes:
    """The charges without their amounts, as rows carry them: few shapes are those of most rows.

    A limit is a float, as native code reads no other number.
    """
    bare = []
    for one in charges:
        limit = None if one.limit is None else float(one.limit)
        bare.append(Charge(one.kind, one.level, limit, one.shadow, [], one.strict, one.withheld))
    return _PACK.encode(bare)


class PageBatch(msgspec.Struct, array_like=True):
    """Rows that travel to one page together: one Spark row per page batch is far cheaper than one per event."""

    charge_rows: list[ChargeRow] = []
    records: list[OutputRecord] = []


class GrowingPageBatch:
    """A page batch that is encoded row by row: as objects, rows of a micro-batch would fall out of the CPU cache."""

    __slots__ = ("_rows", "records")

    def __init__(self) -> None:
        self.records: list[OutputRecord] = []
        self._rows: list[bytes] = []

    def add(self, row: ChargeRow) -> None:
        """Append a row."""
        self._rows.append(_PACK.encode(row))

    def encoded(self) -> bytes:
        """The page batch for its way to a page: in msgpack an array of two, the first one with a length of 4 bytes."""
        return b"".join((b"\x92\xdd", len(self._rows).to_bytes(4), *self._rows, _PACK.encode(self.records)))


class PartialDecision(msgspec.Struct, array_like=True, gc=False):
    """The charges of a row as a JSON list, for a request with several rows, and the waits they ask for.

    Only that of row 0 carries the record's key, the decision as if nothing were charged, and the gateway that waits.
    """

    partition: int
    offset: int
    index: int
    timestamp_ms: int
    purgatory_ms: int
    record_key: bytes | None
    decision: bytes
    charges: bytes
    waits: Waits | None
    asked_by: bytes | None = None


class PackedRow(NamedTuple):
    """One row that leaves the stateful operator: records of one topic, or, if `partial`, groups of partial decisions.

    These have no topic, and their group's number as key.
    """

    partial: bool
    topic: str | None
    keys: list[bytes | None] | pa.Array
    values: list[bytes | None] | pa.Array

    def with_lists(self) -> "PackedRow":
        """The row with its keys and values in lists, which PySpark's own workers take."""
        return self._replace(keys=_listed(self.keys), values=_listed(self.values))


def _listed(values: list[bytes | None] | pa.Array) -> list[bytes | None]:
    return values if isinstance(values, list) else values.to_pylist()


_MAX_ERROR_CHARACTERS = 500


class _DecisionId(msgspec.Struct):
    """The id of a decision, which names its event."""

    decision_id: str


_DECISION_ID = msgspec.json.Decoder(_DecisionId)
_JSON = msgspec.json.Encoder()
_PACK = msgspec.msgpack.Encoder()
_SHAPE = msgspec.msgpack.Decoder(list[Charge])
_PAGE_BATCH = msgspec.msgpack.Decoder(PageBatch)
_PARTIAL_DECISIONS = msgspec.msgpack.Decoder(list[PartialDecision])
_ENTITY = msgspec.json.Decoder(CountedEntity)


def wait_record(kind: QuotaKind, entity: bytes, wait: WaitRecord | None) -> tuple[bytes, bytes | None]:
    """Key and value of a counter, whose entity is JSON, for the compacted waits topic.

    No value says that its wait is over.
    """
    key = wait_key((kind, Tags.of(_ENTITY.decode(entity))))
    return key, None if wait is None else wait_value(wait)


MAX_AWAITED_BYTES = 1024 * 1024
"""Longest decision on mutations that goes to its gateway; without it the gateway's share answers."""

OVERHEAD_BYTES = 4096
"""Bytes of a record beside its key and value, and those of a dead letter without the value of its event."""


def heartbeat_record(topic: str, request: Request, limits: BrokerLimits) -> OutputRecord | None:
    """The record of the sums topic for a gateway's heartbeat; None for any other request, or an instance of none."""
    if request.api != HEARTBEAT_API or request.instance is None or len(request.instance) > MAX_INSTANCE_CHARACTERS:
        return None
    heartbeat = DecidedHeartbeat(request.instance, request.request_id or "", request.timestamp_ms or 0)
    if request.heartbeat is not None:
        heartbeat.command = request.heartbeat.command
    if request.heartbeat is not None and (measured := request.heartbeat.load) is not None:
        heartbeat.is_broker = measured.broker_id is not None
        load = broker_load(measured, limits.capacities.of(measured))
        if load is not None:
            heartbeat.load, heartbeat.load_is_of_bytes = (load.rho, load.reason), load.is_of_bytes
        heartbeat.low_disk = limits.floor.low(measured)
    return OutputRecord(topic, request.instance.encode(), _JSON.encode(Sums(heartbeat=heartbeat)))


def most_awaited_bytes(max_record_bytes: int) -> int:
    """The longest decision that goes to its gateway, where a topic takes such records."""
    return min(MAX_AWAITED_BYTES, max_record_bytes - OVERHEAD_BYTES)


def awaited_decision_record(topic: str, asked_by: bytes, decision: bytes, max_record_bytes: int) -> OutputRecord | None:
    """The record of the sums topic for a decision that a gateway waits for; None if it is too long."""
    if len(decision) > most_awaited_bytes(max_record_bytes):
        return None
    return OutputRecord(topic, asked_by, b'{"answer":%b}' % decision)


def dead_letter_record(
    topic: str,
    value: bytes | None,
    source: Source,
    error: InvalidRequestError,
    max_record_bytes: int,
    source_topic_id: str | None = None,
) -> OutputRecord:
    """The record of an event that can't be decided, with the reason; of a giant event it keeps 4 MiB at most."""
    kept = None
    if value is not None:
        in_base64 = max(0, max_record_bytes - OVERHEAD_BYTES)
        kept = value[: min(MAX_DEAD_LETTER_VALUE_BYTES, in_base64 // 4 * 3)]
    letter = DeadLetter(
        SourceRecord(source.topic, source.partition, source.offset, source_topic_id),
        FieldError(error.field[:_MAX_ERROR_CHARACTERS], error.problem[:_MAX_ERROR_CHARACTERS], error.expected),
        kept,
        None if value is None else len(value),
    )
    return OutputRecord(topic, None, _JSON.encode(letter))


def oversized_decision_record(
    topic: str, decision: bytes, max_record_bytes: int, source_topic_id: str | None
) -> OutputRecord:
    """The dead letter for an event whose decision no record takes; what it charged stays charged."""
    decided = DecisionId.of(_DECISION_ID.decode(decision).decision_id)
    if decided is None:
        raise ValueError("a decision has its event's id")
    source = Source(*decided, 0)
    error = InvalidRequestError("value", f"has a decision of {len(decision)} bytes", f"at most {max_record_bytes}")
    return dead_letter_record(topic, None, source, error, max_record_bytes, source_topic_id)


def encode_page_batch(page_batch: PageBatch) -> bytes:
    """The page batch in msgpack, for its way to a page."""
    return _PACK.encode(page_batch)


def decode_page_batch(payload: bytes) -> PageBatch:
    """The page batch of `encode_page_batch`."""
    return _PAGE_BATCH.decode(payload)


def decode_group(payload: bytes | pa.Buffer) -> list[PartialDecision]:
    """The partial decisions of one group."""
    return _PARTIAL_DECISIONS.decode(payload)


def encoded_groups(partial_decisions: Iterable[PartialDecision]) -> Keyed:
    """Partial decisions in groups, each with its number as key."""
    groups: dict[int, list[PartialDecision]] = {}
    for each in partial_decisions:
        groups.setdefault((each.partition + each.offset) % GROUPS, []).append(each)
    return Keyed([b"%d" % number for number in groups], [_PACK.encode(group) for group in groups.values()])


def packed(outputs: Mapping[str, Keyed | KeyedArrays], partial_decisions: Keyed | None = None) -> list[PackedRow]:
    """Records and encoded partial decisions in few rows.

    PySpark pads the state that it returns to the number of output rows, so every row out of the operator is expensive.
    """
    rows = [row for topic, keyed in outputs.items() for row in _rows(topic, keyed, partial=False)]
    return [*rows, *_rows(None, partial_decisions or Keyed(), partial=True)]


def _rows(topic: str | None, keyed: Keyed | KeyedArrays, partial: bool) -> Iterator[PackedRow]:
    """The keys and values in rows of at most _MAX_ROW_BYTES of values, or of one value."""
    if isinstance(keyed, KeyedArrays):
        ends = pc.cumulative_sum(pc.binary_length(keyed.values)).to_numpy()
    else:
        ends = list(accumulate([len(value or b"") for value in keyed.values]))
    first = taken = 0
    while first < len(ends):
        last = max(bisect_right(ends, taken + _MAX_ROW_BYTES), first + 1)
        yield PackedRow(partial, topic, keyed.keys[first:last], keyed.values[first:last])
        first, taken = last, int(ends[last - 1])
