"""Counters are charged as Kafka charges them, whatever came before."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.counter import Charge, EntityCounters
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from tests import strategies

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


requests = st.lists(st.tuples(st.integers(-50, 40_000).map(lambda after_ms: strategies.START_MS + after_ms), charges()))
"""Times and charges."""


@given(events=st.lists(st.tuples(st.integers(0, 1500), amounts, st.booleans()), min_size=1, max_size=40))
def test_withheld_bytes_are_recorded_measured_and_taken_back_as_kafka_does(
    events: list[tuple[int, float, bool]],
) -> None:
    """Every reading, then and later, is that of a rate with record(x), measure, record(-x); KIP-219."""
    quota, kind = QuotaSettings(), QuotaKind.CONSUMER_BYTE_RATE
    counters, kafka, now_ms = EntityCounters(), SampledRate(), strategies.START_MS
    for after_ms, amount, withheld in events:
        now_ms += after_ms
        kafka.record(amount, quota.client_window, now_ms)
        expected, _ = kafka.observe(quota.client_window, now_ms)
        if withheld:
            kafka.record(-amount, quota.client_window, now_ms)

        charged = Charge(kind, "user", 100.0, False, [amount], withheld=withheld)
        outcome = counters.charge(charged, now_ms, quota)

        assert (outcome.value, outcome.rate, outcome.violated) == (amount, expected, expected > 100.0)
    assert counters.rates[kind] == kafka


@given(past=requests, quota=strategies.quota_settings, partitions=amounts)
def test_executed_mutations_are_charged_below_zero_whatever_the_bucket_holds(
    past: list[tuple[int, list[Charge]]], quota: QuotaSettings, partitions: float
) -> None:
    """After any past: nothing is refused, and every partition is taken."""
    counters, limit, now_ms = EntityCounters(), 5.0, strategies.START_MS
    for at_ms, made in past:
        counters.charge_request(made, at_ms, quota)

    before, after = (
        counters.charge(Charge(QuotaKind.CONTROLLER_MUTATION_RATE, "user", limit, False, [count]), now_ms, quota)
        for count in (0.0, partitions)
    )

    assert (after.refused, after.value) == ([False], partitions)
    assert after.tokens == (before.tokens or 0.0) - partitions
