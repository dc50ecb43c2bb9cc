"""Requests whose decisions a caller waits for."""

from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock

from sluice.state.errors import InvalidRequestError

MAX_AWAITED = 10_000
"""Largest number of requests that wait for their decisions at a time. Beyond it the oldest is given up."""


class AwaitedDecisions:
    """The records of decisions that are expected, by request id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._awaited: OrderedDict[str, Future[bytes]] = OrderedDict()

    def expect(self, request_id: str) -> "Future[bytes]":
        """The future record of this request's decision. Raises InvalidRequestError for an id that is expected already.

        Its decision would be the answer to both: a small request would let a large one through.
        """
        future: Future[bytes] = Future()
        with self._lock:
            if request_id in self._awaited:
                raise InvalidRequestError("request_id", "is that of a request that is awaited", "another one")
            self._awaited[request_id] = future
            while len(self._awaited) > MAX_AWAITED:
                self._awaited.popitem(last=False)
        return future

    def resolve(self, request_id: str, value: bytes) -> None:
        """Hand the record of a decision to the caller that expects it, if there is one."""
        if not self._awaited:
            return  # before the lock: most decisions are on requests that nobody waits for
        with self._lock:
            future = self._awaited.get(request_id)
        if future is not None and not future.done():
            future.set_result(value)

    def forget(self, request_id: str) -> None:
        """Expect this decision no longer."""
        with self._lock:
            self._awaited.pop(request_id, None)
