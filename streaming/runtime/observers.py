"""Observers: extras that look at the newest decisions, and give metrics to the job's `/metrics`.

An extra names a factory in the entry points of the group `sluice.observers`: it takes the job's Settings and returns an
Observer.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sluice.configs.settings import Settings

NEWEST_DECISIONS = 2_000
"""Most decisions that are read at a time. A client that sends much is among the newest, and reading all costs more."""

_ENTRY_POINTS = "sluice.observers"

log = logging.getLogger("sluice.observers")


class Observer(Collector, ABC):
    """A reader of the newest decisions, a few thousand at a time, that gives metrics of them.

    The job calls `on_record` in one thread, and `collect` in those that answer scrapes: each has to return soon, and to
    touch nothing of the job. One that raises is left out from then on, which the log says.
    """

    def __init__(self) -> None:
        self.is_stale: Callable[[int], bool] = lambda _: False
        """True at an epoch time in ms at which the job's newest decisions are old: figures would be of then, or 0."""

    @abstractmethod
    def on_record(self, value: bytes | None) -> None:
        """Take the value of a record of the decisions topic, which may hold no decision."""

    def describe(self) -> Iterable[Metric]:
        """The metrics without values."""
        return ()


class Guarded(Collector):
    """An observer that can't harm the job: at its first error it is left out."""

    def __init__(self, name: str, observer: Observer) -> None:
        self._name = name
        self._observer: Observer | None = observer

    def watch_age(self, is_stale: Callable[[int], bool]) -> None:
        """Let the observer know when decisions are old."""
        if self._observer is not None:
            self._observer.is_stale = is_stale

    def on_record(self, value: bytes | None) -> None:
        """Give it a record."""
        if self._observer is not None:
            try:
                self._observer.on_record(value)
            except Exception:  # whatever an extra may raise
                self._leave_out()

    def collect(self) -> Iterable[Metric]:
        """Its metrics."""
        return self._metrics(lambda observer: observer.collect())

    def describe(self) -> Iterable[Metric]:
        """Its metrics without values."""
        return self._metrics(lambda observer: observer.describe())

    def _metrics(self, of: Callable[[Observer], Iterable[Metric]]) -> list[Metric]:
        try:
            return [] if self._observer is None else list(of(self._observer))
        except Exception:  # as above
            self._leave_out()
            return []

    def _leave_out(self) -> None:
        log.exception("the observer %s fails, and is left out until the job starts again", self._name)
        self._observer = None


def observers_of(settings: Settings) -> list[Guarded]:
    """The observers of all installed extras. One that can't be made is left out, and the log says why."""
    found = []
    for point in entry_points(group=_ENTRY_POINTS):
        try:
            found.append(Guarded(point.name, point.load()(settings)))
        except Exception as error:  # such as one of another release
            log.warning(
                "the observer %s can't be started (%s: %s), so /metrics lacks its figures; install the same version of"
                " its package and of sluice-kafka",
                point.name,
                type(error).__name__,
                error,
            )
    return found
