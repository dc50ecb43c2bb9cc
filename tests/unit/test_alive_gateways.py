"""Gateways that are alive, by their decided heartbeats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.shares.alive import MAX_GATEWAYS, SETTLE_MS, AliveGateways


def heartbeats(alive: AliveGateways, instance: str, *times_ms: int) -> None:
    for time_ms in times_ms:
        alive.on_heartbeat(instance, time_ms, time_ms + 300)


@pytest.fixture
def alive() -> AliveGateways:
    return AliveGateways("me")


def test_a_gateway_is_alive_while_its_heartbeats_are_decided_with_ones_own(alive: AliveGateways) -> None:
    heartbeats(alive, "a", 1_000)
    heartbeats(alive, "me", 1_000, 2_000, 4_000, 5_000)
    assert (alive.is_alive("a"), alive.count, alive.instances()) == (True, 2, ["a"])

    heartbeats(alive, "me", 6_000)
    assert (alive.is_alive("a"), alive.count, alive.instances()) == (False, 1, [])


def test_while_none_of_ones_own_is_decided_nobody_dies(alive: AliveGateways) -> None:
    heartbeats(alive, "me", 1_000)
    heartbeats(alive, "a", 1_000)

    heartbeats(alive, "b", 3_600_000)
    assert alive.is_alive("a")


def test_a_gateway_whose_clock_is_wrong_is_alive_and_dies_all_the_same() -> None:
    for ahead_ms in (-3_600_000, 3_600_000):
        alive = AliveGateways("me")
        for time_ms in range(10_000_000, 10_010_000, 1_000):
            heartbeats(alive, "a", time_ms + ahead_ms)
            heartbeats(alive, "me", time_ms)
        assert alive.is_alive("a")
        heartbeats(alive, "me", 10_013_000, 10_014_000)
        assert not alive.is_alive("a")


@given(st.permutations([(instance, time_ms) for instance in ("me", "a") for time_ms in range(2_000, 12_000, 1_000)]))
def test_nobody_dies_while_a_slow_job_decides_many_seconds_at_once(batch: list[tuple[str, int]]) -> None:
    alive = AliveGateways("me")
    heartbeats(alive, "a", 1_000)
    heartbeats(alive, "me", 1_000)
    counts = set()
    for number, (instance, time_ms) in enumerate(batch):
        alive.on_heartbeat(instance, time_ms, now_ms=20_000 + 40 * number)
        counts.add(alive.count)
    alive.settle(20_000 + 40 * len(batch) + SETTLE_MS)
    counts.add(alive.count)
    heartbeats(alive, "a", 22_000)
    heartbeats(alive, "me", 22_000, 23_000)

    assert counts | {alive.count} == {2}


def test_a_heartbeat_that_comes_after_a_newer_one_takes_nothing_back(alive: AliveGateways) -> None:
    """Two tasks of a micro-batch write decisions at the same time, so those of one gateway come in any order."""
    for instance, time_ms in (("me", 1_000), ("a", 1_000), ("a", 10_000), ("a", 2_000), ("me", 10_000)):
        alive.on_heartbeat(instance, time_ms, now_ms=20_000)
    alive.settle(20_000 + SETTLE_MS)

    assert (alive.is_alive("a"), alive.count) == (True, 2)


def test_a_gateway_whose_clock_is_set_back_dies_all_the_same(alive: AliveGateways) -> None:
    heartbeats(alive, "a", 3_600_000)
    heartbeats(alive, "a", 1_000)
    for time_ms in range(1_000, 7_000, 1_000):
        heartbeats(alive, "me", time_ms)
    assert not alive.is_alive("a")
    heartbeats(alive, "me", 3_599_000, 3_600_000, 3_602_000)
    assert not alive.is_alive("a")


def test_many_heartbeats_of_ones_own_take_no_memory(alive: AliveGateways) -> None:
    for number in range(10_000):
        alive.on_heartbeat("me", 1_000 + number, now_ms=20_000 + number // 10)

    assert len(alive._arrived) <= SETTLE_MS // 100


def test_what_is_known_holds_for_the_present_only_while_ones_own_heartbeats_are_decided(alive: AliveGateways) -> None:
    alive.on_heartbeat("me", 1_000, now_ms=2_000)

    assert alive.known_until_ms(6_000) == 6_000
    assert alive.known_until_ms(60_000) == 7_000


def test_many_forged_gateways_take_no_memory_and_push_nobody_out(alive: AliveGateways) -> None:
    heartbeats(alive, "me", 1_000)
    heartbeats(alive, "genuine", 1_000)
    for number in range(2 * MAX_GATEWAYS):
        heartbeats(alive, f"forged-{number}", 1_000)

    assert alive.count == MAX_GATEWAYS + 1
    assert alive.is_alive("genuine")
    assert not alive.is_alive(f"forged-{2 * MAX_GATEWAYS - 1}")


def test_a_new_gateway_takes_the_place_of_one_that_is_gone(alive: AliveGateways) -> None:
    for number in range(MAX_GATEWAYS):
        heartbeats(alive, f"forged-{number}", 1_000)
    heartbeats(alive, "me", 1_000, 10_000, 11_000)
    heartbeats(alive, "genuine", 11_000)

    assert (alive.count, alive.instances()) == (2, ["genuine"])


@given(st.lists(st.tuples(st.sampled_from(["me", "a", "b", "c", "clock"]), st.integers(0, 20_000)), max_size=40))
def test_the_count_is_that_of_the_gateways_that_are_alive(decided: list[tuple[str, int]]) -> None:
    """Also after the own clock was set back."""
    alive = AliveGateways("me")
    for instance, time_ms in decided:
        if instance == "clock":
            alive.step_back(time_ms)
        else:
            heartbeats(alive, instance, time_ms)

        assert alive.count == 1 + len(alive.instances())


def test_a_gateway_that_starts_while_the_job_is_down_counts_the_gateways_that_it_was_told_to_expect() -> None:
    alive = AliveGateways("me", expected=4)
    heartbeats(alive, "a", 1_000)
    assert alive.count == 4

    heartbeats(alive, "me", 1_000)
    assert alive.count == 4  # heartbeats of others may still arrive

    heartbeats(alive, "me", 2_000)
    assert alive.count == 2
