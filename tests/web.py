"""Ports that answer, and asking whether one does."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.parse import urlsplit


def answers(url: str) -> bool:
    """True if the page of clients is there."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)
    try:
        connection.request("GET", "/")
        return b"Clients" in connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port where each request gets this answer, byte by byte as it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_all() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # a client may be gone before
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = Thread(target=answer_all, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
