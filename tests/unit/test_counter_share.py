"""A gateway's share of a counter: a single gateway meters as Kafka, several divide the limit."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.state.arithmetic.counter import Charge, EntityCounters
from sluice.state.contract.gateway_topics import CounterSum, FetchSizes, SummedGateway
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import PrecedenceLevel
from sluice.state.shares.alive import AliveGateways
from sluice.state.shares.counter_share import CounterShare, InlineCharge, Metering
from sluice.state.shares.read_sums import ReadSums, read_sums
from sluice.state.shares.sums import DecidedSums, SummedCharge, gateway_text

SETTINGS = QuotaSettings()
METERING = Metering.of(SETTINGS)
LIMIT = 1_000.0
BURST = 5_000.0
"""The amount that all gateways together may let through at once."""

START_MS = 1_000_000
PRODUCE, FETCH = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE
TIME, MUTATIONS = QuotaKind.REQUEST_PERCENTAGE, QuotaKind.CONTROLLER_MUTATION_RATE


def charge(kind: QuotaKind, amount: float, limit: float = LIMIT, strict: bool = False) -> Charge:
    return Charge(kind, PrecedenceLevel.USER, limit, False, [amount, 0.0] if kind is TIME else [amount], strict)


def decided(
    instance: str | None,
    value: float,
    event_ms: int,
    applied_ms: int | None = 0,
    limit: float = LIMIT,
    is_fetch: bool = False,
    withheld: bool = False,
) -> ReadSums:
    """The sum of one decided charge, as a record."""
    sums = DecidedSums(METERING.span_ms)
    kind = FETCH if is_fetch else PRODUCE
    gateway = gateway_text(instance, applied_ms is not None)
    made = SummedCharge(kind, limit, value, event_ms, 0, gateway, applied_ms or 0, withheld=withheld)
    sums.add(b'{"user":"alice"}', made)
    [record] = sums.records(None, 0, 1)
    return read_sums(record)


def apply(counter: CounterShare, read: ReadSums, gateways: AliveGateways, now_ms: int) -> None:
    """Apply the only sum of a record."""
    [(_, summed)] = read.counters(read.sums[0])
    counter.on_sum(summed, read, gateways, METERING, now_ms)


class OneGateway:
    """Gateway `me` with one counter, and what it knows of the others."""

    def __init__(self, *others: str) -> None:
        self.gateways = AliveGateways("me")
        self.counter = CounterShare()
        self.alive(START_MS, *others)

    def alive(self, now_ms: int, *others: str) -> None:
        """Heartbeats of these, and the own ones, are decided."""
        for instance in (*others, "me"):
            self.gateways.on_heartbeat(instance, now_ms, now_ms)

    def charge(self, kind: QuotaKind, amount: float, now_ms: int) -> InlineCharge:
        return self.counter.charge(charge(kind, amount), self.gateways, METERING, now_ms)

    def decided(
        self, instance: str | None, value: float, now_ms: int, applied_ms: int | None = 0, **more: bool
    ) -> None:
        read = decided(instance, value, now_ms, applied_ms, **more)
        apply(self.counter, read, self.gateways, now_ms)

    def share(self, now_ms: int, limit: float = LIMIT) -> float:
        return self.counter.share(limit, self.gateways, METERING, now_ms)

    def settle(self, now_ms: int, *others: str) -> int:
        """Own traffic that is decided for 11 s, so that the share has grown to its target. Returns the time then."""
        for second in range(12):
            self.alive(now_ms + second * 1000, *others)
            self.charge(PRODUCE, 0.0, now_ms + second * 1000)
            self.decided("me", 0.0, now_ms + second * 1000)
        return now_ms + 11_000


@given(
    kind=st.sampled_from([PRODUCE, FETCH, TIME, MUTATIONS]),
    requests=st.lists(
        st.tuples(st.integers(-500, 20_000), st.floats(0, 1e5), st.floats(0, 1e5), st.booleans()), max_size=30
    ),
)
def test_a_single_gateway_meters_to_the_bit_as_the_scalar_engine_does(
    kind: QuotaKind, requests: Sequence[tuple[int, float, float, bool]]
) -> None:
    gateway, kafka, now_ms = OneGateway(), EntityCounters(), START_MS
    for pause_ms, amount, network, strict in requests:
        now_ms += pause_ms
        made = charge(kind, amount, strict=strict)
        if kind is TIME:
            made.amounts[1] = network
        inline = gateway.counter.charge(made, gateway.gateways, METERING, now_ms)
        outcome = kafka.charge(made, now_ms, SETTINGS)
        assert (inline.wait_ms, inline.refused) == (outcome.wait_ms, outcome.refused)
        assert gateway.counter.rate(METERING, now_ms) == kafka.rate(kind).peek(SETTINGS.client_window, now_ms)
        gateway.decided("me", amount, now_ms)


def test_it_grows_by_the_limit_in_five_seconds_and_shrinks_at_once() -> None:
    gateway = OneGateway("a", "b", "c")
    gateway.charge(PRODUCE, 1.0, START_MS)
    gateway.decided("me", BURST, START_MS)

    assert gateway.share(START_MS + 1_000) == pytest.approx(LIMIT / 4 + LIMIT / 5)
    gateway.decided("a", 1_000.0, START_MS + 1_000, applied_ms=500)
    gateway.decided("b", 1_000.0, START_MS + 1_000, applied_ms=500)
    assert gateway.share(START_MS + 1_001) == pytest.approx((LIMIT - 1_000 / 30) / 3)


@pytest.mark.parametrize(
    ("own", "others", "share"),
    [
        # A uses 200 a second and wants nothing more; b is throttled: (1000 - 200) / 2.
        (400.0, [("a", 200.0, 0), ("b", 400.0, 100)], 400.0),
        # A large request now and then makes a gateway wait, but it wants nothing more: four times its 50 are left,
        # and a quarter is never taken.
        (950.0, [("a", 50.0, 100)], LIMIT - 250.0),
        # A publisher without instance is left what it uses.
        (700.0, [(None, 300.0, None)], 700.0),
    ],
)
def test_the_contented_keep_their_rates_and_the_rest_is_divided_among_the_hungry(
    own: float, others: list[tuple[str | None, float, int | None]], share: float
) -> None:
    names = [name for name, *_ in others if name is not None]
    gateway = OneGateway(*names)
    for second in range(60):
        now_ms = START_MS + second * 1000
        gateway.alive(now_ms, *names)
        gateway.charge(PRODUCE, 0.0, now_ms)
        gateway.decided("me", own if second else own + BURST, now_ms, 0 if names else 10)
        for name, rate, applied_ms in others:
            gateway.decided(name, rate, now_ms, applied_ms)

    assert gateway.share(now_ms) == pytest.approx(share, rel=0.06)


def test_a_share_is_at_least_half_of_an_equal_part() -> None:
    gateway = OneGateway("a")
    now_ms = gateway.settle(START_MS, "a")
    gateway.decided("a", 1e9, now_ms)

    assert gateway.share(now_ms) == LIMIT / 4


def test_a_gateway_whose_heartbeats_are_missing_uses_nothing() -> None:
    gateway = OneGateway("a")
    now_ms = gateway.settle(START_MS, "a")
    gateway.decided("a", 2 * BURST, now_ms, applied_ms=60_000)
    assert gateway.share(now_ms) <= LIMIT / 2

    now_ms = gateway.settle(now_ms)
    assert gateway.share(now_ms) == LIMIT


@given(
    rates=st.lists(st.floats(0, 2 * LIMIT), min_size=2, max_size=8),
    are_hungry=st.lists(st.booleans(), min_size=8, max_size=8),
)
@example(rates=[100.0] * 3, are_hungry=[False] * 8)
def test_without_decisions_shares_stay_and_are_the_limit_together(rates: list[float], are_hungry: list[bool]) -> None:
    """However much clients used before, and though all want more then: half of an equal part each is the least.

    Three gateways that served 100 a second each have 100 + 700 / 3 then, and not 800.
    """
    names, now_ms = [f"g{number}" for number in range(len(rates))], START_MS
    gateways = {name: AliveGateways(name) for name in names}
    counters = {name: CounterShare() for name in names}
    for second in range(40):
        now_ms = START_MS + second * 1000
        for name in names:
            for other in names:
                gateways[name].on_heartbeat(other, now_ms, now_ms)
            counters[name].charge(charge(PRODUCE, 0.0), gateways[name], METERING, now_ms)
            for other, rate, is_hungry in zip(names, rates, are_hungry, strict=False):
                read = decided(other, rate, now_ms, applied_ms=100 if is_hungry else 0)
                apply(counters[name], read, gateways[name], now_ms)
    later_ms = now_ms + 6_000

    def shares(at_ms: int) -> list[float]:
        return [counters[name].share(LIMIT, gateways[name], METERING, at_ms) for name in names]

    first = shares(later_ms)
    for second in range(1, 120):
        for name in names:
            counters[name].charge(charge(PRODUCE, 1e4), gateways[name], METERING, later_ms + second * 1000)
    assert shares(later_ms + 120_000) == first
    assert sum(first) <= 1.5 * LIMIT
    if rates == [100.0] * 3:
        assert first == pytest.approx([LIMIT / 3] * 3, rel=0.01)


def test_what_all_used_too_much_is_paid_back() -> None:
    gateway = OneGateway("a")
    now_ms = gateway.settle(START_MS, "a")
    gateway.decided("a", 2 * BURST, now_ms, applied_ms=100)
    even = gateway.share(now_ms)
    gateway.decided("me", 2 * BURST, now_ms)

    assert gateway.share(now_ms) < even
    gateway.decided("me", 1e12, now_ms)
    assert gateway.share(now_ms) == pytest.approx((LIMIT - 10 * LIMIT / 30) / 2)  # 10 s of the limit in 30 s, no more


def test_what_all_left_unused_is_made_up_for() -> None:
    """The most is 5 s of the limit, in 30 s."""
    gateway = OneGateway("a")
    now_ms = gateway.settle(START_MS, "a")
    gateway.decided("a", 1.0, now_ms, applied_ms=100)

    assert gateway.share(now_ms) == pytest.approx(LIMIT - LIMIT / 4 + 5 * LIMIT / 30, rel=0.001)


def test_an_event_from_the_future_changes_no_more_than_one_of_now() -> None:
    now, future = OneGateway("a"), OneGateway("a")
    for gateway, ahead_ms in ((now, 0), (future, 3_600_000)):
        gateway.settle(START_MS, "a")
        read = decided("a", 3_000.0, START_MS + 11_000 + ahead_ms, 50)
        apply(gateway.counter, read, gateway.gateways, START_MS + 11_000)

    assert now.share(START_MS + 12_000) == future.share(START_MS + 12_000)


def test_with_others_traffic_is_paced_with_the_burst_of_the_share() -> None:
    """Two gateways share 1 000: each may let 2 500 through at once; 500 more wait for a second."""
    gateway = OneGateway("a")

    assert gateway.charge(PRODUCE, BURST / 2, START_MS).wait_ms == 0
    assert gateway.charge(PRODUCE, 500.0, START_MS).wait_ms == 1_000


def test_a_fetch_waits_until_it_can_be_served_and_a_giant_one_for_a_full_bucket() -> None:
    gateway = OneGateway("a")
    assert gateway.charge(FETCH, 80_000.0, START_MS).wait_ms == 0
    again = gateway.charge(FETCH, 80_000.0, START_MS + 1_000)

    assert again.wait_ms == 159_000  # 80 000 - 2 500 were missing, and 2 500 make it full; one second is over


def test_request_time_waits_for_a_window_of_the_whole_quota_at_most() -> None:
    """One window is a second on one gateway; on half of the quota it takes two to refill as much."""
    gateway = OneGateway("a")

    assert gateway.charge(TIME, 1e6, START_MS).wait_ms == 2_000


@given(amounts=st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_what_is_taken_back_was_never_charged(amounts: Sequence[int]) -> None:
    gateway, untouched = OneGateway("a"), OneGateway("a")
    for amount in amounts:
        gateway.charge(FETCH, float(amount), START_MS)
        gateway.counter.take_back(charge(FETCH, float(amount)), METERING, START_MS)

    assert gateway.counter.own_charged == 0.0
    assert gateway.charge(FETCH, 1_000.0, START_MS).wait_ms == untouched.charge(FETCH, 1_000.0, START_MS).wait_ms


@pytest.mark.parametrize("kind", [PRODUCE, FETCH, TIME])
def test_a_clock_that_is_set_back_makes_nobody_wait(kind: QuotaKind) -> None:
    gateway = OneGateway("a")
    gateway.charge(kind, 1.0, START_MS)

    assert gateway.charge(kind, 1.0, START_MS - 900_000).wait_ms == 0
    assert gateway.charge(kind, 1.0, START_MS - 899_000).wait_ms == 0


@pytest.mark.parametrize(
    ("kind", "amount", "again", "held_ms", "free_ms"),
    [
        # As one gateway that is alone forgets it, after the longest wait that a gateway applies.
        (PRODUCE, 2.0**53, 0.0, 3_599_000, 3_600_000),
        # A request that hung for an hour: 10 s of the limit are 20 s of half of it; Kafka forgets it after 11 s.
        (TIME, 3_600 * LIMIT, 1.0, 10_000, 22_000),
    ],
)
def test_a_giant_charge_is_forgotten_after_an_hour_and_one_of_request_time_soon(
    kind: QuotaKind, amount: float, again: float, held_ms: int, free_ms: int
) -> None:
    gateway = OneGateway("a")
    gateway.charge(kind, amount, START_MS)

    held = gateway.charge(kind, again, START_MS + held_ms).wait_ms
    assert held == 1_000 if kind is PRODUCE else held > 0
    assert gateway.charge(kind, again, START_MS + free_ms).wait_ms == 0


@pytest.mark.parametrize("limit", [5e-324, 1e-300, 1.7e308])
@pytest.mark.parametrize("kind", [PRODUCE, FETCH, TIME, MUTATIONS])
def test_the_smallest_and_the_largest_limit_are_computed_with(kind: QuotaKind, limit: float) -> None:
    gateway = OneGateway("a", "b")
    for second in range(4):
        now_ms = START_MS + second * 1_000
        outcome = gateway.counter.charge(charge(kind, 2.0**53, limit), gateway.gateways, METERING, now_ms)
        read = decided("me", 2.0**53, now_ms, limit=limit)
        apply(gateway.counter, read, gateway.gateways, now_ms)

        assert (outcome.wait_ms > 0) == (limit < 1.0) or kind is FETCH  # a fetch is served from a full bucket


def test_a_forged_fetch_does_not_take_the_share_for_minutes() -> None:
    """It says that it was answered empty, so it is charged nothing."""
    metering, alive, limit = Metering.of(QuotaSettings()), AliveGateways("a"), 1e6
    share, record = CounterShare(), ReadSums(gateways=[SummedGateway("a", True, 0)])
    for size in (450_000.0, 2.0**53, *[450_000.0] * 20):
        decided = CounterSum(0, limit, 0, 0, [], None, FetchSizes(1, size))
        share.on_sum(decided, record, alive, metering, now_ms=1_000)
    assert share.fetch_size < 700_000
