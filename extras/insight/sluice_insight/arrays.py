"""The counters of many entities as arrays, one for each field: how what-if charges them together."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sluice.state.arithmetic.counter import EntityCounters
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.arithmetic.token_bucket import TokenBucket
from sluice.state.quotas.kinds import QuotaKind

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


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


def concatenate(parts: Sequence[Columns]) -> Columns:
    """The columns of all parts, at least one, in this order."""
    return Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMN_NAMES))


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
    return sorted(counters.rates.items(), key=lambda rate: rate[0].code)
