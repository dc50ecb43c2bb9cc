"""The application on a port: uvicorn with limits on what a client may hold and for how long."""

import asyncio
import socket
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateways.client.middleware import AsgiApp

READ_TIMEOUT_S = 10.0
"""Longest time from the first byte of a request, or from the connection, to the last byte of its body."""

KEEP_ALIVE_S = 30
"""How long a connection may be idle between two requests."""

SHUTDOWN_S = 15
"""How long `stop` lets requests finish; a held mutation takes up to ten seconds."""

MAX_CONNECTIONS = 500
"""Open connections: one more closes the one that has waited longest for its client, if there is such a one.

A request that comes while all of them have a request under way is answered with 503.
"""


class ReadDeadline(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for the rest of a request."""

    _deadline: asyncio.TimerHandle | None = None
    waiting_since_s = 0.0
    """When the connection was made, or its last request was complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the deadline of the first request, and makes room for it."""
        super().connection_made(transport)  # type: ignore[arg-type] # uvicorn narrows the transport
        self.waiting_since_s = self.loop.time()
        self._start_deadline()
        if len(self.connections) >= MAX_CONNECTIONS:
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


class HttpServer:
    """The application on a port of 127.0.0.1; `address` is where it answers. 0 takes a free port.

    Raises OSError if the port is taken.
    """

    def __init__(self, app: AsgiApp, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        options: dict[str, Any] = {"loop": "asyncio", "ws": "none", "lifespan": "off", "proxy_headers": False}
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=ReadDeadline,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=SHUTDOWN_S,
                limit_concurrency=MAX_CONNECTIONS,
                server_header=False,
                headers=[("Server", "sluice")],
                log_config=None,
                log_level="error",  # a warning for each bad request would be the clients' to write
                access_log=False,
                **options,
            )
        )

    def serve(self) -> None:
        """Serves until `stop`, which another thread calls, or a signal, which is raised again when all has ended."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Ends `serve` when the requests under way are answered."""
        self._server.should_exit = True
