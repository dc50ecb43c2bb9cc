"""Ports that answer, and asking whether one does."""

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen


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


def answer_of(port: int, path: str) -> tuple[int, str]:
    """The status and the text of an answer, also of an error."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextmanager
def answering(answer: bytes | Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where each connection gets this answer to its first bytes, or this is done with it, and then ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_all() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # a client may be gone before
                    if isinstance(answer, bytes):
                        connection.recv(65_536)
                        connection.sendall(answer)
                    else:
                        answer(connection)

        thread = Thread(target=answer_all, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
