"""A page's stored form."""

import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.counter import Charge
from sluice.state.errors import StateError
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import KINDS_BY_CODE, QuotaKind
from sluice.state.store.codec import CODEC_VERSION, decode, encode
from sluice.state.store.pages import Page, page_of_entity
from tests.stored_pages import FOREVER_MS, GOLDEN, SETTINGS, PageCharge, bytes_of, charged, charges, contents


def test_bytes_written_by_the_first_release_are_read() -> None:
    """Alice's bucket at -60 of KIP-599's example and her byte rate, and one topic-partition."""
    block = (GOLDEN / "state-v1.bin").read_bytes()
    counters = decode(block, 4)

    alice, orders = counters[Tags("alice", "app").key()], counters[Tags(topic="o r", partition=3).key()]

    assert block[0] == CODEC_VERSION
    assert alice.bucket is not None
    assert (alice.bucket.tokens, alice.bucket.last_ms, alice.mutation_limit) == (-505.0, 1_700_000_000_000, 5.0)
    assert alice.rates[QuotaKind.PRODUCER_BYTE_RATE].values == [0.5]
    assert alice.rates[QuotaKind.PRODUCER_BYTE_RATE].starts_ms == [1_700_000_000_100]
    assert orders.rates[QuotaKind.TOPIC_PRODUCER_BYTE_RATE].values == [12.0]
    assert encode(counters, 4) == block


def test_the_code_of_a_kind_never_changes() -> None:
    """Stored rates are recognised by it; new kinds count up."""
    own = "producer_byte_rate consumer_byte_rate request_percentage"
    later = "producer.byte.rate consumer.byte.rate controller_mutation_rate connection_rate connection_count"
    assert [kind.value for _, kind in sorted(KINDS_BY_CODE.items())] == f"{own} {later}".split()
    assert sorted(KINDS_BY_CODE) == [*range(8)]


@given(charges=charges)
def test_a_stored_page_reads_back_the_same(charges: list[PageCharge]) -> None:
    """All counters, to the last bit, for any names."""
    page = charged(*charges)

    read = decode(bytes_of(page), 1)

    assert set(read) == {tags.key() for tags, *_ in charges}
    for tags, *_ in charges:
        assert contents(read[tags.key()]) == contents(page.counters(tags.key()))


def test_new_entities_are_stored_behind_the_others_in_the_order_of_their_keys() -> None:
    """A repeated micro-batch may add them in another order."""
    limit = (QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, 5)
    page = Page(payload=bytes_of(charged((Tags("m"), *limit))))
    for name in "zax":
        page.counters(Tags(name).key())

    assert [*decode(bytes_of(page), 1)] == ["m|", "a|", "x|", "z|"]


def test_an_entity_is_never_written_to_the_page_of_another() -> None:
    """It would not be found again."""
    key = Tags("a").key()
    with pytest.raises(ValueError, match="is not an entity of page"):
        Page(page_of_entity(key, 32) + 1, 33).counters(key)


def test_untouched_entities_pass_through_unchanged() -> None:
    """A batch that charges one entity writes the others as they were."""
    alice, bob = Tags("alice"), Tags("bob")
    both = charged(
        (alice, QuotaKind.PRODUCER_BYTE_RATE, 1.0, 0.1, 5), (bob, QuotaKind.CONTROLLER_MUTATION_RATE, 1, 7, 9)
    )
    stored = bytes_of(both)

    later = Page(payload=stored)
    later.counters(alice.key()).charge(Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 1.0, False, [3.0]), 6, SETTINGS)
    read = decode(bytes_of(later), 1)

    assert contents(read[bob.key()]) == contents(both.counters(bob.key()))
    assert read[alice.key()].rates[QuotaKind.PRODUCER_BYTE_RATE].values == [3.1]


@pytest.mark.parametrize(
    ("harm", "pages", "problem"),
    [
        # State hashed into 1 page is not to be found under 8.
        (bytes, 8, r"made with state\.pages = 1, the settings say 8; set state\.pages back to 1"),
        # Cut short anywhere, it is an error that says what to do, never a wrong balance.
        *(
            (lambda stored, cut=cut: stored[:cut], 1, "restore the checkpoint from a backup")
            for cut in (0, 3, 22, 30, -1)
        ),
        # A downgrade doesn't guess.
        (lambda stored: bytes([99]) + stored[1:], 1, "codec version 99"),
    ],
    ids=["page count", *(f"cut {cut}" for cut in (0, 3, 22, 30, -1)), "codec"],
)
def test_what_is_no_state_of_these_pages_is_refused(harm: Callable[[bytes], bytes], pages: int, problem: str) -> None:
    stored = bytes_of(charged((Tags("a"), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, 0)))

    with pytest.raises(StateError, match=problem):
        decode(harm(stored), pages)


def test_an_idle_entity_is_forgotten_after_an_hour_and_not_before() -> None:
    """Kafka's 3600 s, counted from the newest event of the page."""
    hour_ms = 3_600_000
    for newest_ms, expected in ((hour_ms, 2), (hour_ms + 1, 1)):
        page = charged(
            (Tags("idle"), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, 0),
            (Tags("busy"), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, newest_ms),
        )

        keys = decode(bytes_of(page, hour_ms), 1)

        assert len(keys) == expected


def test_an_unpaid_deficit_is_never_forgiven_by_idling() -> None:
    """Q=1, burst 11, charge 10 010: 9999 s to pay. Shipped Kafka forgives it after 3600 s."""
    debtor, busy = Tags("debtor"), Tags("busy")
    for newest_s, remembered in ((9_000, True), (10_020, False)):
        page = charged(
            (debtor, QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, 10_010.0, 0),
            (busy, QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, 1.0, newest_s * 1000),
        )

        keys = decode(bytes_of(page, 3_600_000), 1)

        assert (debtor.key() in keys) is remembered


LIVELY = st.lists(
    st.tuples(
        st.builds(Tags, st.sampled_from("abcdefgh")),
        st.sampled_from([QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONTROLLER_MUTATION_RATE]),
        st.just(1.0),
        st.sampled_from([0.0, 1.0, 30.0]),
        st.integers(0, 200_000),
    ),
    min_size=1,
    max_size=20,
)
"""Charges of few entities within some minutes; a rate is over after one."""


@given(charges=LIVELY, most=st.integers(1, 8), amount=st.sampled_from([1.0, 30.0]))
def test_an_entity_at_rest_that_leaves_early_changes_no_decision(
    charges: list[PageCharge], most: int, amount: float
) -> None:
    """Nobody can tell by any later charge, unless more entities than a page may have owe something."""
    charges = sorted(charges, key=lambda charge: charge[-1])
    full, bounded, newest_ms = charged(*charges), charged(*charges), charges[-1][-1]
    stored = bytes_of(full)
    small = bounded.to_bytes(FOREVER_MS, SETTINGS, most)
    kept, left = decode(small, 1), decode(stored, 1)

    assert len(kept) == min(most, len(left))
    assert sum(bounded.evicted) == len(left) - len(kept)
    if bounded.evicted.owing:
        return
    for tags, kind, limit, *_ in charges:
        charge = Charge(kind, "user", limit, False, [amount])
        after = [
            Page(payload=payload).counters(tags.key()).charge(charge, newest_ms, SETTINGS)
            for payload in (stored, small)
        ]
        assert after[0] == after[1]


def test_entities_leave_a_full_page_in_the_order_of_what_is_lost() -> None:
    """At rest, the oldest first; then those with a rate; a debt last, however old it is."""
    debtor, old, rested, young = Tags("debtor"), Tags("old"), Tags("rested"), Tags("young")
    rate = QuotaKind.PRODUCER_BYTE_RATE
    page = [
        (debtor, QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, 10_010.0, 0),
        (old, rate, 1.0, 1.0, 1),
        (rested, rate, 1.0, 1.0, 2),
        (young, rate, 1.0, 1.0, 100_000),
    ]

    for most, kept, evicted in (
        (4, {debtor, old, rested, young}, (0, 0)),
        (3, {debtor, rested, young}, (1, 0)),
        (2, {debtor, young}, (2, 0)),
        (1, {debtor}, (2, 1)),
    ):
        counters = charged(*page)
        keys = decode(counters.to_bytes(FOREVER_MS, SETTINGS, most), 1)

        assert (set(keys), counters.evicted) == ({tags.key() for tags in kept}, evicted)


def test_the_page_of_an_entity_is_the_same_in_every_release() -> None:
    """State is found by it: these numbers may never change."""
    assert [page_of_entity(key, 32) for key in ("alice|app", "|", "topic:orders|3")] == [27, 26, 18]


def test_no_bucket_is_stored_for_an_entity_that_never_mutated() -> None:
    """NaN tokens stand for "no bucket"."""
    stored = bytes_of(charged((Tags("a"), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, 0)))

    assert struct.pack("<d", math.nan) in stored
    assert decode(stored, 1)[Tags("a").key()].bucket is None


def test_a_page_that_names_an_entity_twice_is_damaged() -> None:
    """One of both would be lost, and which one nobody could tell."""
    two = bytes_of(charged(*((Tags(name), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, 0) for name in "ab")))

    with pytest.raises(StateError, match="damaged"):
        decode(two.replace(b"a|\nb|", b"a|\na|"), 1)
