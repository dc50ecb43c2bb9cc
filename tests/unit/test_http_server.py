"""The HTTP service without Kafka: what it refuses on the wire, and what a slow client can hold."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sluice import Gateway, GatewayOptions
from sluice.gateways.client.wait_table import Wait
from sluice.gateways.http.app import MAX_BODY_BYTES, create_app
from sluice.gateways.http.backend import KafkaBackend
from sluice.gateways.http.server import HttpServer
from sluice.kafka_io.clock import now_ms
from sluice.state.quotas.entity import Tags

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
"""An address where no broker answers."""


class BrokenBackend(KafkaBackend):
    """A cluster without topics whose metadata can be asked for once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def partition_count(self, name: str) -> int:
        self.asked.append(name)
        if name == "broken":
            raise RuntimeError("a mistake of the service")
        return 0


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(NOBODY, GatewayOptions(close_timeout_s=0)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def backend() -> BrokenBackend:
    return BrokenBackend()


@pytest.fixture(scope="module")
def port(gateway: Gateway, backend: BrokenBackend) -> Iterator[int]:
    """The port of a running service."""
    server = HttpServer(create_app(gateway, backend))
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield int(server.address.rpartition(":")[2])
    server.stop()
    thread.join()


def exchange(port: int, request: bytes) -> bytes:
    """All that the service answers until it closes the connection, or is silent for longer than the read deadline."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        answer = b""
        try:
            while received := connection.recv(65_536):
                answer += received
                connection.settimeout(0.3)
        except TimeoutError:
            return answer
        return answer + b"<closed>"


def post(path: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST " + path + b" HTTP/1.1", b"Host: here", *headers, b"", body])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((b"no colon in this line",), 400),
        ((b"Content-Length: 3", b"Content-Length: 4"), 400),
        ((b"Content-Length: -3",), 400),
        ((b"Content-Length : 3",), 400),
        ((b"Content-Length: 3", b"Transfer-Encoding: chunked"), 411),
        ((b"Transfer-Encoding: chunked",), 411),
        ((b"Transfer-Encoding: identity",), 400),
        ((b"Content-Length: %d" % (MAX_BODY_BYTES + 1),), 413),
        ((b"Content-Length: 3, 4",), 400),
        ((b"Content-Length: 0x3",), 400),
        ((b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"), 400),
        ((b"X-User: alice", b" bob: folded", b"no colon"), 400),
        ((b"X-User: ali\x00ce",), 400),
    ],
)
def test_an_ambiguous_or_too_large_body_ends_the_connection(port: int, headers: tuple[bytes, ...], status: int) -> None:
    smuggled = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"

    answer = exchange(port, post(b"/topics", *headers, body=smuggled))

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.endswith(b"<closed>")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /topics", 404),
        (b"PUT /topics", 404),
        (b"POST /metrics", 404),
        (b"DELETE /topics", 404),
        (b"DELETE /topics/unknown", 404),
        (b"DELETE /topics/a%2Fb", 400),
        (b"DELETE /topics/unknown?api_version=32768", 400),
        (b"DELETE /topics/broken", 500),
    ],
)
def test_every_refusal_is_a_problem_document(port: int, request_line: bytes, status: int) -> None:
    answer = exchange(port, request_line + b" HTTP/1.1\r\nHost: here\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/problem+json" in answer
    assert b'"status":%d' % status in answer


@pytest.mark.parametrize(
    "headers",
    [(b"X-More: " + b"x" * 100_000,), tuple(b"X-More-%d: %s" % (number, b"x" * 1000) for number in range(100))],
)
@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_headers_of_a_hundred_kilobytes_end_the_connection(
    port: int, headers: tuple[bytes, ...], pause_s: float
) -> None:
    """Whether they come at once or in pieces."""
    request = post(b"/topics", *headers) + b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        answer = b""
        with suppress(ConnectionError):  # what wasn't read when it was closed
            connection.sendall(request[:90_000])
            time.sleep(pause_s)
            connection.sendall(request[90_000:])
            while received := connection.recv(65_536):
                answer += received

    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 ")) or not answer
    assert answer.count(b"HTTP/1.1") <= 1


def test_a_request_in_a_body_is_a_body(port: int, backend: BrokenBackend) -> None:
    """With the right length it is never a request of its own."""
    smuggled = b"DELETE /topics/smuggled HTTP/1.1\r\nHost: here\r\n\r\n"

    answer = exchange(port, post(b"/topics", b"Content-Length: %d" % len(smuggled), body=smuggled))

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert "smuggled" not in backend.asked


@pytest.mark.parametrize("header", [b"X-User", b"X-Client-Id", b"x-user"])
def test_two_users_or_clients_are_refused(port: int, header: bytes) -> None:
    answer = exchange(
        port, post(b"/topics", header + b": alice", header.title() + b": bob", b"Content-Length: 2", body=b"{}")
    )

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"user or client-id" in answer


def test_a_muted_client_never_reaches_kafka(port: int, gateway: Gateway, backend: BrokenBackend) -> None:
    counter = ("producer_byte_rate", Tags(user="muted"))
    gateway._in_force.applied.take(counter, Wait(now_ms() + 60_000, (now_ms(), 0), 60_000))

    answer = exchange(port, b"DELETE /topics/muted HTTP/1.1\r\nHost: here\r\nX-User: muted\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 429 ")
    assert "muted" not in backend.asked
