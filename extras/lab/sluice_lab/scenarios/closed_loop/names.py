"""A flood of client-ids that nobody has named, against brokers: their memory, and the latency of another client."""

import multiprocessing
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import confluent_kafka
import numpy as np
import psutil

from sluice.process.background import BackgroundService
from sluice_demo.cluster import Cluster, make_topic
from sluice_demo.job import Json
from sluice_lab.scenarios.closed_loop.brokers import TOPIC, held_brokers
from sluice_lab.scenarios.closed_loop.situation import CLIENT, BrokersSituation, FloodedBrokers, NameFlood
from sluice_lab.testbed.full_speed_clients import read_answer, request_bytes
from sluice_lab.testbed.rig import Rig

VICTIMS_LIMIT = 1_000_000.0

_QUIET_S = 30.0
_AFTER_S = 10.0
_PERIOD_S = 0.01
_WATCH_S = 0.1


@dataclass(frozen=True)
class FloodMeasures:
    """Effects of a flood on brokers, a victim and the job. Latencies are in ms, heaps in MiB over all brokers.

    `p99_one_name` is that during the same requests under one client-id. `busy_...` are percent of this machine's cores,
    whatever uses them. Figures of the job are of the flood with many names.
    """

    heap_before: float
    heap_after: float
    p99_before: float
    p99_one_name: float
    p99_during: float
    busy_before: float
    busy_one_name: float
    busy_during: float
    flood_s: float
    brokers_alive: int
    longest_batch_ms: int | None
    most_lag_events: int | None
    events: int | None


def run_name_flood(folder: Path, asked: NameFlood) -> FloodMeasures:
    """Start brokers, and the job if they have the plugin; measure before, during and after the flood."""
    situation = BrokersSituation(brokers=asked.brokers, own_quotas=asked.kind is not FloodedBrokers.PLUGIN)
    with held_brokers(folder, situation, _quotas(asked)) as (cluster, rig, _):
        make_topic(cluster.bootstrap_servers, TOPIC, [1] * asked.brokers)
        servers = [broker.bootstrap_servers for broker in cluster.alive]
        # of its own, so that it doesn't hold the interpreter while the victim's answers come
        spawn = multiprocessing.get_context("spawn")
        with (
            ProcessPoolExecutor(1, mp_context=spawn) as pool,
            victim(cluster.bootstrap_servers) as latencies_ms,
            job_watch(rig) as batches,
        ):

            def send(one_name: bool) -> float:
                return pool.submit(flood, servers, asked.requests, asked.length, one_name, asked.per_second).result()

            send(one_name=True)  # brokers compile for minutes: the first requests of any kind are the slowest
            heap_before = live_mib(cluster)
            p99_before, busy_before, _ = _during(latencies_ms, lambda: time.sleep(_QUIET_S))
            p99_one_name, busy_one_name, _ = _during(latencies_ms, lambda: send(one_name=True))
            batches.clear()
            p99_during, busy_during, flood_s = _during(latencies_ms, lambda: send(one_name=False))
            time.sleep(_AFTER_S)
            heap_after = live_mib(cluster)
        return FloodMeasures(
            heap_before,
            heap_after,
            p99_before,
            p99_one_name,
            p99_during,
            busy_before,
            busy_one_name,
            busy_during,
            flood_s,
            len(cluster.alive),
            max((batch["batch_ms"] for batch in batches), default=None),
            max((batch["lag"] for batch in batches), default=None),
            sum(batch["events"] for batch in batches) if batches else None,
        )


def _during(latencies_ms: list[float], run: Callable[[], float | None]) -> tuple[float, float, float]:
    """The victim's p99, the percent of the machine that is busy, and the seconds that `run` takes."""
    latencies_ms.clear()
    psutil.cpu_percent()
    began_s = time.monotonic()
    run()
    return _p99(latencies_ms), psutil.cpu_percent(), time.monotonic() - began_s


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
        next_s = time.monotonic() + _PERIOD_S
        while (left_s := next_s - time.monotonic()) > 0:
            producer.poll(left_s)  # the latency is that of the moment when it is noted

    with BackgroundService("victim", produce, 0):
        yield latencies_ms
    producer.flush(5)


@contextmanager
def job_watch(rig: Rig | None) -> Iterator[list[Json]]:
    """The micro-batches of the enforce query that the status file shows during this block, ten times a second."""
    batches: list[Json] = []
    if rig is None:
        yield batches
        return

    def poll() -> None:
        last = rig.status().get("enforce")
        if last and (not batches or last != batches[-1]):
            batches.append(last)

    with BackgroundService("job-watch", poll, _WATCH_S):
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
    quotas: list[Json] = []
    if asked.kind is FloodedBrokers.PLUGIN:
        quotas.append({"entity": {"client_id": CLIENT}, "quotas": {"producer_byte_rate": VICTIMS_LIMIT}})
    if asked.limited or asked.kind is FloodedBrokers.REQUEST_QUOTAS:
        quotas.append({"entity": {"client_id": None}, "quotas": {"request_percentage": 50.0}})
    return quotas


def _p99(latencies_ms: list[float]) -> float:
    known = list(latencies_ms)  # more are noted meanwhile
    return float(np.percentile(known, 99)) if known else float("nan")


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
