"""A flood of connections against a proxy, and how long another client's connect takes meanwhile."""

import multiprocessing
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_lab.scenarios.closed_loop.situation import ConnectionFlood
from sluice_lab.testbed.full_speed_clients import read_answer, request_bytes
from sluice_lab.testbed.quotas_without_job import settings_with_limits
from sluice_proxy.gateway import KafkaGateway

CONNECTIONS_PER_S = 10.0
"""The quota `connection_rate` of the client that floods."""

_FLOODER = "flooder"
_FLOODERS_ADDRESS = "127.0.2.{}"
_VICTIMS_ADDRESS = "127.0.1.1"
_METADATA, _ALL_TOPICS = 3, b"\0\0\0\0"
_WARM_S = 5.0
_REST_S = 3.0  # what was refused is closed by then
_PERIOD_S = 0.05
_BACKOFF_S = 0.05  # reconnect.backoff.ms of Kafka's clients
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class ConnectionMeasures:
    """A flood, and another client's connects beside it and before it, the median with its resets.

    Times are seconds from the connect to the first answer, attempts that were reset and the backoff after them
    included. `busy` is percent of this machine's cores during the flood, whatever uses them.
    """

    attempts_per_s: float
    taken_per_s: float
    connects: int
    median_resets: float
    median_s: float
    worst_s: float
    alone_median_s: float
    alone_worst_s: float
    busy: float


def run_connection_flood(folder: Path, asked: ConnectionFlood) -> ConnectionMeasures:
    """Start a broker and a proxy; measure a client's connects alone, and beside the flood."""
    sources = [_FLOODERS_ADDRESS.format(number + 1) for number in range(asked.addresses)]
    request = request_bytes(_METADATA, 0, _FLOODER, _ALL_TOPICS)
    spawn = multiprocessing.get_context("spawn")
    with _proxy(folder, asked.connections_per_s) as address, ProcessPoolExecutor(1, mp_context=spawn) as pool:
        flood = partial(flood_connections, address, sources, request, asked.per_second)
        pool.submit(flood, _WARM_S).result()  # Java has compiled what counts
        time.sleep(_REST_S)
        began_s = time.monotonic()
        _, alone_s = _connects(address, lambda: time.monotonic() > began_s + asked.seconds)
        psutil.cpu_percent()
        flooding = pool.submit(flood, asked.seconds)
        resets, beside_s = _connects(address, flooding.done)
        busy = psutil.cpu_percent()
    return ConnectionMeasures(
        *flooding.result(),
        connects=len(beside_s),
        median_resets=median(resets),
        median_s=median(beside_s),
        worst_s=max(beside_s),
        alone_median_s=median(alone_s),
        alone_worst_s=max(alone_s),
        busy=busy,
    )


@contextmanager
def _proxy(folder: Path, connections_per_s: int | None) -> Iterator[tuple[str, int]]:
    """The address of a proxy that holds the flooder's connections to a rate, before a broker."""
    limit = QuotaEntry(QuotaEntity(client_id=_FLOODER), QuotaKind.CONNECTION_RATE, CONNECTIONS_PER_S)
    with Broker(folder / "broker", heap_mib=512) as broker:
        settings = settings_with_limits(broker.bootstrap_servers, [limit])
        with KafkaGateway(folder / "proxy", settings, connections_per_s=connections_per_s) as gateway:
            host, port = gateway.bootstrap_servers.rsplit(":", 1)
            yield host, int(port)


def _connects(address: tuple[str, int], is_over: Callable[[], bool]) -> Sequence[Sequence[float]]:
    """Resets, and seconds, of a client's connects, at most twenty a second, until it is over."""
    request = request_bytes(_METADATA, 0, "victim", _ALL_TOPICS)
    took = list[tuple[int, float]]()
    while not took or not is_over():
        began_s = time.monotonic()
        took.append((_resets(address, request), time.monotonic() - began_s))
        time.sleep(_PERIOD_S)
    return [*zip(*took, strict=True)]


def _resets(address: tuple[str, int], request: bytes) -> int:
    """Connect until there is an answer. A busy machine may be late with one: that is no reset."""
    resets = 0
    while True:
        try:
            with socket.create_connection(address, _PATIENCE_S, source_address=(_VICTIMS_ADDRESS, 0)) as connection:
                connection.sendall(request)
                read_answer(connection)
                return resets
        except OSError as error:
            resets += not isinstance(error, TimeoutError)
        time.sleep(_BACKOFF_S)


_BIND_ADDRESS_NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT of Linux, which Python doesn't name
_ATTEMPT_S = 2.0
_MOST_OPEN = 5_000
_AT_ONCE = 200


class Flooded(NamedTuple):
    """Attempts a second, and how many of them were answered, or closed without a reset."""

    attempts_per_s: float
    taken_per_s: float


def flood_connections(
    address: tuple[str, int], sources: Sequence[str], request: bytes, per_second: float, seconds: float
) -> Flooded:
    """Connect so often, by turns from these addresses of loopback, with a request each.

    An attempt ends when it is answered, closed or reset, or after 2 s. No more than 5 000 are on their way at once.
    """
    ends = select.epoll()
    open_since: dict[int, tuple[socket.socket, float]] = {}
    turns = cycle(sources)
    attempts = taken = 0
    began_s = now_s = time.monotonic()
    while now_s < began_s + seconds:
        due = min(int((now_s - began_s) * per_second) - attempts, _MOST_OPEN - len(open_since), _AT_ONCE)
        for _ in range(due):
            with suppress(ConnectionError):  # a reset that came before the request was sent
                connection = _attempt(address, next(turns), request)
                ends.register(connection, select.EPOLLIN)
                open_since[connection.fileno()] = connection, now_s
        attempts += max(0, due)
        for descriptor, _ in ends.poll(0.001):
            connection, _ = open_since.pop(descriptor)
            with connection, suppress(OSError):
                taken += connection.recv(4) is not None  # one that was reset raises an error
        now_s = time.monotonic()
        while open_since and next(iter(open_since.values()))[1] < now_s - _ATTEMPT_S:
            open_since.pop(next(iter(open_since)))[0].close()
    for connection, _ in open_since.values():
        connection.close()
    ends.close()
    return Flooded(attempts / seconds, taken / seconds)


def _attempt(address: tuple[str, int], source: str, request: bytes) -> socket.socket:
    connection = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    connection.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    connection.bind((source, 0))
    connection.connect_ex(address)
    with suppress(BlockingIOError):  # it isn't connected yet where the server accepts no more
        connection.send(request)
    return connection
