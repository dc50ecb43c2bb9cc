"""Asks a running job at its health port, on this machine or another one."""

import json
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import msgspec

from sluice.state.troubles import KNOWN, JobSeen, Trouble

NO_ANSWER = (OSError, ValueError, HTTPException, RecursionError)
"""Errors of an address where no job answers; ValueError is that of an answer which is none of a job's."""

_MOST_BYTES = 16 * 1024 * 1024


class JobAnswer(msgspec.Struct):
    """The part of `/readyz` that says what is wrong, and since when the job takes a step of its start."""

    troubles: list[Trouble] = []
    step_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def known_troubles(self) -> list[Trouble]:
        """The troubles of this release; one of a later release has names of its own."""
        return [each for each in self.troubles[: len(KNOWN)] if each.name in KNOWN]


def asked(url: str, timeout_s: float) -> bytes:
    """The body of an answer, whatever its status is: a job that isn't ready answers 503. Raises NO_ANSWER."""
    try:
        # of a job, whatever http_proxy says
        with build_opener(ProxyHandler({})).open(url, timeout=timeout_s) as answer:
            body: bytes = answer.read(_MOST_BYTES)
    except HTTPError as unready:
        with unready:
            body = unready.read(_MOST_BYTES)
    return body


def job_answer(body: bytes) -> JobAnswer:
    """The answer of `/readyz`. Raises ValueError if it is none of a job's.

    >>> job_answer(b'{"ok":false,"troubles":[{"name":"hold","severity":"warn","text":"x"}]}').troubles[0].line
    'x'
    """
    return msgspec.json.decode(body, type=JobAnswer)


_TIMEOUT_S = 5.0


class JobProbe:
    """The last answer of the job's `/readyz`, or the `trouble` with it. Without an address nothing is asked."""

    def __init__(self, address: str | None) -> None:
        self.answer: dict[str, Any] | None = None
        self.trouble: str | None = None if address else "the settings have no health.port, so the job can't be asked"
        self.address = address
        self.answers: bool | None = None
        """None until it was asked."""
        self.said = JobAnswer()
        """The part of its answer that is of troubles."""

    def seen(self, is_locked: bool | None) -> JobSeen:
        """The job's signs of life, with the lock of its checkpoint."""
        return JobSeen(is_locked, self.answers, self.said.step_ms)

    @property
    def troubles(self) -> list[Trouble]:
        """All that is wrong in the job's own words; none while it doesn't answer."""
        return self.said.known_troubles()

    def ask(self) -> None:
        """Ask once."""
        if self.address is None:
            return
        try:
            body = asked(f"{self.address}/readyz", _TIMEOUT_S)
            found = json.loads(body)
        except NO_ANSWER as error:
            said = str(error) or type(error).__name__
            self.answer, self.trouble = None, f"{self.address}/readyz doesn't answer as a job does: {said}"
            self.answers, self.said = False, JobAnswer()
            return
        self.answer, self.trouble = found if isinstance(found, dict) else {"answer": found}, None
        try:
            self.answers, self.said = True, job_answer(body)
        except ValueError:
            self.answers, self.said = False, JobAnswer()
