"""The array engine: the counters of many entities, charged together.

It does what `counter` does for one entity: the same operations in the same order on the same doubles,
so every result is equal to the last bit (a property test and Kafka's cases compare both). It is faster than the scalar
engine from a few dozen entities on.

Counters of different kinds know nothing of each other, so kind after kind is charged: the first row of every entity,
then every second one, and so on.

Shapes: `entities` (m,) int64 are positions of entities, none of them twice; `now_ms` (m,) int64, `limits`, `amounts`
and `values` (m,) float64 belong to those entities.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluice.state.arithmetic.columns import Columns, Flags, Floats, Integers
from sluice.state.arithmetic.counter import MUTATION_RATE_WINDOW, EntityCounters, Outcome
from sluice.state.arithmetic.hot_counters import are_hot, charge_rate, charged_ms, padded_windows_ms, take_tokens
from sluice.state.arithmetic.sampled_rate import SampledRate, wait_for_rate_ms
from sluice.state.arithmetic.shapes import Charged, Shapes
from sluice.state.arithmetic.token_bucket import TokenBucket, wait_for_tokens_ms
from sluice.state.quotas.kinds import UNLIMITED, Coexistence, Family, QuotaKind, QuotaSettings, Window, burst

_LATEST_MS = np.iinfo(np.int64).max

_BLOCK = 512
"""Entities charged together per block. Larger blocks fall out of the CPU cache and run slower."""

ROWS_OF_RUN = 32
"""Rows that a run of a hot counter needs to be faster than the scalar engine: 100 us of calls against 3 us a row."""

_ENTITIES_OF_ROW = 3
"""Entities charged together for each further row that a run needs: 150 us of calls for all entities against those."""


RowT = TypeVar("RowT", bound=Charged)


class Violation(msgspec.Struct, gc=False):
    """A violated quota: the wait that it asks for, not yet clamped, and flags of the topics that it refuses."""

    wait_ms: int
    refused: Sequence[bool] = ()


@dataclass(slots=True)
class Outcomes:
    """The outcomes of m charges of one kind, by column: see `sluice.state.arithmetic.counter.Outcome`.

    `rows` are the positions of their rows. `tokens` are those of mutations. `violations` and `samples` are by position
    among the m; a charge without a violation asks for no wait and refuses nothing. `resets` are positions too.
    """

    rows: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    tokens: list[float | None] = field(default_factory=list)
    violations: dict[int, Violation] = field(default_factory=dict)
    samples: dict[int, SampledRate] = field(default_factory=dict)
    resets: set[int] = field(default_factory=set)

    def add(self, row: int, outcome: Outcome) -> None:
        """Append the outcome of a charge."""
        position = len(self.rows)
        self.rows.append(row)
        self.values.append(outcome.value)
        self.rates.append(outcome.rate)
        if outcome.charge.kind.family is Family.MUTATIONS:
            self.tokens.append(outcome.tokens)
        if outcome.violated:
            self.violations[position] = Violation(outcome.wait_ms, outcome.refused)
        if outcome.samples is not None:
            self.samples[position] = outcome.samples
        if not outcome.charge.amounts:
            self.resets.add(position)

    def extend(self, row: int, more: "Outcomes") -> None:
        """Append outcomes of charges without resets and samples, whose rows are counted from `row`."""
        self.violations |= {len(self.rows) + position: one for position, one in more.violations.items()}
        self.rows += [row + number for number in more.rows]
        self.values += more.values
        self.rates += more.rates
        self.tokens += more.tokens


_DTYPES = (np.int64, np.float64, np.float64, np.float64, np.bool_, np.bool_)
"""The types of the columns of `Charges`."""


class Charges(NamedTuple):
    """The charges of one kind on m rows, by column, (m,) each; `limits` are NaN where there is none."""

    rows: Integers
    amounts: Floats
    network: Floats
    """In points, of request time only."""
    limits: Floats
    strict: Flags
    withheld: Flags

    def recorded_later(self, kind: QuotaKind) -> Floats:
        """The amounts (m,) that are recorded after the check: network time, or withheld bytes that are taken back."""
        if kind.family is Family.REQUEST_TIME:
            return self.network
        return np.where(self.withheld, -self.amounts, 0.0)

    def mutation_limits(self) -> Floats:
        """The limits (m,) as buckets of mutations take them."""
        return np.where(np.isnan(self.limits), UNLIMITED, self.limits)


def single_charges(
    rows_by_key: Mapping[str, Sequence[RowT]], shapes: Shapes, settings: QuotaSettings
) -> Mapping[str, Sequence[RowT]]:
    """The entities whose rows the array engine supports.

    It supports neither requests that mutate several topics, nor resets, nor sequential coexistence, which needs copies
    of samples.
    """
    if settings.coexistence is Coexistence.SEQUENTIAL:
        return {}
    others = {key for key, rows in rows_by_key.items() for row in rows if len(row.amounts) != shapes[row.shape].length}
    return {key: rows for key, rows in rows_by_key.items() if key not in others} if others else rows_by_key


def charge_hot(
    counters: EntityCounters,
    rows: Sequence[Charged],
    shapes: Shapes,
    settings: QuotaSettings,
    rows_of_run: int = ROWS_OF_RUN,
) -> dict[QuotaKind, Outcomes] | None:
    """Charge one entity with its rows, in order; None, and nothing charged, if that would not be faster.

    It is not if rows are few for the samples that they fall into, nor if a mutation is refused.
    """
    window, now_ms = settings.client_window, np.array([row.timestamp_ms for row in rows], np.int64)
    if not (are_hot(now_ms, window, rows_of_run) and single_charges({"": rows}, shapes, settings)):
        return None
    by_kind = _by_kind(rows, shapes)
    mutations, tokens = by_kind.get(QuotaKind.CONTROLLER_MUTATION_RATE), None
    if mutations is not None:
        mutated_ms = charged_ms(now_ms[mutations.rows], counters.bucket.last_ms if counters.bucket else 0)
        tokens = _take_tokens(counters, mutations, mutated_ms, settings.controller_window)
        if tokens is None:
            return None
    counters.last_event_ms = max(counters.last_event_ms, int(now_ms.max()))
    outcomes = {}
    for kind, charges in by_kind.items():
        rate = counters.rate(kind)
        if tokens is not None and charges is mutations:
            rates, _ = charge_rate(rate, charges.amounts, np.zeros(len(tokens)), mutated_ms, MUTATION_RATE_WINDOW)
            outcomes[kind] = _outcomes_of_mutations(charges, np.zeros(len(tokens), np.bool_), rates, tokens)
        else:
            times_ms = charged_ms(now_ms[charges.rows], rate.newest_ms)
            measured = charge_rate(rate, charges.amounts, charges.recorded_later(kind), times_ms, window)
            outcomes[kind] = _outcomes_of_rates(kind, charges, *measured, window)
    return outcomes


def _take_tokens(counters: EntityCounters, charges: Charges, now_ms: Integers, window: Window) -> Floats | None:
    """Take the tokens of mutations of one entity, (m,), at ascending times; None, and none taken, if one is refused.

    None too if a sample of their rate is outdated before the last one: it is read without a change, so samples stay.
    """
    kind, bucket = QuotaKind.CONTROLLER_MUTATION_RATE, counters.bucket or TokenBucket()
    oldest_ms = min([int(now_ms[0]), *counters.rates.get(kind, SampledRate()).last_events_ms])
    if oldest_ms <= int(now_ms[-1]) - MUTATION_RATE_WINDOW.samples * MUTATION_RATE_WINDOW.window_ms:
        return None
    limits = charges.mutation_limits()
    tokens = take_tokens(bucket, charges.amounts, limits, charges.strict, now_ms, window)
    if tokens is not None:
        counters.bucket, counters.mutation_limit = bucket, float(limits[-1])
    return tokens


class CounterArrays:
    """The counters of entities 0 to n-1."""

    def __init__(self, columns: Columns, kinds: Iterable[QuotaKind], settings: QuotaSettings) -> None:
        """The counters of n entities from their columns, with room for rates of `kinds`."""
        self._settings = settings
        self._last_event_ms = columns.last_event_ms.copy()
        self._mutation_limit = columns.mutation_limit.copy()
        self.buckets = BucketArrays(columns)
        self.rates = RateArrays(columns, kinds, settings)

    def charge(self, entities: Integers, rows: Sequence[Charged], shapes: Shapes) -> dict[QuotaKind, Outcomes]:
        """Charge m rows; those of one entity, `entities` (m,), follow one another in the order of charging."""
        now_ms = np.array([row.timestamp_ms for row in rows], np.int64)
        self.note_events(entities, now_ms)
        outcomes = {}
        for kind, charges in _by_kind(rows, shapes).items():
            charge_kind = self._charge_mutations if kind.family is Family.MUTATIONS else self._charge_rates
            outcomes[kind] = charge_kind(kind, entities[charges.rows], now_ms[charges.rows], charges)
        return outcomes

    def columns(self) -> Columns:
        """The columns of the n entities."""
        buckets, rates = self.buckets, self.rates.columns(self._last_event_ms)
        return Columns(self._last_event_ms, buckets.tokens, buckets.last_ms, self._mutation_limit, *rates)

    def note_events(self, entities: Integers, now_ms: Integers) -> None:
        """Note the times of m rows."""
        np.maximum.at(self._last_event_ms, entities, now_ms)

    def measure_rates(
        self, kind: QuotaKind, entities: Integers, now_ms: Integers, charges: Charges
    ) -> tuple[Floats, Integers]:
        """Bytes and request time: record, then measure the rates, (m,), and their windows in ms, (m,).

        Network time is recorded afterwards, and bytes that were withheld are taken back. The rows of one entity follow
        one another.
        """
        window, amounts = self._settings.client_window, charges.amounts
        later = charges.recorded_later(kind)
        rates, windows_ms = np.empty(len(amounts)), np.empty(len(amounts), np.int64)
        others = self._charge_hot(kind, entities, now_ms, charges, rates, windows_ms)
        for turn in _turns(entities, others):
            of_turn = entities[turn]
            times_ms = np.maximum(now_ms[turn], self.rates.newest_ms(kind, of_turn))
            self.rates.record(kind, of_turn, amounts[turn], window, times_ms)
            rates[turn], windows_ms[turn] = self.rates.measure(kind, of_turn, window, times_ms)
            recorded = later[turn] != 0
            if recorded.any():
                self.rates.record(kind, of_turn[recorded], later[turn][recorded], window, times_ms[recorded])
        return rates, windows_ms

    def _charge_rates(self, kind: QuotaKind, entities: Integers, now_ms: Integers, charges: Charges) -> Outcomes:
        rates, windows_ms = self.measure_rates(kind, entities, now_ms, charges)
        return _outcomes_of_rates(kind, charges, rates, windows_ms, self._settings.client_window)

    def _charge_hot(
        self,
        kind: QuotaKind,
        entities: Integers,
        now_ms: Integers,
        charges: Charges,
        rates: Floats,
        windows_ms: Integers,
    ) -> Integers:
        """Charge the entities with many rows, write their `rates` and `windows_ms`; the positions of other rows."""
        firsts, lengths = _spans(entities)
        rows_of_run = min(len(firsts), _BLOCK) // _ENTITIES_OF_ROW + ROWS_OF_RUN // 2
        window, later = self._settings.client_window, charges.recorded_later(kind)
        hot, many = np.zeros(len(entities), np.bool_), lengths >= 2 * rows_of_run
        for first, length in zip(firsts[many].tolist(), lengths[many].tolist(), strict=True):
            rows = slice(first, first + length)
            if are_hot(now_ms[rows], window, rows_of_run):
                with self.rates.one(kind, int(entities[first])) as rate:
                    times_ms = charged_ms(now_ms[rows], rate.newest_ms)
                    rates[rows], windows_ms[rows] = charge_rate(
                        rate, charges.amounts[rows], later[rows], times_ms, window
                    )
                hot[rows] = True
        return np.flatnonzero(~hot)

    def _charge_mutations(self, kind: QuotaKind, entities: Integers, now_ms: Integers, charges: Charges) -> Outcomes:
        """KIP-599 for requests with one topic each: strict checks, then charges; permissive charges, then checks."""
        window = self._settings.controller_window
        partitions, strict, limits = charges.amounts, charges.strict, charges.mutation_limits()
        rates, tokens, refused = np.empty(len(limits)), np.empty(len(limits)), np.empty(len(limits), np.bool_)
        for turn in _turns(entities, np.arange(len(entities))):
            of_turn, limit = entities[turn], limits[turn]
            times_ms = np.maximum(now_ms[turn], self.buckets.last_ms[of_turn])
            self._mutation_limit[of_turn] = limit
            refused[turn] = strict[turn] & (self.buckets.measure(of_turn, limit, window, times_ms) < 0)
            charged = ~refused[turn]
            self.rates.record(
                kind, of_turn[charged], partitions[turn][charged], MUTATION_RATE_WINDOW, times_ms[charged]
            )
            tokens[turn] = self.buckets.take(of_turn, np.where(charged, partitions[turn], 0.0), limit, window)
            rates[turn] = self.rates.peek(kind, of_turn, MUTATION_RATE_WINDOW, times_ms)
        return _outcomes_of_mutations(charges, refused, rates, tokens)


_as_scalars = np.errstate(over="ignore", invalid="ignore")
"""Limits of 1e299 and more overflow, to what Python's own numbers give; those say nothing either."""


class BucketArrays:
    """The token buckets of n entities: see `sluice.state.arithmetic.token_bucket.TokenBucket`."""

    def __init__(self, columns: Columns) -> None:
        """`tokens` (n,) float64 are NaN where an entity has no bucket; `last_ms` (n,) int64."""
        self.tokens = columns.bucket_tokens.copy()
        self.last_ms = columns.bucket_last_ms.copy()

    @_as_scalars
    def measure(self, entities: Integers, limits: Floats, window: Window, now_ms: Integers) -> Floats:
        """The tokens (m,) at `now_ms`, after a refill: K = min(B, K + Q * dt). A new bucket (NaN) is full."""
        stored = self.tokens[entities]
        tokens = np.where(np.isnan(stored), np.inf, stored)
        tokens += limits * ((now_ms - self.last_ms[entities]) / 1000.0)
        measured: Floats = np.fmin(burst(window, 1.0) * limits, tokens)  # of NaN, after an overflow, too the burst
        self.tokens[entities], self.last_ms[entities] = measured, now_ms
        return measured

    @_as_scalars
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

    def newest_ms(self, kind: QuotaKind, entities: Integers) -> Integers:
        """`SampledRate.newest_ms` of one rate of each entity."""
        column = self._column_of[kind.code]
        newest_ms: Integers = self._last_events_ms[entities, column, self._currents[entities, column]]
        return newest_ms

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

    @contextmanager
    def one(self, kind: QuotaKind, entity: int) -> Iterator[SampledRate]:
        """One rate as an object, which is taken over when it was charged."""
        place = entity, self._column_of[kind.code]
        used = slice(self._lengths[place])
        rate = SampledRate(
            self._starts_ms[place][used].tolist(),
            self._last_events_ms[place][used].tolist(),
            self._values[place][used].tolist(),
            int(self._currents[place]),
        )
        yield rate
        used = slice(len(rate.values))
        self._starts_ms[place][used], self._last_events_ms[place][used] = rate.starts_ms, rate.last_events_ms
        self._values[place][used] = rate.values
        self._lengths[place], self._currents[place] = len(rate.values), rate.current

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


def _outcomes_of_rates(
    kind: QuotaKind, charges: Charges, rates: Floats, windows_ms: Integers, window: Window
) -> Outcomes:
    """The outcomes of charges of bytes or request time, from the rates (m,) and their windows (m,)."""
    is_time = kind.family is Family.REQUEST_TIME
    values = charges.amounts + charges.network if is_time else charges.amounts
    outcomes = Outcomes(charges.rows.tolist(), values.tolist(), rates.tolist())
    for position in np.flatnonzero(rates > charges.limits).tolist():
        limit = float(charges.limits[position])
        wait_ms = wait_for_rate_ms(outcomes.rates[position], limit, int(windows_ms[position]))
        outcomes.violations[position] = Violation(min(wait_ms, window.window_ms) if is_time else wait_ms)
    return outcomes


def _outcomes_of_mutations(charges: Charges, refused: Flags, rates: Floats, tokens: Floats) -> Outcomes:
    """The outcomes of charges of mutations, from the rates and the tokens that are left, (m,) each."""
    left, limits = tokens.tolist(), charges.mutation_limits()
    values = np.where(refused, 0.0, charges.amounts).tolist()
    outcomes = Outcomes(charges.rows.tolist(), values, rates.tolist(), [*left])
    for position in np.flatnonzero(refused | (~charges.strict & (tokens < 0))).tolist():
        wait_ms = wait_for_tokens_ms(left[position], float(limits[position]))
        outcomes.violations[position] = Violation(wait_ms, [bool(refused[position])])
    for position in np.flatnonzero(np.isnan(charges.limits)).tolist():
        outcomes.tokens[position] = None
    return outcomes


def _by_kind(rows: Sequence[Charged], shapes: Shapes) -> dict[QuotaKind, Charges]:
    """The charges of each kind, in the order of their rows."""
    rows_by_shape: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows):
        rows_by_shape.setdefault(row.shape, []).append(number)
    alike: dict[tuple[QuotaKind, ...], list[bytes]] = {}
    for encoded in rows_by_shape:  # as many as clients, if each has a limit of its own
        alike.setdefault(shapes[encoded].kinds, []).append(encoded)
    columns_by_kind: dict[QuotaKind, list[Sequence[Any]]] = {}
    for kinds, some in alike.items():
        numbers = [number for encoded in some for number in rows_by_shape[encoded]]
        amounts, places = [rows[number].amounts for number in numbers], np.array(numbers)
        counts = [len(rows_by_shape[encoded]) for encoded in some]
        for place, (kind, first) in enumerate(zip(kinds, shapes[some[0]].firsts, strict=True)):
            firsts = np.array([of_row[first] for of_row in amounts])
            has_network = kind.family is Family.REQUEST_TIME
            charges = [shapes[encoded].charges[place] for encoded in some]
            columns = (
                places,
                firsts,
                np.array([of_row[first + 1] for of_row in amounts]) if has_network else firsts,
                np.repeat([math.nan if charge.limit is None else charge.limit for charge in charges], counts),
                np.repeat([charge.strict for charge in charges], counts),
                np.repeat([charge.withheld for charge in charges], counts),
            )
            columns_by_kind.setdefault(kind, []).append(columns)
    return {kind: _in_order(columns, len(rows_by_shape) > 1) for kind, columns in columns_by_kind.items()}


def _in_order(columns: Sequence[Sequence[Any]], several: bool) -> Charges:
    """The charges by column in the order of their rows; those of `several` shapes come shape after shape."""
    arrays: list[NDArray[Any]] = [
        np.concatenate([np.asarray(part, kind) for part in parts])
        for parts, kind in zip(zip(*columns, strict=True), _DTYPES, strict=True)
    ]
    if several:
        order = np.argsort(arrays[0])
        arrays = [array[order] for array in arrays]
    return Charges(*arrays)


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
