"""The HTTP server of health checks, metrics and the console: an ASGI application on one address and port."""

import asyncio
import os
import socket
from collections.abc import Iterable
from operator import attrgetter
from threading import Event, Thread
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from sluice.process.addresses import listening_address
from sluice.process.errors import ListenError

KEEP_ALIVE_S = 30
"""Longest idle time of a connection between two requests."""

SHUTDOWN_S = 2
"""Longest wait of `stop` for requests under way."""


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

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request; the answer to a request whose body it should be is given up, or both would go."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        super().send_400_response(msg)

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


class HttpServer:
    """A web server with bounded connections and a deadline for each request; port 0 takes any free port.

    A connection beyond `max_connections` closes the connection that has been idle for longest. `stop` and signals set
    `closing`, at which endless answers have to end.
    """

    def __init__(
        self, app: ASGIApp, address: str, port: int, *, max_connections: int, cure: str, closing: Event | None = None
    ) -> None:
        """Listen. Raises ListenError, which ends with `cure`: the change that would be right."""
        try:
            self._socket = _listen(address, port)
        except (OSError, UnicodeError) as error:  # a name that is too long is a UnicodeError
            raise ListenError(f"can't listen on {address}:{port} ({_reason(error)}); {cure}") from None
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{host_of(address)}:{self.port}/"
        settings: dict[str, Any] = {"loop": "asyncio", "ws": "none", "lifespan": "off", "proxy_headers": False}
        config = uvicorn.Config(
            app,
            http=ReadDeadline,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
            limit_concurrency=max_connections,
            server_header=False,
            headers=[("Server", "sluice")],
            log_config=None,
            log_level="error",  # clients could fill the log with warnings
            access_log=False,
            **settings,
        )
        self._server = _Server(config, closing or Event())
        self._thread = Thread(target=self.serve, name="http", daemon=True)

    def serve(self) -> None:
        """Answer until `stop`; in the main thread also until SIGINT or SIGTERM."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def start(self) -> None:
        """Answer in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End `serve`; wait until the port is free."""
        self._server.end()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()  # of one that has never served


def host_of(address: str) -> str:
    """The address as URLs and Host headers have it.

    >>> host_of("127.0.0.1"), host_of("::1")
    ('127.0.0.1', '[::1]')
    """
    return f"[{address}]" if ":" in address else address


class _Server(uvicorn.Server):
    """uvicorn's server; a signal ends it as `stop` does."""

    def __init__(self, config: uvicorn.Config, closing: Event) -> None:
        super().__init__(config)
        self._closing = closing

    def end(self) -> None:
        self._closing.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle SIGINT and SIGTERM. uvicorn would raise the signal again at the end; a clean end is exit code 0."""
        self._closing.set()
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def _listen(address: str, port: int) -> socket.socket:
    place = listening_address(address)
    family = socket.AF_INET6 if ":" in place else socket.AF_INET
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server((place, port), family=family, dualstack_ipv6=dual)


def _reason(error: OSError | UnicodeError) -> str:
    """The system's words alone: socket.create_server adds the address in Python's notation."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
