"""The records that leave the job, and the rows that travel between its stages."""

import base64
from typing import NamedTuple

import msgspec

from state.charge import Charge
from state.decision import Decision, PartialDecision, RequestHead
from state.entity import Tags, sanitize
from state.errors import InvalidRequestError
from streaming.events import Source

MAX_DEAD_LETTER_VALUE_BYTES = 4 * 1024 * 1024
"""In base64 and with its reason it still fits the 8 MiB that the dead-letter topic allows."""


class OutputRecord(NamedTuple):
    """One finished Kafka record: a decision or a dead letter."""

    topic: str
    key: bytes | None
    value: bytes


class ChargeRow(NamedTuple):
    """What one counter is charged with for one request: row `part` of its `parts` rows; the first has the head."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str
    tags: Tags
    charges: list[Charge]
    part: int
    parts: int
    head: RequestHead | None


class PartialRow(NamedTuple):
    """What one counter said about a request that other counters have a say in too."""

    part: int
    timestamp_ms: int
    head: RequestHead | None
    partial: PartialDecision


_JSON = msgspec.json.Encoder()
_PACK = msgspec.msgpack.Encoder()
_CHARGE_ROW = msgspec.msgpack.Decoder(ChargeRow)
_PARTIAL_ROW = msgspec.msgpack.Decoder(PartialRow)
_OUTPUT_RECORD = msgspec.msgpack.Decoder(OutputRecord)

_IS_CHARGE_ROW = b"c"
_IS_OUTPUT_RECORD = b"o"


def decision_record(topic: str, decision: Decision) -> OutputRecord:
    """The decision as it goes out, keyed by `user|client_id` so that a client's decisions stay in order."""
    key = f"{sanitize(decision['user'] or '')}|{sanitize(decision['client_id'] or '')}"
    return OutputRecord(topic, key.encode(), _JSON.encode(decision))


def dead_letter_record(topic: str, value: bytes | None, source: Source, error: InvalidRequestError) -> OutputRecord:
    """An event that can't be decided, with the reason; of a giant one the beginning, the rest is at its source."""
    kept = value[:MAX_DEAD_LETTER_VALUE_BYTES] if value is not None else None
    letter = {
        "source": {"topic": source.topic, "partition": source.partition, "offset": source.offset},
        "error": {"field": error.field, "problem": error.problem, "expected": error.expected},
        "value": None if kept is None else base64.b64encode(kept).decode(),
        "value_bytes": None if value is None else len(value),
    }
    return OutputRecord(topic, None, _JSON.encode(letter))


def encode_payload(row: ChargeRow | OutputRecord) -> bytes:
    """A row on its way to a shard."""
    return (_IS_CHARGE_ROW if isinstance(row, ChargeRow) else _IS_OUTPUT_RECORD) + _PACK.encode(row)


def decode_payload(payload: bytes) -> ChargeRow | OutputRecord:
    """The row of `encode_payload`."""
    decoder = _CHARGE_ROW if payload[:1] == _IS_CHARGE_ROW else _OUTPUT_RECORD
    return decoder.decode(memoryview(payload)[1:])


def encode_partial(row: PartialRow) -> bytes:
    """A row on its way from a shard to the combining step."""
    return _PACK.encode(row)


def decode_partial(payload: bytes) -> PartialRow:
    """The row of `encode_partial`."""
    return _PARTIAL_ROW.decode(payload)
