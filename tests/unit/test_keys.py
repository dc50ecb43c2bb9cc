"""The keys of stored pages are found, kept and added without making a text of each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.store.keys import KeyBlocks, Keys, key_hash

PAGES = 3
texts = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=6)
key_sets = st.lists(texts, unique=True, max_size=20)


def pages_with(keys: list[str]) -> list[list[str]]:
    """The keys of each page."""
    return [[key for key in keys if key_hash(key.encode()) % PAGES == page] for page in range(PAGES)]


def blocks_of(pages: list[list[str]]) -> KeyBlocks:
    return KeyBlocks(["\n".join(keys).encode() for keys in pages], np.array([len(keys) for keys in pages]))


@given(stored=key_sets, others=key_sets, of_key=st.sampled_from([0, 4]), scanned_bytes=st.sampled_from([0, 2**31]))
def test_a_key_is_found_if_it_is_stored(stored: list[str], others: list[str], of_key: int, scanned_bytes: int) -> None:
    """By its number in the order of the pages; also one that is a part of others, whether few keys or many are wanted.

    In small pages and large ones.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.state.store.keys._STORED_OF_KEY", of_key)
        patch.setattr("sluice.state.store.keys._SCANNED_BYTES", scanned_bytes)
        pages = pages_with(stored)
        in_order = [key for keys in pages for key in keys]

        found = Keys(blocks_of(pages), PAGES).find([*stored, *others])

    assert found == {key: in_order.index(key) for key in stored}


@given(stored=key_sets, new=key_sets, data=st.data())
def test_kept_and_added_keys_make_the_blocks_of_their_pages(
    stored: list[str], new: list[str], data: st.DataObject
) -> None:
    """Those that were stored first, in their order; without those that are left out."""
    new = [key for key in new if key not in stored]
    pages = pages_with(stored)
    keys = Keys(blocks_of(pages), PAGES)
    names = [key for of_page in pages for key in of_page] + new
    numbers = np.concatenate([np.arange(len(stored)), keys.add(new)])
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names))), np.bool_)

    page_numbers = keys.pages_of(numbers, PAGES)
    rows = np.lexsort((numbers, page_numbers))
    rows = rows[kept[rows]]
    ends = np.searchsorted(page_numbers[rows], np.arange(PAGES), side="right")

    expected = pages_with([name for name, keep in zip(names, kept.tolist(), strict=True) if keep])
    assert keys.blocks(numbers[rows], ends) == blocks_of(expected).blocks
    assert keys.find(names) == dict(zip(names, numbers.tolist(), strict=True))


@given(stored=key_sets, new=key_sets)
def test_new_keys_rank_alike_in_whatever_order_they_come(stored: list[str], new: list[str]) -> None:
    """A repeated micro-batch may read its requests in another order, and has to forget the same entities."""
    new = [key for key in new if key not in stored]
    one, other = (Keys(blocks_of(pages_with(stored)), PAGES) for _ in range(2))

    ranks, again = one.ranks(one.add(new)), other.ranks(other.add(new[::-1]))

    assert ranks.tolist() == again[::-1].tolist()
    assert all(ranks >= len(stored))


@given(stored=key_sets, new=key_sets)
def test_keys_of_pages_that_are_split_find_their_new_ones(stored: list[str], new: list[str]) -> None:
    new = [key for key in new if key not in stored]
    pages = pages_with(stored)
    keys = Keys(blocks_of(pages), PAGES)
    numbers = np.concatenate([np.arange(len(stored)), keys.add(new)])

    names = [key for of_page in pages for key in of_page] + new
    assert keys.pages_of(numbers, 4 * PAGES).tolist() == [key_hash(name.encode()) % (4 * PAGES) for name in names]


@pytest.mark.parametrize(
    ("block", "count"), [(b"a|\nb|", 1), (b"a|", 2), (b"", 2), (b"a|", 0), (b"\xff|", 1)], ids=repr
)
def test_damaged_blocks_are_refused(block: bytes, count: int) -> None:
    """Lines and entities differ in number, or a key is no text."""
    with pytest.raises(ValueError, match=r"keys for|can't decode"):
        KeyBlocks([block], np.array([count])).check()
