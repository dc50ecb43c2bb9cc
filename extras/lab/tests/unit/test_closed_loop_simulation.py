"""Simulated clients behind several gateways."""

from dataclasses import replace
from functools import cache

import pytest

from sluice.state.quotas.kinds import QuotaKind
from sluice_lab.scenarios.closed_loop.main import main
from sluice_lab.scenarios.closed_loop.measures import FIRST_MS, Measures, measure
from sluice_lab.scenarios.closed_loop.simulation import ClosedLoop
from sluice_lab.scenarios.closed_loop.situation import Counters, Situation, Spread, Waits

LIMIT = 1_000_000.0
PRODUCER, CONSUMER = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE
TIME = QuotaKind.REQUEST_PERCENTAGE


def situation(quota: QuotaKind = PRODUCER, **more: object) -> Situation:
    base = Situation(quota, LIMIT, 50 * LIMIT, LIMIT / 10, gateways=4, latency_ms=1_000, seconds=150)
    return replace(base, **more)  # type: ignore[arg-type] # the fields' types


@cache
def simulated(wanted: Situation) -> Measures:
    return measure(wanted, ClosedLoop(wanted).run())


@pytest.mark.parametrize(
    ("quota", "spread"),
    [(PRODUCER, Spread.EVEN), (PRODUCER, Spread.SKEW), (CONSUMER, Spread.ONE), (TIME, Spread.EVEN)],
)
def test_four_gateways_hold_a_greedy_client_as_one_broker_does(quota: QuotaKind, spread: Spread) -> None:
    wanted = situation(quota, spread=spread, seconds=300)
    found, alone = simulated(wanted), simulated(wanted.alone())

    assert 0.97 <= found.mean_after <= 1.02
    assert found.worst_later_minute <= 1.05 * alone.worst_later_minute
    assert found.requests > 1_000


@pytest.mark.parametrize(("quota", "spread"), [(PRODUCER, Spread.MOVE), (CONSUMER, Spread.HOP), (TIME, Spread.MOVE)])
def test_a_client_that_uses_one_gateway_at_a_time_gets_its_quota(quota: QuotaKind, spread: Spread) -> None:
    """The gateways that it left keep nothing of the limit for it."""
    wanted = situation(quota, spread=spread, gateways=3, seconds=300)
    found = simulated(wanted)

    assert 0.95 <= found.mean_after <= 1.03
    assert found.worst_5s_after <= 1.5
    assert found.longest_silence_s < 1


@pytest.mark.parametrize(("gateways", "least"), [(6, 0.95), (12, 0.5)])
def test_a_client_at_another_gateway_each_second_never_gets_more_than_its_quota(gateways: int, least: float) -> None:
    """As diskless topics allow; docs/decisions/0038-diskless-topics.md says why it gets less from many."""
    found = simulated(situation(spread=Spread.HOP, stay=1, gateways=gateways, size=LIMIT / 100))

    assert least <= found.mean_after <= 1.03
    assert found.worst_minute <= 1.1


def test_a_gateway_whose_client_waits_for_seconds_keeps_its_part() -> None:
    """Each request is 10 s of a gateway's share: nothing is charged there until its wait is over."""
    assert simulated(situation(size=LIMIT, gateways=10, seconds=150)).worst_5s_after <= 2.0


def test_small_requests_are_silent_for_at_most_twice_as_long_as_behind_one_broker() -> None:
    wanted = situation(size=LIMIT / 40, seconds=150)
    assert simulated(wanted).longest_silence_s <= 2 * simulated(wanted.alone()).longest_silence_s


def test_large_requests_have_the_mean_of_one_broker() -> None:
    wanted = situation(size=LIMIT, seconds=150)
    assert simulated(wanted).mean_after == pytest.approx(simulated(wanted.alone()).mean_after, abs=0.03)


def test_decisions_alone_dont_hold_it() -> None:
    held = simulated(situation(waits=Waits.DECIDED, quota=TIME, seconds=20))

    assert held.mean_after > 5


@pytest.mark.parametrize(
    "change",
    [
        {"join": 60.0},
        {"leave": 60.0},
        {"job_down": (60.0, 100.0)},
        {"clock_skew_ms": 200},
        {"limit_change": (60.0, 5e5)},
    ],
)
def test_changes_let_nobody_loose_and_lock_nobody_out(change: dict[str, object]) -> None:
    quiet, changed = simulated(situation()), simulated(replace(situation(), **change))  # type: ignore[arg-type]

    assert changed.worst_minute_after <= 1.05 * quiet.worst_minute_after
    assert changed.mean_after >= 0.96
    assert changed.longest_silence_s < 3


def test_measures_are_those_of_what_was_served() -> None:
    """One second of the quota each second, four at once after 30 s, then nothing for 16 s."""
    times_s = [*range(30), 30, 30, 30, 30, *range(46, 60)]
    wanted, served = situation(seconds=60), [(second * 1000.0, LIMIT, 0) for second in times_s]

    found = measure(wanted, served)
    assert found.mean == 48 / 60
    assert found.mean_after == 38 / 50
    assert found.worst_5s == 8 / 5
    assert found.longest_silence_s == 16.0
    assert found.unused == pytest.approx(1 - 48 / 60)
    assert FIRST_MS == 10_000


def test_clients_with_counters_of_their_own_have_a_quota_each() -> None:
    found = simulated(situation(clients=5, counters=Counters.OWN, demand=500 * LIMIT, seconds=60))

    assert found.mean_after == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "--quota", "nope"], "'nope' is not one of 'producer_byte_rate'"),
        (["simulate", "--quota", "controller_mutation_rate"], "expected one of producer_byte_rate, consumer"),
        (["simulate", "--job-down", "60-50"], "'60-50' is not right; expected FROM-TO in seconds"),
        (["simulate", "--limit-change", "60"], "'60' is not right; expected S:Q"),
        (["simulate", "--demand", "0"], "--demand is 0.0; expected a number above 0"),
        (["simulate", "--leave", "1", "--gateways", "1"], "--leave is given with one gateway"),
        (["simulate", "--job-down", "300-420", "--seconds", "60"], "--job-down begins at second 300; expected"),
        (["simulate", "--limit-change", "60:9", "--seconds", "60"], "--limit-change begins at second 60; expected"),
        (["simulate", "--join", "90", "--seconds", "60"], "--join begins at second 90; expected --seconds above 90"),
        (["gateways", "--job-down", "9-3"], "'9-3' is not right; expected FROM-TO in seconds"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith("closed-loop: error: ")
    assert said in error
    assert error.count("\n") == 1
