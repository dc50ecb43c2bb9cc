"""How many entities the pages hold, told to the driver by the tasks that charge them.

A Spark accumulator carries it: a few bytes at the end of each task, and no further column or job.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

EntitiesByPage = dict[int, int]
"""Number of entities by Spark key of their page."""


class _NewestByPage(AccumulatorParam[EntitiesByPage]):
    """Keeps the newest number of each page. A micro-batch charges a page once, and they run one after another."""

    def zero(self, value: EntitiesByPage) -> EntitiesByPage:  # noqa: ARG002 - Spark's interface
        return {}

    def addInPlace(self, value1: EntitiesByPage, value2: EntitiesByPage) -> EntitiesByPage:  # noqa: N802 - as above
        value1.update(value2)
        return value1


def known_entities(context: "SparkContext") -> "Accumulator[EntitiesByPage]":
    """An accumulator for tasks to add to, and for the driver to read."""
    return context.accumulator({}, _NewestByPage())


def total(by_page: Mapping[int, int]) -> int:
    """The entities of all pages that were charged since the process started.

    >>> total({3: 10, 5: 2})
    12
    """
    return sum(list(by_page.values()))
