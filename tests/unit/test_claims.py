"""Which driver leads: every reader of the claims topic comes to the same answer, from its beginning or from a part."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.streaming.leadership.lease import NO_EPOCH, Claim, ClaimLog, Driver, Record, Release, Sign, encode

KEY = b"hdfs://storage/checkpoint"
ALICE, BOB, CAROL = (Driver(name, f"host-{name}", 7) for name in ("alice", "bob", "carol"))


def log_of(*records: Record | bytes | None, first: int = 0) -> ClaimLog:
    log = ClaimLog(KEY)
    for offset, record in enumerate(records, first):
        log.take(offset, KEY, record if isinstance(record, bytes) or record is None else encode(record))
    return log


def test_nobody_leads_before_the_first_claim() -> None:
    assert ClaimLog(KEY).leader is None


def test_of_two_claims_in_place_of_the_same_the_first_counts() -> None:
    log = log_of(Claim(ALICE, NO_EPOCH), Claim(BOB, NO_EPOCH))

    assert log.leader == ALICE
    assert log.epoch == 0


def test_a_claim_in_place_of_the_leaders_counts() -> None:
    log = log_of(Claim(ALICE, NO_EPOCH), Sign(ALICE, 0, 1), Claim(BOB, 0))

    assert log.leader == BOB
    assert log.epoch == 2


def test_a_driver_that_was_replaced_can_say_nothing_more() -> None:
    """Paused for minutes, it wakes up and goes on with its signs, or ends and releases what is no longer its own."""
    log = log_of(Claim(ALICE, NO_EPOCH), Claim(BOB, 0), Sign(BOB, 1, 1))
    records = log.records
    log.take(3, KEY, encode(Sign(ALICE, 0, 9)))
    log.take(4, KEY, encode(Release(ALICE, 0)))

    assert log.leader == BOB
    assert log.records == records


def test_after_a_release_nobody_leads_and_a_claim_names_what_it_replaces() -> None:
    released = log_of(Claim(ALICE, NO_EPOCH), Sign(ALICE, 0, 1), Release(ALICE, 0))
    assert released.leader is None
    assert released.epoch == 0

    released.take(3, KEY, encode(Claim(BOB, NO_EPOCH)))
    assert released.leader is None

    released.take(4, KEY, encode(Claim(BOB, 0)))
    assert released.leader == BOB


def test_another_drivers_word_under_the_leaders_epoch_is_nothing() -> None:
    log = log_of(Claim(ALICE, NO_EPOCH), Sign(BOB, 0, 5), Release(BOB, 0))

    assert log.leader == ALICE
    assert log.last_number == 0


def test_records_of_another_checkpoint_are_passed_over() -> None:
    log = log_of(Claim(ALICE, NO_EPOCH))
    log.take(1, b"another", encode(Claim(BOB, 0)))

    assert log.leader == ALICE


def test_garbage_is_counted_and_changes_nothing() -> None:
    log = log_of(Claim(ALICE, NO_EPOCH), b"\xff", None, b'{"type": "claim"}', b"[" * 100_000)

    assert log.leader == ALICE
    assert log.garbage == 4


def test_no_record_can_name_an_offset_that_is_still_to_come() -> None:
    """Such a forgery would end every claim from then on."""
    log = log_of(Claim(ALICE, NO_EPOCH), Sign(BOB, 2**60, 1), Claim(BOB, 2**60))

    assert log.leader == ALICE


def test_a_reader_of_a_compacted_topic_learns_the_leader_from_its_last_sign() -> None:
    log = log_of(Sign(ALICE, 40, 12), first=90)

    assert log.leader == ALICE
    assert log.epoch == 40


def test_a_reader_of_a_part_learns_that_a_claim_had_come_too_late() -> None:
    """The leader's claim, at 10, is no longer in the topic; the other driver's, at 11, is its first record."""
    log = log_of(Claim(BOB, NO_EPOCH), Sign(ALICE, 10, 30), first=11)
    assert log.leader == ALICE

    log.take(13, KEY, encode(Claim(CAROL, 10)))
    assert log.leader == CAROL


def test_a_reader_of_a_part_takes_no_driver_back_that_was_replaced() -> None:
    log = log_of(Claim(BOB, 10), Sign(ALICE, 10, 30), first=11)
    assert log.leader == BOB


steps = st.lists(
    st.tuples(st.sampled_from([ALICE, BOB, CAROL]), st.sampled_from(["claim", "sign", "release"]), st.integers(0, 3)),
    max_size=30,
)


@given(steps=steps)
def test_there_is_one_leader_for_each_epoch(steps: list[tuple[Driver, str, int]]) -> None:
    """Drivers that act on what they read some records ago never both lead under one epoch, and epochs only grow."""
    log, epochs, leaders = ClaimLog(KEY), [NO_EPOCH], dict[int, Driver]()
    for offset, (driver, kind, behind) in enumerate(steps):
        known = epochs[max(0, len(epochs) - 1 - behind)]
        made: Record = Claim(driver, known)
        if kind != "claim":
            made = Sign(driver, known, offset) if kind == "sign" else Release(driver, known)
        before = log.epoch
        log.take(offset, KEY, encode(made))
        assert log.epoch >= before
        if log.leader is not None:
            assert leaders.setdefault(log.epoch, log.leader) == log.leader
        epochs.append(log.epoch)
