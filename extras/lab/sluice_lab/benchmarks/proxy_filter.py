"""Cost of the filter in a Kafka proxy: clients far below their quota, beside the same proxy without the filter."""

import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from sluice.process.clock import now_ms
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.cluster import make_topic
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_lab.benchmarks.report import Findings, at_least
from sluice_lab.benchmarks.rig import BenchmarkRig
from sluice_lab.benchmarks.scale import Scale
from sluice_lab.testbed.full_speed_clients import produce_request, read_answer
from sluice_lab.testbed.quotas_without_job import settings_with_limits
from sluice_proxy.gateway import KafkaGateway

_TOPIC = "orders"
_ENTITIES = (QuotaEntity(client_id=DEFAULT), QuotaEntity(topic=DEFAULT))
_KINDS = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.TOPIC_PRODUCER_BYTE_RATE)
_LIMITS = [QuotaEntry(entity, kind, 1e12) for entity, kind in zip(_ENTITIES, _KINDS, strict=True)]
"""Quotas that nobody reaches, so that each request is charged to a client's counter and a partition's."""

_SIDES = {"with the filter": True, "without it": False}
_START_S, _RUN_S = 2.0, 8.0
_WARM_RUNS = 2
_SMALL_BYTES = 100
_SMALL_REQUESTS, _PER_S = 2_000, 400
_SECTION = "A Kafka proxy, nobody throttled"


class _Measured(NamedTuple):
    bytes_per_s: float
    p50_ms: float
    p99_ms: float


def measure_proxy_filter(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Throughput of a producer at full speed, and latency of small requests, through both proxies in turns."""
    found: dict[str, list[_Measured]] = {side: [] for side in _SIDES}
    with _proxies(rig.folder / "proxies") as proxies:
        for run in range(scale.of(1, _WARM_RUNS) + scale.runs):
            for side in list(_SIDES)[:: 1 if run % 2 else -1]:
                measured = _Measured(_bytes_per_s(proxies[side]), *_latencies_ms(proxies[side]))
                if run >= scale.of(1, _WARM_RUNS):  # Java has compiled what counts
                    found[side].append(measured)
    through = {
        side: findings.add(_SECTION, f"producer at full speed {side}", "B/s", [run.bytes_per_s for run in runs])
        for side, runs in found.items()
    }
    for side, runs in found.items():
        findings.add(_SECTION, f"p50 of a small Produce {side}", "ms", [run.p50_ms for run in runs])
        findings.add(_SECTION, f"p99 of a small Produce {side}", "ms", [run.p99_ms for run in runs])
    pairs = zip(*found.values(), strict=True)
    more_ms = [with_filter.p99_ms - without.p99_ms for with_filter, without in pairs]
    findings.add(_SECTION, "p99 of a small Produce, how much more with the filter", "ms", more_ms)
    filtered, plain = through.values()
    findings.compare("throughput of a proxy with the filter / without it", filtered, plain, at_least(0.9))


@contextmanager
def _proxies(folder: Path) -> Iterator[dict[str, str]]:
    """The addresses of two proxies before one broker, by side."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(folder / "broker"))
        settings = settings_with_limits(broker.bootstrap_servers, _LIMITS)
        make_topic(broker.bootstrap_servers, _TOPIC, [1])
        yield {
            side: stack.enter_context(KafkaGateway(folder / side, settings, filtered=filtered)).bootstrap_servers
            for side, filtered in _SIDES.items()
        }


def _bytes_per_s(servers: str) -> float:
    client = FullSpeedClient("producer", Role.PRODUCE, servers, _TOPIC)
    time.sleep(_START_S)
    began_ms = now_ms()
    time.sleep(_RUN_S)
    ended_ms = now_ms()
    client.stop()
    return sum(size for at_ms, size in client.samples if began_ms < at_ms <= ended_ms) / (ended_ms - began_ms) * 1000


def _latencies_ms(servers: str) -> tuple[float, float]:
    """Median and 99th percentile of the time from a small request to its answer, at a steady rate on one connection."""
    host, port = servers.rsplit(":", 1)
    request, took_ms = produce_request("small", _TOPIC, 0, _SMALL_BYTES, now_ms()), []
    with socket.create_connection((host, int(port))) as connection:  # the port for all brokers leads to the one
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        next_s = time.monotonic()
        for _ in range(_SMALL_REQUESTS):
            next_s += 1 / _PER_S
            time.sleep(max(0.0, next_s - time.monotonic()))
            began_s = time.monotonic()
            connection.sendall(request)
            read_answer(connection)
            took_ms.append((time.monotonic() - began_s) * 1000)
    percentiles = statistics.quantiles(took_ms, n=100)
    return percentiles[49], percentiles[98]
