"""State of the job for people and tools: health checks and metrics over HTTP, the status file, and the log.

The HTTP server is on loopback unless another address is set.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sluice.process.clock import now_ms
from sluice.process.http_server import HttpServer
from sluice.state.store.pages import Evicted
from sluice.state.troubles import Facts, JobSeen, Trouble, troubles_of
from sluice.streaming.queries.reasons import QueryState, RunState
from sluice.streaming.runtime.troubles import TroublesMetric
from sluice.streaming.workers.engine_start import PYTHON_INSTEAD

log = logging.getLogger("sluice.job")

MAX_CONNECTIONS = 32
"""Callers at a time; a further one closes the connection that has been idle for longest."""

_FOREIGN_FOR_S = 300.0
"""Decisions of another job are a trouble for so long after the newest: it ends without a restart of this job."""

_MAX_HEARTBEAT_AGE_S = 30.0
_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_CURE = (
    "set health.port to a free port, or 0 for none, and health.address to an address of this machine: 127.0.0.1 for"
    " this machine alone, 0.0.0.0 for all"
)


class JobHealth:
    """The last known state of the job's queries, and the job's metrics since the process started."""

    def __init__(self, required_query: str, stalled_after_s: float) -> None:
        """The job is ready while `required_query` runs. Quiet for `stalled_after_s` it is stuck; 0 is never."""
        self.registry = CollectorRegistry()
        self._required_query = required_query
        self._stalled_after_s = stalled_after_s
        self._quiet_s = 0.0
        self._waits_for: str | None = None
        self._queries: dict[str, QueryState] = {}
        self._heartbeat_at_s: float | None = None
        self._phase: str | None = None
        self._step_at_s: float | None = time.monotonic()
        self._foreign: dict[str, Any] = {"count": 0, "jobs": []}
        self._foreign_until_s = 0.0
        self._mirror: dict[str, Any] | None = None
        self._inputs: dict[str, str | None] = {}
        self._is_native_missing = False
        self._facts: Callable[[], Facts] = Facts
        self.registry.register(TroublesMetric(self.troubles))
        self._batches = Histogram(
            "sluice_batch_seconds", "Durations of micro-batches", ["query"], registry=self.registry, buckets=_BUCKETS_S
        )
        self._events = Counter(
            "sluice_events",
            "Records read: requests by enforce, decisions and dead letters by audit",
            ["query"],
            registry=self.registry,
        )
        self._dead_letters = Counter(
            "sluice_dead_letters", "Dead letters written since the process started", registry=self.registry
        )
        self._lag = self._gauge("sluice_lag_events", "Records not yet read", "query")
        self._up = self._gauge("sluice_query_up", "1 while the query runs and, if it is enforce, may decide", "query")
        self._restarts = self._gauge(
            "sluice_query_restarts", "Restarts of the query since the process started", "query"
        )
        self._foreign_decisions = self._gauge(
            "sluice_foreign_decisions", "Decisions of other jobs among the newest, since the process started"
        )
        self._known_entities = self._gauge(
            "sluice_known_entities", "Entities with stored counters, in the pages charged since the process started"
        )
        self._evicted_entities = self._gauge(
            "sluice_evicted_entities",
            "Entities forgotten beyond state.max_entities: at_rest, and owing, which start over",
            "kind",
        )
        self._dropped_records = self._gauge(
            "sluice_dropped_records", "Records of sums since the start that are larger than their topic takes"
        )
        self._native_missing = self._gauge(
            "sluice_native_missing",
            "1 if enforce.native is true and the driver can't use native code: Python decides, slower",
        )
        # with a label, a job that mirrors nothing has no value: an alert on 0 must not see it
        self._mirror_up = self._gauge(
            "sluice_quota_mirror_up",
            "1 while the cluster's quotas are mirrored; absent with quotas.source: table",
            "source",
        )
        self._left_out = self._gauge("sluice_quotas_left_out", "Quotas of the cluster that Sluice can't take", "source")
        self._input_up = self._gauge(
            "sluice_input_up", "1 while it can be read, or overrides written; 0: the last stay in force", "input"
        )
        self._quota_version = self._gauge("sluice_quota_version", "Version of the quotas in force")
        self._up.labels(required_query).set(0)  # an alert on 0 must see a job that can't start too

    def count_batch(self, batch: Mapping[str, Any]) -> None:
        """Count a micro-batch, given as `progress.summarize` returns it."""
        query = batch["query"]
        if query == self._required_query:
            self._step_at_s = None
        self._batches.labels(query).observe((batch["batch_ms"] or 0) / 1000.0)
        self._events.labels(query).inc(batch["events"])
        self._lag.labels(query).set(batch["lag"])

    def heartbeat(
        self, queries: Mapping[str, QueryState], quota_version: int, quiet_s: float = 0.0, waits_for: str | None = None
    ) -> None:
        """Report the states of the queries; without a report for 30 s the job counts as dead.

        `quiet_s` are the seconds since Spark last reported on the required query. `waits_for` says in words why that
        one decides nothing now, though Spark runs it.
        """
        self._queries = dict(queries)
        self._quiet_s = quiet_s
        self._waits_for = waits_for
        self._heartbeat_at_s = time.monotonic()
        self._quota_version.set(quota_version)
        for name, query in queries.items():
            waits = waits_for is not None and name == self._required_query
            self._up.labels(name).set(query.state is RunState.RUNNING and not waits)
            self._restarts.labels(name).set(query.restarts)

    def report_foreign(self, count: int, jobs: Sequence[str]) -> None:
        """Report the decisions of other jobs that were seen on the decisions topic, and the ids of those jobs."""
        if count > self._foreign["count"]:
            self._foreign_until_s = time.monotonic() + _FOREIGN_FOR_S
        self._foreign = {"count": count, "jobs": list(jobs)}
        self._foreign_decisions.set(count)

    def count_dead_letters(self, count: int) -> None:
        """Count dead letters that were written."""
        self._dead_letters.inc(count)

    def report_known(self, entities: int, evicted: Evicted, dropped: int = 0) -> None:
        """Report the number of entities with stored counters, of those that were evicted, and of dropped records."""
        self._known_entities.set(entities)
        self._dropped_records.set(dropped)
        for kind, count in evicted._asdict().items():
            self._evicted_entities.labels(kind).set(count)

    def report_mirror(self, reason: str | None, left_out: int) -> None:
        """Report the reason why the cluster's quotas are not mirrored, None if they are, and the number left out."""
        self._mirror = {"ok": reason is None, "reason": reason, "left_out": left_out}
        self._mirror_up.labels("kafka").set(reason is None)
        self._left_out.labels("kafka").set(left_out)

    def report_input(self, name: str, reason: str | None) -> None:
        """Report the reason why an input beside the requests can't be read, or a table written; None if it can."""
        self._inputs[name] = reason
        self._input_up.labels(name).set(reason is None)

    def report_native(self, *, missing: bool) -> None:
        """Report whether native code is wanted and can't be used."""
        self._is_native_missing = missing
        self._native_missing.set(missing)

    def report_facts(self, facts: Callable[[], Facts]) -> None:
        """Take the facts of topics, brokers and overrides from here."""
        self._facts = facts

    def troubles(self) -> list[Trouble]:
        """All that is wrong now, as far as the job knows."""
        mirror = self._mirror or {}
        facts = replace(
            self._facts(),
            job=JobSeen(answers=True, step_ms=self._step_ms()),
            queries=self._query_reasons(),
            foreign=self._foreign["jobs"] if time.monotonic() < self._foreign_until_s else None,
            inputs=self._inputs.copy(),
            mirror=None if mirror.get("ok", True) else mirror["reason"],
            native=PYTHON_INSTEAD if self._is_native_missing else None,
        )
        return troubles_of(facts, now_ms())

    def _query_reasons(self) -> dict[str, str | None] | None:
        """Why each query doesn't run; None while the job starts or stops, which is no trouble."""
        if self._phase is not None:
            return None
        down = RunState.BACKING_OFF, RunState.RETRYING, RunState.GIVEN_UP
        reasons = {
            name: f"is {query.state}" + (f": {query.reason}" if query.reason else "") if query.state in down else None
            for name, query in self._queries.items()
        }
        if stands := self._dead_reason() or self._waits_for:
            reasons[self._required_query] = reasons.get(self._required_query) or f"decides nothing: {stands}"
        return reasons

    def report_phase(self, phase: str | None) -> None:
        """Report the phase before the queries run and after, in words; None while they run."""
        self._phase, self._step_at_s = phase, self._step_at_s if phase is None else None

    def report_step(self, phase: str) -> None:
        """Report the next step of the start, in words."""
        self._phase, self._step_at_s = phase, time.monotonic()

    def _step_ms(self) -> int | None:
        return None if (at_s := self._step_at_s) is None else int((time.monotonic() - at_s) * 1000)

    def alive(self) -> bool:
        """True while the process works, and while it starts, stops, or waits to start a query again."""
        return self._dead_reason() is None

    def unready_reason(self) -> str | None:
        """The reason why requests are not decided now; None if they are, for which the required query is enough."""
        if self._phase is not None:
            return self._phase
        if dead := self._dead_reason():
            return dead
        required = self._queries.get(self._required_query)
        if required is None:
            return "starting"
        if required.state is RunState.RUNNING:
            return self._waits_for
        return f"query {self._required_query} is {required.state}" + (f": {required.reason}" if required.reason else "")

    def _dead_reason(self) -> str | None:
        if self._phase is not None or self._heartbeat_at_s is None:
            return None
        if time.monotonic() - self._heartbeat_at_s >= _MAX_HEARTBEAT_AGE_S:
            return f"the job has given no sign of life for {_MAX_HEARTBEAT_AGE_S:g} s"
        required = self._queries.get(self._required_query)
        runs = required is not None and required.state in (RunState.RETRYING, RunState.RUNNING)
        if runs and 0 < self._stalled_after_s <= self._quiet_s:
            return f"query {self._required_query} is stuck: no micro-batch has ended for {self._quiet_s:.0f} s"
        return None

    def queries(self) -> dict[str, Any]:
        """State, restarts and last error of each query, and the place that the error names, or None."""
        return {
            name: {
                "state": query.state,
                "restarts": query.restarts,
                "reason": query.reason,
                "place": query.place.known() if query.place else None,
            }
            for name, query in self._queries.items()
        }

    def state(self, *, ok: bool) -> dict[str, Any]:
        """The answer to a probe."""
        return {
            "ok": ok,
            "reason": None if ok else self.unready_reason(),
            "step_ms": self._step_ms(),
            "queries": self.queries(),
            "foreign_decisions": self._foreign,
            "quota_mirror": self._mirror,
            "inputs": {name: reason for name, reason in self._inputs.copy().items() if reason is not None},
            "troubles": to_builtins(self.troubles()),
        }

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry)


def health_server(health: JobHealth, port: int, address: str = "127.0.0.1") -> HttpServer:
    """The server of `/healthz`, `/readyz` (200 or 503, with the queries' states) and `/metrics`. Raises ListenError."""

    async def healthz(_: Request) -> Response:
        return answer(ok=health.alive())

    async def readyz(_: Request) -> Response:
        return answer(ok=health.unready_reason() is None)

    def answer(*, ok: bool) -> Response:
        return JSONResponse(health.state(ok=ok), 200 if ok else 503)

    def metrics(_: Request) -> Response:  # in a thread of its own: ranking clients takes tens of milliseconds
        return Response(generate_latest(health.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def other(_: Request, _error: Exception) -> Response:
        return PlainTextResponse("/healthz, /readyz or /metrics\n", 404)

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    app = Starlette(routes=routes, exception_handlers={404: other})
    return HttpServer(app, address, port, max_connections=MAX_CONNECTIONS, cure=_CURE)


class JobStatus:
    """Publishes the state of the job. Without a `file` there is no status file."""

    def __init__(self, file: Path | None, health: JobHealth) -> None:
        self._file = file
        self._health = health
        self._status: dict[str, Any] = {"state": "starting"}

    def wait_for(self, what: str, words: str) -> None:
        """Publish the thing that the start waits for."""
        log.info("waiting for %s", words)
        self.publish(waiting_for=what)
        self._health.report_step(f"waiting for {words}")

    def run(self, quota_version: int) -> None:
        """Publish that both queries run."""
        self.publish(state="running", waiting_for=None, quota_version=quota_version)
        self._health.report_phase(None)
        log.info("running with quotas version %d", quota_version)

    def stop(self) -> None:
        """Publish that the queries are stopped."""
        self.publish(state="stopping")
        self._health.report_phase("stopping")

    def publish(self, **changes: Any) -> None:
        """Publish these fields, beside those published before, in the status file."""
        self._status |= {**changes, "at_ms": now_ms()}
        if self._file is None:
            return
        try:
            write_status(self._file, self._status)
        except OSError as error:  # such as a full disk: no reason to stop deciding
            log.warning("can't write %s: %s", self._file, error.strerror)


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replace the status file in one step: a reader never sees an incomplete file. It is for its owner alone."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps(status))
    draft.replace(path)
