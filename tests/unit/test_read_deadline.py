"""The server protocol of Sluice's HTTP servers: time limits and connection limits for slow clients."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluice.process import http_server
from sluice.process.http_server import ReadDeadline

READ_TIMEOUT_S = 0.5

GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 500\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads the whole body before it answers."""
    await Response(await Request(scope, receive).body() or b"end")(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a running server with a short read deadline and at most 500 connections."""
    config = uvicorn.Config(
        echo, http=ReadDeadline, limit_concurrency=500, timeout_keep_alive=30, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as listener:
        patch.setattr(http_server, "READ_TIMEOUT_S", READ_TIMEOUT_S)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def answer_of(connection: socket.socket, request: bytes) -> bytes:
    """The answer to a request of `GET` on an open connection."""
    connection.sendall(request)
    answer = b""
    while not answer.endswith(b"\r\n\r\nend"):
        received = connection.recv(65_536)
        assert received, "the connection was closed"
        answer += received
    return answer


@pytest.mark.parametrize("start", [b"", b"POST / HT", POST])
def test_a_request_that_never_ends_loses_its_connection(port: int, start: bytes) -> None:
    """A byte now and then doesn't move the deadline."""
    start_s = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=READ_TIMEOUT_S / 5) as connection,
        suppress(ConnectionError),  # the server has closed the connection
    ):
        connection.sendall(start)
        while True:
            assert time.monotonic() - start_s < 60, "it could go on for ever"
            try:
                if not connection.recv(1):
                    break
            except TimeoutError:
                connection.sendall(b" " if start else b"G")

    assert time.monotonic() - start_s >= READ_TIMEOUT_S


def test_an_idle_connection_outlives_the_read_deadline(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        assert answer_of(connection, GET).startswith(b"HTTP/1.1 200 ")
        connection.settimeout(READ_TIMEOUT_S * 1.5)
        with pytest.raises(TimeoutError):  # open and silent
            connection.recv(1)
        connection.settimeout(30)
        assert answer_of(connection, GET).startswith(b"HTTP/1.1 200 ")


def test_requests_that_arrive_together_are_all_answered(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(GET * 3)
        answer = b""
        while answer.count(b"\r\n\r\nend") < 3:
            answer += connection.recv(65_536)

    assert answer.count(b"HTTP/1.1 200 OK") == 3


def test_two_thousand_idle_connections_keep_nobody_out(port: int) -> None:
    """The connection that has been quiet for longest makes room for the next; a request under way never does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    starts = [b"", b"G", GET, POST]
    try:
        with ExitStack() as stack:
            for number in range(2000):
                idle = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
                with suppress(OSError):  # it may have been closed already
                    idle.sendall(starts[number % len(starts)])

            last = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            assert answer_of(last, GET).startswith(b"HTTP/1.1 200 ")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
