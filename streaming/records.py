"""The records that leave the job, and the rows that travel between its stages."""

import base64
from typing import NamedTuple

import msgspec

from state.charge import Charge
from state.decision import Decision, PartialDecision, RequestHead
from state.entity import Tags, client_key
from state.errors import InvalidRequestError
from streaming.events import Source

MAX_DEAD_LETTER_VALUE_BYTES = 4 * 1024 * 1024
"""In base64 and with its reason it still fits the 8 MiB that the dead-letter topic allows."""


class OutputRecord(NamedTuple):
    """One finished Kafka record: a decision or a dead letter; without a topic, parts of decisions to be combined."""

    topic: str | None
    key: bytes | None
    value: bytes


class ChargeRow(msgspec.Struct, array_like=True, gc=False):
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


class Parcel(msgspec.Struct, array_like=True):
    """Rows that travel to one shard together: one Spark row for thousands of them is far cheaper than one for each."""

    charge_rows: list[ChargeRow]
    records: list[OutputRecord]


class PartialRow(msgspec.Struct, array_like=True, gc=False):
    """What one counter said about a request that other counters have a say in too."""

    partition: int
    offset: int
    part: int
    timestamp_ms: int
    head: RequestHead | None
    partial: PartialDecision


_JSON = msgspec.json.Encoder()
_PACK = msgspec.msgpack.Encoder()
_PARCEL = msgspec.msgpack.Decoder(Parcel)
_PARTIAL_ROWS = msgspec.msgpack.Decoder(list[PartialRow])


def decision_record(topic: str, decision: Decision) -> OutputRecord:
    """The decision as it goes out, keyed by `user|client_id`: all decisions for a client are in one partition."""
    key = client_key(decision.user or "", decision.client_id or "")
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


def encode_parcel(parcel: Parcel) -> bytes:
    """A parcel on its way to a shard."""
    return _PACK.encode(parcel)


def decode_parcel(payload: bytes) -> Parcel:
    """The parcel of `encode_parcel`."""
    return _PARCEL.decode(payload)


def encode_partials(rows: list[PartialRow]) -> bytes:
    """Rows on their way from a shard to the combining step."""
    return _PACK.encode(rows)


def decode_partials(payload: bytes) -> list[PartialRow]:
    """The rows of `encode_partials`."""
    return _PARTIAL_ROWS.decode(payload)
