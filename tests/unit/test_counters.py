"""Counters are charged as Kafka charges them, whatever came before."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.columns import columns_of, concatenate, counters_from
from sluice.state.arithmetic.counter import Charge, EntityCounters
from sluice.state.arithmetic.rate_arrays import RateArrays
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.kinds import Coexistence, QuotaKind, QuotaSettings
from sluice.state.store.pages import Pages
from tests import strategies
from tests.charging import Row, charge
from tests.stored_pages import contents

KEYS = ("a|", "b|", "c|", "d|", "topic:t|0")


limits = st.one_of(st.none(), st.sampled_from([0.5, 1.0, 5.0, 100.0, 1e6]), st.floats(1e-3, 1e9))
amounts = st.one_of(st.sampled_from([0.0, 1.0, 7.0, 12.0, 1000.0]), st.floats(0, 1e12))


@st.composite
def charges(draw: st.DrawFn) -> list[Charge]:
    """The charges of one request on one entity: each kind at most once."""
    made = []
    for kind in draw(st.lists(st.sampled_from(QuotaKind), min_size=1, max_size=3, unique=True)):
        count = 2 if kind is QuotaKind.REQUEST_PERCENTAGE else 1
        if kind is QuotaKind.CONTROLLER_MUTATION_RATE:
            count = draw(st.sampled_from([1, 1, 1, 3]))
        values = draw(st.lists(amounts, min_size=count, max_size=count))
        shadow, strict, withheld = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
        made.append(Charge(kind, "user", draw(limits), shadow, values, strict, withheld))
    return made


requests = st.builds(Row.of, st.integers(-50, 40_000).map(lambda after_ms: strategies.START_MS + after_ms), charges())
micro_batches = st.lists(
    st.dictionaries(st.sampled_from(KEYS), st.lists(requests, min_size=1, max_size=4), min_size=1), max_size=4
)


@given(events=st.lists(st.tuples(st.integers(0, 1500), amounts, st.booleans()), min_size=1, max_size=40))
def test_withheld_bytes_are_recorded_measured_and_taken_back_as_kafka_does(
    events: list[tuple[int, float, bool]],
) -> None:
    """Every reading, then and later, is that of a rate with record(x), measure, record(-x); KIP-219."""
    quota, key, kind = QuotaSettings(), "a|", QuotaKind.CONSUMER_BYTE_RATE
    page, kafka, now_ms = Pages(), SampledRate(), strategies.START_MS
    for after_ms, amount, withheld in events:
        now_ms += after_ms
        kafka.record(amount, quota.client_window, now_ms)
        expected = kafka.measure(quota.client_window, now_ms)
        if withheld:
            kafka.record(-amount, quota.client_window, now_ms)

        charged = Charge(kind, "user", 100.0, False, [amount], withheld=withheld)
        ((_, (outcome,)),) = charge(page, {key: [Row.of(now_ms, [charged])]}, quota)

        assert (outcome.value, outcome.rate, outcome.violated) == (amount, expected, expected > 100.0)
    assert page.counters(key).rates[kind] == kafka


@given(batches=micro_batches, quota=strategies.quota_settings, partitions=amounts)
def test_executed_mutations_are_charged_below_zero_whatever_the_bucket_holds(
    batches: list[dict[str, list[Row]]], quota: QuotaSettings, partitions: float
) -> None:
    """After any past: nothing is refused, and every partition is taken."""
    limit, key, now_ms = 5.0, KEYS[0], strategies.START_MS
    quota = replace(quota, coexistence=Coexistence.MAX)
    page = Pages()
    for batch in batches:
        charge(page, batch, quota)
    charges = [Charge(QuotaKind.CONTROLLER_MUTATION_RATE, "user", limit, False, [count]) for count in (0.0, partitions)]

    (_, (before,)), (_, (after,)) = charge(page, {key: [Row.of(now_ms, [each]) for each in charges]}, quota)

    assert (after.refused, after.value) == ([False], partitions)
    assert after.tokens == (before.tokens or 0.0) - partitions


def test_a_request_is_answered_once_though_damaged_state_names_its_entity_twice() -> None:
    """A second row of the same name must not make a second decision."""
    row = columns_of([EntityCounters()])
    page = Pages(["a|", "a|"], concatenate([row, row]))
    request = Row.of(0, [Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 1.0, False, [1.0])])

    answers = charge(page, {"a|": [request]}, QuotaSettings(coexistence=Coexistence.MAX))

    assert len(answers) == 1


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
