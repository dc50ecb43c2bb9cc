"""Keys of shards: one for each, and back."""

import doctest

from hypothesis import given
from hypothesis import strategies as st

from streaming.checkpoint import shard_keys
from streaming.checkpoint.shard_keys import shard_of_spark_key, spark_key_of_shard


@given(st.integers(0, 2**32 - 1))
def test_every_shard_has_a_key_of_32_bits_that_leads_back_to_it(shard: int) -> None:
    """Murmur3 of a single int loses nothing."""
    assert -(2**31) <= spark_key_of_shard(shard) < 2**31
    assert shard_of_spark_key(spark_key_of_shard(shard)) == shard


def test_worked_examples_hold() -> None:
    """What the docstrings claim."""
    results = doctest.testmod(shard_keys)
    assert results.attempted == 2
    assert results.failed == 0
