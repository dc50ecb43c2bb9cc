"""Keys of pages: one for each, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.streaming.checkpoint.page_keys import can_split, page_of_spark_key, spark_key_of_page


@given(first=st.integers(1, 65_536), data=st.data())
def test_every_page_has_a_key_of_32_bits_that_leads_back_to_it(first: int, data: st.DataObject) -> None:
    """Murmur3 of a single int loses nothing."""
    page = data.draw(st.integers(0, 24 * first - 1))

    assert -(2**31) <= spark_key_of_page(page, first) < 2**31
    assert page_of_spark_key(spark_key_of_page(page, first), first) == page


@given(page=st.integers(0, 255), first=st.integers(256, 65_536))
def test_keys_of_a_checkpoint_whose_pages_are_not_split_never_change(page: int, first: int) -> None:
    assert spark_key_of_page(page, first) == spark_key_of_page(page, 256)


@pytest.mark.parametrize("partitions", [*range(1, 17), 18, 20, 24, 28, 30, 32, 36, 40, 48, 64])
def test_split_pages_stay_in_their_partition(partitions: int) -> None:
    assert can_split(partitions)
