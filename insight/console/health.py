"""The health of the job, asked for in the background at its health port."""

import json
import urllib.request
from http.client import HTTPException
from typing import Any

ASK_S = 5.0
TIMEOUT_S = 3.0
MOST_BYTES = 1024 * 1024


class JobProbe:
    """The last answer of the job's `/readyz`, or the `trouble` with it. Without an address nothing is asked."""

    def __init__(self, address: str | None) -> None:
        self.answer: dict[str, Any] | None = None
        self.trouble: str | None = None if address else "the settings have no health.port, so the job can't be asked"
        self.address = address

    def ask(self) -> None:
        """Ask once."""
        try:
            self.answer, self.trouble = self._answer(), None
        except (OSError, ValueError, HTTPException, RecursionError) as error:
            self.answer, self.trouble = (
                None,
                (f"{self.address}/readyz doesn't answer as a job does: {str(error) or type(error).__name__}"),
            )

    def _answer(self) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.address}/readyz")  # noqa: S310 # always http, from the settings
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 # as above
                content = answer.read(MOST_BYTES)
        except urllib.error.HTTPError as error:  # 503 is an answer too: the job isn't ready, and says why
            content = error.read(MOST_BYTES)
        found = json.loads(content)
        return found if isinstance(found, dict) else {"answer": found}
