"""The waits that a gateway keeps, by counter."""

import sys
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from sluice.gateways.client.wait_table import Wait, WaitTable
from sluice.state.decisions.waits import CounterKey
from sluice.state.quotas.entity import DEFAULT, Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from tests.builders import quota
from tests.gateway_loop import NOW_MS, Clock

BYTES = QuotaKind.PRODUCER_BYTE_RATE
ALICE = (BYTES, Tags(user="alice"))
BOB = (BYTES, Tags(user="bob"))


def table(max_waits: int = 100, max_wait_ms: int = 3_600_000) -> tuple[WaitTable, Clock]:
    clock = Clock()
    return WaitTable(max_waits, max_wait_ms, clock), clock


def left_ms(waits: WaitTable, counters: Iterable[CounterKey]) -> int:
    """Milliseconds until none of these counters waits any more; 0 if none waits now."""
    longest = waits.longest(counters)
    return 0 if longest is None else longest.left_ms(waits.clock_ms())


def wait(wait_ms: int, at_ms: int = NOW_MS, offset: int = 0, limit: float = 1000.0, rate: float | None = None) -> Wait:
    return Wait(at_ms + wait_ms if wait_ms else 0, (at_ms, offset), wait_ms, BYTES, limit, rate)


def test_a_later_decision_shortens_or_ends_a_wait() -> None:
    waits, clock = table()
    waits.note_wait(ALICE, wait(60_000))
    waits.note_wait(ALICE, wait(100, NOW_MS + 10))
    assert left_ms(waits, [ALICE]) == 110

    waits.note_wait(ALICE, wait(0, NOW_MS + 20))
    assert left_ms(waits, [ALICE]) == 0

    clock.ms += 60_000
    waits.expire()
    assert len(waits) == 0


def test_a_lowered_limit_leaves_the_wait() -> None:
    waits, _ = table()
    waits.note_wait(ALICE, wait(3_750, limit=2000.0, rate=2750.0))

    waits.relax([ALICE], lambda _: 10.0)

    assert left_ms(waits, [ALICE]) == 3_750


def test_waits_are_applied_while_others_are_relaxed() -> None:
    """There may be 100 000 of them, and a request must not wait for all."""
    waits, _ = table()
    for counter in (ALICE, BOB):
        waits.note_wait(counter, wait(60_000, limit=1000.0))

    def limit_of(counter: CounterKey) -> float:
        if counter == ALICE:
            assert not waits._lock.locked()
            waits.note_wait(ALICE, wait(30_000, NOW_MS + 1, limit=3000.0))
        return 2000.0

    waits.relax(waits.counters(), limit_of)

    assert [left_ms(waits, [counter]) for counter in (ALICE, BOB)] == [30_001, 30_000]


def test_the_limit_of_a_counter_is_found_from_its_tags() -> None:
    quotas = Quotas(
        [
            quota(BYTES, 1.0, user=DEFAULT),
            quota(BYTES, 2.0, user="alice"),
            quota(BYTES, 3.0, user="alice", client_id=DEFAULT),
            quota(BYTES, 4.0, client_id="app"),
            quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 5.0, topic=DEFAULT),
        ]
    )

    assert quotas.limit_of(BYTES, Tags(user="bob")) == 1.0
    assert quotas.limit_of(BYTES, Tags(user="alice")) == 2.0
    assert quotas.limit_of(BYTES, Tags("alice", "app")) == 3.0
    assert quotas.limit_of(BYTES, Tags("", "app")) == 4.0
    assert quotas.limit_of(BYTES, Tags("", "other")) is None
    assert quotas.limit_of(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, Tags(topic="t", partition=1)) == 5.0


def test_the_waits_that_end_soonest_go_first_when_there_are_too_many() -> None:
    waits, _ = table(max_waits=2)
    for number, wait_ms in enumerate((300, 100, 200)):
        waits.note_wait((BYTES, Tags(user=f"u{number}")), wait(wait_ms))

    assert [left_ms(waits, [(BYTES, Tags(user=f"u{number}"))]) for number in range(3)] == [300, 0, 200]
    assert waits.evicted == 1


def test_a_wait_that_became_longer_goes_by_its_new_end() -> None:
    waits, clock = table(max_waits=2)
    for number, wait_ms in enumerate((100, 200, 300)):
        waits.note_wait(ALICE if number != 1 else BOB, wait(wait_ms, NOW_MS, number))
    waits.note_wait((BYTES, Tags(user="carol")), wait(250, NOW_MS, 3))

    assert [left_ms(waits, [counter]) for counter in (ALICE, BOB)] == [300, 0]
    clock.ms = NOW_MS + 250
    waits.expire()
    assert list(waits.counters()) == [ALICE]


DECISIONS = st.lists(
    st.tuples(st.sampled_from([ALICE, BOB]), st.integers(0, 500), st.integers(1, 5_000), st.integers(0, 300)),
    max_size=40,
)


@given(DECISIONS)
def test_in_any_order_of_arrival_the_latest_decision_of_each_counter_counts(
    decisions: list[tuple[tuple[str, Tags], int, int, int]],
) -> None:
    """All arrive before any of the waits would have ended."""
    waits, clock = table()
    clock.ms = NOW_MS
    latest: dict[tuple[str, Tags], Wait] = {}
    for offset, (counter, at_ms, wait_ms, _) in enumerate(decisions):
        made = wait(wait_ms + 10_000 * (wait_ms > 100), NOW_MS + at_ms, offset)
        waits.note_wait(counter, made)
        if counter not in latest or made.order > latest[counter].order:
            latest[counter] = made

    for counter, expected in latest.items():
        assert left_ms(waits, [counter]) == max(0, expected.until_ms - clock.ms)


def test_a_counter_whose_wait_changes_all_the_time_takes_bounded_memory() -> None:
    waits, _ = table()
    kept = sys.getrefcount(ALICE)
    for number in range(10_000):
        waits.note_wait(ALICE, wait(1_000 + number, NOW_MS, number))

    assert sys.getrefcount(ALICE) - kept == 2, "the wait's place, and its end's"
