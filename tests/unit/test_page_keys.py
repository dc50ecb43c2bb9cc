"""Keys of pages: one for each, and back."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.streaming.checkpoint.page_keys import page_of_spark_key, spark_key_of_page


@given(st.integers(0, 2**32 - 1))
def test_every_page_has_a_key_of_32_bits_that_leads_back_to_it(page: int) -> None:
    """Murmur3 of a single int loses nothing."""
    assert -(2**31) <= spark_key_of_page(page) < 2**31
    assert page_of_spark_key(spark_key_of_page(page)) == page
