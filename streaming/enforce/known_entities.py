"""How many entities the shards hold, told to the driver by the tasks that charge them.

A Spark accumulator carries it: a few bytes at the end of each task, and no further column or job.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

EntitiesByShard = dict[int, int]
"""Number of entities by Spark key of their shard."""


class _NewestByShard(AccumulatorParam[EntitiesByShard]):
    """Keeps the newest number of each shard. A micro-batch charges a shard once, and they run one after another."""

    def zero(self, value: EntitiesByShard) -> EntitiesByShard:  # noqa: ARG002 - Spark's interface
        return {}

    def addInPlace(self, value1: EntitiesByShard, value2: EntitiesByShard) -> EntitiesByShard:  # noqa: N802 - as above
        value1.update(value2)
        return value1


def known_entities(context: "SparkContext") -> "Accumulator[EntitiesByShard]":
    """An accumulator for tasks to add to, and for the driver to read."""
    return context.accumulator({}, _NewestByShard())


def total(by_shard: Mapping[int, int]) -> int:
    """The entities of all shards that were charged since the process started.

    >>> total({3: 10, 5: 2})
    12
    """
    return sum(list(by_shard.values()))
