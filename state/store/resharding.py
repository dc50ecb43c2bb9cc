"""Distributes stored counters over another number of shards. No counter is changed."""

from collections.abc import Iterable, Iterator

import numpy as np

from state.arithmetic.columns import Columns, concatenate, empty_columns, integers, split, take
from state.store.shard import shard_of_entity


def reshard(stored: Iterable[tuple[list[str], Columns]], shards: int) -> Iterator[tuple[int, list[str], Columns]]:
    """Number, keys and columns of each new shard that has entities. `stored` are keys and columns of the old shards."""
    keys: list[str] = []
    parts = [empty_columns()]
    for shard_keys, columns in stored:
        keys += shard_keys
        parts.append(columns)
    numbers = integers(shard_of_entity(key, shards) for key in keys)
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(shards), side="right")
    first = 0
    for number, columns in enumerate(split(take(concatenate(parts), order), ends)):
        last = first + len(columns.last_event_ms)
        if last > first:
            yield number, [keys[row] for row in order[first:last]], columns
        first = last
