"""The mute table: who is muted, until when, and how it stays bounded."""

import random

from sinks.mute_table import HEAP_SLACK, Mute, MuteTable


class Clock:
    """A time in epoch milliseconds that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_760_000_000_000

    def __call__(self) -> int:
        return self.ms

    def in_ms(self, wait_ms: int) -> Mute:
        """A mute that lasts so long from now."""
        return Mute(self.ms + wait_ms)


def test_a_client_is_muted_until_the_very_millisecond() -> None:
    clock = Clock()
    table = MuteTable(clock_ms=clock)
    table.mute("alice", "app", clock.in_ms(1000))

    assert table.remaining_ms("alice", "app") == 1000
    clock.ms += 999
    assert table.remaining_ms("alice", "app") == 1
    clock.ms += 1
    assert table.remaining_ms("alice", "app") == 0
    assert table.find("alice", "app") is None


def test_only_that_user_with_that_client_id_is_muted() -> None:
    clock = Clock()
    table = MuteTable(clock_ms=clock)
    table.mute("alice", "app", clock.in_ms(1000))

    assert table.remaining_ms("alice", "other") == 0
    assert table.remaining_ms("bob", "app") == 0
    assert table.remaining_ms(None, "app") == 0


def test_no_name_and_an_empty_name_are_the_same_client() -> None:
    clock = Clock()
    table = MuteTable(clock_ms=clock)
    table.mute(None, "app", clock.in_ms(1000))

    assert table.remaining_ms("", "app") == 1000


def test_names_with_separators_are_different_clients() -> None:
    clock = Clock()
    table = MuteTable(clock_ms=clock)
    table.mute("a|b", "c", clock.in_ms(1000))

    assert table.remaining_ms("a", "b|c") == 0


def test_the_mute_that_ends_later_counts() -> None:
    clock = Clock()
    table = MuteTable(clock_ms=clock)
    table.mute("alice", "app", clock.in_ms(1000))
    table.mute("alice", "app", clock.in_ms(500))
    assert table.remaining_ms("alice", "app") == 1000

    table.mute("alice", "app", clock.in_ms(3000))
    clock.ms += 1000
    table.expire()

    assert table.remaining_ms("alice", "app") == 2000


def test_a_mute_that_has_ended_is_not_taken() -> None:
    clock = Clock()
    table = MuteTable(clock_ms=clock)

    table.mute("alice", "app", clock.in_ms(0))

    assert len(table) == 0


def test_ended_mutes_are_forgotten() -> None:
    clock = Clock()
    table = MuteTable(clock_ms=clock)
    for number in range(100):
        table.mute("alice", str(number), clock.in_ms(number + 1))

    clock.ms += 40
    table.expire()

    assert len(table) == 60


def test_a_full_table_gives_up_the_mutes_that_end_soonest() -> None:
    clock = Clock()
    table = MuteTable(max_muted=10, clock_ms=clock)
    waits_ms = list(range(1, 31))
    random.Random(1).shuffle(waits_ms)

    for wait_ms in waits_ms:
        table.mute("alice", str(wait_ms), clock.in_ms(wait_ms))

    assert [wait_ms for wait_ms in range(1, 31) if table.remaining_ms("alice", str(wait_ms))] == list(range(21, 31))
    assert table.evicted == 20


def test_a_full_table_goes_by_the_present_end_of_a_prolonged_mute() -> None:
    clock = Clock()
    table = MuteTable(max_muted=2, clock_ms=clock)
    table.mute("prolonged", None, clock.in_ms(10))
    table.mute("short", None, clock.in_ms(20))
    table.mute("prolonged", None, clock.in_ms(100))

    table.mute("third", None, clock.in_ms(30))

    assert table.remaining_ms("short", None) == 0
    assert table.remaining_ms("prolonged", None) == 100


def test_a_client_muted_ever_longer_takes_no_more_memory() -> None:
    clock = Clock()
    table = MuteTable(clock_ms=clock)

    for wait_ms in range(1, 20_000):
        table.mute("alice", "app", clock.in_ms(wait_ms))

    assert len(table._ends) <= HEAP_SLACK + 3
    assert table.remaining_ms("alice", "app") == 19_999
