"""The stored form of a page of counters: one versioned block of bytes.

A block begins with the version (1 byte) and the number of all pages (4), little endian. The rest depends on the
version.

Version 1: number of entities (4 bytes), rates (4), samples (4), length of the keys (4); the keys, joined by newlines;
then eleven columns. Those of the entities: time of the last event, tokens of the bucket (NaN: no bucket), time of the
bucket, limit of mutations, number of rates. Those of the rates, entity by entity in the order of their codes: code of
the kind, current sample, number of samples. Those of the samples, rate by rate: how long before the entity's last event
a sample started, how long after that start its last event was, and its value.

A column is a one-byte form, an 8-byte base and its data, in the narrowest form that loses nothing: integers as unsigned
offsets from their minimum, floats as integers if all of them are whole. Nothing is pickled, so stored bytes can't run
code.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import add
from typing import Any

from sluice.state.arithmetic.counter import EntityCounters
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.arithmetic.token_bucket import TokenBucket
from sluice.state.errors import StateError
from sluice.state.quotas.kinds import KINDS_BY_CODE, QuotaKind

CODEC_VERSION = 1
"""The version that is written, and the only one that is read.

Another one is a second decoder beside `_decoded`, chosen by the version, so that stored state is migrated when it is
read; a golden block (`tests/data/state-v*.bin`); and both in `extras/native/sluice_native/decide.c`.
"""

_HEAD = struct.Struct("<BIIIII")
_COLUMN = struct.Struct("<cq")
_LETTERS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_WIDTHS = {b"0": 0, b"1": 1, b"2": 2, b"4": 4, b"8": 8}
_FLOATS = b"f"
_LARGEST_EXACT = 2.0**53
_LARGEST_INTEGER = 2**63 - 1

_MAX_SAMPLES = 1 << 24
"""More samples than a page ever has: damaged bytes must not exhaust the memory."""


def encode(counters: Mapping[str, EntityCounters], pages: int) -> bytes:
    """The stored form of a page, of `pages` in all, with its counters in this order. No key has a newline."""
    entities = counters.values()
    rates = [(one.last_event_ms, kind, rate) for one in entities for kind, rate in _rates(one)]
    names = "\n".join(counters).encode()
    columns = [
        _integers([one.last_event_ms for one in entities]),
        _floats([math.nan if one.bucket is None else one.bucket.tokens for one in entities]),
        _integers([0 if one.bucket is None else one.bucket.last_ms for one in entities]),
        _floats([one.mutation_limit for one in entities]),
        _integers([len(one.rates) for one in entities]),
        _integers([kind.code for _, kind, _ in rates]),
        _integers([rate.current for _, _, rate in rates]),
        _integers([len(rate.values) for _, _, rate in rates]),
        _integers([last_ms - start_ms for last_ms, _, rate in rates for start_ms in rate.starts_ms]),
        _integers(
            [
                last_ms - start_ms
                for _, _, rate in rates
                for start_ms, last_ms in zip(rate.starts_ms, rate.last_events_ms, strict=True)
            ]
        ),
        _floats([value for _, _, rate in rates for value in rate.values]),
    ]
    samples = sum(len(rate.values) for _, _, rate in rates)
    return b"".join([_HEAD.pack(CODEC_VERSION, pages, len(counters), len(rates), samples, len(names)), names, *columns])


def decode(payload: bytes, pages: int | None) -> dict[str, EntityCounters]:
    """The counters of a stored page, of `pages` in all or, for None, of any number, by key.

    Raises StateError for another number of pages, an unknown version or damaged bytes.
    """
    _check_head(payload, pages)
    try:
        return _decoded(payload)
    except (ValueError, struct.error, KeyError, OverflowError) as error:
        raise StateError(f"stored state is damaged ({error}); restore the checkpoint from a backup") from error


def entities_of(payload: bytes) -> int:
    """The number of entities in a block, without decoding it."""
    entities: int = _HEAD.unpack_from(payload)[2]
    return entities


def pages_of(payload: bytes) -> int:
    """The number of all pages that a block says, without decoding it."""
    pages: int = _HEAD.unpack_from(payload)[1]
    return pages


def _check_head(payload: bytes, pages: int | None) -> None:
    """Raises StateError for an unknown version, and for another number of pages."""
    if len(payload) < _HEAD.size:
        raise StateError(f"stored state is cut short ({len(payload)} bytes); restore the checkpoint from a backup")
    version, pages_then, *_ = _HEAD.unpack_from(payload)
    if version != CODEC_VERSION:
        raise StateError(
            f"stored state has codec version {version}, this release reads {CODEC_VERSION}; "
            "run the release that wrote it, or start with a new checkpoint"
        )
    if pages not in (None, pages_then):
        raise StateError(
            f"the checkpoint was made with state.pages = {pages_then}, the settings say {pages}; "
            f"set state.pages back to {pages_then}, or start with a new checkpoint"
        )


def _decoded(payload: bytes) -> dict[str, EntityCounters]:
    """The counters. Raises what reading damaged bytes raises."""
    _, _, entities, rates, samples, key_bytes = _HEAD.unpack_from(payload)
    columns = _Columns(payload, _HEAD.size + key_bytes)
    names = payload[_HEAD.size : _HEAD.size + key_bytes]
    keys = names.decode().split("\n") if entities else []
    _check(len(keys) == entities and (entities > 0 or not names), f"not {entities} keys for {entities} entities")
    _check(rates <= entities * len(KINDS_BY_CODE) and samples <= _MAX_SAMPLES)
    last_events_ms = columns.integers(entities)
    tokens, buckets_ms = columns.floats(entities), columns.integers(entities)
    limits, rate_counts = columns.floats(entities), columns.integers(entities)
    kinds, currents, sample_counts = columns.integers(rates), columns.integers(rates), columns.integers(rates)
    starts_ms, lasted_ms, values = columns.integers(samples), columns.integers(samples), columns.floats(samples)
    columns.end()
    _check(min(rate_counts + sample_counts, default=0) >= 0)
    _check(sum(rate_counts) == rates and sum(sample_counts) == samples)

    counters: dict[str, EntityCounters] = {}
    of_rates, sample = zip(kinds, currents, sample_counts, strict=True), 0
    of_entities = zip(keys, last_events_ms, tokens, buckets_ms, limits, rate_counts, strict=True)
    for key, last_ms, left, bucket_ms, limit, rate_count in of_entities:
        rates_by_kind: dict[QuotaKind, SampledRate] = {}
        for code, current, count in islice(of_rates, rate_count):
            _check(0 <= current < (count or 1))
            end = sample + count
            starts = [last_ms - before_ms for before_ms in starts_ms[sample:end]]
            ends = [*map(add, starts, lasted_ms[sample:end])]
            rates_by_kind[KINDS_BY_CODE[code]] = SampledRate(starts, ends, values[sample:end], current)
            sample = end
        bucket = TokenBucket(left, bucket_ms) if left == left else None  # NaN: no bucket
        counters[key] = EntityCounters(bucket, limit, rates_by_kind, last_ms)
    _check(len(counters) == entities)
    return counters


def _rates(counters: EntityCounters) -> Iterable[tuple[QuotaKind, SampledRate]]:
    """The rates in the order of their codes."""
    rates = counters.rates.items()
    return rates if len(rates) < 2 else sorted(rates, key=lambda rate: rate[0].code)


def _integers(column: Sequence[int]) -> bytes:
    """A column of integers, of 64 bits with their signs.

    >>> _integers([300, 301]).hex(" ")
    '31 2c 01 00 00 00 00 00 00 00 01'
    """
    lowest = min(column, default=0)
    span = max(column, default=0) - lowest
    width = next(width for width in _WIDTHS.values() if span < 1 << 8 * width)
    head = _COLUMN.pack(b"%d" % width, lowest)
    if not width:
        return head
    return head + struct.pack(f"<{len(column)}{_LETTERS[width]}", *[number - lowest for number in column])


def _floats(numbers: Sequence[float]) -> bytes:
    """A column of floats, as integers if that loses nothing: no fraction, NaN, infinity or negative zero.

    >>> _floats([300.0, 301.0]) == _integers([300, 301]), _floats([0.5])[:1]
    (True, b'f')
    """
    column = [*map(float, numbers)]
    small = all(map(float.is_integer, column)) and max(map(abs, column), default=0.0) < _LARGEST_EXACT
    if small and all(math.copysign(1.0, number) > 0 for number in column if not number):
        return _integers([*map(int, column)])
    return _COLUMN.pack(_FLOATS, 0) + struct.pack(f"<{len(column)}d", *column)


class _Columns:
    """Reads columns one after another. Raises ValueError, KeyError or struct.error where bytes are damaged."""

    def __init__(self, payload: bytes, offset: int) -> None:
        self._payload, self._offset = payload, offset

    def integers(self, count: int) -> list[int]:
        """The next column, of so many integers."""
        form, base = _COLUMN.unpack_from(self._payload, self._offset)
        return self._whole(form, base, count)

    def floats(self, count: int) -> list[float]:
        """The next column, of so many floats."""
        form, base = _COLUMN.unpack_from(self._payload, self._offset)
        if form == _FLOATS:
            return [*self._unpack("d", 8, count)]
        return [float(number) for number in self._whole(form, base, count)]

    def end(self) -> None:
        """Raises ValueError unless all has been read."""
        _check(self._offset == len(self._payload))

    def _whole(self, form: bytes, base: int, count: int) -> list[int]:
        width = _WIDTHS[form]
        if not width:
            self._offset += _COLUMN.size
            return [base] * count
        numbers = [base + offset for offset in self._unpack(_LETTERS[width], width, count)]
        _check(max(numbers, default=0) <= _LARGEST_INTEGER)
        return numbers

    def _unpack(self, letter: str, width: int, count: int) -> tuple[Any, ...]:
        start = self._offset + _COLUMN.size
        self._offset = start + width * count
        return struct.unpack_from(f"<{count}{letter}", self._payload, start)


def _check(is_sound: bool, problem: str = "the columns don't fit together") -> None:
    if not is_sound:
        raise ValueError(problem)
