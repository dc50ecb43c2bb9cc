"""What the job tells those who watch it: alive, ready, and numbers for Prometheus, over HTTP on loopback."""

import json
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from streaming.errors import HealthError
from streaming.supervision import QueryState

_HEARTBEAT_SECONDS = 30.0
_BATCH_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class JobHealth:
    """The job's state as it last was, and its numbers since the process started."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._queries: dict[str, QueryState] = {}
        self._at_s: float | None = None
        self._batches = Histogram(
            "sluice_batch_seconds",
            "Duration of a micro-batch",
            ["query"],
            registry=self.registry,
            buckets=_BATCH_SECONDS,
        )
        self._events = self._counter("sluice_events", "Records read: requests by enforce, their answers by audit")
        self._lag = self._gauge("sluice_lag_events", "Records not yet read")
        self._up = self._gauge("sluice_query_up", "1 while the query runs")
        self._restarts = self._gauge("sluice_query_restarts", "Restarts of the query since the process started")
        self._quota_version = Gauge("sluice_quota_version", "Quotas version in force", registry=self.registry)

    def batch(self, batch: Mapping[str, Any]) -> None:
        """Count a micro-batch, as `progress.summarize` gives it."""
        query = batch["query"]
        self._batches.labels(query).observe((batch["batch_ms"] or 0) / 1000.0)
        self._events.labels(query).inc(batch["events"])
        self._lag.labels(query).set(batch["lag"])

    def beat(self, queries: Mapping[str, QueryState], quota_version: int) -> None:
        """Say how the queries are; the job is taken for dead when nobody does for 30 s."""
        self._queries = dict(queries)
        self._at_s = time.monotonic()
        self._quota_version.set(quota_version)
        for name, query in queries.items():
            self._up.labels(name).set(query.state == "running")
            self._restarts.labels(name).set(query.restarts)

    def alive(self) -> bool:
        """Whether the process is worth keeping; it is while it starts."""
        return self._at_s is None or time.monotonic() - self._at_s < _HEARTBEAT_SECONDS

    def ready(self) -> bool:
        """Whether requests are being decided; the audit query may be behind."""
        enforce = self._queries.get("enforce")
        return self.alive() and enforce is not None and enforce.state == "running"

    def queries(self) -> dict[str, Any]:
        """State, restarts and last error of each query."""
        return {
            name: {"state": query.state, "restarts": query.restarts, "reason": query.reason}
            for name, query in self._queries.items()
        }

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, ["query"], registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, ["query"], registry=self.registry)


class HealthServer:
    """Answers `/healthz`, `/readyz` (200 or 503, with the queries' states) and `/metrics` on 127.0.0.1."""

    def __init__(self, health: JobHealth, port: int) -> None:
        """Raises HealthError when the port is taken."""
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(health))
        except OSError as error:
            raise HealthError(
                f"can't listen on 127.0.0.1:{port} ({error.strerror}); set health.port to a free port, or 0 for none"
            ) from error
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End, and free the port."""
        self._server.shutdown()
        self._server.server_close()


def _handler(health: JobHealth) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds; a caller that sends nothing doesn't keep its thread
        server_version = "sluice"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer_state(health.alive())
            elif self.path == "/readyz":
                self._answer_state(health.ready())
            elif self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(health.registry))
            else:
                self._answer(404, "text/plain", b"/healthz, /readyz or /metrics\n")

        def log_message(self, format: str, *_: object) -> None:
            """Nothing: a probe every few seconds is no news."""

        def _answer_state(self, good: bool) -> None:
            body = json.dumps({"ok": good, "queries": health.queries()}).encode()
            self._answer(200 if good else 503, "application/json", body)

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
