"""The counters of many entities as arrays, one for each field: how they are stored and charged together."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sluice.state.arithmetic.counter import EntityCounters
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.arithmetic.token_bucket import TokenBucket
from sluice.state.quotas.kinds import KINDS_BY_CODE, QuotaKind

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_Rows = Integers | Flags | slice


@dataclass(slots=True)
class Columns:
    """The counters of n entities with r sampled rates and s samples: three tables, one array per field.

    The rates of one entity are consecutive, in the order of the entities, and so are the samples of one rate:
    `rate_counts` gives the number of rates of each entity (its sum is r), `sample_counts` the number of samples of
    each rate (its sum is s). An entity without a bucket has NaN `bucket_tokens`.

    Times of samples are relative, so that they are small: `sample_starts_ms` is how long before the entity's
    `last_event_ms` a sample started, `sample_last_events_ms` how long after that start its last event was.
    """

    last_event_ms: Integers  # (n,)
    bucket_tokens: Floats  # (n,)
    bucket_last_ms: Integers  # (n,)
    mutation_limit: Floats  # (n,), per second
    rate_counts: Integers  # (n,)
    rate_kinds: Integers  # (r,), QuotaKind.code
    rate_currents: Integers  # (r,), which of the rate's samples is being filled
    sample_counts: Integers  # (r,)
    sample_starts_ms: Integers  # (s,)
    sample_last_events_ms: Integers  # (s,)
    sample_values: Floats  # (s,)


COLUMN_NAMES: Final = tuple(column.name for column in fields(Columns))
_FLOAT_COLUMNS: Final = frozenset({"bucket_tokens", "mutation_limit", "sample_values"})
RATE_COLUMNS: Final = frozenset({"rate_kinds", "rate_currents", "sample_counts"})
SAMPLE_COLUMNS: Final = frozenset({"sample_starts_ms", "sample_last_events_ms", "sample_values"})
"""The table of each column; columns in neither set belong to the entities."""


def empty_columns() -> Columns:
    """Columns without any entity."""
    return Columns(*(np.empty(0, dtype_of(name)) for name in COLUMN_NAMES))


def dtype_of(column: str) -> np.dtype[Any]:
    """float64 or int64."""
    return np.dtype(np.float64 if column in _FLOAT_COLUMNS else np.int64)


def concatenate(parts: Sequence[Columns]) -> Columns:
    """The columns of all parts, at least one, in this order."""
    return Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMN_NAMES))


def take(columns: Columns, entities: Integers | Flags) -> Columns:
    """The columns of some entities: positions (m,), in this order, or flags (n,), faster if most are taken."""
    rates = _children(columns.rate_counts, entities)
    samples = _children(columns.sample_counts, rates)
    return _rows(columns, entities, rates, samples)


def table_ends(columns: Columns, ends: Integers) -> tuple[Integers, Integers, Integers]:
    """Ends of the entities, rates and samples of k parts, cut after the entities `ends` (k,), in ascending order."""
    rate_ends = _ends(columns.rate_counts)[ends]
    return ends, rate_ends, _ends(columns.sample_counts)[rate_ends]


def counters_from(columns: Columns) -> Iterator[EntityCounters]:
    """The counters of each entity, in order."""
    rates = zip(
        columns.rate_kinds.tolist(), columns.rate_currents.tolist(), columns.sample_counts.tolist(), strict=True
    )
    samples = zip(
        columns.sample_starts_ms.tolist(),
        columns.sample_last_events_ms.tolist(),
        columns.sample_values.tolist(),
        strict=True,
    )
    for last_event_ms, tokens, bucket_last_ms, limit, rate_count in zip(
        columns.last_event_ms.tolist(),
        columns.bucket_tokens.tolist(),
        columns.bucket_last_ms.tolist(),
        columns.mutation_limit.tolist(),
        columns.rate_counts.tolist(),
        strict=True,
    ):
        counters = EntityCounters()
        counters.last_event_ms, counters.mutation_limit = last_event_ms, limit
        if not math.isnan(tokens):
            counters.bucket = TokenBucket(tokens, bucket_last_ms)
        for code, current, sample_count in islice(rates, rate_count):
            rate = counters.rates[KINDS_BY_CODE[code]] = SampledRate(current=current)
            for distance_ms, lasted_ms, value in islice(samples, sample_count):
                start_ms = last_event_ms - distance_ms
                rate.starts_ms.append(start_ms)
                rate.last_events_ms.append(start_ms + lasted_ms)
                rate.values.append(value)
        yield counters


def columns_of(entities: Collection[EntityCounters]) -> Columns:
    """The columns of these entities, in order."""
    rates = [(kind.code, rate, counters.last_event_ms) for counters in entities for kind, rate in _rates(counters)]
    buckets = [counters.bucket or TokenBucket(math.nan) for counters in entities]
    return Columns(
        last_event_ms=integers(counters.last_event_ms for counters in entities),
        bucket_tokens=np.array([bucket.tokens for bucket in buckets], np.float64),
        bucket_last_ms=integers(bucket.last_ms for bucket in buckets),
        mutation_limit=np.array([counters.mutation_limit for counters in entities], np.float64),
        rate_counts=integers(len(counters.rates) for counters in entities),
        rate_kinds=integers(code for code, _, _ in rates),
        rate_currents=integers(rate.current for _, rate, _ in rates),
        sample_counts=integers(len(rate.values) for _, rate, _ in rates),
        sample_starts_ms=integers(last_ms - start for _, rate, last_ms in rates for start in rate.starts_ms),
        sample_last_events_ms=integers(
            last - start
            for _, rate, _ in rates
            for start, last in zip(rate.starts_ms, rate.last_events_ms, strict=True)
        ),
        sample_values=np.array([value for _, rate, _ in rates for value in rate.values], np.float64),
    )


def integers(numbers: Iterable[int]) -> Integers:
    """The numbers as an array (n,)."""
    return np.fromiter(numbers, np.int64)


def _rates(counters: EntityCounters) -> list[tuple[QuotaKind, SampledRate]]:
    """The rates in the order of their codes."""
    return sorted(counters.rates.items(), key=lambda rate: rate[0].code)


def _rows(columns: Columns, entities: _Rows, rates: _Rows, samples: _Rows) -> Columns:
    """These rows of the three tables."""
    rows = dict.fromkeys(RATE_COLUMNS, rates) | dict.fromkeys(SAMPLE_COLUMNS, samples)
    return Columns(*(getattr(columns, name)[rows.get(name, entities)] for name in COLUMN_NAMES))


def _children(counts: Integers, parents: Integers | Flags) -> Integers | Flags:
    """The rows of the next table that belong to these parents: parent p has `counts[p]` consecutive rows there."""
    if parents.dtype == np.bool_:
        flags: Flags = np.repeat(parents, counts).astype(np.bool_, copy=False)
        return flags
    wanted = counts[parents]
    shifts = _ends(counts)[parents] - _ends(wanted)[:-1]
    children: Integers = np.repeat(shifts, wanted) + np.arange(wanted.sum())
    return children


def _ends(counts: Integers) -> Integers:
    """(p,) -> (p + 1,): 0, then the position after the last row of each parent."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
