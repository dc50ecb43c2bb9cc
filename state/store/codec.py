"""The stored form of pages of counters: one versioned block of bytes for each page.

Every block begins with the version (1 byte) and the number of pages (4), little endian. The rest depends on the
version.

Version 1: number of entities (4 bytes), rates (4), samples (4), length of the keys (4); the keys, joined by newlines;
then the fields of `Columns` in order, each with a one-byte form, an 8-byte base and its data. Every column is written
in the narrowest form that loses nothing: integers as unsigned offsets from their minimum, floats as integers if all of
them are whole. Nothing is pickled, so stored bytes can't run code.

Many pages are read and written at once: numpy costs the same for a column of one page and for one of a thousand.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.state.arithmetic.columns import (
    COLUMN_NAMES,
    RATE_COLUMNS,
    SAMPLE_COLUMNS,
    Columns,
    Flags,
    Floats,
    Integers,
    concatenate,
    dtype_of,
    empty_columns,
    integers,
    table_ends,
)
from sluice.state.errors import StateError
from sluice.state.quotas.kinds import KINDS_BY_CODE
from sluice.state.store.keys import KeyBlocks

CODEC_VERSION = 1
"""The version that is written."""

_PREFIX = struct.Struct("<BI")
_COUNTS = struct.Struct("<IIII")
_COLUMN = struct.Struct("<cq")
_COLUMN_HEAD = np.dtype([("form", "S1"), ("base", "<i8")])
_FORMS = np.array([b"0", b"1", b"2", b"4", b"8"])
_WIDTHS = {b"0": 0, b"1": 1, b"2": 2, b"4": 4, b"8": 8}
_SPANS = np.array([1, 1 << 8, 1 << 16, 1 << 32], np.uint64)
"""The spans from which on the next form is needed."""

_UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
_FLOAT = b"f"
_FLOAT_WIDTHS = {**_WIDTHS, _FLOAT: 8}
_LARGEST_EXACT = 2.0**53

Column = NDArray[Any]
"""A field of `Columns`: int64 or float64."""

_Stored = tuple[KeyBlocks, Columns]
"""The keys of k pages, and the columns of their n entities."""


def encode(keys: Sequence[str], columns: Columns, ends: Integers, pages: int) -> list[bytes]:
    """`encode_blocks` for entities whose keys are `keys` (n,), which hold no newline."""
    bounds = pairwise([0, *ends.tolist()])
    return encode_blocks(["\n".join(keys[first:last]).encode() for first, last in bounds], columns, ends, pages)


def encode_blocks(names: Sequence[bytes], columns: Columns, ends: Integers, pages: int) -> list[bytes]:
    """The stored form of k pages, in the current version: entities `ends[i - 1]` to `ends[i]` are those of page i.

    `names` (k,) are the pages' keys, joined by newlines; `ends` (k,) are positions in ascending order, the last one n;
    `pages` is the number of all pages.
    """
    bounds = [np.concatenate([[0], table]) for table in table_ends(columns, ends)]
    entities, rates, samples = bounds
    prefix = _PREFIX.pack(CODEC_VERSION, pages)
    counts = zip(*(np.diff(table).tolist() for table in bounds), map(len, names), strict=True)
    heads = [prefix + _COUNTS.pack(*count) for count in counts]
    tables = dict.fromkeys(RATE_COLUMNS, rates) | dict.fromkeys(SAMPLE_COLUMNS, samples)
    fields = [_encode_column(getattr(columns, name), tables.get(name, entities)) for name in COLUMN_NAMES]
    return [b"".join(parts) for parts in zip(heads, names, *fields, strict=True)]


def decode(payloads: Iterable[bytes], pages: int) -> tuple[list[str], Columns]:
    """Keys (n,) and columns of all entities of some stored pages. Raises StateError as `decode_blocks` does."""
    names, columns = decode_blocks(payloads, pages)
    return names.texts(), columns


def decode_blocks(payloads: Iterable[bytes], pages: int) -> tuple[KeyBlocks, Columns]:
    """Keys, as they are stored, and columns of all entities of some stored pages, of any known version.

    Raises StateError for another number of pages, an unknown version or damaged bytes.
    """
    by_version: dict[int, list[bytes]] = {}
    for payload in payloads:
        by_version.setdefault(_version(payload, pages), []).append(payload)
    try:
        found = [DECODERS[version](blocks) for version, blocks in by_version.items()]
    except (ValueError, struct.error, KeyError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise StateError(f"stored state is damaged ({error}); restore the checkpoint from a backup") from error
    if len(found) == 1:
        return found[0]
    blocks = [block for names, _ in found for block in names.blocks]
    counts = np.concatenate([np.empty(0, np.int64), *(names.counts for names, _ in found)])
    return KeyBlocks(blocks, counts), concatenate([empty_columns(), *(one for _, one in found)])


def entities_of(payload: bytes) -> int:
    """The number of entities in a block of the current version, without decoding it."""
    entities: int = _COUNTS.unpack_from(payload, _PREFIX.size)[0]
    return entities


def pages_of(payload: bytes) -> int:
    """The number of all pages that a block says, without decoding it."""
    pages: int = _PREFIX.unpack_from(payload)[1]
    return pages


def _version(payload: bytes, pages: int) -> int:
    """The version of a block. Raises StateError for an unknown one, and for another number of pages."""
    if len(payload) < _PREFIX.size:
        raise StateError(f"stored state is cut short ({len(payload)} bytes); restore the checkpoint from a backup")
    version: int
    version, stored_pages = _PREFIX.unpack_from(payload)
    if version not in DECODERS:
        known = ", ".join(map(str, DECODERS))
        raise StateError(
            f"stored state has codec version {version}, this release reads {known}; "
            "run the release that wrote it, or start with a new checkpoint"
        )
    if stored_pages != pages:
        raise StateError(
            f"the checkpoint was made with state.pages = {stored_pages}, the settings say {pages}; "
            f"set state.pages back to {stored_pages}, or start with a new checkpoint"
        )
    return version


def _decode_v1(payloads: Sequence[bytes]) -> _Stored:
    """Keys and columns of blocks of version 1. Raises what reading damaged bytes raises."""
    counts = [_COUNTS.unpack_from(payload, _PREFIX.size) for payload in payloads]
    entities, rates, samples, key_bytes = (integers(column) for column in zip(*counts, strict=True))
    lengths = dict.fromkeys(RATE_COLUMNS, rates) | dict.fromkeys(SAMPLE_COLUMNS, samples)
    stored = {name: _StoredColumn(dtype_of(name), lengths.get(name, entities)) for name in COLUMN_NAMES}
    found = [(one.forms, one.bases, one.chunks, one.widths, one.lengths.tolist()) for one in stored.values()]
    blocks, unpack = [], _COLUMN.unpack_from
    for page, (payload, key_length) in enumerate(zip(payloads, key_bytes.tolist(), strict=True)):
        start = _PREFIX.size + _COUNTS.size
        offset = start + key_length
        blocks.append(payload[start:offset])
        for forms, bases, chunks, widths, rows in found:  # no function call: this runs for each column of each page
            form, base = unpack(payload, offset)
            start = offset + _COLUMN.size
            offset = start + widths[form] * rows[page]
            forms.append(form)
            bases.append(base)
            chunks.append(payload[start:offset])
        if offset != len(payload):
            raise ValueError("the tables don't fit together")
    names = KeyBlocks(blocks, entities)
    names.check()
    arrays: dict[str, Column] = {}
    for name, column in stored.items():
        if name in RATE_COLUMNS:
            _check_lengths(arrays["rate_counts"], entities, rates)
        elif name in SAMPLE_COLUMNS:
            _check_lengths(arrays["sample_counts"], rates, samples)
        arrays[name] = column.values()
    columns = Columns(**arrays)
    if not _is_sound(columns):
        raise ValueError("the tables don't fit together")
    return names, columns


DECODERS: dict[int, Callable[[Sequence[bytes]], _Stored]] = {1: _decode_v1}
"""The decoder of each version that can be read, called with blocks of that version.

A new version adds its decoder and a golden block (`tests/data/state-v*.bin`); the old ones stay, so that stored state
is migrated when it is read.
"""


def _is_sound(columns: Columns) -> bool:
    """True if every rate is of a known kind and its current sample is one of its samples."""
    kinds, currents = columns.rate_kinds, columns.rate_currents
    known = np.isin(kinds, [*KINDS_BY_CODE])
    within = (currents >= 0) & (currents < np.maximum(columns.sample_counts, 1))
    return bool((known & within).all())


def _check_lengths(counts: Integers, parents: Integers, children: Integers) -> None:
    """Raises ValueError unless each page's counts add up to its children: damaged bytes must not exhaust the memory."""
    if ((counts < 0) | (counts > children.sum())).any():
        raise ValueError("the tables don't fit together")
    totals = np.concatenate([[0], np.cumsum(counts)])[np.cumsum(parents)]
    if (totals != np.cumsum(children)).any():
        raise ValueError("the tables don't fit together")


def _encode_column(array: Column, bounds: Integers) -> list[bytes]:
    """One column of k pages, form, base and data of each; rows `bounds[i]` to `bounds[i + 1]` are those of page i."""
    lengths = np.diff(bounds)
    filled = np.flatnonzero(lengths)
    heads = np.empty(len(lengths), _COLUMN_HEAD)
    heads["form"], heads["base"] = b"0", 0
    data: dict[bytes, bytes] = {b"0": b""}
    if len(filled):
        starts = bounds[filled]
        numbers, as_floats = array, np.zeros(len(filled), np.bool_)
        if array.dtype == np.float64:
            whole = _is_whole(array)
            as_floats = ~np.logical_and.reduceat(whole, starts)
            numbers = np.where(whole, array, 0.0).astype(np.int64)
        lowest, highest = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
        spans = (highest - lowest).view(np.uint64)
        heads["form"][filled] = np.where(as_floats, _FLOAT, _FORMS[np.searchsorted(_SPANS, spans, side="right")])
        heads["base"][filled] = np.where(as_floats, 0, lowest)
        offsets = (numbers - np.repeat(lowest, lengths[filled])).view(np.uint64)
        for form in np.unique(heads["form"]).tolist():
            if form == _FLOAT:
                data[form] = array.astype("<f8", copy=False).tobytes()
            elif _WIDTHS[form]:
                data[form] = offsets.astype(_UNSIGNED[_WIDTHS[form]]).tobytes()
    forms = heads["form"].tolist()
    widths = integers(_FLOAT_WIDTHS[form] for form in forms)
    firsts, lasts = (bounds[:-1] * widths).tolist(), (bounds[1:] * widths).tolist()
    written, size = heads.tobytes(), _COLUMN.size
    return [
        written[head : head + size] + data[form][first:last]
        for head, form, first, last in zip(range(0, len(written), size), forms, firsts, lasts, strict=True)
    ]


def _is_whole(array: Floats) -> Flags:
    """Flags of the floats that lose nothing as integers: no fraction, NaN, infinity or negative zero."""
    with np.errstate(invalid="ignore"):
        small = np.abs(array) < _LARGEST_EXACT
    whole: Flags = small & (np.trunc(array) == array) & ~(np.signbit(array) & (array == 0))
    return whole


class _StoredColumn:
    """One column of several pages as it is stored, while it is being read."""

    def __init__(self, dtype: np.dtype[Any], lengths: Integers) -> None:
        """`lengths` (k,): the rows of each page."""
        self.lengths = lengths
        self.widths = _FLOAT_WIDTHS if dtype == np.float64 else _WIDTHS
        self.forms: list[bytes] = []
        self.bases: list[int] = []
        self.chunks: list[bytes] = []
        self._dtype = dtype

    def values(self) -> Column:
        """The rows of all pages."""
        bases = np.repeat(integers(self.bases), self.lengths)
        forms = set(self.forms)
        if len(forms) == 1:
            return self._values_in(forms.pop(), self.chunks, bases)
        values = np.empty(len(bases), self._dtype)
        form_of_page = np.array(self.forms)
        for form in forms:
            rows = np.repeat(form_of_page == form, self.lengths)
            chunks = [chunk for chunk, own in zip(self.chunks, self.forms, strict=True) if own == form]
            values[rows] = self._values_in(form, chunks, bases[rows])
        return values

    def _values_in(self, form: bytes, chunks: Sequence[bytes], bases: Integers) -> Column:
        """The rows of pages that are all stored in this form."""
        if form == _FLOAT:
            return np.frombuffer(b"".join(chunks), "<f8")
        width = self.widths[form]
        if width:
            bases = bases + np.frombuffer(b"".join(chunks), _UNSIGNED[width]).astype(np.int64)
        return bases.astype(self._dtype, copy=False)
