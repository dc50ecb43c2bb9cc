"""Answers at the job's health port, as the console takes them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from sluice.insight.console.tables import JobProbe


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port where each request gets this answer, byte by byte as it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_all() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = Thread(target=answer_all, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n\r\nno json",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 500_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n{}",
    ],
)
def test_what_is_no_answer_of_a_job_replaces_the_last_answer(answer: bytes) -> None:
    """Else the page would show a job that was well before another process took its port."""
    with answering(answer) as port:
        health = JobProbe(f"http://127.0.0.1:{port}")
        health.answer = {"status": "ok"}
        health.ask()

    assert health.answer is None
    assert health.trouble is not None
    assert "doesn't answer as a job does" in health.trouble
