"""A page's stored form."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.columns import columns_of, counters_from
from sluice.state.arithmetic.counter import Charge
from sluice.state.errors import StateError
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import KINDS_BY_CODE, QuotaKind
from sluice.state.store.codec import CODEC_VERSION, DECODERS, decode, encode
from sluice.state.store.pages import Pages, page_of_entity
from tests.stored_pages import FOREVER_MS, GOLDEN, SETTINGS, PageCharge, bytes_of, charged, charges, contents


def entities(page: Pages) -> int:
    """The number of entities with counters in it."""
    return len(decode([bytes_of(page)], 1)[0])


@pytest.mark.parametrize("version", DECODERS)
def test_bytes_written_by_the_first_release_of_a_version_are_read(version: int) -> None:
    """Alice's bucket at -60 of KIP-599's example and her byte rate, and one topic-partition."""
    block = (GOLDEN / f"state-v{version}.bin").read_bytes()
    keys, columns = decode([block], 4)
    page = Pages(keys, columns)

    alice, orders = page.counters(Tags("alice", "app").key()), page.counters(Tags(topic="o r", partition=3).key())

    assert block[0] == version
    assert alice.bucket is not None
    assert (alice.bucket.tokens, alice.bucket.last_ms, alice.mutation_limit) == (-505.0, 1_700_000_000_000, 5.0)
    assert alice.rates[QuotaKind.PRODUCER_BYTE_RATE].values == [0.5]
    assert alice.rates[QuotaKind.PRODUCER_BYTE_RATE].starts_ms == [1_700_000_000_100]
    assert orders.rates[QuotaKind.TOPIC_PRODUCER_BYTE_RATE].values == [12.0]
    assert encode(keys, columns, np.array([2]), 4) == [(GOLDEN / f"state-v{CODEC_VERSION}.bin").read_bytes()]


def test_the_written_version_can_be_read() -> None:
    """And no version that was ever written is dropped."""
    assert list(DECODERS) == list(range(1, CODEC_VERSION + 1))


def test_the_code_of_a_kind_never_changes() -> None:
    """Stored rates are recognised by it; new kinds count up."""
    assert [kind.value for _, kind in sorted(KINDS_BY_CODE.items())][:6] == [
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "producer.byte.rate",
        "consumer.byte.rate",
        "controller_mutation_rate",
    ]
    assert sorted(KINDS_BY_CODE) == [*range(7), 10]


@given(charges=charges)
def test_a_stored_page_reads_back_the_same(charges: list[PageCharge]) -> None:
    """All counters, to the last bit, for any names."""
    page = charged(*charges)

    stored = bytes_of(page)
    read = Pages.from_bytes([stored], 1)

    assert set(decode([stored], 1)[0]) == {tags.key() for tags, *_ in charges}
    for tags, *_ in charges:
        assert contents(read.counters(tags.key())) == contents(page.counters(tags.key()))


@given(charges=charges, pages=st.integers(1, 5), part=st.none() | st.integers(1, 4))
def test_pages_written_together_are_those_written_one_by_one(
    charges: list[PageCharge], pages: int, part: int | None
) -> None:
    """Byte for byte, without what is at rest by each page's own newest event or over its part; and so they are read."""
    together, hour_ms = charged(*charges), 3_600_000
    numbers = list(range(pages))[::-1]
    one_by_one = []
    for number in numbers:
        own = charged(*(charge for charge in charges if page_of_entity(charge[0].key(), pages) == number))
        one_by_one += own.to_bytes([number], pages, hour_ms, SETTINGS, part)

    written = together.to_bytes(numbers, pages, hour_ms, SETTINGS, part)
    keys, columns = decode(written, pages)

    assert written == one_by_one
    read = [decode([page], pages) for page in written]
    assert keys == [key for some, _ in read for key in some]
    assert [contents(one) for one in counters_from(columns)] == [
        contents(one) for _, some in read for one in counters_from(some)
    ]


def test_an_entity_is_never_written_to_the_page_of_another() -> None:
    """It would not be found again."""
    with pytest.raises(ValueError, match="is not among"):
        charged((Tags("a"), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, 0)).to_bytes(
            [number for number in range(32) if number != page_of_entity(Tags("a").key(), 32)], 32, FOREVER_MS, SETTINGS
        )


def test_untouched_entities_pass_through_unchanged() -> None:
    """A batch that charges one entity writes the others as they were."""
    alice, bob = Tags("alice"), Tags("bob")
    both = charged(
        (alice, QuotaKind.PRODUCER_BYTE_RATE, 1.0, 0.1, 5), (bob, QuotaKind.CONTROLLER_MUTATION_RATE, 1, 7, 9)
    )
    stored = bytes_of(both)

    later = Pages.from_bytes([stored], 1)
    later.counters(alice.key()).charge(Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 1.0, False, [3.0]), 6, SETTINGS)
    read = Pages.from_bytes([bytes_of(later)], 1)

    assert contents(read.counters(bob.key())) == contents(both.counters(bob.key()))
    assert read.counters(alice.key()).rates[QuotaKind.PRODUCER_BYTE_RATE].values == [3.1]


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
        Pages.from_bytes([harm(stored)], pages)


def test_an_idle_entity_is_forgotten_after_an_hour_and_not_before() -> None:
    """Kafka's 3600 s, counted from the newest event of the page."""
    hour_ms = 3_600_000
    for newest_ms, expected in ((hour_ms, 2), (hour_ms + 1, 1)):
        page = charged(
            (Tags("idle"), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, 0),
            (Tags("busy"), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, newest_ms),
        )

        keys, _ = decode([bytes_of(page, hour_ms)], 1)

        assert len(keys) == expected


def test_an_unpaid_deficit_is_never_forgiven_by_idling() -> None:
    """Q=1, burst 11, charge 10 010: 9999 s to pay. Shipped Kafka forgives it after 3600 s."""
    debtor, busy = Tags("debtor"), Tags("busy")
    for newest_s, remembered in ((9_000, True), (10_020, False)):
        page = charged(
            (debtor, QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, 10_010.0, 0),
            (busy, QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, 1.0, newest_s * 1000),
        )

        keys, _ = decode([bytes_of(page, 3_600_000)], 1)

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


@given(charges=LIVELY, part=st.integers(1, 8), amount=st.sampled_from([1.0, 30.0]))
def test_an_entity_at_rest_that_leaves_early_changes_no_decision(
    charges: list[PageCharge], part: int, amount: float
) -> None:
    """Nobody can tell by any later charge, unless more entities than a page's part owe something."""
    charges = sorted(charges, key=lambda charge: charge[-1])
    full, bounded, newest_ms = charged(*charges), charged(*charges), charges[-1][-1]
    stored = bytes_of(full)
    (small,) = bounded.to_bytes([0], 1, FOREVER_MS, SETTINGS, part)
    kept, left = decode([small], 1)[0], decode([stored], 1)[0]

    assert len(kept) == min(part, len(left))
    assert sum(bounded.evicted) == len(left) - len(kept)
    if bounded.evicted.owing:
        return
    for tags, kind, limit, *_ in charges:
        charge = Charge(kind, "user", limit, False, [amount])
        after = [
            Pages.from_bytes([payload], 1).counters(tags.key()).charge(charge, newest_ms, SETTINGS)
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

    for part, kept, evicted in (
        (4, {debtor, old, rested, young}, (0, 0)),
        (3, {debtor, rested, young}, (1, 0)),
        (2, {debtor, young}, (2, 0)),
        (1, {debtor}, (2, 1)),
    ):
        counters = charged(*page)
        keys, _ = decode(counters.to_bytes([0], 1, FOREVER_MS, SETTINGS, part), 1)

        assert (set(keys), counters.evicted) == ({tags.key() for tags in kept}, evicted)


def test_the_page_of_an_entity_is_the_same_in_every_release() -> None:
    """State is found by it: these numbers may never change."""
    assert [page_of_entity(key, 32) for key in ("alice|app", "|", "topic:orders|3")] == [27, 26, 18]


def test_no_bucket_is_stored_for_an_entity_that_never_mutated() -> None:
    """NaN tokens stand for "no bucket"."""
    page = charged((Tags("a"), QuotaKind.PRODUCER_BYTE_RATE, 1.0, 1.0, 0))

    columns = columns_of([page.counters(Tags("a").key())])

    assert math.isnan(columns.bucket_tokens[0])
    assert Pages.from_bytes([bytes_of(page)], 1).counters(Tags("a").key()).bucket is None
