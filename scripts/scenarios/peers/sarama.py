"""Sarama's functional tests, but for those that stop brokers or break connections."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

from scripts.scenarios.peers.suite import Outcomes, Suite, run_go
from scripts.testbed.go_tests import Change, go_tests

_LEFT_OUT = (
    "TestFuncConnectionFailure",
    "TestFuncAdminNetworkErrorClosesControllerConnection",
    "TestFuncProducingIdempotentWithBrokerFailure",
    "TestFuncIdempotentBufferedSequence",
    "TestFuncTxnProduceWithBrokerFailure",
    "TestFuncAdminListConsumerGroupOffsets",
    "TestFuncAdminDescribeLogDirs",
    "TestFuncJavaInterop.*",
)
"""They need Docker, Toxiproxy between the client and the brokers, or five brokers."""

_NO_LATENCY = Change("functional_producer_test.go", "minRequestLatencyInMs := 10", "minRequestLatencyInMs := 0")
"""The producing tests expect that Toxiproxy makes each request take 10 ms."""


class Sarama(Suite):
    """`go test -tags functional -run Func` of Sarama, on three brokers at the ports where it looks for them.

    It takes what it has to be told of its Toxiproxy from a server that does nothing.
    """

    client = "sarama"
    brokers = 3
    port = 29_090
    properties: ClassVar[Mapping[str, str]] = {
        "default.replication.factor": "2",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }

    def prepare(self) -> None:
        self._tests = go_tests("github.com/IBM/sarama", tags=["functional"], change=_NO_LATENCY)

    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:  # noqa: ARG002 - it knows its ports
        with _toxiproxy() as address:
            environment = os.environ | {"TOXIPROXY_ADDR": address, "KAFKA_VERSION": "4.3.1"}
            names = ["-test.run", tests or "^TestFunc", "-test.skip", f"^({'|'.join(_LEFT_OUT)})$"]
            command = [str(self._tests.program), "-test.v", "-test.timeout=20m", *names]
            return run_go(command, self._tests.folder, environment, log)


@contextmanager
def _toxiproxy() -> Iterator[str]:
    """The address of a server that answers as Toxiproxy does, and changes no connection."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Toxiproxy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Toxiproxy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self._answer(204 if self.path == "/reset" else 200)

    def _answer(self, status: int) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.end_headers()
        if status == 200:
            self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Write no log."""
