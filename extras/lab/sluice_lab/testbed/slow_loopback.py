"""A slow way to a port on loopback: data arrive late, and some are lost and sent again."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

_SEGMENT_BYTES = 16_384
_AGAIN_S = 0.2
"""Linux' least time until a lost segment is sent again."""


@contextmanager
def slow_loopback(port: int, to_port: int, late_s: float, lost: float, seed: int = 1) -> Iterator[None]:
    """Take connections on a port, and pass on what they say both ways: each 16 kB `late_s` later than the one before.

    `lost` is the part of them that is lost: all behind one waits until it was sent again, as with TCP.
    """
    closing, dice = Event(), random.Random(seed)

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_SEGMENT_BYTES):
                if closing.wait(late_s + _AGAIN_S * (dice.random() < lost)):
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def take(server: socket.socket) -> None:
        with suppress(OSError):
            while not closing.is_set():
                near, _ = server.accept()
                far = socket.create_connection(("127.0.0.1", to_port))
                for ends in ((near, far), (far, near)):
                    Thread(target=pass_on, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", port)) as server:
        thread = Thread(target=take, args=(server,), daemon=True)
        thread.start()
        yield
        closing.set()
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
    thread.join()
