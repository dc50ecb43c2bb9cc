"""Stored counters distributed over another number of pages."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.columns import Columns, take
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.store.codec import decode
from sluice.state.store.pages import page_of_entity, reshard
from tests.unit.test_pages import FOREVER_MS, SETTINGS, charged, charges

ChargeList = list[tuple[Tags, QuotaKind, float, float, int]]


def stored(charge_list: ChargeList, pages: int) -> dict[int, bytes]:
    """The stored form of each page that these charges touch, by number."""
    by_page: dict[int, ChargeList] = defaultdict(list)
    for charge in charge_list:
        by_page[page_of_entity(charge[0].key(), pages)].append(charge)
    return {
        number: charged(*some).to_bytes([number], pages, FOREVER_MS, SETTINGS)[0] for number, some in by_page.items()
    }


def bits(keys: list[str], columns: Columns) -> dict[str, list[bytes]]:
    """Every column of every entity, to the last bit."""
    alone = {key: take(columns, np.array([row])) for row, key in enumerate(keys)}
    return {key: [getattr(one, name).tobytes() for name in Columns.__slots__] for key, one in alone.items()}


@given(charge_list=charges, before=st.integers(1, 9), after=st.integers(1, 9))
def test_every_entity_keeps_its_columns_bit_for_bit(charge_list: ChargeList, before: int, after: int) -> None:
    """Whatever the page counts; and each entity is where the job will look for it."""
    old_pages = stored(charge_list, before).values()
    expected = bits(*decode(old_pages, before))

    found: dict[str, list[bytes]] = {}
    for number, payload in reshard(old_pages, before, after).items():
        keys, columns = decode([payload], after)
        assert keys
        assert {page_of_entity(key, after) for key in keys} == {number}
        assert not found.keys() & set(keys)
        found |= bits(keys, columns)

    assert found == expected
