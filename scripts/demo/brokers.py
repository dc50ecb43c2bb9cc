"""`./scripts/run --brokers N`: brokers with the plugin, the job, and real clients that go as fast as they are let."""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import yaml
from kafka import KafkaAdminClient
from rich.console import Console
from rich.live import Live

from scripts.command import EXIT_FAILED
from scripts.demo.broker_view import ClientUse, client_lines, clients_table, summary_lines
from scripts.demo.console import commands_to_try, waiting, waiting_for_job
from scripts.demo.web_console import WebConsole
from scripts.testbed.broker import free_ports
from scripts.testbed.broker_plugin import Heartbeats, new_exempt_client_id, plugin_cluster, wait_for_gateways
from scripts.testbed.cluster import Cluster, create_topic
from scripts.testbed.full_speed_client import FullSpeedClient, Library, Role
from scripts.testbed.job import Json, Sections, SluiceJob, quotas_in, storage_in
from scripts.testbed.work_folder import work_folder
from sluice.cli.job_settings import announced_run
from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import EntityName
from sluice.state.quotas.kinds import QuotaKind

_EMBEDDED = Path("configs/embedded.yaml")
_TOPIC = "orders"
_PARTITIONS = 4
_LIMIT = 1_000_000.0
_KINDS = {Role.PRODUCE: QuotaKind.PRODUCER_BYTE_RATE, Role.CONSUME: QuotaKind.CONSUMER_BYTE_RATE}
_LIBRARIES = (Library.LIBRDKAFKA, Library.KAFKA_PYTHON)
_CLIENTS = {f"{library}-{role}r": (library, role) for role in _KINDS for library in _LIBRARIES}
"""Client-id -> the library and what its client does."""

_LINE_SECONDS = 5.0
_LIMITS_SECONDS = 5.0
_POLL_SECONDS = 0.5


def run_with_brokers(
    size: int, seconds: float, stop: Event, console: Console, *, fresh: bool, web_console: bool
) -> int:
    """Run it until `stop` or for so long; 0 if no client ended by itself."""
    with ExitStack() as stack:
        folder, client_id = stack.enter_context(work_folder(f"run-brokers-{size}", fresh)), new_exempt_client_id()
        with waiting(console, lambda: "for the embedded brokers to start"):
            cluster = stack.enter_context(plugin_cluster(folder / "brokers", size, client_id))
        print(f"brokers: {cluster.bootstrap_servers}", flush=True)
        job = SluiceJob(folder, *_layers(folder, cluster, client_id))
        ensure_topics(job.settings.topics, job.settings.kafka)
        stack.callback(job.stop)
        stack.enter_context(announced_run(folder.name, job.settings_file))
        with waiting_for_job(console, job):
            job.start(cancel=stop)
        entity = f"--client-id {next(iter(_CLIENTS))}"
        print(commands_to_try(job.settings_file, job.settings.health, entity, entity), flush=True)
        _make_topic(cluster, size)
        with waiting(console, lambda: "for the first decisions: Java and the workers warm up"):
            wait_for_gateways(job.settings, size)
        web = WebConsole(folder, job.settings_file) if web_console else None
        if web is not None:
            stack.callback(web.stop)
        heartbeats = Heartbeats(job.settings)
        stack.callback(heartbeats.close)
        clients = [_client(folder, cluster, name) for name in _CLIENTS]
        code = _show(cluster, clients, job, heartbeats, web, seconds, stop, console)
        for client in clients:
            client.stop()
        with waiting(console, lambda: "for the job to stop"):
            job.stop()
        limits = _Limits(QuotasTable(job.settings.delta.quotas))
        print(*summary_lines(limits.uses(clients, time.monotonic())), sep="\n", flush=True)
        return code


def _layers(folder: Path, cluster: Cluster, client_id: str) -> list[Sections]:
    quotas: list[Json] = [
        {"entity": {"client_id": name}, "quotas": {_KINDS[role].value: _LIMIT}} for name, (_, role) in _CLIENTS.items()
    ]
    return [
        yaml.safe_load(_EMBEDDED.read_text()),
        storage_in(folder),
        quotas_in(folder, quotas),
        {
            "kafka": {"bootstrap.servers": cluster.bootstrap_servers, "client.id": client_id},
            "topics": {"replication_factor": min(len(cluster.brokers), 3)},
            "health": {"port": free_ports(1)[0]},
        },
    ]


def _make_topic(cluster: Cluster, size: int) -> None:
    with connect(KafkaAdminClient, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        if _TOPIC not in admin.list_topics():
            create_topic(admin, _TOPIC, [_PARTITIONS] * size)


def _client(folder: Path, cluster: Cluster, name: str) -> FullSpeedClient:
    library, role = _CLIENTS[name]
    return FullSpeedClient(folder, name, library, role, cluster.bootstrap_servers, _TOPIC)


class _Limits:
    """The clients' limits as they are set now, read again every few seconds: `sluice quotas alter` changes them."""

    def __init__(self, table: QuotasTable) -> None:
        self._table = table
        self._read_s = -math.inf
        self._limits: dict[tuple[EntityName, QuotaKind], float] = {}

    def uses(self, clients: Sequence[FullSpeedClient], now_s: float) -> list[ClientUse]:
        """What the clients got, with their limits."""
        if now_s - self._read_s >= _LIMITS_SECONDS:
            self._limits = {(entry.entity.client_id, entry.kind): entry.value for entry in self._table.entries()}
            self._read_s = now_s
        return [self._use(client, _KINDS[_CLIENTS[client.name][1]]) for client in clients]

    def _use(self, client: FullSpeedClient, kind: QuotaKind) -> ClientUse:
        return ClientUse(
            client.name, kind.value, self._limits.get((client.name, kind)), client.samples(), client.errors()
        )


def _show(
    cluster: Cluster,
    clients: list[FullSpeedClient],
    job: SluiceJob,
    heartbeats: Heartbeats,
    web: WebConsole | None,
    seconds: float,
    stop: Event,
    console: Console,
) -> int:
    """Show the clients until `stop` or the end of the time.

    Raises RunError when the job ends by itself, BrokerError when the last broker does.
    """
    begun = shown = time.monotonic()
    limits = _Limits(QuotasTable(job.settings.delta.quotas))
    with ExitStack() as stack:
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if console.is_terminal else None
        while not stop.wait(_POLL_SECONDS) and time.monotonic() - begun < seconds:
            if not cluster.alive:
                cluster.brokers[-1].check()
            job.running()
            if web is not None:
                web.keep(console)
            if ended := [client.name for client in clients if not client.alive]:
                console.print(f"{', '.join(ended)} ended; see {job.folder}/{ended[0]}.log")
                return EXIT_FAILED
            if live is None and time.monotonic() - shown < _LINE_SECONDS:
                continue
            shown = time.monotonic()
            uses, shares, at_ms = limits.uses(clients, shown), heartbeats.shares(), time.time_ns() // 1_000_000
            if live is not None:
                live.update(clients_table(uses, shares, at_ms), refresh=True)
            else:
                print(*client_lines(uses, shares, at_ms), sep="\n", flush=True)
    return 0
