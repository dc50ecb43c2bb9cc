"""Health checks and metrics of the job for monitoring systems, over HTTP; on loopback unless another address is set."""

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import BoundedSemaphore, Thread, Timer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sluice.state.store.pages import Evicted
from sluice.streaming.errors import HealthError
from sluice.streaming.runtime.query_state import QueryState, RunState

MAX_CONNECTIONS = 32
"""Callers at a time; a further one is turned away."""

_LONGEST_REQUEST_S = 10.0
_MAX_HEARTBEAT_AGE_S = 30.0
_BATCH_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class JobHealth:
    """The last known state of the job's queries, and its metrics since the process started."""

    def __init__(self, required_query: str, stalled_after_s: float) -> None:
        """The job is ready while `required_query` runs, which is stuck when quiet for `stalled_after_s`; 0 is never."""
        self.registry = CollectorRegistry()
        self._required_query = required_query
        self._stalled_after_s = stalled_after_s
        self._quiet_s = 0.0
        self._queries: dict[str, QueryState] = {}
        self._heartbeat_at_s: float | None = None
        self._phase: str | None = None
        self._batches = Histogram(
            "sluice_batch_seconds",
            "Duration of a micro-batch",
            ["query"],
            registry=self.registry,
            buckets=_BATCH_BUCKETS_S,
        )
        self._events = self._counter("sluice_events", "Records read: requests by enforce, their answers by audit")
        self._lag = self._gauge("sluice_lag_events", "Records not yet read")
        self._up = self._gauge("sluice_query_up", "1 while the query runs")
        self._restarts = self._gauge("sluice_query_restarts", "Restarts of the query since the process started")
        self._foreign: dict[str, Any] = {"count": 0, "jobs": []}
        self._foreign_decisions = Gauge(
            "sluice_foreign_decisions",
            "Decisions of other jobs seen on the decisions topic since the process started",
            registry=self.registry,
        )
        self._dead_letters = Counter(
            "sluice_dead_letters", "Dead letters written since the process started", registry=self.registry
        )
        self._known_entities = Gauge(
            "sluice_known_entities",
            "Entities with stored counters, in the pages that were charged since the process started",
            registry=self.registry,
        )
        self._evicted_entities = Gauge(
            "sluice_evicted_entities",
            "Entities forgotten since the process started because there were more than state.max_entities",
            ["kind"],
            registry=self.registry,
        )
        self._mirror: dict[str, Any] | None = None
        # with a label, a job that mirrors nothing has no value: an alert on 0 must not see it
        self._mirror_up = Gauge(
            "sluice_quota_mirror_up",
            "1 while the quotas of the source are mirrored",
            ["source"],
            registry=self.registry,
        )
        self._left_out = Gauge(
            "sluice_quotas_left_out", "Quotas of the source that Sluice can't take", ["source"], registry=self.registry
        )
        self._quota_version = Gauge("sluice_quota_version", "Quotas version in force", registry=self.registry)
        self._up.labels(required_query).set(0)  # an alert on 0 must see a job that can't start too

    def count_batch(self, batch: Mapping[str, Any]) -> None:
        """Count a micro-batch, given as `progress.summarize` returns it."""
        query = batch["query"]
        self._batches.labels(query).observe((batch["batch_ms"] or 0) / 1000.0)
        self._events.labels(query).inc(batch["events"])
        self._lag.labels(query).set(batch["lag"])

    def heartbeat(self, queries: Mapping[str, QueryState], quota_version: int, quiet_s: float = 0.0) -> None:
        """Report the states of the queries; without a report for 30 s the job counts as dead.

        `quiet_s` are the seconds since Spark last reported on the required query.
        """
        self._queries = dict(queries)
        self._quiet_s = quiet_s
        self._heartbeat_at_s = time.monotonic()
        self._quota_version.set(quota_version)
        for name, query in queries.items():
            self._up.labels(name).set(query.state is RunState.RUNNING)
            self._restarts.labels(name).set(query.restarts)

    def report_foreign(self, count: int, jobs: Sequence[str]) -> None:
        """Report the decisions of other jobs that were seen on the decisions topic, and the ids of those jobs."""
        self._foreign = {"count": count, "jobs": list(jobs)}
        self._foreign_decisions.set(count)

    def count_dead_letters(self, count: int) -> None:
        """Count dead letters that were written."""
        self._dead_letters.inc(count)

    def report_known(self, entities: int, evicted: Evicted) -> None:
        """Report how many entities have stored counters, and how many were evicted."""
        self._known_entities.set(entities)
        for kind, count in evicted._asdict().items():
            self._evicted_entities.labels(kind).set(count)

    def report_mirror(self, trouble: str | None, left_out: int) -> None:
        """Report why the cluster's quotas are not mirrored now, None if they are, and how many are left out."""
        self._mirror = {"ok": trouble is None, "reason": trouble, "left_out": left_out}
        self._mirror_up.labels("kafka").set(trouble is None)
        self._left_out.labels("kafka").set(left_out)

    def mirror(self) -> dict[str, Any] | None:
        """Whether the cluster's quotas are mirrored, if not why, and how many are left out; None for source table."""
        return self._mirror

    def foreign_decisions(self) -> dict[str, Any]:
        """How many decisions of other jobs were seen, and whose."""
        return self._foreign

    def report_phase(self, phase: str | None) -> None:
        """Report what the job does before its queries run and after, in words; None while they run."""
        self._phase = phase

    def alive(self) -> bool:
        """Whether the process does its work; true while it starts and stops, and while it waits to start a query."""
        return self._dead_reason() is None

    def unready_reason(self) -> str | None:
        """Why requests are not decided now; None if they are, which takes the required query alone."""
        if self._phase is not None:
            return self._phase
        if dead := self._dead_reason():
            return dead
        required = self._queries.get(self._required_query)
        if required is None:
            return "starting"
        if required.state is RunState.RUNNING:
            return None
        return f"query {self._required_query} is {required.state}" + (f": {required.reason}" if required.reason else "")

    def _dead_reason(self) -> str | None:
        if self._phase is not None or self._heartbeat_at_s is None:
            return None
        if time.monotonic() - self._heartbeat_at_s >= _MAX_HEARTBEAT_AGE_S:
            return f"the job has given no sign of life for {_MAX_HEARTBEAT_AGE_S:g} s"
        required = self._queries.get(self._required_query)
        runs = required is not None and required.state is RunState.RUNNING
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

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, ["query"], registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, ["query"], registry=self.registry)


class HealthServer:
    """Answers `/healthz`, `/readyz` (200 or 503, with the queries' states) and `/metrics`."""

    def __init__(self, health: JobHealth, port: int, address: str = "127.0.0.1") -> None:
        """Listen on `port` of `address`; port 0 takes any free one. Raises HealthError when it can't."""
        try:
            self._server = _Server(address, port, partial(_Handler, health))
        except (OSError, UnicodeError) as error:  # a name that is too long is a UnicodeError
            raise HealthError(
                f"can't listen on {address}:{port} ({getattr(error, 'strerror', None) or error}); set health.port to a"
                " free port, or 0 for none, and health.address to an address of this machine: 127.0.0.1 for this"
                " machine alone, 0.0.0.0 for all"
            ) from error
        self._thread = Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._server.server_port

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering, and free the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, for a bounded time: the address may be open to anybody."""

    daemon_threads = True
    request_queue_size = 128  # Python's 5 make a caller wait for a second when others connect at the same time

    def __init__(self, address: str, port: int, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        if not address:
            raise OSError("there is no address")  # to Python an empty one is every address
        # The first one: a name may have several addresses.
        self.address_family, *_, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        self._free = BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((str(where[0]), port), handler)

    def server_bind(self) -> None:
        """Bind without a look-up of the address's name, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; a connection too many is closed."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request: HTTP/1.0 has no second one."""
        deadline = Timer(_LONGEST_REQUEST_S, _cut, [request])
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a caller that hangs up is no fault of the job."""


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers from what the job has reported."""

    def __init__(self, health: JobHealth, *connection: Any) -> None:
        self._health = health
        super().__init__(*connection)

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._answer_state(self._health.alive())
        elif self.path == "/readyz":
            self._answer_state(self._health.unready_reason() is None)
        elif self.path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, generate_latest(self._health.registry))
        else:
            self._answer(404, "text/plain", b"/healthz, /readyz or /metrics\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def version_string(self) -> str:
        return "sluice"

    def log_message(self, format: str, *_: object) -> None:
        """Log nothing: probes come every few seconds."""

    def _answer_state(self, good: bool) -> None:
        answer = {
            "ok": good,
            "reason": None if good else self._health.unready_reason(),
            "queries": self._health.queries(),
            "foreign_decisions": self._health.foreign_decisions(),
            "quota_mirror": self._health.mirror(),
        }
        self._answer(200 if good else 503, "application/json", json.dumps(answer).encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
