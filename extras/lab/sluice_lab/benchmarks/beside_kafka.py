"""Clients at full speed beside Kafka: throttled by the broker plugin, by proxies and by Kafka's own quotas."""

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

import psutil

from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.cluster import make_topic
from sluice_demo.full_speed_client import Role
from sluice_demo.job import Json
from sluice_lab.benchmarks.report import Bar, Findings, at_most
from sluice_lab.benchmarks.rig import BenchmarkRig
from sluice_lab.benchmarks.scale import LIBRARIES, ROWS, Scale
from sluice_lab.scenarios.closed_loop.brokers import fill, full_speed, held_brokers, served_since
from sluice_lab.scenarios.closed_loop.measures import Measures, measure
from sluice_lab.scenarios.closed_loop.situation import BrokersSituation
from sluice_lab.testbed.full_speed_clients import full_speed_client, java_machine
from sluice_toolbox.machine import Jvm

_USUAL_S = 120
_LIMITS = (1_000_000.0, 3_000_000.0)
_KINDS = {Role.PRODUCE: QuotaKind.PRODUCER_BYTE_RATE, Role.CONSUME: QuotaKind.CONSUMER_BYTE_RATE}
_TOPICS = {Role.PRODUCE: "orders", Role.CONSUME: "stored"}
_OWN = "1-broker-own-quotas"
"""Row whose silences are the bar of the others: at one broker Kafka's own quota is that of the whole cluster, too."""


class ClientId(NamedTuple):
    """A client-id of clients that have one library and role, and together a limit in bytes per second."""

    library: str
    role: Role
    limit: float

    @property
    def name(self) -> str:
        """The name, in which the limit is in MB/s.

        >>> ClientId("java", Role.CONSUME, 3e6).name
        'java-consumer-3'
        """
        return f"{self.library}-{self.role}r-{self.limit / 1e6:g}"


class Run(NamedTuple):
    """Measures of a client-id in one run, errors and lost connections of its clients, and how busy all cores were.

    At 100 % processors hold the clients, not quotas.
    """

    measures: Measures
    errors: int
    busy_percent: float


def measure_beside_kafka(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Amounts over the quotas, without the first 10 s: a fresh counter may burst.

    In each row the producers and consumers of all libraries run at once, first those with one limit, then those with
    the other: their quotas are apart, as in any cluster, and each alone against each row would take hours.
    """
    libraries, rows = scale.libraries or LIBRARIES, dict.fromkeys([_OWN, *(scale.rows or ROWS)])
    ids = [ClientId(library, role, limit) for limit in _LIMITS for library in libraries for role in _KINDS]
    found: dict[ClientId, dict[str, list[Run]]] = {}
    try:
        with java_machine() as jvm:
            for row in chain(*[rows] * scale.runs):
                with tempfile.TemporaryDirectory(dir=rig.folder, ignore_cleanup_errors=True) as folder:
                    for client_id, run in _runs(Path(folder), ROWS[row], ids, scale.length_s(_USUAL_S), jvm):
                        found.setdefault(client_id, {}).setdefault(row, []).append(run)
    finally:  # after an interruption, too
        for client_id, by_row in found.items():
            add_lines(findings, client_id, by_row)


def add_lines(findings: Findings, client_id: ClientId, found: Mapping[str, Sequence[Run]]) -> None:
    """Add the lines of a client-id, each with its verdict but for brokers with their own quotas."""
    own_s = statistics.median(run.measures.longest_silence_s for run in found[_OWN])
    bars = {
        "mean": Bar(0.97, 1.02),
        "worst minute": at_most(1.05),
        "worst 5 s": at_most(2.0),
        "longest silence": at_most(2 * own_s),
        "errors": at_most(0),
    }
    for row, runs in found.items():
        columns: dict[str, tuple[str, Sequence[float]]] = {
            "mean": ("", [run.measures.mean_after for run in runs]),
            "worst minute": ("", [run.measures.worst_minute_after for run in runs]),
            "worst 5 s": ("", [run.measures.worst_5s_after for run in runs]),
            "longest silence": ("s", [run.measures.longest_silence_s for run in runs]),
            "errors": ("", [run.errors for run in runs]),
            "cores busy": ("%", [run.busy_percent for run in runs]),
        }
        findings.add_line(client_id.name, row, columns, {} if ROWS[row].own_quotas else bars)


def _runs(
    folder: Path, situation: BrokersSituation, ids: Sequence[ClientId], seconds: int, jvm: Jvm
) -> Iterator[tuple[ClientId, Run]]:
    """A run of each client-id, all against the same brokers."""
    quotas: list[Json] = [
        {"entity": {"client_id": each.name}, "quotas": {_KINDS[each.role].value: each.limit}} for each in ids
    ]
    with held_brokers(folder, situation, quotas) as (cluster, _, entrances):
        for topic in _TOPICS.values():
            make_topic(cluster.bootstrap_servers, topic, situation.leaders())
        fill(cluster.bootstrap_servers, _TOPICS[Role.CONSUME])
        for limit in _LIMITS:
            began_ms = now_ms()
            clients = {
                each: [
                    full_speed_client(each.library, jvm, each.name, each.role, servers, _TOPICS[each.role])
                    for servers in entrances
                ]
                for each in ids
                if each.limit == limit
            }
            busy_percent = psutil.cpu_percent(seconds)
            with ThreadPoolExecutor(len(ids) * len(entrances)) as pool:  # a throttled client takes a while to end
                list(pool.map(methodcaller("stop"), chain(*clients.values())))
            for each, of_id in clients.items():
                served = served_since(began_ms, seconds, [sample for client in of_id for sample in client.samples])
                measures = measure(full_speed(_KINDS[each.role], limit, seconds), served)
                yield each, Run(measures, sum(len(client.errors) for client in of_id), busy_percent)
