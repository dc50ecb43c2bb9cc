"""The counters of many entities, charged together: what `state.meters` does for one, over arrays.

The same operations in the same order on the same doubles, so that every result is the same to the last bit; a property
test holds both against each other. Worth its while from some dozens of entities on.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from state.charge import Charge
from state.codec import KIND_CODES, MUTATION_RATE_CODE, RING_KINDS, Columns, Floats, Integers
from state.meters import CONSUMER_KINDS, MUTATION_RATE_WINDOW, Outcome, throttles
from state.quota import UNLIMITED, QuotaKind, QuotaSettings, Window, burst
from state.sampled_rate import wait_for_rate_ms
from state.token_bucket import wait_for_tokens_ms

Flags = NDArray[np.bool_]
Entities = NDArray[np.int64]
"""Positions of entities; no entity twice."""

_LATEST_MS = np.iinfo(np.int64).max


class Charged(Protocol):
    """A request with its charges on one entity."""

    @property
    def timestamp_ms(self) -> int:
        """When it happened."""

    @property
    def charges(self) -> Sequence[Charge]:
        """What the entity is charged with."""


def can_charge_together(requests: Iterable[Charged]) -> bool:
    """Whether `Counters` knows these requests: not those that mutate several topics."""
    for request in requests:
        for charge in request.charges:
            if charge.kind is QuotaKind.CONTROLLER_MUTATION_RATE and len(charge.amounts) != 1:
                return False
    return True


class Counters:
    """The counters of entities 0 to n-1. Arrays have one row for each entity; rings also a column for each kind."""

    def __init__(self, columns: Columns, kinds: Iterable[QuotaKind], settings: QuotaSettings) -> None:
        """The stored counters of n entities, and room for rings of these kinds."""
        self._settings = settings
        self._last_event_ms = columns.last_event_ms.copy()
        self._tokens = columns.bucket_tokens.copy()
        self._bucket_last_ms = columns.bucket_last_ms.copy()
        self._mutation_limit = columns.mutation_limit.copy()
        self._rings = Rings(columns, {_ring_code(kind) for kind in kinds}, settings)

    def charge(self, entities: Entities, now_ms: Integers, requests: Sequence[Sequence[Charge]]) -> list[list[Outcome]]:
        """Charge each of these entities with one request of its own; the outcomes are in the order of the charges."""
        self._last_event_ms[entities] = np.maximum(self._last_event_ms[entities], now_ms)
        outcomes: list[list[Outcome]] = [[] for _ in requests]
        for place in range(max(map(len, requests))):
            for kind, members in _by_kind(requests, place).items():
                chosen = [requests[member][place] for member in members]
                made = self._charge_kind(kind, entities[members], now_ms[members], chosen)
                for member, outcome in zip(members, made, strict=True):
                    outcomes[member].append(outcome)
        self._unrecord_fetched(entities, now_ms, outcomes)
        return outcomes

    def columns(self) -> Columns:
        """The counters as they are stored."""
        ring_columns = self._rings.columns(self._last_event_ms)
        return Columns(self._last_event_ms, self._tokens, self._bucket_last_ms, self._mutation_limit, *ring_columns)

    def _charge_kind(
        self, kind: QuotaKind, entities: Entities, now_ms: Integers, charges: Sequence[Charge]
    ) -> list[Outcome]:
        if kind is QuotaKind.CONTROLLER_MUTATION_RATE:
            return self._charge_mutations(entities, now_ms, charges)
        return self._charge_rates(kind, entities, now_ms, charges)

    def _charge_rates(
        self, kind: QuotaKind, entities: Entities, now_ms: Integers, charges: Sequence[Charge]
    ) -> list[Outcome]:
        """As `Meters` charges bytes and request time: record, then check; network time is not checked."""
        code, window = KIND_CODES[kind], self._settings.client_window
        amounts = np.array([charge.amounts[0] for charge in charges], np.float64)
        self._rings.record(code, entities, amounts, window, now_ms)
        rates, windows_ms = self._rings.measure(code, entities, window, now_ms)
        values, longest_ms = amounts, None
        if kind is QuotaKind.REQUEST_PERCENTAGE:
            network = np.array([charge.amounts[1] for charge in charges], np.float64)
            values, longest_ms = amounts + network, window.window_ms
            used = network != 0
            self._rings.record(code, entities[used], network[used], window, now_ms[used])
        observed, spans_ms = rates.tolist(), windows_ms.tolist()
        outcomes = []
        for charge, value, rate, span_ms in zip(charges, values.tolist(), observed, spans_ms, strict=True):
            limit, wait_ms = charge.limit, 0
            violated = limit is not None and rate > limit
            if violated and limit is not None:
                wait_ms = wait_for_rate_ms(rate, limit, span_ms)
                if longest_ms is not None and wait_ms > longest_ms:
                    wait_ms = longest_ms
            outcomes.append(Outcome(charge, value, violated, wait_ms, rate))
        return outcomes

    def _charge_mutations(self, entities: Entities, now_ms: Integers, charges: Sequence[Charge]) -> list[Outcome]:
        """KIP-599 for requests with one topic each: strict ones check, then charge; the others charge, then check."""
        partitions = np.array([charge.amounts[0] for charge in charges], np.float64)
        limits = np.array([UNLIMITED if charge.limit is None else charge.limit for charge in charges], np.float64)
        strict = np.array([charge.strict for charge in charges], np.bool_)
        tokens = self._refilled(entities, limits, now_ms)
        refused = strict & (tokens < 0)
        charged = ~refused
        self._rings.record(
            MUTATION_RATE_CODE, entities[charged], partitions[charged], MUTATION_RATE_WINDOW, now_ms[charged]
        )
        full = burst(self._settings.controller_window, 1.0) * limits
        tokens = np.where(charged, np.minimum(full, tokens - partitions), tokens)
        self._tokens[entities], self._bucket_last_ms[entities] = tokens, now_ms
        self._mutation_limit[entities] = limits
        violated = refused | (~strict & (tokens < 0))
        rates = self._rings.peek(MUTATION_RATE_CODE, entities, MUTATION_RATE_WINDOW, now_ms)
        return [
            Outcome(
                charge,
                0.0 if refuse else charge.amounts[0],
                violate,
                wait_for_tokens_ms(left, limit) if violate else 0,
                rate,
                None if charge.limit is None else left,
                [refuse],
            )
            for charge, refuse, violate, left, limit, rate in zip(
                charges,
                refused.tolist(),
                violated.tolist(),
                tokens.tolist(),
                limits.tolist(),
                rates.tolist(),
                strict=True,
            )
        ]

    def _refilled(self, entities: Entities, limits: Floats, now_ms: Integers) -> Floats:
        """K = min(B, K + Q * dt); a bucket that is new (NaN) is full."""
        stored = self._tokens[entities]
        tokens = np.where(np.isnan(stored), np.inf, stored)
        refilled = tokens + limits * ((now_ms - self._bucket_last_ms[entities]) / 1000.0)
        return np.minimum(burst(self._settings.controller_window, 1.0) * limits, refilled)

    def _unrecord_fetched(self, entities: Entities, now_ms: Integers, outcomes: Sequence[Sequence[Outcome]]) -> None:
        """The bytes of a throttled Fetch are taken back, for the response goes out empty (KIP-219)."""
        fetched: dict[QuotaKind, list[tuple[int, float]]] = {}
        for member, made in enumerate(outcomes):
            for outcome in made:
                if outcome.charge.kind in CONSUMER_KINDS and throttles(made):
                    fetched.setdefault(outcome.charge.kind, []).append((member, -outcome.value))
        for kind, taken in fetched.items():
            members = [member for member, _ in taken]
            values = np.array([value for _, value in taken], np.float64)
            window = self._settings.client_window
            self._rings.record(KIND_CODES[kind], entities[members], values, window, now_ms[members])


class Rings:
    """The sampled rates of n entities, for each of some kinds: see `state.sampled_rate.SampledRate`."""

    def __init__(self, columns: Columns, codes: set[int], settings: QuotaSettings) -> None:
        """The stored rings, and room for rings of the kinds with these codes."""
        self._codes = np.array(sorted(codes.union(columns.ring_kinds.tolist())), np.int64)
        self._places = np.full(RING_KINDS, len(self._codes))  # a kind there is no room for is an index error
        self._places[self._codes] = np.arange(len(self._codes))
        spare = max(settings.client_window.samples, MUTATION_RATE_WINDOW.samples) + 1
        entities, slots = len(columns.ring_counts), max(spare, int(columns.sample_counts.max(initial=0)))
        shape = (entities, len(self._codes), slots)
        self._lengths = np.zeros(shape[:2], np.int64)
        self._currents = np.zeros(shape[:2], np.int64)
        self._starts_ms = np.zeros(shape, np.int64)
        self._last_events_ms = np.zeros(shape, np.int64)
        self._values = np.zeros(shape, np.float64)
        self._slots = np.arange(slots)
        self._fill(columns)

    def record(self, code: int, entities: Entities, values: Floats, window: Window, now_ms: Integers) -> None:
        """As `SampledRate.record`, for one ring of each entity."""
        place = self._places[code]
        lengths, current = self._lengths[entities, place], self._currents[entities, place]
        full = (lengths > 0) & (now_ms - self._starts_ms[entities, place, current] >= window.window_ms)
        current = np.where(full, (current + 1) % (window.samples + 1), current)
        self._currents[entities, place] = current
        opens = full | (lengths == 0)
        self._open(place, entities[opens], current[opens], now_ms[opens])
        self._values[entities, place, current] += values
        self._last_events_ms[entities, place, current] = now_ms

    def measure(self, code: int, entities: Entities, window: Window, now_ms: Integers) -> tuple[Floats, Integers]:
        """Rates per second and the windows they are taken over, as `SampledRate.measure`: outdated samples go.

        Every ring has been recorded to before.
        """
        place = self._places[code]
        starts_ms, values, outdated = self._live(place, entities, window, now_ms)
        rows = np.flatnonzero(outdated.any(axis=1))
        if len(rows):
            self._starts_ms[entities[rows], place] = starts_ms[rows]
            self._values[entities[rows], place] = values[rows]
            last_events_ms = self._last_events_ms[entities[rows], place]
            self._last_events_ms[entities[rows], place] = np.where(
                outdated[rows], now_ms[rows, np.newaxis], last_events_ms
            )
        return self._rates(place, entities, starts_ms, values, window, now_ms)

    def peek(self, code: int, entities: Entities, window: Window, now_ms: Integers) -> Floats:
        """Rates per second, without a trace."""
        place = self._places[code]
        starts_ms, values, _ = self._live(place, entities, window, now_ms)
        return self._rates(place, entities, starts_ms, values, window, now_ms)[0]

    def columns(self, last_event_ms: Integers) -> tuple[Integers | Floats, ...]:
        """The columns of rings and samples, from `ring_counts` on."""
        ring_entities, places = np.nonzero(self._lengths)
        counts = self._lengths[ring_entities, places]
        used = self._slots < self._lengths[:, :, np.newaxis]
        starts_ms = self._starts_ms[used]
        return (
            (self._lengths > 0).sum(axis=1),
            self._codes[places],
            self._currents[ring_entities, places],
            counts,
            last_event_ms[np.repeat(ring_entities, counts)] - starts_ms,
            self._last_events_ms[used] - starts_ms,
            self._values[used],
        )

    def _fill(self, columns: Columns) -> None:
        counts = columns.sample_counts
        ring_entities = np.repeat(np.arange(len(columns.ring_counts)), columns.ring_counts)
        places = self._places[columns.ring_kinds]
        self._lengths[ring_entities, places] = counts
        self._currents[ring_entities, places] = columns.ring_currents
        first_samples = np.cumsum(counts) - counts
        slots = np.arange(len(columns.sample_values)) - np.repeat(first_samples, counts)
        samples = (np.repeat(ring_entities, counts), np.repeat(places, counts), slots)
        starts_ms = columns.last_event_ms[samples[0]] - columns.sample_starts_ms
        self._starts_ms[samples] = starts_ms
        self._last_events_ms[samples] = starts_ms + columns.sample_last_events_ms
        self._values[samples] = columns.sample_values

    def _open(self, place: int, entities: Entities, slots: Integers, now_ms: Integers) -> None:
        """Start an empty sample, overwriting what the ring had there."""
        self._starts_ms[entities, place, slots] = now_ms
        self._values[entities, place, slots] = 0.0
        self._lengths[entities, place] = np.maximum(self._lengths[entities, place], slots + 1)

    def _live(self, place: int, entities: Entities, window: Window, now_ms: Integers) -> tuple[Integers, Floats, Flags]:
        """Starts and values as they are once outdated samples are emptied, and which samples those are."""
        now_column_ms = now_ms[:, np.newaxis]
        used = self._slots < self._lengths[entities, place][:, np.newaxis]
        outdated = used & (self._last_events_ms[entities, place] <= now_column_ms - window.samples * window.window_ms)
        starts_ms = np.where(outdated, now_column_ms, self._starts_ms[entities, place])
        return starts_ms, np.where(outdated, 0.0, self._values[entities, place]), outdated

    def _rates(
        self,
        place: int,
        entities: Entities,
        starts_ms: Integers,
        values: Floats,
        window: Window,
        now_ms: Integers,
    ) -> tuple[Floats, Integers]:
        lengths = self._lengths[entities, place]
        used = self._slots < lengths[:, np.newaxis]
        totals = np.zeros(len(entities))
        for slot in self._slots:  # one by one, as in Java: numpy's own sum adds in another order
            totals += values[:, slot]
        oldest_ms = np.where(lengths > 0, np.where(used, starts_ms, _LATEST_MS).min(axis=1), now_ms)
        windows_ms = padded_windows_ms(now_ms - oldest_ms, window)
        return totals / (windows_ms / 1000.0), windows_ms


def padded_windows_ms(elapsed_ms: Integers, window: Window) -> Integers:
    """`state.sampled_rate.padded_window_ms` of each.

    >>> padded_windows_ms(np.array([999]), Window(samples=11, window_ms=1000)).tolist()
    [10999]
    """
    full_windows = np.trunc(elapsed_ms / window.window_ms).astype(np.int64)
    missing_windows = np.maximum(window.samples - 1 - full_windows, 0)
    padded_ms: Integers = np.maximum(elapsed_ms + missing_windows * window.window_ms, 1)
    return padded_ms


def _by_kind(requests: Sequence[Sequence[Charge]], place: int) -> dict[QuotaKind, list[int]]:
    """Which requests have a charge of each kind at this place."""
    members: dict[QuotaKind, list[int]] = {}
    for member, charges in enumerate(requests):
        if place < len(charges):
            members.setdefault(charges[place].kind, []).append(member)
    return members


def _ring_code(kind: QuotaKind) -> int:
    return KIND_CODES.get(kind, MUTATION_RATE_CODE)
