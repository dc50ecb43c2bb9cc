"""What a client of a web server may hold, and for how long: a part of uvicorn, for all of Sluice's servers."""

import asyncio
from collections.abc import Iterable
from operator import attrgetter

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

READ_TIMEOUT_S = 10.0
"""Longest time from the first byte of a request, or from the connection, to the last byte of its body."""


class ReadDeadline(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for the rest of a request.

    `limit_concurrency` of uvicorn's configuration is how many connections may be open.
    """

    _deadline: asyncio.TimerHandle | None = None
    waiting_since_s = 0.0
    """When the connection was made, or its last request was complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the deadline of the first request, and makes room for it."""
        super().connection_made(transport)  # type: ignore[arg-type] # uvicorn narrows the transport
        self.waiting_since_s = self.loop.time()
        self._start_deadline()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the deadline."""
        self._end_deadline()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Starts the deadline of a request with its first byte."""
        self._start_deadline()
        super().data_received(data)

    def handle_events(self) -> None:
        """Ends the deadline when the request is complete and nothing of a next one has come."""
        super().handle_events()
        reading = self.conn.their_state is h11.SEND_BODY
        if not reading and not (self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]):
            self._end_deadline()
            self.waiting_since_s = self.loop.time()

    def _make_room(self) -> None:
        """Abort the connection that has waited longest: whoever keeps hundreds open idly must not keep others out."""
        others: Iterable[ReadDeadline] = self.connections - {self}  # type: ignore[assignment] # all are of this class
        waiting = [other for other in others if other.waits_for_its_client()]
        if waiting:
            oldest = min(waiting, key=attrgetter("waiting_since_s"))
            self.connections.discard(oldest)  # at once: `connection_lost` comes after connections that wait to be made
            oldest.transport.abort()

    def waits_for_its_client(self) -> bool:
        """Whether no request is under way, or its body has not come yet."""
        return self.cycle is None or self.cycle.response_complete or self.conn.their_state is h11.SEND_BODY

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(READ_TIMEOUT_S, self.transport.abort)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
