"""The sampled rates of many entities, which what-if charges together.

They do what `sampled_rate` does for one: the same operations in the same order on the same doubles, so every rate is
equal to the last bit (a property test and Kafka's cases compare both).

Shapes: `entities` (m,) int64 are positions of entities; `now_ms` (m,) int64, `amounts`, `later` and `rates` (m,)
float64 belong to those entities.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.kinds import QuotaKind, Window
from sluice_insight.arrays import Columns, Floats, Integers
from sluice_insight.whatif.hot_counters import are_hot, charge_rate, charged_ms, padded_windows_ms

_LATEST_MS = np.iinfo(np.int64).max

_BLOCK = 512
"""Entities charged together per block. Larger blocks fall out of the CPU cache and run slower."""

_ROWS_OF_RUN = 16
"""Rows that a run of a hot counter needs to be faster: 100 us of calls against 3 us a row, for two runs a window."""

_ENTITIES_OF_ROW = 3
"""Entities charged together for each further row that a run needs: 150 us of calls for all entities against those."""


class RateArrays:
    """The sampled rates of one kind of n entities: see `sluice.state.arithmetic.sampled_rate.SampledRate`.

    `_lengths` and `_currents` have the shape (n,), the samples in `_starts_ms`, `_last_events_ms` and `_values` the
    shape (n, slots). Only the first `_lengths` slots of a rate are in use; a rate of length 0 doesn't exist.
    """

    def __init__(self, columns: Columns, kind: QuotaKind, window: Window) -> None:
        """The rates of n entities from their columns, which have none of another kind."""
        self._kind, self._window = kind, window
        slots = max(window.samples + 1, int(columns.sample_counts.max(initial=0)))
        shape = len(columns.rate_counts), slots
        self._lengths = np.zeros(shape[0], np.int64)
        self._currents = np.zeros(shape[0], np.int64)
        self._starts_ms = np.zeros(shape, np.int64)
        self._last_events_ms = np.zeros(shape, np.int64)
        self._values = np.zeros(shape, np.float64)
        self._slots = np.arange(slots)
        self._fill(columns)

    def charge(self, entities: Integers, now_ms: Integers, amounts: Floats, later: Floats) -> Floats:
        """Record m amounts, and measure the rates (m,) that each finds; then record `later`, as far as it isn't 0.

        The rows of one entity, in `entities` (m,), follow one another.
        """
        rates = np.empty(len(amounts))
        for turn in _turns(entities, self._charge_hot(entities, now_ms, amounts, later, rates)):
            of_turn = entities[turn]
            newest_ms = self._last_events_ms[of_turn, self._currents[of_turn]]
            times_ms = np.maximum(now_ms[turn], newest_ms)
            self.record(of_turn, amounts[turn], times_ms)
            rates[turn], _ = self.measure(of_turn, times_ms)
            recorded = later[turn] != 0
            if recorded.any():
                self.record(of_turn[recorded], later[turn][recorded], times_ms[recorded])
        return rates

    def record(self, entities: Integers, values: Floats, now_ms: Integers) -> None:
        """`SampledRate.record`; no entity is there twice, here and below."""
        window = self._window
        lengths, current = self._lengths[entities], self._currents[entities]
        full = (lengths > 0) & (now_ms - self._starts_ms[entities, current] >= window.window_ms)
        current = np.where(full, (current + 1) % (window.samples + 1), current)
        self._currents[entities] = current
        opens = full | (lengths == 0)
        self._open(entities[opens], current[opens], now_ms[opens])
        self._values[entities, current] += values
        self._last_events_ms[entities, current] = now_ms

    def measure(self, entities: Integers, now_ms: Integers) -> tuple[Floats, Integers]:
        """`SampledRate.observe`: rates per second (m,), and the lengths (m,) in ms of the windows they cover."""
        new = self._lengths[entities] == 0
        if new.any():
            self._open(entities[new], self._currents[entities[new]], now_ms[new])
        used = self._slots < self._lengths[entities][:, np.newaxis]
        now_column_ms, span_ms = now_ms[:, np.newaxis], self._window.samples * self._window.window_ms
        outdated = used & (self._last_events_ms[entities] <= now_column_ms - span_ms)
        starts_ms = np.where(outdated, now_column_ms, self._starts_ms[entities])
        values = np.where(outdated, 0.0, self._values[entities])
        rows = np.flatnonzero(outdated.any(axis=1))
        if len(rows):
            self._starts_ms[entities[rows]] = starts_ms[rows]
            self._values[entities[rows]] = values[rows]
            last_events_ms = self._last_events_ms[entities[rows]]
            self._last_events_ms[entities[rows]] = np.where(outdated[rows], now_column_ms[rows], last_events_ms)
        totals = np.zeros(len(entities))
        for slot in self._slots:  # one by one as in Java: numpy's own sum adds in another order
            totals += values[:, slot]
        oldest_ms = np.where(used, starts_ms, _LATEST_MS).min(axis=1)
        windows_ms = padded_windows_ms(now_ms - oldest_ms, self._window)
        return totals / (windows_ms / 1000.0), windows_ms

    def columns(self, columns: Columns) -> Columns:
        """These columns of the entities with the rates as they are now."""
        (entities,) = np.nonzero(self._lengths)
        counts = self._lengths[entities]
        used = self._slots < self._lengths[:, np.newaxis]
        starts_ms = self._starts_ms[used]
        return replace(
            columns,
            rate_counts=(self._lengths > 0).astype(np.int64),
            rate_kinds=np.full(len(entities), self._kind.code),
            rate_currents=self._currents[entities],
            sample_counts=counts,
            sample_starts_ms=columns.last_event_ms[np.repeat(entities, counts)] - starts_ms,
            sample_last_events_ms=self._last_events_ms[used] - starts_ms,
            sample_values=self._values[used],
        )

    def _charge_hot(
        self, entities: Integers, now_ms: Integers, amounts: Floats, later: Floats, rates: Floats
    ) -> Integers:
        """Charge the entities with many rows, and write their `rates`; the positions of the other rows."""
        firsts, lengths = _spans(entities)
        rows_of_run = min(len(firsts), _BLOCK) // _ENTITIES_OF_ROW + _ROWS_OF_RUN
        hot, many = np.zeros(len(entities), np.bool_), lengths >= 2 * rows_of_run
        for first, length in zip(firsts[many].tolist(), lengths[many].tolist(), strict=True):
            rows = slice(first, first + length)
            if are_hot(now_ms[rows], self._window, rows_of_run):
                with self._one(int(entities[first])) as rate:
                    times_ms = charged_ms(now_ms[rows], rate.newest_ms)
                    rates[rows], _ = charge_rate(rate, amounts[rows], later[rows], times_ms, self._window)
                hot[rows] = True
        return np.flatnonzero(~hot)

    @contextmanager
    def _one(self, entity: int) -> Iterator[SampledRate]:
        """One rate as an object, which is taken over when it was charged."""
        used = slice(self._lengths[entity])
        rate = SampledRate(
            self._starts_ms[entity][used].tolist(),
            self._last_events_ms[entity][used].tolist(),
            self._values[entity][used].tolist(),
            int(self._currents[entity]),
        )
        yield rate
        used = slice(len(rate.values))
        self._starts_ms[entity][used], self._last_events_ms[entity][used] = rate.starts_ms, rate.last_events_ms
        self._values[entity][used] = rate.values
        self._lengths[entity], self._currents[entity] = len(rate.values), rate.current

    def _fill(self, columns: Columns) -> None:
        """Take over the rates of the columns."""
        counts = columns.sample_counts
        entities = np.flatnonzero(columns.rate_counts)
        self._lengths[entities], self._currents[entities] = counts, columns.rate_currents
        slots = np.arange(len(columns.sample_values)) - np.repeat(np.cumsum(counts) - counts, counts)
        samples = np.repeat(entities, counts), slots
        starts_ms = columns.last_event_ms[samples[0]] - columns.sample_starts_ms
        self._starts_ms[samples] = starts_ms
        self._last_events_ms[samples] = starts_ms + columns.sample_last_events_ms
        self._values[samples] = columns.sample_values

    def _open(self, entities: Integers, slots: Integers, now_ms: Integers) -> None:
        """Start an empty sample in the slot `slots` (m,) of each entity, overwriting an older one."""
        self._starts_ms[entities, slots] = now_ms
        self._last_events_ms[entities, slots] = now_ms
        self._values[entities, slots] = 0.0
        self._lengths[entities] = np.maximum(self._lengths[entities], slots + 1)


def _spans(entities: Integers) -> tuple[Integers, Integers]:
    """First row and number of rows of each entity; the rows of one, in `entities` (m,), follow one another."""
    firsts = np.flatnonzero(np.concatenate([[True], entities[1:] != entities[:-1]]))
    return firsts, np.diff(np.concatenate([firsts, [len(entities)]]))


def _turns(entities: Integers, rows: Integers) -> Iterator[Integers]:
    """Positions (k,) of the rows that are charged together: the first row of each entity, then the second, and so on.

    >>> [turn.tolist() for turn in _turns(np.array([7, 7, 7, 3, 5, 5]), np.array([0, 1, 2, 4, 5]))]
    [[0, 4], [1, 5], [2]]
    """
    if not len(rows):
        return
    firsts, lengths = _spans(entities[rows])
    turns = np.arange(len(rows)) - np.repeat(firsts, lengths)
    order = np.argsort(turns, kind="stable")
    for turn in np.split(rows[order], np.cumsum(np.bincount(turns))[:-1]):
        for start in range(0, len(turn), _BLOCK):
            yield turn[start : start + _BLOCK]
