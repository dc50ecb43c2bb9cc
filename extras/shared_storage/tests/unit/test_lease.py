"""The driver that leads: every reader of the lease topic finds the same, from its beginning or from a part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_shared_storage.lease import (
    NO_LEASE,
    Acquisition,
    Driver,
    Heartbeat,
    LeaseLog,
    Record,
    Release,
    encode,
)

KEY = b"hdfs://storage/checkpoint"
ALICE, BOB, CAROL = (Driver(name, f"host-{name}", 7) for name in ("alice", "bob", "carol"))


def log_of(*records: Record | bytes | None, first: int = 0) -> LeaseLog:
    log = LeaseLog(KEY)
    for offset, record in enumerate(records, first):
        log.read_record(offset, KEY, record if isinstance(record, bytes) or record is None else encode(record))
    return log


LED = Acquisition(ALICE, NO_LEASE)


@pytest.mark.parametrize(
    ("log", "leader", "lease"),
    [
        pytest.param(log_of(), None, NO_LEASE, id="nobody leads before the first acquisition"),
        pytest.param(log_of(LED, Acquisition(BOB, NO_LEASE)), ALICE, 0, id="the first in place of one lease counts"),
        pytest.param(log_of(LED, Heartbeat(ALICE, 0, 1), Acquisition(BOB, 0)), BOB, 2, id="in place of the leader's"),
        pytest.param(log_of(LED, Heartbeat(BOB, 0, 5), Release(BOB, 0)), ALICE, 0, id="another's record is nothing"),
        # Such a forgery would end every lease from then on.
        pytest.param(log_of(LED, Heartbeat(BOB, 2**60, 1), Acquisition(BOB, 2**60)), ALICE, 0, id="an offset to come"),
        pytest.param(log_of(Heartbeat(ALICE, 40, 12), first=90), ALICE, 40, id="the last heartbeat is left"),
        pytest.param(log_of(Acquisition(BOB, 10), Heartbeat(ALICE, 10, 30), first=11), BOB, 11, id="a part, replaced"),
    ],
)
def test_a_reader_knows_the_leader_and_its_lease(log: LeaseLog, leader: Driver | None, lease: int) -> None:
    assert (log.leader, log.lease) == (leader, lease)


def test_another_drivers_heartbeat_under_the_leaders_lease_has_no_number() -> None:
    assert log_of(LED, Heartbeat(BOB, 0, 5)).last_number == 0


def test_a_driver_that_was_replaced_can_say_nothing_more() -> None:
    """Paused for minutes, it wakes up and goes on with its heartbeats, or ends and releases a lease of another."""
    log = log_of(LED, Acquisition(BOB, 0), Heartbeat(BOB, 1, 1))
    records = log.records
    log.read_record(3, KEY, encode(Heartbeat(ALICE, 0, 9)))
    log.read_record(4, KEY, encode(Release(ALICE, 0)))

    assert log.leader == BOB
    assert log.records == records


def test_after_a_release_nobody_leads_and_an_acquisition_names_what_it_replaces() -> None:
    released = log_of(LED, Heartbeat(ALICE, 0, 1), Release(ALICE, 0))
    assert released.leader is None
    assert released.lease == 0

    released.read_record(3, KEY, encode(Acquisition(BOB, NO_LEASE)))
    assert released.leader is None

    released.read_record(4, KEY, encode(Acquisition(BOB, 0)))
    assert released.leader == BOB


def test_records_of_another_checkpoint_are_passed_over() -> None:
    log = log_of(LED)
    log.read_record(1, b"another", encode(Acquisition(BOB, 0)))

    assert log.leader == ALICE


def test_garbage_is_counted_and_changes_nothing() -> None:
    log = log_of(LED, b"\xff", None, b'{"type": "acquire"}', b"[" * 100_000)

    assert log.leader == ALICE
    assert log.garbage == 4


def test_a_reader_of_a_part_learns_that_an_acquisition_had_come_too_late() -> None:
    """The leader's acquisition, at 10, is no longer in the topic; the other driver's, at 11, is its first record."""
    log = log_of(Acquisition(BOB, NO_LEASE), Heartbeat(ALICE, 10, 30), first=11)
    assert log.leader == ALICE

    log.read_record(13, KEY, encode(Acquisition(CAROL, 10)))
    assert log.leader == CAROL


steps = st.lists(
    st.tuples(
        st.sampled_from([ALICE, BOB, CAROL]), st.sampled_from(["acquire", "heartbeat", "release"]), st.integers(0, 3)
    ),
    max_size=30,
)


@given(steps=steps)
def test_there_is_one_leader_for_each_lease(steps: list[tuple[Driver, str, int]]) -> None:
    """Drivers that act on what they read some records ago never both lead under one lease, and leases only grow."""
    log, leases, leaders = LeaseLog(KEY), [NO_LEASE], dict[int, Driver]()
    for offset, (driver, kind, behind) in enumerate(steps):
        known = leases[max(0, len(leases) - 1 - behind)]
        made: Record = Acquisition(driver, known)
        if kind != "acquire":
            made = Heartbeat(driver, known, offset) if kind == "heartbeat" else Release(driver, known)
        before = log.lease
        log.read_record(offset, KEY, encode(made))
        assert log.lease >= before
        if log.leader is not None:
            assert leaders.setdefault(log.lease, log.leader) == log.leader
        leases.append(log.lease)
