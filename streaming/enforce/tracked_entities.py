"""The number of entities that the pages hold, told to the driver by the tasks that charge them.

A Spark accumulator carries it: a few bytes at the end of each task, and no further column or job.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pyspark.accumulators import AccumulatorParam

from sluice.state.store.pages import Evicted

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

log = logging.getLogger("sluice.job")


class Tracked(NamedTuple):
    """The number of entities by Spark key of their page, and the numbers of those that were evicted.

    `dropped` counts records of sums that are larger than their topic takes.
    """

    by_page: dict[int, int]
    evicted: Evicted = Evicted()
    dropped: int = 0

    def total(self) -> int:
        """The entities of all pages that were charged since the process started.

        >>> Tracked({3: 10, 5: 2}).total()
        12
        """
        return sum(list(self.by_page.values()))


class NewestByPage(AccumulatorParam[Tracked]):
    """Keeps the newest number of each page. A micro-batch charges a page once, and they run one after another.

    Evictions and dropped records add up. A task that runs again counts its own again.
    """

    def zero(self, value: Tracked) -> Tracked:  # noqa: ARG002 - Spark's interface
        return Tracked({})

    def addInPlace(self, value1: Tracked, value2: Tracked) -> Tracked:  # noqa: N802 - as above
        value1.by_page.update(value2.by_page)
        dropped = value1.dropped + value2.dropped
        return Tracked(value1.by_page, value1.evicted.plus(value2.evicted), dropped)


def tracked_entities(context: "SparkContext") -> "Accumulator[Tracked]":
    """An accumulator for tasks to add to, and for the driver to read."""
    return context.accumulator(Tracked({}), NewestByPage())


class EntitiesReport:
    """Reports the numbers of tracked and of evicted entities, and of dropped records; the first also in the log."""

    def __init__(self, max_entities: int, report: Callable[[int, Evicted, int], None]) -> None:
        self._max_entities = max_entities
        self._report = report
        self._evicted = Evicted()
        self._dropped = 0

    def report(self, tracked: Tracked) -> None:
        """Report the present numbers."""
        self._report(tracked.total(), tracked.evicted, tracked.dropped)
        before, self._evicted = self._evicted, tracked.evicted
        most = self._max_entities
        if tracked.evicted.at_rest and not before.at_rest:
            log.warning("there are more than state.max_entities = %d entities; those at rest leave early", most)
        if tracked.evicted.owing and not before.owing:
            log.error("more than state.max_entities = %d entities are active; the oldest lose their balances", most)
        if tracked.dropped and not self._dropped:
            log.error("records of sums are larger than topics.sums takes: gateways miss them, and share without them")
        self._dropped = tracked.dropped
