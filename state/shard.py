"""A shard: all counters of the entities that hash to it, read from and written to one block of bytes."""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from state.codec import (
    KIND_CODES,
    MUTATION_RATE_CODE,
    RING_COLUMNS,
    SAMPLE_COLUMNS,
    Columns,
    Integers,
    decode,
    empty_columns,
    encode,
)
from state.counters import Charged, Counters, can_charge_together
from state.entity import Tags
from state.meters import MUTATION_RATE_WINDOW, Meters, Outcome
from state.quota import Coexistence, QuotaSettings, burst
from state.sampled_rate import SampledRate
from state.token_bucket import TokenBucket

Flags = NDArray[np.bool_]

_KINDS_BY_CODE = {code: kind for kind, code in KIND_CODES.items()}

TOGETHER = 64
"""From so many entities on, charging them together over arrays is faster than one by one."""

_BLOCK = 512
"""Of more entities so many are charged at a time, and decided before the next: what that takes stays in the cache."""


RequestT = TypeVar("RequestT", bound=Charged)


def shard_of(key: str, shards: int) -> int:
    """The shard that keeps the counters of the entity with this key; the same in every process and release."""
    return zlib.crc32(key.encode()) % shards


class Shard:
    """The counters of many entities: in columns as they are stored, and as objects where they are charged singly."""

    def __init__(self, keys: list[str] | None = None, columns: Columns | None = None) -> None:
        self._keys = keys or []
        self._columns = columns or empty_columns()
        self._touched: dict[str, Meters] = {}
        self._touched_rows: list[int] = []

    @classmethod
    def from_bytes(cls, payload: bytes, shards: int) -> "Shard":
        """The shard stored in `payload`. Raises StateError if it can't be read or has another shard count."""
        return cls(*decode(payload, shards))

    def __len__(self) -> int:
        """How many entities have counters here."""
        return len(self._keys) + len(self._touched) - len(self._touched_rows)

    def charge(
        self, requests_by_key: Mapping[str, Sequence[RequestT]], settings: QuotaSettings, together: int = TOGETHER
    ) -> Iterator[tuple[RequestT, list[Outcome]]]:
        """Charge entities with their requests, each entity's in the order given; answers what came of each.

        First all entities' first requests over arrays, then all second ones, while there are at least `together` of
        them; the rest one by one. Either way gives the same, to the last bit.
        """
        regular: Mapping[str, Sequence[RequestT]] = {}
        if not self._touched and settings.coexistence is Coexistence.MAX:
            regular = {key: requests for key, requests in requests_by_key.items() if can_charge_together(requests)}
        rounds = _rounds(regular.values(), together)
        if rounds:
            yield from self._charge_together(regular, rounds, settings)
        rest = {
            key: requests[rounds:] if key in regular else requests
            for key, requests in requests_by_key.items()
            if key not in regular or len(requests) > rounds
        }
        self.load(rest)
        for key, requests in rest.items():
            meters = self.meters(key)
            for request in requests:
                yield request, meters.charge_request(request.charges, request.timestamp_ms, settings)

    def meters(self, key: str) -> Meters:
        """The counters of one entity, made at its first use."""
        meters = self._touched.get(key)
        if meters is None:
            self.load([key])
            meters = self._touched[key]
        return meters

    def load(self, keys: Iterable[str]) -> None:
        """Make the counters of these entities ready to be charged singly, all at once: cheaper than one by one."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._touched]
        rows = sorted(self._rows_of(missing).values())
        if rows:
            stored = meters_of(select(self._columns, _flags(rows, len(self._keys))))
            self._touched.update(zip((self._keys[row] for row in rows), stored, strict=True))
            self._touched_rows += rows
        for key in missing:
            if key not in self._touched:
                self._touched[key] = Meters()

    def meters_of(self, tags: Tags) -> Meters:
        """The counters kept for these tags."""
        return self.meters(tags.key())

    def to_bytes(self, shards: int, idle_expiry_ms: int, settings: QuotaSettings) -> bytes:
        """The stored form of the shard, without the entities whose counters are at rest."""
        keys, columns = self._merged()
        if keys:
            kept = ~at_rest(columns, int(columns.last_event_ms.max()), idle_expiry_ms, settings)
            if not kept.all():
                keys, columns = _kept(keys, kept), select(columns, kept)
        return encode(keys, columns, shards)

    def _charge_together(
        self, requests_by_key: Mapping[str, Sequence[RequestT]], rounds: int, settings: QuotaSettings
    ) -> Iterator[tuple[RequestT, list[Outcome]]]:
        """The first `rounds` requests of each of these entities, which become the last ones of the columns."""
        others, keys, columns = self._taken_out(requests_by_key)
        kinds = {
            charge.kind for requests in requests_by_key.values() for request in requests for charge in request.charges
        }
        counters = Counters(columns, kinds, settings)
        queues = [requests_by_key[key] for key in keys]
        entities = list(range(len(queues)))
        for number in range(rounds):
            entities = [entity for entity in entities if len(queues[entity]) > number]
            for block in _blocks(entities):
                requests = [queues[entity][number] for entity in block]
                now_ms = integers(request.timestamp_ms for request in requests)
                outcomes = counters.charge(np.array(block), now_ms, [request.charges for request in requests])
                yield from zip(requests, outcomes, strict=True)
        self._keys, self._columns = others[0] + keys, concatenate(others[1], counters.columns())

    def _taken_out(self, keys: Iterable[str]) -> tuple[tuple[list[str], Columns], list[str], Columns]:
        """All other entities, and these with their columns; those that are new have none yet."""
        rows_by_key = self._rows_of(keys)
        rows = sorted(rows_by_key.values())
        taken = _flags(rows, len(self._keys))
        new = [key for key in keys if key not in rows_by_key]
        columns = concatenate(select(self._columns, taken), columns_of(dict.fromkeys(new, Meters())))
        others = _kept(self._keys, ~taken), select(self._columns, ~taken)
        return others, [self._keys[row] for row in rows] + new, columns

    def _merged(self) -> tuple[list[str], Columns]:
        """All entities: the stored ones nobody charged singly, as they are, then the others."""
        if not self._touched:
            return self._keys, self._columns
        untouched = ~_flags(self._touched_rows, len(self._keys))
        columns = concatenate(select(self._columns, untouched), columns_of(self._touched))
        return _kept(self._keys, untouched) + list(self._touched), columns

    def _rows_of(self, keys: Iterable[str]) -> dict[str, int]:
        """Where the stored ones of these entities are. A pass over all keys takes less than an index of them."""
        wanted = set(keys)
        found = compress(range(len(self._keys)), map(wanted.__contains__, self._keys))
        return {self._keys[row]: row for row in found}


def _rounds(queues: Iterable[Sequence[Charged]], together: int) -> int:
    """How often there is a further request of at least `together` entities."""
    longest_first = sorted(map(len, queues), reverse=True)
    return longest_first[together - 1] if len(longest_first) >= together else 0


def _blocks(entities: Sequence[int]) -> Iterator[Sequence[int]]:
    """The entities in blocks that are charged together."""
    for start in range(0, len(entities), _BLOCK):
        yield entities[start : start + _BLOCK]


def _kept(keys: Sequence[str], kept: Flags) -> list[str]:
    return list(compress(keys, kept.tolist()))


def _flags(rows: Sequence[int], length: int) -> Flags:
    flags = np.zeros(length, np.bool_)
    flags[rows] = True
    return flags


def at_rest(columns: Columns, now_ms: int, idle_expiry_ms: int, settings: QuotaSettings) -> Flags:
    """Which entities can be forgotten without changing a later decision.

    Idle for longer than the expiry (Kafka: 3600 s), every sample outdated, and the bucket full again. Shipped Kafka
    forgets a deficit together with the counter; here the counter stays until the deficit is paid.
    """
    spans_ms = (window.samples * window.window_ms for window in (settings.client_window, MUTATION_RATE_WINDOW))
    idle = now_ms - columns.last_event_ms > max(idle_expiry_ms, *spans_ms)
    refilled = columns.bucket_tokens + columns.mutation_limit * ((now_ms - columns.bucket_last_ms) / 1000.0)
    full = refilled >= burst(settings.controller_window, 1.0) * columns.mutation_limit
    at_rest_now: Flags = idle & (np.isnan(columns.bucket_tokens) | full)
    return at_rest_now


def meters_of(columns: Columns) -> Iterator[Meters]:
    """The counters of each entity of the columns, in order."""
    ring_kinds, ring_currents, sample_counts = (
        iter(column.tolist()) for column in (columns.ring_kinds, columns.ring_currents, columns.sample_counts)
    )
    samples = zip(
        columns.sample_starts_ms.tolist(),
        columns.sample_last_events_ms.tolist(),
        columns.sample_values.tolist(),
        strict=True,
    )
    for last_event_ms, tokens, bucket_last_ms, limit, rings in zip(
        columns.last_event_ms.tolist(),
        columns.bucket_tokens.tolist(),
        columns.bucket_last_ms.tolist(),
        columns.mutation_limit.tolist(),
        columns.ring_counts.tolist(),
        strict=True,
    ):
        meters = Meters()
        meters.last_event_ms, meters.mutation_limit = last_event_ms, limit
        if not math.isnan(tokens):
            meters.bucket = TokenBucket(tokens, bucket_last_ms)
        for _ in range(rings):
            code, rate = next(ring_kinds), SampledRate(current=next(ring_currents))
            for distance_ms, lasted_ms, value in islice(samples, next(sample_counts)):
                start_ms = last_event_ms - distance_ms
                rate.starts_ms.append(start_ms)
                rate.last_events_ms.append(start_ms + lasted_ms)
                rate.values.append(value)
            if code == MUTATION_RATE_CODE:
                meters.mutation_rate = rate
            else:
                meters.rates[_KINDS_BY_CODE[code]] = rate
        yield meters


def columns_of(meters_by_key: Mapping[str, Meters]) -> Columns:
    """The columns of these entities, in order."""
    entities = meters_by_key.values()
    rings = [(code, rate, meters.last_event_ms) for meters in entities for code, rate in _rings(meters)]
    buckets = [meters.bucket or TokenBucket(math.nan) for meters in entities]
    return Columns(
        last_event_ms=integers(meters.last_event_ms for meters in entities),
        bucket_tokens=np.array([bucket.tokens for bucket in buckets], np.float64),
        bucket_last_ms=integers(bucket.last_ms for bucket in buckets),
        mutation_limit=np.array([meters.mutation_limit for meters in entities], np.float64),
        ring_counts=integers(len(meters.rates) + (meters.mutation_rate is not None) for meters in entities),
        ring_kinds=integers(code for code, _, _ in rings),
        ring_currents=integers(rate.current for _, rate, _ in rings),
        sample_counts=integers(len(rate.values) for _, rate, _ in rings),
        sample_starts_ms=integers(last_ms - start for _, rate, last_ms in rings for start in rate.starts_ms),
        sample_last_events_ms=integers(
            last - start
            for _, rate, _ in rings
            for start, last in zip(rate.starts_ms, rate.last_events_ms, strict=True)
        ),
        sample_values=np.array([value for _, rate, _ in rings for value in rate.values], np.float64),
    )


def select(columns: Columns, kept: Flags) -> Columns:
    """The columns of the entities for which `kept` is true."""
    rings = np.repeat(kept, columns.ring_counts)
    samples = np.repeat(rings, columns.sample_counts)
    masks = dict.fromkeys(RING_COLUMNS, rings) | dict.fromkeys(SAMPLE_COLUMNS, samples)
    return Columns(*(getattr(columns, name)[masks.get(name, kept)] for name in Columns.__slots__))


def concatenate(first: Columns, second: Columns) -> Columns:
    """The columns of both, the first one's entities first."""
    pairs = ((getattr(first, name), getattr(second, name)) for name in Columns.__slots__)
    return Columns(*(np.concatenate(pair) for pair in pairs))


def _rings(meters: Meters) -> Iterable[tuple[int, SampledRate]]:
    for kind, rate in meters.rates.items():
        yield KIND_CODES[kind], rate
    if meters.mutation_rate is not None:
        yield MUTATION_RATE_CODE, meters.mutation_rate


def integers(numbers: Iterable[int]) -> Integers:
    return np.fromiter(numbers, np.int64)
