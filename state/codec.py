"""How a shard's counters are stored: one versioned block of bytes, a column for each field.

Every column is written in the narrowest form that holds it without loss: integers as unsigned offsets from their
minimum, floats as integers where all of them are whole. Nothing is pickled, so stored bytes can never run code.

Layout, little endian: version (1 byte), shards (4), entities (4), rings (4), samples (4), length of the keys (4), the
keys joined by newlines, then the columns of `Columns` in order, each with a one-byte form, an 8-byte base and its data.
"""

import struct
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from state.errors import StateError
from state.quota import QuotaKind

CODEC_VERSION = 1

Integers = NDArray[Any]  # of int64
Floats = NDArray[Any]  # of float64

RING_COLUMNS = frozenset({"ring_kinds", "ring_currents", "sample_counts"})
SAMPLE_COLUMNS = frozenset({"sample_starts_ms", "sample_last_events_ms", "sample_values"})
"""Which table a column belongs to; the others belong to the entities."""

KIND_CODES = {
    QuotaKind.PRODUCER_BYTE_RATE: 0,
    QuotaKind.CONSUMER_BYTE_RATE: 1,
    QuotaKind.REQUEST_PERCENTAGE: 2,
    QuotaKind.TOPIC_PRODUCER_BYTE_RATE: 3,
    QuotaKind.TOPIC_CONSUMER_BYTE_RATE: 4,
}
"""How a ring's quota kind is stored; a code is never given to another kind."""

MUTATION_RATE_CODE = 5
RING_KINDS = 6
"""How many codes there are for the kind of a ring."""

_HEADER = struct.Struct("<BIIIII")
_COLUMN = struct.Struct("<cq")
_WIDTHS = {b"0": 0, b"1": 1, b"2": 2, b"4": 4, b"8": 8}
_UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
_FLOAT = b"f"
_LARGEST_EXACT = 2.0**53


@dataclass(slots=True)
class Columns:
    """The counters of many entities, an array for each field.

    Entities, rings (a sampled rate of one entity) and samples are three tables: `ring_counts` says how many rings
    each entity has, `sample_counts` how many samples each ring has. NaN `bucket_tokens` means no bucket.
    Starts are kept as distance from the entity's `last_event_ms`, last events as distance from their start.
    """

    last_event_ms: Integers
    bucket_tokens: Floats
    bucket_last_ms: Integers
    mutation_limit: Floats
    ring_counts: Integers
    ring_kinds: Integers
    ring_currents: Integers
    sample_counts: Integers
    sample_starts_ms: Integers
    sample_last_events_ms: Integers
    sample_values: Floats


def encode(keys: list[str], columns: Columns, shards: int) -> bytes:
    """The stored form of a shard; `keys` name the entities and hold no newline."""
    joined = "\n".join(keys).encode()
    counts = (len(keys), len(columns.ring_kinds), len(columns.sample_values))
    parts = [_HEADER.pack(CODEC_VERSION, shards, *counts, len(joined)), joined]
    for column in fields(columns):
        parts.append(_encode_column(getattr(columns, column.name)))
    return b"".join(parts)


def decode(payload: bytes, shards: int) -> tuple[list[str], Columns]:
    """Keys and columns of a stored shard. Raises StateError for another shard count, version or broken bytes."""
    if len(payload) < _HEADER.size:
        raise StateError(f"stored state is cut short ({len(payload)} bytes); restore the checkpoint from a backup")
    version, stored_shards, entities, rings, samples, key_bytes = _HEADER.unpack_from(payload)
    if version != CODEC_VERSION:
        raise StateError(
            f"stored state has codec version {version}, this release reads {CODEC_VERSION}; "
            "run the release that wrote it, or start with a new checkpoint"
        )
    if stored_shards != shards:
        raise StateError(
            f"the checkpoint was made with state.shards = {stored_shards}, the settings say {shards}; "
            f"set state.shards back to {stored_shards}, or start with a new checkpoint"
        )
    try:
        return _decode_body(payload, entities, rings, samples, key_bytes)
    except (ValueError, struct.error, KeyError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise StateError(f"stored state is damaged ({error}); restore the checkpoint from a backup") from error


def empty_columns() -> Columns:
    """Columns of no entity at all."""
    return Columns(*(np.empty(0, _dtype(column.name)) for column in fields(Columns)))


def _decode_body(payload: bytes, entities: int, rings: int, samples: int, key_bytes: int) -> tuple[list[str], Columns]:
    offset = _HEADER.size
    joined = payload[offset : offset + key_bytes].decode()
    keys = joined.split("\n") if entities else []
    if len(keys) != entities:
        raise ValueError(f"{len(keys)} keys for {entities} entities")
    offset += key_bytes
    arrays: dict[str, Integers | Floats] = {}
    for column in fields(Columns):
        length = entities
        if column.name in RING_COLUMNS:
            length = _checked_length(rings, arrays["ring_counts"])
        elif column.name in SAMPLE_COLUMNS:
            length = _checked_length(samples, arrays["sample_counts"])
        arrays[column.name], offset = _decode_column(payload, offset, length, _dtype(column.name))
    columns = Columns(**arrays)
    if offset != len(payload) or not _is_sound(columns):
        raise ValueError("the tables don't fit together")
    return keys, columns


def _is_sound(columns: Columns) -> bool:
    """Whether every ring is of a known kind and its current sample is one of its samples."""
    kinds, currents = columns.ring_kinds, columns.ring_currents
    known = (kinds >= 0) & (kinds < RING_KINDS)
    within = (currents >= 0) & (currents < np.maximum(columns.sample_counts, 1))
    return bool((known & within).all())


def _checked_length(length: int, counts: Integers) -> int:
    """A table's length, once the counts of the table before agree: damaged bytes must not take all memory."""
    if (counts < 0).any() or counts.sum() != length:
        raise ValueError("the tables don't fit together")
    return length


def _dtype(column: str) -> np.dtype[Any]:
    is_float = column in ("bucket_tokens", "mutation_limit", "sample_values")
    return np.dtype(np.float64) if is_float else np.dtype(np.int64)


def _encode_column(array: Integers | Floats) -> bytes:
    if array.dtype == np.float64:
        whole = _as_whole_numbers(array)
        if whole is None:
            return _COLUMN.pack(_FLOAT, 0) + array.astype("<f8", copy=False).tobytes()
        array = whole
    if not len(array):
        return _COLUMN.pack(b"0", 0)
    base, top = int(array.min()), int(array.max())
    width = _width(top - base)
    if width == 0:
        return _COLUMN.pack(b"0", base)
    offsets = (array - base).astype(_UNSIGNED[width])
    return b"".join((_COLUMN.pack(str(width).encode(), base), offsets.tobytes()))


def _as_whole_numbers(array: Floats) -> Integers | None:
    """The floats as integers if nothing is lost (no fraction, NaN, infinity or negative zero), else None."""
    if not (np.abs(array) < _LARGEST_EXACT).all():
        return None
    whole = array.astype(np.int64)
    return whole if (whole.astype(np.float64) == array).all() and not (np.signbit(array) & (array == 0)).any() else None


def _width(span: int) -> int:
    """Bytes an unsigned number up to `span` needs: 0, 1, 2, 4 or 8."""
    if span == 0:
        return 0
    return next(width for width in (1, 2, 4, 8) if span < 1 << 8 * width)


def _decode_column(payload: bytes, offset: int, length: int, dtype: np.dtype[Any]) -> tuple[Integers | Floats, int]:
    form, base = _COLUMN.unpack_from(payload, offset)
    offset += _COLUMN.size
    if form == _FLOAT:
        return np.frombuffer(payload, "<f8", length, offset), offset + 8 * length
    width = _WIDTHS[form]
    if width == 0:
        return np.full(length, base, dtype), offset
    offsets = np.frombuffer(payload, _UNSIGNED[width], length, offset)
    return (offsets.astype(np.int64) + base).astype(dtype, copy=False), offset + width * length
