"""The application on a port: uvicorn with limits on what a client may hold and for how long."""

import socket
from typing import Any

import uvicorn

from sluice.gateways.client.middleware import AsgiApp
from sluice.insight.read_deadline import ReadDeadline

KEEP_ALIVE_S = 30
"""How long a connection may be idle between two requests."""

SHUTDOWN_S = 15
"""How long `stop` lets requests finish; a held mutation takes up to ten seconds."""

MAX_CONNECTIONS = 500
"""Open connections: one more closes the one that has waited longest for its client, if there is such a one.

A request that comes while all of them have a request under way is answered with 503.
"""


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
