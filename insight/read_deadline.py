"""Limits on the time and the connections of a web server's clients: uvicorn's protocol for Sluice's servers."""

import asyncio
from collections.abc import Iterable
from operator import attrgetter

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

READ_TIMEOUT_S = 10.0
"""Longest time from the first byte of a request, or from the connection, to the last byte of its body."""


class ReadDeadline(H11Protocol):
    """uvicorn's protocol with a deadline for the rest of a request, for which uvicorn itself waits for ever.

    At most `limit_concurrency` connections of uvicorn's configuration are open.
    """

    _deadline: asyncio.TimerHandle | None = None
    waiting_since_s = 0.0
    """The time when the connection was made, or when its last request was complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the first request, and make room for it."""
        super().connection_made(transport)  # type: ignore[arg-type] # uvicorn narrows the transport
        self.waiting_since_s = self.loop.time()
        self._start_deadline()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()

    def connection_lost(self, error: Exception | None) -> None:
        """End the deadline."""
        self._end_deadline()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Start the deadline of a request with its first byte."""
        self._start_deadline()
        super().data_received(data)

    def handle_events(self) -> None:
        """End the deadline when the request is complete and nothing of a next one has arrived."""
        super().handle_events()
        reading = self.conn.their_state is h11.SEND_BODY
        if not reading and not (self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]):
            self._end_deadline()
            self.waiting_since_s = self.loop.time()

    def _make_room(self) -> None:
        """Abort the connection that has waited longest: a client with hundreds of idle ones keeps nobody out."""
        others: Iterable[ReadDeadline] = self.connections - {self}  # type: ignore[assignment] # all are of this class
        waiting = [other for other in others if other.waits_for_its_client()]
        if waiting:
            oldest = min(waiting, key=attrgetter("waiting_since_s"))
            self.connections.discard(oldest)  # at once: `connection_lost` comes after connections that wait to be made
            oldest.transport.abort()

    def waits_for_its_client(self) -> bool:
        """True if no request is under way, or its body has not arrived yet."""
        return self.cycle is None or self.cycle.response_complete or self.conn.their_state is h11.SEND_BODY

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(READ_TIMEOUT_S, self.transport.abort)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
