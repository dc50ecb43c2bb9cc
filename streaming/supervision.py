"""Keeping one query running: when it ends by itself it is started again on its checkpoint, after a pause."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Protocol

from py4j.protocol import Py4JNetworkError
from pyspark.sql.streaming.query import StreamingQuery

from configs.settings import RestartSettings
from streaming.progress import QueryProgress
from streaming.query_errors import is_lasting, reason_of

log = logging.getLogger("sluice.supervision")

_LOOK_SECONDS = 0.1
_START_SECONDS = 20.0
_DETAILS_LENGTH = 20_000


class Startable(Protocol):
    """A query that isn't started yet; it is started and stopped once."""

    def start(self) -> StreamingQuery:
        """Start it on its checkpoint."""

    def stop(self) -> None:
        """Stop it between two micro-batches."""


@dataclass(frozen=True, slots=True)
class QueryState:
    """How a query is: `starting`, `running`, `backing off`, `given up` or `stopped`; why it last ended."""

    state: str = "starting"
    restarts: int = 0
    failures_in_a_row: int = 0
    reason: str | None = None


class SupervisedQuery:
    """One query in a thread of its own, so that neither of two queries can hold up the other.

    With `gives_up` false it is started again for ever: the job does its main work without it.
    """

    def __init__(
        self, name: str, make: Callable[[], Startable], restart: RestartSettings, gives_up: bool = True
    ) -> None:
        self.name = name
        self.state = QueryState()
        self._make = make
        self._restart = restart
        self._gives_up = gives_up
        self._stopping = Event()
        self._attempted = Event()
        self._batches: list[dict[str, Any]] = []
        self._lock = Lock()
        self._thread = Thread(target=self._run, name=f"{name}-supervision", daemon=True)

    def start(self) -> None:
        """Start the query, and return when that is done or has failed once, or takes longer than a start does."""
        self._thread.start()
        self._attempted.wait(_START_SECONDS)

    def stop(self) -> None:
        """Ask the query to stop between two micro-batches; doesn't wait, not even for a pause to end."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until it is stopped."""
        if self._thread.ident is not None:
            self._thread.join()

    def new_batches(self) -> list[dict[str, Any]]:
        """A summary of each micro-batch that ended since the last call."""
        with self._lock:
            batches, self._batches = self._batches, []
        return batches

    def _run(self) -> None:
        restarts = failures = 0
        reason = None
        while not self._stopping.is_set():
            progressed, ended = self._run_once(QueryState("running", restarts, failures, reason))
            if self._stopping.is_set():
                break
            failures = 1 if progressed else failures + 1
            reason = reason_of(ended)
            details = {"fields": {"details": str(ended)[:_DETAILS_LENGTH]}}
            if self._is_last(failures, reason, ended):
                self.state = QueryState("given up", restarts, failures, reason)
                log.error("query %s ended %s and is given up: %s", self.name, times(failures), reason, extra=details)
                self._attempted.set()
                return
            pause_s = backoff_s(failures, self._restart)
            self.state = QueryState("backing off", restarts, failures, reason)
            message = "query %s ended, %s; starts again in %g s: %s"
            log.error(message, self.name, times(failures), pause_s, reason, extra=details)
            self._attempted.set()
            self._stopping.wait(pause_s)
            restarts += 1
        self.state = QueryState("stopped", restarts, failures, reason)
        self._attempted.set()

    def _run_once(self, running: QueryState) -> tuple[bool, BaseException | None]:
        """Start the query and follow it to its end: whether it got on, and the error that ended it."""
        try:
            started = self._make()
            query = started.start()
            self.state = running
            self._attempted.set()
            progressed = self._follow(query)
            if not self._stopping.is_set():
                return progressed, query.exception()
            started.stop()
        except Exception as error:  # whatever it is, the query must not be left alone with it
            return False, error
        return True, None

    def _follow(self, query: StreamingQuery) -> bool:
        """Collect its micro-batches until it ends or is to stop; whether it got on."""
        progress, progressed = QueryProgress(query), False
        while query.isActive and not self._stopping.wait(_LOOK_SECONDS):
            if not progressed and _gets_on(query):
                progressed = True
                self.state = QueryState("running", self.state.restarts, 0, self.state.reason)
            self._collect(progress.new_batches())
        self._collect(progress.new_batches())
        return progressed or query.lastProgress is not None

    def _collect(self, batches: Iterator[dict[str, Any]]) -> None:
        new = list(batches)
        with self._lock:
            self._batches += new

    def _is_last(self, failures: int, reason: str, error: BaseException | None) -> bool:
        if isinstance(error, Py4JNetworkError):  # Java is gone; only a new process brings it back
            return True
        return self._gives_up and (failures >= self._restart.max_failures or is_lasting(reason))


def backoff_s(failures: int, restart: RestartSettings) -> float:
    """The pause after so many failures in a row: doubled each time, up to the limit."""
    doublings = min(failures - 1, 31)  # more would only make a huge number
    return float(min(restart.backoff_ms * 2**doublings, restart.max_backoff_ms)) / 1000.0


def _gets_on(query: StreamingQuery) -> bool:
    """Whether a micro-batch was committed, or there is nothing to do."""
    return query.lastProgress is not None or query.status["message"].startswith("Waiting for")


def times(failures: int) -> str:
    """How often, in words."""
    return "once" if failures == 1 else f"{failures} times in a row"
