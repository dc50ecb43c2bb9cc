"""Stored counters distributed over another number of pages."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.state.store.codec import decode
from sluice.state.store.pages import page_of_entity, reshard
from tests.stored_pages import PageCharge, bits, charges, stored


@given(charge_list=charges, before=st.integers(1, 9), after=st.integers(1, 9))
def test_every_entity_keeps_its_counters_bit_for_bit(charge_list: list[PageCharge], before: int, after: int) -> None:
    """With any numbers of pages; and each entity is where the job will look for it."""
    old_pages = stored(charge_list, before)
    expected = bits(old_pages.values(), before)

    found: dict[str, bytes] = {}
    for number, payload in reshard(old_pages, before, after).items():
        keys = decode(payload, after)
        assert keys
        assert {page_of_entity(key, after) for key in keys} == {number}
        assert not found.keys() & keys.keys()
        found |= bits([payload], after)

    assert found == expected
