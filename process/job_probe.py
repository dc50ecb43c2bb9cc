"""Asks a running job at its health port, on this machine or another one."""

from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import msgspec

from sluice.state.troubles import KNOWN, Trouble

NO_ANSWER = (OSError, ValueError, HTTPException, RecursionError)
"""Errors of an address where no job answers; ValueError is that of an answer which is none of a job's."""

_MOST_BYTES = 16 * 1024 * 1024


class JobAnswer(msgspec.Struct):
    """The part of `/readyz` that says what is wrong."""

    inputs: dict[str, str] = {}
    troubles: list[Trouble] = []

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
