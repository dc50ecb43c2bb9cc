"""Keys of shards: one for each, and back."""

import doctest

from hypothesis import given
from hypothesis import strategies as st

from streaming import shard_keys
from streaming.shard_keys import key_of, shard_at


@given(st.integers(0, 2**32 - 1))
def test_every_shard_has_a_key_of_32_bits_that_leads_back_to_it(shard: int) -> None:
    """Murmur3 of a single int loses nothing."""
    assert -(2**31) <= key_of(shard) < 2**31
    assert shard_at(key_of(shard)) == shard


def test_worked_examples_hold() -> None:
    """What the docstrings claim."""
    results = doctest.testmod(shard_keys)
    assert results.attempted == 2
    assert results.failed == 0
