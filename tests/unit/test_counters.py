"""Charging many entities over arrays: the same as one by one, to the last bit."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.columns import columns_of, concatenate, counters_from
from sluice.state.arithmetic.counter import Charge, EntityCounters
from sluice.state.arithmetic.counter_arrays import BucketArrays, Outcomes, charge_hot
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.arithmetic.shapes import Shapes
from sluice.state.arithmetic.token_bucket import TokenBucket
from sluice.state.contract.records import MAX_TIMESTAMP_MS
from sluice.state.quotas.kinds import Coexistence, Family, QuotaKind, QuotaSettings, Window
from sluice.state.store.codec import decode
from sluice.state.store.pages import Pages
from tests import strategies
from tests.charging import Row, charge
from tests.stored_pages import FOREVER_MS, contents

ONE_BY_ONE = 2**31
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


def charge_all(batches: Sequence[dict[str, list[Row]]], quota: QuotaSettings, together: int) -> object:
    """The outcome of every request, and the stored state in the end; the state goes through bytes between batches."""
    stored, answers = Pages().to_bytes([0], 1, FOREVER_MS, quota), []
    for number, batch in enumerate(batches):
        page = Pages.from_bytes(stored, 1)
        places = {id(request): (number, key, place) for key in batch for place, request in enumerate(batch[key])}
        for request, outcomes in charge(page, batch, quota, together):
            answers.append((places[id(request)], repr(outcomes)))
        stored = page.to_bytes([0], 1, FOREVER_MS, quota)
    keys, columns = decode(stored, 1)
    state = sorted((key, everything(counters)) for key, counters in zip(keys, counters_from(columns), strict=True))
    return sorted(answers), state


def everything(counters: EntityCounters) -> str:
    """All counters of an entity, no matter in which order they were created."""
    rates, *others = contents(counters)
    return repr((sorted(rates.items()), others))


@given(batches=micro_batches, quota=strategies.quota_settings, together=st.integers(1, 4))
def test_many_entities_together_give_the_same_as_one_by_one(
    batches: list[dict[str, list[Row]]], quota: QuotaSettings, together: int
) -> None:
    """Outcomes and stored counters: every kind, late and early, strict and not, shadow or not, withheld or not."""
    quota = replace(quota, coexistence=Coexistence.MAX)  # the other needs copies of samples and is done one by one
    assert charge_all(batches, quota, together) == charge_all(batches, quota, ONE_BY_ONE)


def test_a_thousand_entities_are_charged_together_as_one_by_one() -> None:
    """With the default threshold, over several windows, until samples go out of the window and quotas are exceeded."""
    quota = QuotaSettings(coexistence=Coexistence.MAX)
    charged = [
        Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 100.0, False, [333.3]),
        Charge(QuotaKind.CONSUMER_BYTE_RATE, "user", 100.0, False, [444.4], withheld=True),
        Charge(QuotaKind.REQUEST_PERCENTAGE, "user", 1.0, False, [1.1, 0.7]),
        Charge(QuotaKind.CONTROLLER_MUTATION_RATE, "user", 5.0, False, [30.0], True),
    ]
    batches = [
        {
            f"user-{user}|": [Row.of(user % 7 + 700 * (batch * 3 + turn), charged) for turn in range(3)]
            for user in range(1000)
        }
        for batch in range(8)
    ]

    together = charge_all(batches, quota, together=64)

    assert together == charge_all(batches, quota, ONE_BY_ONE)


@given(
    events=st.lists(st.tuples(st.integers(0, 1500), amounts, st.booleans()), min_size=1, max_size=40),
    together=st.sampled_from([1, ONE_BY_ONE]),
)
def test_withheld_bytes_are_recorded_measured_and_taken_back_as_kafka_does(
    events: list[tuple[int, float, bool]], together: int
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
        ((_, (outcome,)),) = charge(page, {key: [Row.of(now_ms, [charged])]}, quota, together)

        assert (outcome.value, outcome.rate, outcome.violated) == (amount, expected, expected > 100.0)
    assert page.counters(key).rates[kind] == kafka


@given(batches=micro_batches, quota=strategies.quota_settings, partitions=amounts, together=st.sampled_from([1, 2**31]))
def test_executed_mutations_are_charged_below_zero_whatever_the_bucket_holds(
    batches: list[dict[str, list[Row]]], quota: QuotaSettings, partitions: float, together: int
) -> None:
    """After any past: nothing is refused, and every partition is taken."""
    limit, key, now_ms = 5.0, KEYS[0], strategies.START_MS
    quota = replace(quota, coexistence=Coexistence.MAX)
    page = Pages()
    for batch in batches:
        charge(page, batch, quota, together)
    charges = [Charge(QuotaKind.CONTROLLER_MUTATION_RATE, "user", limit, False, [count]) for count in (0.0, partitions)]

    (_, (before,)), (_, (after,)) = charge(page, {key: [Row.of(now_ms, [each]) for each in charges]}, quota, together)

    assert (after.refused, after.value) == ([False], partitions)
    assert after.tokens == (before.tokens or 0.0) - partitions


@pytest.mark.parametrize("together", [1, ONE_BY_ONE])
def test_a_request_is_answered_once_though_damaged_state_names_its_entity_twice(together: int) -> None:
    """A second row of the same name must not make a second decision."""
    row = columns_of([EntityCounters()])
    page = Pages(["a|", "a|"], concatenate([row, row]))
    request = Row.of(0, [Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 1.0, False, [1.0])])

    answers = charge(page, {"a|": [request]}, QuotaSettings(coexistence=Coexistence.MAX), together)

    assert len(answers) == 1


@st.composite
def hot_rows(draw: st.DrawFn) -> list[Row]:
    """Rows of one entity, some of them late: withheld or strict or not."""
    now_ms, rows, kinds = strategies.START_MS, [], draw(st.lists(st.sampled_from(QuotaKind), min_size=2, max_size=4))
    for after_ms in draw(
        st.lists(st.sampled_from([0, 0, 0, 1, 3, 400, 1000, 30_000, -2, -900, -40_000]), min_size=1, max_size=40)
    ):
        now_ms += after_ms
        made = []
        for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=2, unique=True)):
            values = draw(st.lists(amounts, min_size=2, max_size=2))[: 2 if kind.family is Family.REQUEST_TIME else 1]
            strict, withheld = draw(st.tuples(st.booleans(), st.booleans()))
            made.append(Charge(kind, "user", draw(limits), False, values, strict, withheld))
        rows.append(Row.of(now_ms, made))
    return rows


@given(before=st.lists(requests, max_size=6), rows=hot_rows(), quota=strategies.quota_settings)
def test_a_hot_counter_is_charged_in_runs_as_row_by_row(
    before: list[Row], rows: list[Row], quota: QuotaSettings
) -> None:
    """Outcomes and counters to the last bit, after any past: also one that lies in the future.

    If a mutation is refused, nothing is charged.
    """
    quota, shapes = replace(quota, coexistence=Coexistence.MAX), Shapes()
    one_by_one, hot = EntityCounters(), EntityCounters()
    for row in before:
        for counters in (one_by_one, hot):
            counters.charge_request(shapes[row.shape].charges_of(row.amounts), row.timestamp_ms, quota)
    unchanged, expected = repr(contents(hot)), dict[QuotaKind, Outcomes]()
    for number, row in enumerate(rows):
        for outcome in one_by_one.charge_request(shapes[row.shape].charges_of(row.amounts), row.timestamp_ms, quota):
            expected.setdefault(outcome.charge.kind, Outcomes()).add(number, outcome)

    made = charge_hot(hot, rows, shapes, quota, rows_of_run=0)

    if made is None:
        assert QuotaKind.CONTROLLER_MUTATION_RATE in expected
        assert repr(contents(hot)) == unchanged
        return
    assert repr(made) == repr(expected)
    assert repr(contents(hot)) == repr(contents(one_by_one))


def test_rows_that_runs_would_not_be_faster_for_are_left_alone() -> None:
    """Too few of them, refusals: nothing is charged, so that the scalar engine can do it."""
    quota, counters, shapes = QuotaSettings(), EntityCounters(), Shapes()
    size = Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 1.0, False, [1.0])
    mutations = Charge(QuotaKind.CONTROLLER_MUTATION_RATE, "user", 1.0, False, [1.0], strict=True)
    steady = [Row.of(0, [size])] * 1000

    for rows in (steady[:60], [Row.of(0, [size, mutations])] * 1000):
        assert charge_hot(counters, rows, shapes, quota) is None
    assert counters == EntityCounters()
    assert charge_hot(counters, steady, shapes, quota) is not None


def test_a_page_charges_its_hot_counter_in_runs_and_stores_the_same() -> None:
    """Between counters that aren't hot; 2 000 rows in two seconds exceed their quotas in the end."""
    quota = QuotaSettings()
    charged = [
        Charge(QuotaKind.REQUEST_PERCENTAGE, "user", 1.0, False, [0.01, 0.007]),
        Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 100.0, False, [1.1]),
    ]
    rows = [Row.of(number, charged) for number in range(2000)]
    page, single = Pages(), Pages()

    made = charge(page, {"a|": rows[:3], "hot|": rows, "z|": rows[:2]}, quota, ONE_BY_ONE)
    one_by_one = [
        pair
        for key, some in (("a|", rows[:3]), ("hot|", rows), ("z|", rows[:2]))
        for row in some
        for pair in charge(single, {key: [row]}, quota, ONE_BY_ONE)
    ]

    assert repr(made) == repr(one_by_one)
    assert page.to_bytes([0], 1, FOREVER_MS, quota) == single.to_bytes([0], 1, FOREVER_MS, quota)


def test_hot_counters_among_many_entities_are_charged_in_runs_as_one_by_one() -> None:
    """80 entities with 5 to 400 rows each, after a past in which they were charged too."""
    quota = QuotaSettings(client_window=Window(3, 1000))
    charged = [
        Charge(QuotaKind.REQUEST_PERCENTAGE, "user", 1.0, False, [0.1, 0.07]),
        Charge(QuotaKind.CONSUMER_BYTE_RATE, "user", 100.0, False, [1.1], withheld=True),
        Charge(QuotaKind.TOPIC_CONSUMER_BYTE_RATE, "topic", 100.0, False, [7.7]),
    ]
    batches = [
        {
            f"user-{user}|": [
                Row.of(strategies.START_MS + batch * 1500 + turn * 3, charged[user % 3 :])
                for turn in range(5 * (user % 80) + 5)
            ]
            for user in range(80)
        }
        for batch in range(4)
    ]

    assert charge_all(batches, quota, together=64) == charge_all(batches, quota, ONE_BY_ONE)


def test_both_engines_fill_a_bucket_whose_refill_overflows() -> None:
    """Under a limit of 1e300 a clock that goes back to 1970 takes away infinitely many tokens, and gives them back."""
    window, limit = Window(1, 2000), 1e300
    bucket = TokenBucket()
    arrays = BucketArrays(columns_of([EntityCounters()]))
    entity, limits = np.array([0]), np.array([limit])

    for now_ms in (MAX_TIMESTAMP_MS, 0, MAX_TIMESTAMP_MS):
        expected = bucket.measure(limit, window, now_ms)
        with warnings.catch_warnings(action="error"):
            measured = arrays.measure(entity, limits, window, np.array([now_ms]))
        assert measured.tolist() == [expected]

    assert expected == 2e300
