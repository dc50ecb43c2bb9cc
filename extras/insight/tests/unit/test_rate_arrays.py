"""Rates of many entities in arrays are those of each one charged alone, and Kafka's."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.counter import EntityCounters
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.arithmetic.token_bucket import TokenBucket
from sluice.state.quotas.kinds import KINDS_BY_CODE, QuotaKind, QuotaSettings, Window
from sluice_insight.arrays import Columns, columns_of
from sluice_insight.whatif.hot_counters import padded_windows_ms
from sluice_insight.whatif.rate_arrays import RateArrays
from tests import strategies
from tests.builders import Json
from tests.kafka_cases import Engine, Measured, differences
from tests.stored_pages import contents


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


amounts = st.one_of(st.sampled_from([0.0, 1.0, 7.0, 12.0, 1000.0]), st.floats(0, 1e12))
_FIRST = np.array([0])


class ArrayEngine(Engine):
    """Rates as what-if charges them."""

    @staticmethod
    def padded_window_ms(elapsed_ms: int, window: Window) -> int:
        return int(padded_windows_ms(np.array([elapsed_ms]), window)[0])

    def record(self, key: str, kind: QuotaKind, amount: float, now_ms: int) -> None:
        with self._arrays(key, kind) as arrays:
            arrays.record(_FIRST, np.array([amount]), np.array([now_ms]))

    def measure(self, key: str, kind: QuotaKind, limit: float | None, now_ms: int) -> Measured:
        with self._arrays(key, kind) as arrays:
            rates, windows_ms = arrays.measure(_FIRST, np.array([now_ms]))
        return self.measured(kind, limit, float(rates[0]), int(windows_ms[0]))

    @contextmanager
    def _arrays(self, key: str, kind: QuotaKind) -> Iterator[RateArrays]:
        with self.counters(key) as counters:
            columns = columns_of([counters])
            arrays = RateArrays(columns, kind, self.settings.client_window)
            yield arrays
            (after,) = counters_from(arrays.columns(columns))
            counters.rates = after.rates


def test_scenario_gives_kafkas_numbers(kafka_case: Json) -> None:
    assert differences(kafka_case, ArrayEngine) == []


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[int, int, float, float]]:
    """Entity, time, amount and later amount of rows; those of an entity follow one another, and may be very many."""
    rows = []
    for entity in range(draw(st.integers(1, 4))):
        now_ms = strategies.START_MS
        for after_ms, repeated in draw(
            st.lists(
                st.tuples(st.sampled_from([0, 1, 400, 1000, 30_000, -900, -40_000]), st.sampled_from([1, 1, 2, 150])),
                max_size=8,
            )
        ):
            amount, later = draw(st.tuples(amounts, st.sampled_from([0.0, 0.0, 7.0, -3.0])))
            for _ in range(repeated):
                now_ms += after_ms if repeated < 100 else after_ms % 4
                rows.append((entity, now_ms, amount, later))
    return rows


@given(batches=st.lists(turns(), min_size=1, max_size=3), quota=strategies.quota_settings)
def test_rates_of_many_entities_are_those_of_each_one_charged_alone(
    batches: list[list[tuple[int, int, float, float]]], quota: QuotaSettings
) -> None:
    """To the last bit, after any past, from row to row and in runs of a hot counter; the state goes through columns."""
    kind, window = QuotaKind.CONSUMER_BYTE_RATE, quota.client_window
    alone = [EntityCounters() for _ in range(4)]
    columns = columns_of([EntityCounters()] * 4)
    for rows in batches:
        expected = []
        for entity, at_ms, amount, later in rows:
            rate = alone[entity].rate(kind)
            now_ms = max(at_ms, rate.newest_ms)
            rate.record(amount, window, now_ms)
            expected.append(rate.observe(window, now_ms)[0])
            if later:
                rate.record(later, window, now_ms)
            alone[entity].last_event_ms = max(alone[entity].last_event_ms, at_ms)
        arrays = RateArrays(columns, kind, window)
        entities, times_ms = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
        amounts_of, later_of = (np.array([row[place] for row in rows], np.float64) for place in (2, 3))

        found = arrays.charge(entities, times_ms, amounts_of, later_of)

        np.maximum.at(columns.last_event_ms, entities, times_ms)
        columns = arrays.columns(columns)
        assert found.tolist() == expected
        assert repr([contents(each) for each in counters_from(columns)]) == repr([contents(each) for each in alone])
