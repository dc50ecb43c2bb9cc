"""Keeping one query running: a query that ends by itself is started again on its checkpoint, after a pause.

Its progress is a summary of each micro-batch.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event, Lock, Thread
from typing import Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from sluice.configs.settings import RestartSettings
from sluice.process.format import error_line
from sluice.state.errors import SluiceError
from sluice.streaming.errors import BrokenProcessError
from sluice.streaming.java_bridge import newest_reports
from sluice.streaming.queries.reasons import Cause, Place, QueryState, Reason, RunState, reason_of

log = logging.getLogger("sluice.supervision")

_POLL_S = 0.1
_START_TIMEOUT_S = 20.0
_TURN_TIMEOUT_S = 120.0
"""Longest wait of a query for the one that it starts after."""

_MAX_DETAILS_LENGTH = 20_000

NewestReports = Callable[[StreamingQuery, int], list[StreamingQueryProgress]]
"""Reads Spark's reports on the micro-batches after a number."""


class QueryProgress:
    """The micro-batches of one query."""

    def __init__(self, query: StreamingQuery, newest_reports: NewestReports = newest_reports) -> None:
        self.newest_at: str | None = None
        """Time of Spark's newest report, None before the first. An idle query has one about every 10 s."""
        self._query, self._newest_reports = query, newest_reports
        self._last_batch_id = -1

    def new_batches(self) -> Iterator[dict[str, Any]]:
        """A summary of each micro-batch that had events and ended since the last call."""
        newest = self._query.lastProgress
        if newest is None or newest["timestamp"] == self.newest_at:
            return
        self.newest_at = newest["timestamp"]
        missed = newest["batchId"] > self._last_batch_id + 1
        for progress in self._newest_reports(self._query, self._last_batch_id) if missed else [newest]:
            # An idle query's reports have the number of the micro-batch that comes next.
            if progress["numInputRows"] and progress["batchId"] > self._last_batch_id:
                self._last_batch_id = progress["batchId"]
                yield summarize(progress)


def summarize(progress: Any) -> dict[str, Any]:
    """The numbers of Spark's progress report that the job publishes; `lag` counts the events not yet read."""
    source = progress["sources"][0]
    return {
        "query": progress["name"],
        "batch_id": progress["batchId"],
        "started_at": progress["timestamp"],
        "events": progress["numInputRows"],
        "batch_ms": progress["durationMs"].get("triggerExecution"),
        "stages_ms": dict(progress["durationMs"]),
        "lag": _lag(source),
    }


def _lag(source: Any) -> int:
    """Events in the source's topics after the batch's end; 0 for a repeated batch, for which Spark doesn't know it."""
    latest, end = (json.loads(source[name] or "null") or {} for name in ("latestOffset", "endOffset"))
    return sum(
        offset - end.get(topic, {}).get(partition, 0)
        for topic, offsets in latest.items()
        for partition, offset in offsets.items()
    )


class Startable(Protocol):
    """A query that isn't started yet. It is started once and stopped once."""

    error: SluiceError | None
    """The error of Sluice's own that has ended it."""

    def start(self) -> StreamingQuery:
        """Start it on its checkpoint."""

    def stop(self) -> None:
        """Stop it between two micro-batches."""


class SupervisedQuery:
    """Keeps one query running. Each query has its own thread, so one can't block the other.

    With `gives_up` false it is restarted without limit, because the job does its main work without it.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Startable],
        restart: RestartSettings,
        gives_up: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
        after: "SupervisedQuery | None" = None,
        check_process: Callable[[], None] = lambda: None,
    ) -> None:
        """It starts when the first trigger of the query `after` has ended, well or badly: a start takes all cores.

        `check_process` raises BrokenProcessError if this process can't run a query any more.
        """
        self.name = name
        self.state = QueryState()
        self.last_cause: Cause | None = None
        """The cause of its last end."""
        self._make = make
        self._restart = restart
        self._gives_up = gives_up
        self._check_process = check_process
        self._stopping = Event()
        self._attempted = Event()
        self._after = after
        self._first_trigger_ended = Event()
        self._progressed = False
        self._batches: list[dict[str, Any]] = []
        self._clock_s = clock_s
        self._progress_at_s = clock_s()
        self._lock = Lock()
        self._thread = Thread(target=self._run, name=f"{name}-supervision", daemon=True)

    def start(self) -> None:
        """Start it; returns when it runs or has failed once, or after 20 s. At once if it starts after another."""
        self._thread.start()
        if self._after is None:
            self._attempted.wait(_START_TIMEOUT_S)

    def stop(self) -> None:
        """Ask the query to stop between two micro-batches; returns immediately, and ends a pause."""
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

    def has_ended_a_trigger(self) -> bool:
        """True if its first trigger since the process started has ended, well or badly."""
        return self._first_trigger_ended.is_set()

    def quiet_s(self) -> float:
        """Seconds since the query started, or since Spark's last report on it: a stuck micro-batch has no report."""
        return self._clock_s() - self._progress_at_s

    def _run(self) -> None:
        self._wait_for_turn()
        restarts = failures = 0
        text: str | None = None
        place: Place | None = None
        while not self._stopping.is_set():
            state = RunState.RETRYING if failures else RunState.RUNNING
            ended = self._run_once(QueryState(state, restarts, failures, text, place))
            if self._stopping.is_set():
                break
            failures = 1 if self._progressed else failures + 1
            try:
                self._check_process()
            except BrokenProcessError as error:
                ended = error  # the cause of whatever the query has met
            reason = reason_of(ended, self.name)
            text, place, self.last_cause = reason.text, reason.place, reason.cause
            report = str(ended)[:_MAX_DETAILS_LENGTH]
            fields: dict[str, object] = {} if report in text else {"details": report}
            details = {"fields": fields | ({"place": place.known()} if place else {})}
            if self._is_last(failures, reason):
                # Without the reason: the job ends with it as its last line.
                log.error("query %s is given up", self.name, extra=details)
                self.state = QueryState(RunState.GIVEN_UP, restarts, failures, text, place)
                self._first_trigger_ended.set()
                self._attempted.set()
                return
            pause_s = backoff_s(failures, self._restart)
            self.state = QueryState(RunState.BACKING_OFF, restarts, failures, text, place)
            self._first_trigger_ended.set()
            message = "query %s ended, %s; starts again in %g s: %s"
            log.error(message, self.name, times(failures), pause_s, text, extra=details)
            self._attempted.set()
            self._stopping.wait(pause_s)
            restarts += 1
        self.state = QueryState(RunState.STOPPED, restarts, failures, text, place)
        self._attempted.set()

    def _wait_for_turn(self) -> None:
        if self._after is not None:
            deadline_s = self._clock_s() + _TURN_TIMEOUT_S
            while not self._after.has_ended_a_trigger() and self._clock_s() < deadline_s:
                if self._stopping.wait(_POLL_S):
                    return

    def _run_once(self, running: QueryState) -> BaseException | None:
        """Run the query until it ends. Returns the error that ended it, and notes whether it made progress."""
        self._progressed, started = False, None
        try:
            started = self._make()
            query = started.start()
            self.state = running
            self._attempted.set()
            self._follow(query)
            if not self._stopping.is_set():
                return started.error or query.exception()
            started.stop()
        except Exception as error:  # any error: this thread must survive to restart the query
            if started is not None:
                self._end(started)
            return error
        return None

    def _end(self, started: Startable) -> None:
        """Stop a query that may run on after an error here: the next start would be beside it, on its checkpoint."""
        try:
            started.stop()
        except Exception as error:  # any error: the next start finds what is left of it
            log.warning("query %s can't be stopped: %s", self.name, error_line(error))

    def _follow(self, query: StreamingQuery) -> None:
        """Collect its micro-batches until it ends or is to stop."""
        progress = QueryProgress(query)
        self._progress_at_s = self._clock_s()
        while query.isActive and not self._stopping.wait(_POLL_S):
            self._note_progress(query)
            self._collect(progress)
        self._collect(progress)
        self._note_progress(query)

    def _note_progress(self, query: StreamingQuery) -> None:
        # Spark reports progress for a query's first trigger, even one without data
        if not self._progressed and query.lastProgress is not None:
            self._progressed = True
            self._first_trigger_ended.set()
            self.state = replace(self.state, state=RunState.RUNNING, failures_in_a_row=0)

    def _collect(self, progress: QueryProgress) -> None:
        known_at = progress.newest_at
        new = list(progress.new_batches())
        if progress.newest_at != known_at:
            self._progress_at_s = self._clock_s()
        with self._lock:
            self._batches += new

    def _is_last(self, failures: int, reason: Reason) -> bool:
        if reason.cause is Cause.PROCESS_BROKEN:
            return True
        too_often = failures >= self._restart.max_failures and reason.cause is not Cause.NO_ROOM
        return self._gives_up and (too_often or reason.cause.is_lasting)


def backoff_s(failures: int, restart: RestartSettings) -> float:
    """The pause in seconds after `failures` failures in a row: doubled each time, up to the limit."""
    doublings = min(failures - 1, 31)  # the limit is reached long before; no huge numbers
    return float(min(restart.backoff_ms * 2**doublings, restart.max_backoff_ms)) / 1000.0


def times(failures: int) -> str:
    """The number of failures in words."""
    return "once" if failures == 1 else f"{failures} times in a row"
