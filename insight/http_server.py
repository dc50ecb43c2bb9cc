"""The HTTP server of health checks, metrics and the console: an ASGI application on one address and port."""

import os
import socket
from threading import Event, Thread
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from sluice.insight.errors import ListenError
from sluice.insight.read_deadline import ReadDeadline

KEEP_ALIVE_S = 30
"""Longest idle time of a connection between two requests."""

SHUTDOWN_S = 2
"""Longest wait of `stop` for requests under way."""


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
        """End `serve`; after `start`, wait until the port is free."""
        self._server.end()
        if self._thread.is_alive():
            self._thread.join()


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
    if not address:
        raise OSError("there is no address")  # the system takes an empty address for every address
    family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server((str(place[0]), port), family=family, dualstack_ipv6=dual)


def _reason(error: OSError | UnicodeError) -> str:
    """The system's words alone: socket.create_server adds the address in Python's notation."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
