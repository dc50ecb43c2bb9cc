"""Attempts to connect at a steady rate, whatever becomes of them: a client that has no backoff."""

import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from typing import NamedTuple

_BIND_ADDRESS_NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT of Linux, which Python doesn't name
_PATIENCE_S = 2.0
_MOST_OPEN = 5_000
_AT_ONCE = 200


class Flooded(NamedTuple):
    """Attempts a second, and how many of them were answered."""

    attempts_per_s: float
    answered_per_s: float


def flood_connections(
    address: tuple[str, int], sources: Sequence[str], request: bytes, per_second: float, seconds: float
) -> Flooded:
    """Connect so often, by turns from these addresses of loopback, with a request each.

    An attempt ends when it is answered or reset, or after 2 s. No more than 5 000 are on their way at once.
    """
    ends = select.epoll()
    open_since: dict[int, tuple[socket.socket, float]] = {}
    turns = cycle(sources)
    attempts = answered = 0
    began_s = now_s = time.monotonic()
    while now_s < began_s + seconds:
        due = min(int((now_s - began_s) * per_second) - attempts, _MOST_OPEN - len(open_since), _AT_ONCE)
        for _ in range(due):
            connection = _attempt(address, next(turns), request)
            ends.register(connection, select.EPOLLIN)
            open_since[connection.fileno()] = connection, now_s
        attempts += max(0, due)
        for descriptor, _ in ends.poll(0.001):
            connection, _ = open_since.pop(descriptor)
            with connection, suppress(OSError):
                answered += bool(connection.recv(4))
        now_s = time.monotonic()
        while open_since and next(iter(open_since.values()))[1] < now_s - _PATIENCE_S:
            open_since.pop(next(iter(open_since)))[0].close()
    for connection, _ in open_since.values():
        connection.close()
    ends.close()
    return Flooded(attempts / seconds, answered / seconds)


def _attempt(address: tuple[str, int], source: str, request: bytes) -> socket.socket:
    connection = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    connection.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    connection.bind((source, 0))
    connection.connect_ex(address)
    with suppress(OSError):  # it isn't connected yet where the server accepts no more
        connection.send(request)
    return connection
