"""Gateways whose clocks differ: a late event takes nothing away that others were charged."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.counter import Charge, Outcome
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.shares.alive import AliveGateways
from sluice.state.shares.counter_share import CounterShare, Metering
from tests.kafka_cases import Engine, GivenEngine
from tests.strategies import START_MS

QUOTA = QuotaSettings()
WINDOW = QUOTA.client_window
SPAN_MS = WINDOW.samples * WINDOW.window_ms
LIMIT = 1_000.0
BYTES = QuotaKind.PRODUCER_BYTE_RATE


def charged(
    events: Sequence[tuple[int, float]], kind: QuotaKind, limit: float, engine: type[Engine] = Engine
) -> list[Outcome]:
    """The outcomes of events, each with its time and amount, in this order on one counter."""
    strict, network = kind is QuotaKind.CONTROLLER_MUTATION_RATE, [0.0] * (kind is QuotaKind.REQUEST_PERCENTAGE)
    charges = [(at_ms, Charge(kind, "user", limit, False, [amount, *network], strict)) for at_ms, amount in events]
    counters = engine(QUOTA)
    return [counters.charge("a|", charge, at_ms) for at_ms, charge in charges]


def events_of(skews_ms: Sequence[int], sent: Sequence[tuple[int, int, float]]) -> list[tuple[int, float]]:
    """Events as their gateways' clocks stamp them; each was `sent` so long after the one before, by one of them."""
    times_ms = accumulate((pause_ms for pause_ms, _, _ in sent), initial=START_MS)
    return [
        (at_ms + skews_ms[gateway % len(skews_ms)], amount)
        for at_ms, (_, gateway, amount) in zip(times_ms, sent, strict=False)
    ]


skews = st.lists(st.one_of(st.integers(-300_000, 300_000), st.integers(-15_000, 0)), min_size=1, max_size=5)
sendings = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 300), st.integers(0, 20_000)),
        st.integers(0, 4),
        st.one_of(st.just(100.0), st.floats(0, 1e6)),
    ),
    min_size=1,
    max_size=60,
)


@given(skews_ms=skews, sent=sendings, kind=st.sampled_from([BYTES, QuotaKind.REQUEST_PERCENTAGE]))
@pytest.mark.parametrize("engine", [Engine, GivenEngine])
def test_the_rate_has_all_events_whose_times_lie_in_the_newest_window(
    engine: type[Engine], skews_ms: list[int], sent: list[tuple[int, int, float]], kind: QuotaKind
) -> None:
    """With any skews of the gateways: what a rate lacks lies outside of the window that ends at the newest time."""
    events = events_of(skews_ms, sent)

    outcomes = charged(events, kind, LIMIT, engine)

    for number, outcome in enumerate(outcomes):
        so_far = events[: number + 1]
        newest_ms = max(at_ms for at_ms, _ in so_far)
        inside = sum(amount for at_ms, amount in so_far if at_ms > newest_ms - SPAN_MS)
        longest_s = (SPAN_MS + WINDOW.window_ms) / 1000
        assert outcome.rate * longest_s >= inside * (1 - 1e-12) - 1e-9


@given(skews_ms=skews, sent=sendings)
@pytest.mark.parametrize("engine", [Engine, GivenEngine])
def test_late_events_are_charged_as_at_the_newest_time(
    engine: type[Engine], skews_ms: list[int], sent: list[tuple[int, int, float]]
) -> None:
    """To the bit: rates, tokens and waits are those of events that all have the newest time so far."""
    events = events_of(skews_ms, sent)
    newest_ms = accumulate((at_ms for at_ms, _ in events), max)
    in_time = [(at_ms, amount) for at_ms, (_, amount) in zip(newest_ms, events, strict=True)]

    for kind in (BYTES, QuotaKind.REQUEST_PERCENTAGE, QuotaKind.CONTROLLER_MUTATION_RATE):
        assert repr(charged(events, kind, LIMIT, engine)) == repr(charged(in_time, kind, LIMIT, engine))


@pytest.mark.parametrize("behind_ms", [0, 5_000, 12_000, 300_000])
@pytest.mark.parametrize("period", [2, 3, 10])
def test_a_client_at_twice_its_limit_is_decided_so_with_a_gateway_whose_clock_is_behind(
    behind_ms: int, period: int
) -> None:
    events = [(START_MS + n * 50 - behind_ms * (n % period == 0), 100.0) for n in range(2000)]

    outcomes = charged(events, BYTES, LIMIT)[400:]

    assert all(outcome.violated for outcome in outcomes)
    assert sum(outcome.rate for outcome in outcomes) / len(outcomes) == pytest.approx(2 * LIMIT, rel=0.02)


def test_a_backlog_of_a_minute_takes_nothing_away_from_the_others() -> None:
    """One of two gateways was cut off from Kafka for a minute, and publishes at once what it served meanwhile."""
    in_time = [(START_MS + n * 100, 100.0) for n in range(900)]
    backlog = [(START_MS + n * 100, 1.0) for n in range(600)]

    together = charged([*in_time[:600], *backlog, *in_time[600:]], BYTES, LIMIT)

    alone = charged(in_time, BYTES, LIMIT)
    others = [*together[:600], *together[1200:]]
    assert all(outcome.rate >= expected.rate for outcome, expected in zip(others, alone, strict=True))


def test_a_clock_that_is_behind_takes_no_tokens() -> None:
    """A tenth of a mutation a second under a limit of one, through a gateway in time and one 12 s behind."""
    events = [(START_MS + n * 20_000 - skew, 1.0) for n in range(5) for skew in (0, 12_000)]

    outcomes = charged(events, QuotaKind.CONTROLLER_MUTATION_RATE, 1.0)

    assert not any(any(outcome.refused) for outcome in outcomes)


@given(times_ms=st.lists(st.integers(0, 40_000), min_size=2, max_size=40))
def test_a_gateways_threads_that_come_out_of_order_fill_no_bucket(times_ms: list[int]) -> None:
    """Each reads the clock before it waits for its turn."""

    def waits(of_ms: Sequence[int]) -> list[int]:
        share, gateways, metering = CounterShare(), AliveGateways("a", 2), Metering.of(QUOTA)
        charge = Charge(BYTES, "user", LIMIT, False, [3_000.0])
        return [share.charge(charge, gateways, metering, START_MS + at_ms).wait_ms for at_ms in of_ms]

    assert waits(times_ms) == waits(list(accumulate(times_ms, max)))
