"""A producer that opens a new connection for each request: what mutes a connection doesn't reach it."""

import socket
import struct
import time
from itertools import cycle

import confluent_kafka
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from sluice.demo.full_speed_client import Client
from sluice.kafka_io.clock import now_ms

SOCKETS = 3

_VERSION = 8  # the last one whose answer needs no flexible fields, which every broker since 2.0 takes
_VALUE_BYTES = 100_000
_PATIENCE_S = 30.0


class ReconnectingClient(Client):
    """SOCKETS threads, each with a connection of its own for every request of 100 kB.

    `samples` are bytes of values of requests that were answered, `errors` what ended others.
    """

    def __init__(self, name: str, servers: str, topic: str) -> None:
        super().__init__(name)
        leaders = _leaders(servers, topic)
        for number in range(SOCKETS):
            self._start(self._run, topic, leaders, number)

    def _run(self, topic: str, leaders: list[tuple[int, tuple[str, int]]], first: int) -> None:
        order = cycle(leaders[first % len(leaders) :] + leaders[: first % len(leaders)])
        requests = {
            partition: produce_request(self.name, topic, partition, _VALUE_BYTES, now_ms()) for partition, _ in leaders
        }
        while not self._stop.is_set():
            partition, address = next(order)
            try:
                with socket.create_connection(address, timeout=_PATIENCE_S) as connection:
                    connection.sendall(requests[partition])
                    read_answer(connection)
            except OSError as error:
                self.errors.append(str(error))
                time.sleep(0.1)
            else:
                self.samples.append((now_ms(), float(_VALUE_BYTES)))


def _leaders(servers: str, topic: str) -> list[tuple[int, tuple[str, int]]]:
    """Each partition with the address of its leader."""
    metadata = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "leaders"}).list_topics(topic)
    brokers = {node: (broker.host, broker.port) for node, broker in metadata.brokers.items()}
    return [(number, brokers[partition.leader]) for number, partition in metadata.topics[topic].partitions.items()]


def produce_request(client_id: str, topic: str, partition: int, value_bytes: int, at_ms: int) -> bytes:
    """A request to produce a record with a value of zeros, as it is sent."""
    builder = MemoryRecordsBuilder(2, 0, value_bytes + 1_000)
    builder.append(at_ms, None, bytes(value_bytes))
    builder.close()
    data = ProduceRequest.TopicProduceData
    parts = [data.PartitionProduceData(index=partition, records=builder.buffer())]
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=10_000, topic_data=[data(name=topic, partition_data=parts)]
    )
    request.API_VERSION = _VERSION
    request.with_header(correlation_id=1, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


def request_bytes(api: int, version: int, client_id: str, body: bytes = b"") -> bytes:
    """A request without flexible fields, as it is sent."""
    name = client_id.encode()
    request = struct.pack(">hhih", api, version, 0, len(name)) + name + body
    return struct.pack(">i", len(request)) + request


def read_answer(connection: socket.socket) -> None:
    """Read a broker's answer to one request. Raises OSError."""
    (left,) = struct.unpack(">i", _read(connection, 4))
    _read(connection, left)


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise OSError("the broker has closed the connection")
        content += part
    return content
