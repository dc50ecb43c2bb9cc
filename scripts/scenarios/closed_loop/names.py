"""A flood of client-ids that nobody has named, against brokers: their memory, and the latency of another client."""

import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Thread

import confluent_kafka
import numpy as np
from kafka import KafkaAdminClient

from scripts.scenarios.closed_loop.brokers import TOPIC, plugin_brokers
from scripts.scenarios.closed_loop.situation import CLIENT, FloodedBrokers, NameFlood
from scripts.testbed.broker import Broker
from scripts.testbed.cluster import AlteringAdmin, Cluster, create_topic
from scripts.testbed.job import Json
from scripts.testbed.reconnecting_client import read_answer
from scripts.testbed.rig import Rig
from sluice.kafka_io.background import BackgroundService
from sluice.kafka_io.client import connect

VICTIMS_LIMIT = 1_000_000.0

_API_VERSIONS = 18
_QUIET_S = 20.0
_AFTER_S = 10.0
_PERIOD_S = 0.01
_WATCH_S = 0.1
_PIPELINED = 5


@dataclass(frozen=True)
class FloodMeasures:
    """Effects of a flood on brokers, a victim and the job. Latencies are in ms, heaps in MiB over all brokers."""

    heap_before: float
    heap_after: float
    p99_before: float
    p99_during: float
    flood_s: float
    brokers_alive: int
    longest_batch_ms: int | None
    most_lag_events: int | None
    events: int | None


def run_name_flood(folder: Path, asked: NameFlood) -> FloodMeasures:
    """Start brokers, and the job if they have the plugin; measure before, during and after the flood."""
    with ExitStack() as stack:
        rig = None
        if asked.kind is FloodedBrokers.PLUGIN:
            cluster, rig = stack.enter_context(plugin_brokers(folder, asked.brokers, _quotas(asked)))
        else:
            cluster = stack.enter_context(Cluster(folder / "brokers", asked.brokers))
            if asked.kind is FloodedBrokers.REQUEST_QUOTAS:
                with connect(AlteringAdmin, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
                    admin.alter({"client-id": None}, {"request_percentage": 50.0})
        with connect(KafkaAdminClient, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            create_topic(admin, TOPIC, [1] * asked.brokers)
        with victim(cluster.bootstrap_servers) as latencies_ms, job_watch(rig) as batches:
            time.sleep(_QUIET_S)
            heap_before = live_mib(cluster)
            latencies_ms.clear()
            batches.clear()
            time.sleep(_QUIET_S)
            before = list(latencies_ms)
            latencies_ms.clear()
            began_s = time.monotonic()
            flood(cluster.alive, asked.requests, asked.length)
            flood_s = time.monotonic() - began_s
            during = list(latencies_ms)
            time.sleep(_AFTER_S)
            heap_after = live_mib(cluster)
        return FloodMeasures(
            heap_before,
            heap_after,
            _p99(before),
            _p99(during),
            flood_s,
            len(cluster.alive),
            max((batch["batch_ms"] for batch in batches), default=None),
            max((batch["lag"] for batch in batches), default=None),
            sum(batch["events"] for batch in batches) if batches else None,
        )


def flood(brokers: list[Broker], requests: int, length: int) -> None:
    """Send so many ApiVersions requests, a connection for each broker, and read the answers."""
    numbers = count()
    shares = [requests // len(brokers)] * len(brokers)
    threads = [
        Thread(target=_flood_one, args=(broker.bootstrap_servers, share, length, numbers), daemon=True)
        for broker, share in zip(brokers, shares, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _flood_one(server: str, requests: int, length: int, numbers: Iterator[int]) -> None:
    host, port = server.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            unread = 0
            for _ in range(requests):
                client_id = f"{next(numbers):012d}".ljust(length, "x").encode()
                request = struct.pack(">hhih", _API_VERSIONS, 0, 0, len(client_id)) + client_id
                connection.sendall(struct.pack(">i", len(request)) + request)
                unread += 1
                while unread >= _PIPELINED:
                    read_answer(connection)
                    unread -= 1
            for _ in range(unread):
                read_answer(connection)
    except OSError:
        return  # the broker has ended, which is what the measures say


@contextmanager
def victim(servers: str) -> Iterator[list[float]]:
    """Latencies of acknowledgements, in ms, of a client that produces a small record every 10 ms, during this block."""
    latencies_ms: list[float] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "client.id": CLIENT, "linger.ms": 0, "acks": 1, "log_level": 2}
    )

    def note(error: object, message: confluent_kafka.Message) -> None:
        latency_s = message.latency()
        if error is None and latency_s is not None:
            latencies_ms.append(latency_s * 1000)

    def produce() -> None:
        producer.produce(TOPIC, b"x" * 100, on_delivery=note)
        producer.poll(0)

    with BackgroundService("victim", produce, _PERIOD_S):
        yield latencies_ms
    producer.flush(5)


@contextmanager
def job_watch(rig: Rig | None) -> Iterator[list[Json]]:
    """The micro-batches of the enforce query that the status file shows during this block, ten times a second."""
    batches: list[Json] = []
    if rig is None:
        yield batches
        return

    def look() -> None:
        last = rig.status().get("enforce")
        if last and (not batches or last != batches[-1]):
            batches.append(last)

    with BackgroundService("job-watch", look, _WATCH_S):
        yield batches


def live_mib(cluster: Cluster) -> float:
    """MiB of live objects in the heaps of all brokers, after a garbage collection."""
    totals = [
        subprocess.run(["jmap", "-histo:live", str(broker.pid)], capture_output=True, text=True, check=True)  # noqa: S607 # of the JDK
        .stdout.splitlines()[-1]
        .split()[2]
        for broker in cluster.alive
    ]
    return sum(map(int, totals)) / 2**20


def _quotas(asked: NameFlood) -> list[Json]:
    quotas: list[Json] = [{"entity": {"client_id": CLIENT}, "quotas": {"producer_byte_rate": VICTIMS_LIMIT}}]
    if asked.limited:
        quotas.append({"entity": {"client_id": None}, "quotas": {"request_percentage": 50.0}})
    return quotas


def _p99(latencies_ms: list[float]) -> float:
    return float(np.percentile(latencies_ms, 99)) if latencies_ms else float("nan")
