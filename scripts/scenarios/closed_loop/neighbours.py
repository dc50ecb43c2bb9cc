"""Noisy neighbours: five victims' latency and throughput beside each, over alone, on brokers of three kinds."""

import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.scenarios.closed_loop.brokers import fill, plugin_brokers
from scripts.scenarios.closed_loop.noise import COMPACTED, LARGE_BYTES, NOISY, VICTIM, Victims, noise, victims
from scripts.scenarios.closed_loop.situation import BrokersQuotas, Neighbours, Noise
from scripts.testbed.quotas_without_job import set_kafkas_quotas
from sluice.demo.cluster import Cluster, make_topic

MOST_P99, LEAST_THROUGHPUT = 1.5, 0.99
"""Bars: p99 of the victims' acknowledgements beside a neighbour and their throughput, over alone."""

QUOTAS = {
    "producer_byte_rate": 2_000_000.0,
    "consumer_byte_rate": 2_000_000.0,
    "request_percentage": 15.0,
    "controller_mutation_rate": 5.0,
}
"""Quotas of the noisy client: those of Kafka hold on each broker, Sluice's in the cluster."""

CONNECTIONS_PER_S = 50.0
"""Limit of new connections of each address, with Kafka's quotas and with Sluice's (KIP-612)."""

_COMPACTING = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(2**20)}
"""Configuration of a topic that the brokers clean all the time."""

_BEGIN_S = 3.0


@dataclass(frozen=True)
class Beside:
    """Victims beside a neighbour and alone just before, their ratio, and how much noise there was a second."""

    alone: Victims
    beside: Victims
    p99_ratio: float
    throughput_ratio: float
    noise_per_s: float
    passes: bool


def run_neighbours(folder: Path, asked: Neighbours, kind: BrokersQuotas) -> bool:
    """Print the victims beside each kind of noise, in turns with alone, on brokers of one kind, once it is measured.

    False if one of them missed a bar with Sluice's quotas.
    """
    passes = True
    spawn = multiprocessing.get_context("spawn")
    with (
        _brokers(folder, asked.brokers, kind) as servers,
        ProcessPoolExecutor(1, mp_context=spawn) as watching,
        ProcessPoolExecutor(1, mp_context=spawn) as disturbing,
    ):
        _make_topics(servers, asked.brokers)

        def measured() -> Victims:
            return watching.submit(victims, servers, VICTIM, asked.seconds).result()

        measured()  # brokers compile for minutes: the first requests are the slowest
        for each in asked.noise or list(Noise):
            alone = measured()
            length_s = asked.seconds + 2 * _BEGIN_S
            noisy = disturbing.submit(noise, each, servers, NOISY, length_s)
            time.sleep(_BEGIN_S)
            beside = measured()
            found = _compared(alone, beside, noisy.result() / length_s)
            row = {"quotas": kind.value, "noise": each.value, **asdict(found)}
            print(json.dumps(row) if asked.as_json else _line(kind, each, found), flush=True)
            passes &= found.passes or kind is not BrokersQuotas.SLUICE
    return passes


def _compared(alone: Victims, beside: Victims, noise_per_s: float) -> Beside:
    # Brokers without quotas may answer nobody for a while after a neighbour: then there is no ratio, and no pass.
    p99 = beside.p99_ms / alone.p99_ms
    throughput = beside.bytes_per_s / alone.bytes_per_s if alone.bytes_per_s else math.nan
    return Beside(alone, beside, p99, throughput, noise_per_s, p99 <= MOST_P99 and throughput >= LEAST_THROUGHPUT)


@contextmanager
def _brokers(folder: Path, size: int, kind: BrokersQuotas) -> Iterator[str]:
    """Brokers with Sluice's quotas, with Kafka's own, or without any. Yields their addresses."""
    if kind is BrokersQuotas.SLUICE:
        quotas = [{"entity": {"client_id": NOISY}, "quotas": QUOTAS}]
        with plugin_brokers(folder, size, quotas) as (cluster, _):
            _limit_connections(cluster.bootstrap_servers)
            yield cluster.bootstrap_servers
        return
    with Cluster(folder / "brokers", size) as cluster:
        if kind is BrokersQuotas.KAFKA:
            set_kafkas_quotas(cluster.bootstrap_servers, {"client-id": NOISY}, QUOTAS)
            _limit_connections(cluster.bootstrap_servers)
        yield cluster.bootstrap_servers


def _limit_connections(servers: str) -> None:
    set_kafkas_quotas(servers, {"ip": None}, {"connection_creation_rate": CONNECTIONS_PER_S})


def _make_topics(servers: str, brokers: int) -> None:
    """The topics of the victims and of the noisy client, which has records for a replay."""
    large = {"max.message.bytes": str(2 * LARGE_BYTES)}
    for name, configs in {VICTIM: {}, NOISY: large, COMPACTED: _COMPACTING}.items():
        make_topic(servers, name, [2] * brokers, configs)
    fill(servers, NOISY)


def _line(quotas: BrokersQuotas, noise: Noise, found: Beside) -> str:
    """A line of text: p99 and throughput of the victims beside a kind of noise and over alone, and the noise itself."""
    alone, beside = found.alone, found.beside
    return (
        f"{quotas:<8}{noise:<20}p99 {alone.p99_ms:>6.1f} -> {beside.p99_ms:>7.1f} ms, {found.p99_ratio:>6.2f} times;"
        f" throughput {found.throughput_ratio:.3f}; noise {found.noise_per_s:,.0f}/s"
    )
