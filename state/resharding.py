"""Sharing out stored counters among another number of shards; no counter is changed."""

from collections.abc import Iterable, Iterator

import numpy as np

from state.codec import RING_COLUMNS, SAMPLE_COLUMNS, Columns, Integers, empty_columns
from state.shard import shard_of


def reshard(stored: Iterable[tuple[list[str], Columns]], shards: int) -> Iterator[tuple[int, list[str], Columns]]:
    """Number, keys and columns of each of the new shards that has entities; `stored` are those of the old ones."""
    keys, columns = _joined(stored)
    numbers = np.fromiter((shard_of(key, shards) for key in keys), np.int64, len(keys))
    order = np.argsort(numbers, kind="stable")
    columns = _taken(columns, order)
    entity_ends = np.searchsorted(numbers[order], np.arange(shards), side="right")
    ring_ends = _ends(columns.ring_counts)[entity_ends]
    sample_ends = _ends(columns.sample_counts)[ring_ends]
    first = (0, 0, 0)
    for number, last in enumerate(zip(entity_ends.tolist(), ring_ends.tolist(), sample_ends.tolist(), strict=True)):
        if last[0] > first[0]:
            yield number, [keys[row] for row in order[first[0] : last[0]]], _between(columns, first, last)
        first = last


def _joined(stored: Iterable[tuple[list[str], Columns]]) -> tuple[list[str], Columns]:
    """Keys and columns of all shards, one after the other."""
    keys: list[str] = []
    parts = [empty_columns()]
    for shard_keys, columns in stored:
        keys += shard_keys
        parts.append(columns)
    return keys, Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in Columns.__slots__))


def _taken(columns: Columns, entities: Integers) -> Columns:
    """The columns of these entities, in this order."""
    rings = _children(columns.ring_counts, entities)
    samples = _children(columns.sample_counts, rings)
    return _each_table(columns, entities, rings, samples)


def _between(columns: Columns, first: tuple[int, int, int], last: tuple[int, int, int]) -> Columns:
    """The columns from the first entity, ring and sample to before the last ones."""
    entities, rings, samples = map(slice, first, last)
    return _each_table(columns, entities, rings, samples)


def _each_table(
    columns: Columns, entities: Integers | slice, rings: Integers | slice, samples: Integers | slice
) -> Columns:
    rows = dict.fromkeys(RING_COLUMNS, rings) | dict.fromkeys(SAMPLE_COLUMNS, samples)
    return Columns(*(getattr(columns, name)[rows.get(name, entities)] for name in Columns.__slots__))


def _children(counts: Integers, parents: Integers) -> Integers:
    """The rows of the next table that belong to these parents, of which each has `counts` in a row."""
    wanted = counts[parents]
    shifts = _ends(counts)[parents] - _ends(wanted)[:-1]
    return np.repeat(shifts, wanted) + np.arange(wanted.sum())


def _ends(counts: Integers) -> Integers:
    """Where each parent's rows end in the next table, after a 0; so, too, where those of the following one begin."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
