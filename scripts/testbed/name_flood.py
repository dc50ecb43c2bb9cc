"""Requests of clients with names of their own, which need no login and no right."""

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Thread

from scripts.testbed.reconnecting_client import read_answer, request_bytes

_API_VERSIONS = 18
_PIPELINED = 5
_PATIENCE_S = 60.0


def flood(servers: Sequence[str], requests: int, length: int, one_name: bool, per_second: float | None) -> float:
    """Send so many ApiVersions requests, a connection for each broker, and read the answers. Returns seconds.

    `length`: characters of a client-id; with `one_name` all have the same, else each has a new one;
    `per_second`: of all requests, without it as fast as they are answered.
    """
    began_s = time.monotonic()
    pause_s = 1 / per_second if per_second else 0.0
    threads = []
    for first, server in enumerate(servers):
        numbers = range(first, requests, len(servers))
        threads.append(Thread(target=_flood_one, args=(server, numbers, length, one_name, pause_s), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began_s


def _flood_one(server: str, numbers: Iterable[int], length: int, one_name: bool, pause_s: float) -> None:
    host, port = server.rsplit(":", 1)
    began_s = time.monotonic()
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=_PATIENCE_S) as connection:
        # a broker that has ended is what the measures say
        unread = 0
        for number in numbers:
            time.sleep(max(0.0, began_s + number * pause_s - time.monotonic()))
            name = f"{0 if one_name else number + 1:012d}".ljust(length, "x")
            connection.sendall(request_bytes(_API_VERSIONS, 0, name))
            unread += 1
            if unread == _PIPELINED:
                read_answer(connection)
                unread -= 1
        for _ in range(unread):
            read_answer(connection)
