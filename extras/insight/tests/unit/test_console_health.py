"""Answers at the job's health port, as the console takes them."""

import pytest

from sluice_reading.job_probe import JobProbe
from tests.web import answering


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
