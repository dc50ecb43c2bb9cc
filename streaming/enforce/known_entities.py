"""How many entities the pages hold, told to the driver by the tasks that charge them.

A Spark accumulator carries it: a few bytes at the end of each task, and no further column or job.
"""

from typing import TYPE_CHECKING, NamedTuple

from pyspark.accumulators import AccumulatorParam

from sluice.state.store.pages import Evicted

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator


class Known(NamedTuple):
    """The number of entities by Spark key of their page, and how many were evicted."""

    by_page: dict[int, int]
    evicted: Evicted = Evicted()

    def total(self) -> int:
        """The entities of all pages that were charged since the process started.

        >>> Known({3: 10, 5: 2}).total()
        12
        """
        return sum(list(self.by_page.values()))


class _NewestByPage(AccumulatorParam[Known]):
    """Keeps the newest number of each page. A micro-batch charges a page once, and they run one after another.

    Evictions add up. A task that runs again counts its own again.
    """

    def zero(self, value: Known) -> Known:  # noqa: ARG002 - Spark's interface
        return Known({})

    def addInPlace(self, value1: Known, value2: Known) -> Known:  # noqa: N802 - as above
        value1.by_page.update(value2.by_page)
        return Known(value1.by_page, value1.evicted.plus(value2.evicted))


def known_entities(context: "SparkContext") -> "Accumulator[Known]":
    """An accumulator for tasks to add to, and for the driver to read."""
    return context.accumulator(Known({}), _NewestByPage())
