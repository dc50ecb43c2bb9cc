"""The HTTP servers of Sluice and bytes that are no request: nothing is logged, and good requests are answered."""

import logging
from collections.abc import Callable
from urllib.request import urlopen

import pytest

from console_facts import facts_of
from hostile_clients import send, send_all
from sluice.process.http_server import HttpServer
from sluice.streaming.runtime.health import JobHealth, health_server
from sluice_insight.console.server import ConsoleOptions, console_server

_LOCAL = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BAD_HTTP = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /%00%ff%zz" + _LOCAL + b"\r\n",
    b"POST /login" + _LOCAL + b"Content-Length: -1\r\n\r\n",
    b"POST /login" + _LOCAL + b"Content-Length: 9999999999999\r\n\r\nx",
    b"POST /login" + _LOCAL + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /login" + _LOCAL + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4\r\n\r\n%ff=",
    b"CONNECT evil.test:1" + _LOCAL + b"\r\n",
    b"GET /" + b"x" * 100_000 + _LOCAL + b"\r\n",
    b"GET /" + _LOCAL + b"Cookie: " + b"\xff" * 60_000 + b"\r\n\r\n",
    b"GET /?sort=%ff&limit=-1&since=99999999999999999999" + _LOCAL + b"\r\n",
    b"GET /metrics?name[]=%ff" + _LOCAL + b"\r\n",
]


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: health_server(JobHealth("enforce", stalled_after_s=600), 0), "metrics"),
        (lambda: console_server(facts_of(), ConsoleOptions(port=0)), ""),
        (lambda: console_server(facts_of(), ConsoleOptions(port=0, token="x" * 20)), "login"),
    ],
    ids=["health", "console", "console with a token"],
)
def test_no_request_makes_a_server_log_a_line(
    make: Callable[[], HttpServer], path: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server = make()
    server.start()
    caplog.set_level(logging.WARNING)
    try:
        for content in BAD_HTTP:
            for reset in (False, True):
                send(("127.0.0.1", server.port), [content], reset=reset)
        send_all(("127.0.0.1", server.port))
        with urlopen(server.url + path, timeout=120) as answer:  # noqa: S310 # of our own
            assert answer.status == 200
    finally:
        server.stop()

    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
