"""The stored form of a shard's counters: one versioned block of bytes.

Every block begins with the version (1 byte) and the number of shards (4), little endian. The rest depends on the
version.

Version 1: number of entities (4 bytes), rates (4), samples (4), length of the keys (4); the keys, joined by newlines;
then the fields of `Columns` in order, each with a one-byte form, an 8-byte base and its data. Every column is written
in the narrowest form that loses nothing: integers as unsigned offsets from their minimum, floats as integers if all of
them are whole. Nothing is pickled, so stored bytes can't run code.
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from state.arithmetic.columns import (
    COLUMN_NAMES,
    RATE_COLUMNS,
    SAMPLE_COLUMNS,
    Columns,
    Floats,
    Integers,
    dtype_of,
)
from state.errors import StateError
from state.quotas.kinds import QuotaKind

CODEC_VERSION = 1
"""The version that is written."""

_PREFIX = struct.Struct("<BI")
_COUNTS = struct.Struct("<IIII")
_COLUMN = struct.Struct("<cq")
_WIDTHS = {b"0": 0, b"1": 1, b"2": 2, b"4": 4, b"8": 8}
_UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
_FLOAT = b"f"
_LARGEST_EXACT = 2.0**53

Column = NDArray[Any]
"""A field of `Columns`: int64 or float64."""


def encode(keys: list[str], columns: Columns, shards: int) -> bytes:
    """The stored form of a shard, in the current version. `keys` (n,) name the entities and hold no newline."""
    joined = "\n".join(keys).encode()
    counts = (len(keys), len(columns.rate_kinds), len(columns.sample_values))
    parts = [_PREFIX.pack(CODEC_VERSION, shards), _COUNTS.pack(*counts, len(joined)), joined]
    parts += [_encode_column(getattr(columns, name)) for name in COLUMN_NAMES]
    return b"".join(parts)


def decode(payload: bytes, shards: int) -> tuple[list[str], Columns]:
    """Keys and columns of a stored shard of any known version.

    Raises StateError for another shard count, an unknown version or damaged bytes.
    """
    if len(payload) < _PREFIX.size:
        raise StateError(f"stored state is cut short ({len(payload)} bytes); restore the checkpoint from a backup")
    version, stored_shards = _PREFIX.unpack_from(payload)
    decode_body = DECODERS.get(version)
    if decode_body is None:
        known = ", ".join(map(str, DECODERS))
        raise StateError(
            f"stored state has codec version {version}, this release reads {known}; "
            "run the release that wrote it, or start with a new checkpoint"
        )
    if stored_shards != shards:
        raise StateError(
            f"the checkpoint was made with state.shards = {stored_shards}, the settings say {shards}; "
            f"set state.shards back to {stored_shards}, or start with a new checkpoint"
        )
    try:
        return decode_body(payload, _PREFIX.size)
    except (ValueError, struct.error, KeyError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise StateError(f"stored state is damaged ({error}); restore the checkpoint from a backup") from error


def entities_of(payload: bytes) -> int:
    """The number of entities in a block of the current version, without decoding it."""
    entities: int = _COUNTS.unpack_from(payload, _PREFIX.size)[0]
    return entities


def _decode_v1(payload: bytes, offset: int) -> tuple[list[str], Columns]:
    """Keys and columns from `offset` on. Raises what reading damaged bytes raises."""
    entities, rates, samples, key_bytes = _COUNTS.unpack_from(payload, offset)
    offset += _COUNTS.size
    joined = payload[offset : offset + key_bytes].decode()
    keys = joined.split("\n") if entities else []
    if len(keys) != entities:
        raise ValueError(f"{len(keys)} keys for {entities} entities")
    offset += key_bytes
    arrays: dict[str, Column] = {}
    for name in COLUMN_NAMES:
        length = entities
        if name in RATE_COLUMNS:
            length = _checked_length(rates, arrays["rate_counts"])
        elif name in SAMPLE_COLUMNS:
            length = _checked_length(samples, arrays["sample_counts"])
        arrays[name], offset = _decode_column(payload, offset, length, dtype_of(name))
    columns = Columns(**arrays)
    if offset != len(payload) or not _is_sound(columns):
        raise ValueError("the tables don't fit together")
    return keys, columns


DECODERS: dict[int, Callable[[bytes, int], tuple[list[str], Columns]]] = {1: _decode_v1}
"""The decoder of each version that can be read, called with the payload and where the version's own part begins.

A new version adds its decoder and a golden block (`tests/data/state-v*.bin`); the old ones stay, so that stored state
is migrated when it is read.
"""


def _is_sound(columns: Columns) -> bool:
    """Whether every rate is of a known kind and its current sample is one of its samples."""
    kinds, currents = columns.rate_kinds, columns.rate_currents
    known = (kinds >= 0) & (kinds < len(QuotaKind))
    within = (currents >= 0) & (currents < np.maximum(columns.sample_counts, 1))
    return bool((known & within).all())


def _checked_length(length: int, counts: Integers) -> int:
    """The length of a table, if the counts of its parent table agree: damaged bytes must not exhaust the memory."""
    if (counts < 0).any() or counts.sum() != length:
        raise ValueError("the tables don't fit together")
    return length


def _encode_column(array: Column) -> bytes:
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
    """Bytes that an unsigned number up to `span` needs: 0, 1, 2, 4 or 8."""
    if span == 0:
        return 0
    return next(width for width in (1, 2, 4, 8) if span < 1 << 8 * width)


def _decode_column(payload: bytes, offset: int, length: int, dtype: np.dtype[Any]) -> tuple[Column, int]:
    form, base = _COLUMN.unpack_from(payload, offset)
    offset += _COLUMN.size
    if form == _FLOAT and dtype == np.float64:
        return np.frombuffer(payload, "<f8", length, offset), offset + 8 * length
    width = _WIDTHS[form]
    if width == 0:
        return np.full(length, base, dtype), offset
    offsets = np.frombuffer(payload, _UNSIGNED[width], length, offset)
    return (offsets.astype(np.int64) + base).astype(dtype, copy=False), offset + width * length
