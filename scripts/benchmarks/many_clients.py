"""Thousands of clients of one broker, as it sees them: many client-ids, which send requests on a few connections."""

import heapq
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from kafka.record.memory_records import MemoryRecordsBuilder

_CONNECTIONS = 8
_CLIENTS = 10_000
_BUSY = 500
_BUSY_VALUE = 2_000
_SMALL_VALUE = 300
_BUSY_PERIOD_S = 1.0
_SMALL_PERIOD_S = 8.0
_NEAR = 0.7
_TICK_S = 0.02
_PARTITIONS = 4


class ManyClients:
    """Clients that produce to a topic with four partitions, each at its own steady pace, and are never throttled.

    Busy ones send a request a second, which is 70 % of `limit`; small ones one in 8 s, which is less than a tenth.
    """

    count = _CLIENTS
    busy = _BUSY

    def __init__(self, topic: str) -> None:
        self._requests = [
            (number / _CLIENTS, self._period_s(number), _produce(topic, number, self._value(number)))
            for number in range(_CLIENTS)
        ]
        self.limit = float(round(len(self._requests[0][2]) / _BUSY_PERIOD_S / _NEAR))

    def is_small(self, client_id: str) -> bool:
        """Whether the client uses less than a tenth of its limit."""
        return client_id.startswith("many-") and int(client_id.removeprefix("many-")) >= _BUSY

    @contextmanager
    def sending(self, servers: str) -> Iterator[None]:
        """Let all clients send while this block runs."""
        ended = Event()
        threads = [Thread(target=self._run, args=(servers, part, ended)) for part in range(_CONNECTIONS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    @staticmethod
    def _period_s(number: int) -> float:
        return _BUSY_PERIOD_S if number < _BUSY else _SMALL_PERIOD_S

    @staticmethod
    def _value(number: int) -> bytes:
        return bytes(_BUSY_VALUE if number < _BUSY else _SMALL_VALUE)

    def _run(self, servers: str, part: int, ended: Event) -> None:
        """Send the requests of every eighth client on one connection, and drop the answers."""
        host, _, port = servers.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            Thread(target=_drop_answers, args=(connection,), daemon=True).start()
            begun_s = time.monotonic()
            due = [(begun_s + phase * period_s, period_s, request) for phase, period_s, request in self._requests]
            due = due[part::_CONNECTIONS]
            heapq.heapify(due)
            while not ended.wait(_TICK_S):
                now_s = time.monotonic()
                while due[0][0] <= now_s:
                    due_s, period_s, request = due[0]
                    connection.sendall(request)
                    heapq.heapreplace(due, (due_s + period_s, period_s, request))
            connection.shutdown(socket.SHUT_RDWR)


def _drop_answers(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(65_536):
            pass


def _produce(topic: str, number: int, value: bytes) -> bytes:
    """A Produce request, version 7, of one record, from the client-id `many-<number>`; acks=1."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2 * len(value) + 1_000)
    builder.append(timestamp=int(time.time() * 1000), key=None, value=value, headers=[])
    builder.close()
    records = bytes(builder.buffer())
    header = struct.pack(">hhi", 0, 7, number) + _string(f"many-{number}")
    partition = struct.pack(">ii", number % _PARTITIONS, len(records)) + records
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + _string(topic) + struct.pack(">i", 1) + partition
    return struct.pack(">i", len(header) + len(body)) + header + body


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
