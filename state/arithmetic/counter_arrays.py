"""The array engine: the counters of many entities, charged together.

It does what `counter` does for one entity: the same operations in the same order on the same doubles,
so every result is equal to the last bit (a property test and Kafka's cases compare both). It is faster than the scalar
engine from a few dozen entities on.

Shapes: `entities` (m,) int64 are positions of entities, none of them twice; `now_ms` (m,) int64, `limits`, `amounts`
and `values` (m,) float64 belong to those entities.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from sluice.state.arithmetic.columns import Columns, Flags, Floats, Integers
from sluice.state.arithmetic.counter import MUTATION_RATE_WINDOW, Charge, Outcome
from sluice.state.arithmetic.sampled_rate import is_exceeded, wait_for_rate_ms
from sluice.state.arithmetic.token_bucket import wait_for_tokens_ms
from sluice.state.quotas.kinds import UNLIMITED, Coexistence, Family, QuotaKind, QuotaSettings, Window, burst

_LATEST_MS = np.iinfo(np.int64).max


class Charged(Protocol):
    """A request with its charges on one entity."""

    @property
    def timestamp_ms(self) -> int:
        """The time of the request."""

    @property
    def charges(self) -> Sequence[Charge]:
        """The charges on the entity."""


def can_charge_together(requests: Iterable[Charged], settings: QuotaSettings) -> bool:
    """True if the array engine supports these requests.

    It supports neither requests that mutate several topics, nor resets, nor sequential coexistence, which needs copies
    of samples.
    """
    if settings.coexistence is Coexistence.SEQUENTIAL:
        return False
    for request in requests:
        for charge in request.charges:
            if not charge.amounts or (charge.kind.family is Family.MUTATIONS and len(charge.amounts) != 1):
                return False
    return True


class CounterArrays:
    """The counters of entities 0 to n-1."""

    def __init__(self, columns: Columns, kinds: Iterable[QuotaKind], settings: QuotaSettings) -> None:
        """The counters of n entities from their columns, with room for rates of `kinds`."""
        self._settings = settings
        self._last_event_ms = columns.last_event_ms.copy()
        self._mutation_limit = columns.mutation_limit.copy()
        self.buckets = BucketArrays(columns)
        self.rates = RateArrays(columns, kinds, settings)

    def charge(self, entities: Integers, now_ms: Integers, requests: Sequence[Sequence[Charge]]) -> list[list[Outcome]]:
        """Charge each entity with its own request, given by its charges: m requests -> m lists of outcomes."""
        self._last_event_ms[entities] = np.maximum(self._last_event_ms[entities], now_ms)
        outcomes: list[list[Outcome]] = [[] for _ in requests]
        for number in range(max(map(len, requests))):
            for kind, members in _by_kind(requests, number).items():
                charges = [requests[member][number] for member in members]
                charge_kind = self._charge_mutations if kind.family is Family.MUTATIONS else self._charge_rates
                made = charge_kind(kind, entities[members], now_ms[members], charges)
                for member, outcome in zip(members, made, strict=True):
                    outcomes[member].append(outcome)
        return outcomes

    def columns(self) -> Columns:
        """The columns of the n entities."""
        buckets, rates = self.buckets, self.rates.columns(self._last_event_ms)
        return Columns(self._last_event_ms, buckets.tokens, buckets.last_ms, self._mutation_limit, *rates)

    def _charge_rates(
        self, kind: QuotaKind, entities: Integers, now_ms: Integers, charges: Sequence[Charge]
    ) -> list[Outcome]:
        """Bytes and request time: record, then check. Network time is recorded without a check.

        Bytes that were withheld are taken back after the check.
        """
        window = self._settings.client_window
        amounts = np.array([charge.amounts[0] for charge in charges], np.float64)
        self.rates.record(kind, entities, amounts, window, now_ms)
        rates, windows_ms = self.rates.measure(kind, entities, window, now_ms)
        values, longest_ms = amounts, None
        if kind.family is Family.REQUEST_TIME:
            network = np.array([charge.amounts[1] for charge in charges], np.float64)
            values, longest_ms = amounts + network, window.window_ms
            used = network != 0
            self.rates.record(kind, entities[used], network[used], window, now_ms[used])
        elif True in [charge.withheld for charge in charges]:
            back = np.array([charge.withheld for charge in charges], np.bool_)
            self.rates.record(kind, entities[back], -amounts[back], window, now_ms[back])
        outcomes = []
        for charge, value, rate, window_ms in zip(
            charges, values.tolist(), rates.tolist(), windows_ms.tolist(), strict=True
        ):
            limit, wait_ms, violated = charge.limit, 0, False
            if is_exceeded(limit, rate):
                violated, wait_ms = True, wait_for_rate_ms(rate, limit, window_ms)
                if longest_ms is not None and wait_ms > longest_ms:
                    wait_ms = longest_ms
            outcomes.append(Outcome(charge, value, violated, wait_ms, rate))
        return outcomes

    def _charge_mutations(
        self, kind: QuotaKind, entities: Integers, now_ms: Integers, charges: Sequence[Charge]
    ) -> list[Outcome]:
        """KIP-599 for requests with one topic each: strict checks, then charges; permissive charges, then checks."""
        window = self._settings.controller_window
        partitions = np.array([charge.amounts[0] for charge in charges], np.float64)
        limits = np.array([UNLIMITED if charge.limit is None else charge.limit for charge in charges], np.float64)
        strict = np.array([charge.strict for charge in charges], np.bool_)
        self._mutation_limit[entities] = limits
        refused = strict & (self.buckets.measure(entities, limits, window, now_ms) < 0)
        charged = ~refused
        self.rates.record(kind, entities[charged], partitions[charged], MUTATION_RATE_WINDOW, now_ms[charged])
        tokens = self.buckets.take(entities, np.where(charged, partitions, 0.0), limits, window)
        violated = refused | (~strict & (tokens < 0))
        rates = self.rates.peek(kind, entities, MUTATION_RATE_WINDOW, now_ms)
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


class BucketArrays:
    """The token buckets of n entities: see `sluice.state.arithmetic.token_bucket.TokenBucket`."""

    def __init__(self, columns: Columns) -> None:
        """`tokens` (n,) float64 are NaN where an entity has no bucket; `last_ms` (n,) int64."""
        self.tokens = columns.bucket_tokens.copy()
        self.last_ms = columns.bucket_last_ms.copy()

    def measure(self, entities: Integers, limits: Floats, window: Window, now_ms: Integers) -> Floats:
        """The tokens (m,) at `now_ms`, after a refill: K = min(B, K + Q * dt). A new bucket (NaN) is full."""
        stored = self.tokens[entities]
        tokens = np.where(np.isnan(stored), np.inf, stored)
        tokens += limits * ((now_ms - self.last_ms[entities]) / 1000.0)
        measured: Floats = np.minimum(burst(window, 1.0) * limits, tokens)
        self.tokens[entities], self.last_ms[entities] = measured, now_ms
        return measured

    def take(self, entities: Integers, amounts: Floats, limits: Floats, window: Window) -> Floats:
        """Take tokens (m,) without a refill, right after `measure`; negative amounts give back, up to the burst."""
        left: Floats = np.minimum(burst(window, 1.0) * limits, self.tokens[entities] - amounts)
        self.tokens[entities] = left
        return left


class RateArrays:
    """The sampled rates of n entities, k kinds each: see `sluice.state.arithmetic.sampled_rate.SampledRate`.

    `_lengths` and `_currents` have the shape (n, k), the samples in `_starts_ms`, `_last_events_ms` and `_values` the
    shape (n, k, slots). Only the first `_lengths` slots of a rate are in use; a rate of length 0 doesn't exist.
    """

    def __init__(self, columns: Columns, kinds: Iterable[QuotaKind], settings: QuotaSettings) -> None:
        """The rates of n entities from their columns, with room for rates of `kinds`."""
        codes = {kind.code for kind in kinds}
        self._codes = np.array(sorted(codes.union(columns.rate_kinds.tolist())), np.int64)
        # A kind without a column maps to an index past the end, so using one raises IndexError.
        self._column_of = np.full(len(QuotaKind), len(self._codes))
        self._column_of[self._codes] = np.arange(len(self._codes))
        most_samples = max(settings.client_window.samples, MUTATION_RATE_WINDOW.samples) + 1
        entities, slots = len(columns.rate_counts), max(most_samples, int(columns.sample_counts.max(initial=0)))
        shape = (entities, len(self._codes), slots)
        self._lengths = np.zeros(shape[:2], np.int64)
        self._currents = np.zeros(shape[:2], np.int64)
        self._starts_ms = np.zeros(shape, np.int64)
        self._last_events_ms = np.zeros(shape, np.int64)
        self._values = np.zeros(shape, np.float64)
        self._slots = np.arange(slots)
        self._fill(columns)

    def record(self, kind: QuotaKind, entities: Integers, values: Floats, window: Window, now_ms: Integers) -> None:
        """`SampledRate.record` on one rate of each entity."""
        column = self._column_of[kind.code]
        lengths, current = self._lengths[entities, column], self._currents[entities, column]
        full = (lengths > 0) & (now_ms - self._starts_ms[entities, column, current] >= window.window_ms)
        current = np.where(full, (current + 1) % (window.samples + 1), current)
        self._currents[entities, column] = current
        opens = full | (lengths == 0)
        self._open(column, entities[opens], current[opens], now_ms[opens])
        self._values[entities, column, current] += values
        self._last_events_ms[entities, column, current] = now_ms

    def measure(self, kind: QuotaKind, entities: Integers, window: Window, now_ms: Integers) -> tuple[Floats, Integers]:
        """`SampledRate.measure`: rates per second (m,), and the lengths (m,) in ms of the windows they cover."""
        column = self._column_of[kind.code]
        new = self._lengths[entities, column] == 0
        if new.any():
            self._open(column, entities[new], self._currents[entities[new], column], now_ms[new])
        starts_ms, values, outdated = self._live(column, entities, window, now_ms)
        rows = np.flatnonzero(outdated.any(axis=1))
        if len(rows):
            self._starts_ms[entities[rows], column] = starts_ms[rows]
            self._values[entities[rows], column] = values[rows]
            last_events_ms = self._last_events_ms[entities[rows], column]
            self._last_events_ms[entities[rows], column] = np.where(
                outdated[rows], now_ms[rows, np.newaxis], last_events_ms
            )
        return self._rates(column, entities, starts_ms, values, window, now_ms)

    def peek(self, kind: QuotaKind, entities: Integers, window: Window, now_ms: Integers) -> Floats:
        """`SampledRate.peek`: rates per second (m,); the samples stay as they are."""
        column = self._column_of[kind.code]
        starts_ms, values, _ = self._live(column, entities, window, now_ms)
        return self._rates(column, entities, starts_ms, values, window, now_ms)[0]

    def columns(
        self, last_event_ms: Integers
    ) -> tuple[Integers, Integers, Integers, Integers, Integers, Integers, Floats]:
        """The fields of `Columns` from `rate_counts` on; `last_event_ms` (n,) of the entities."""
        entities, columns = np.nonzero(self._lengths)
        counts = self._lengths[entities, columns]
        used = self._slots < self._lengths[:, :, np.newaxis]
        starts_ms = self._starts_ms[used]
        return (
            (self._lengths > 0).sum(axis=1),
            self._codes[columns],
            self._currents[entities, columns],
            counts,
            last_event_ms[np.repeat(entities, counts)] - starts_ms,
            self._last_events_ms[used] - starts_ms,
            self._values[used],
        )

    def _fill(self, columns: Columns) -> None:
        """Take over the rates of the columns."""
        counts = columns.sample_counts
        rate_entities = np.repeat(np.arange(len(columns.rate_counts)), columns.rate_counts)
        rate_columns = self._column_of[columns.rate_kinds]
        self._lengths[rate_entities, rate_columns] = counts
        self._currents[rate_entities, rate_columns] = columns.rate_currents
        first_samples = np.cumsum(counts) - counts
        slots = np.arange(len(columns.sample_values)) - np.repeat(first_samples, counts)
        samples = (np.repeat(rate_entities, counts), np.repeat(rate_columns, counts), slots)
        starts_ms = columns.last_event_ms[samples[0]] - columns.sample_starts_ms
        self._starts_ms[samples] = starts_ms
        self._last_events_ms[samples] = starts_ms + columns.sample_last_events_ms
        self._values[samples] = columns.sample_values

    def _open(self, column: np.int64, entities: Integers, slots: Integers, now_ms: Integers) -> None:
        """Start an empty sample in the slot `slots` (m,) of each entity, overwriting an older one."""
        self._starts_ms[entities, column, slots] = now_ms
        self._last_events_ms[entities, column, slots] = now_ms
        self._values[entities, column, slots] = 0.0
        self._lengths[entities, column] = np.maximum(self._lengths[entities, column], slots + 1)

    def _live(
        self, column: np.int64, entities: Integers, window: Window, now_ms: Integers
    ) -> tuple[Integers, Floats, Flags]:
        """Starts and values after outdated samples are emptied, and flags of the emptied ones; (m, slots) each."""
        now_column_ms = now_ms[:, np.newaxis]
        used = self._slots < self._lengths[entities, column][:, np.newaxis]
        outdated = used & (self._last_events_ms[entities, column] <= now_column_ms - window.samples * window.window_ms)
        starts_ms = np.where(outdated, now_column_ms, self._starts_ms[entities, column])
        return starts_ms, np.where(outdated, 0.0, self._values[entities, column]), outdated

    def _rates(
        self,
        column: np.int64,
        entities: Integers,
        starts_ms: Integers,
        values: Floats,
        window: Window,
        now_ms: Integers,
    ) -> tuple[Floats, Integers]:
        """Rates per second and windows in ms, (m,) each, from starts and values (m, slots)."""
        lengths = self._lengths[entities, column]
        used = self._slots < lengths[:, np.newaxis]
        totals = np.zeros(len(entities))
        for slot in self._slots:  # one by one as in Java: numpy's own sum adds in another order
            totals += values[:, slot]
        oldest_ms = np.where(lengths > 0, np.where(used, starts_ms, _LATEST_MS).min(axis=1), now_ms)
        windows_ms = padded_windows_ms(now_ms - oldest_ms, window)
        return totals / (windows_ms / 1000.0), windows_ms


def padded_windows_ms(elapsed_ms: Integers, window: Window) -> Integers:
    """`sluice.state.arithmetic.sampled_rate.padded_window_ms` of each element: (m,) -> (m,).

    >>> padded_windows_ms(np.array([999]), Window(samples=11, window_ms=1000)).tolist()
    [10999]
    """
    full_windows = np.trunc(elapsed_ms / window.window_ms).astype(np.int64)
    missing_windows = np.maximum(window.samples - 1 - full_windows, 0)
    padded_ms: Integers = np.maximum(elapsed_ms + missing_windows * window.window_ms, 1)
    return padded_ms


def _by_kind(requests: Sequence[Sequence[Charge]], number: int) -> dict[QuotaKind, list[int]]:
    """The requests that have a charge with this number, by its kind."""
    members: dict[QuotaKind, list[int]] = {}
    for member, charges in enumerate(requests):
        if number < len(charges):
            members.setdefault(charges[number].kind, []).append(member)
    return members
