"""Stored counters distributed over another number of shards."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from state.arithmetic.columns import Columns, take
from state.quotas.entity import Tags
from state.quotas.kinds import QuotaKind
from state.store.codec import decode
from state.store.resharding import reshard
from state.store.shard import shard_of_entity
from tests.unit.test_shard import FOREVER_MS, SETTINGS, charged, charges

ChargeList = list[tuple[Tags, QuotaKind, float, float, int]]


def stored(charge_list: ChargeList, shards: int) -> dict[int, bytes]:
    """The stored form of each shard that these charges touch, by number."""
    by_shard: dict[int, ChargeList] = defaultdict(list)
    for charge in charge_list:
        by_shard[shard_of_entity(charge[0].key(), shards)].append(charge)
    return {number: charged(*some).to_bytes(shards, FOREVER_MS, SETTINGS) for number, some in by_shard.items()}


def bits(keys: list[str], columns: Columns) -> dict[str, list[bytes]]:
    """Every column of every entity, to the last bit."""
    alone = {key: take(columns, np.array([row])) for row, key in enumerate(keys)}
    return {key: [getattr(one, name).tobytes() for name in Columns.__slots__] for key, one in alone.items()}


@given(charge_list=charges, before=st.integers(1, 9), after=st.integers(1, 9))
def test_every_entity_keeps_its_columns_bit_for_bit(charge_list: ChargeList, before: int, after: int) -> None:
    """Whatever the shard counts; and each entity is where the job will look for it."""
    decoded = [decode(payload, before) for payload in stored(charge_list, before).values()]
    expected = {key: columns for shard in decoded for key, columns in bits(*shard).items()}

    found: dict[str, list[bytes]] = {}
    for number, keys, columns in reshard(decoded, after):
        assert keys
        assert {shard_of_entity(key, after) for key in keys} == {number}
        assert not found.keys() & set(keys)
        found |= bits(keys, columns)

    assert found == expected
