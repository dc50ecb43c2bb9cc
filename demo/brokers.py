"""`sluice demo --brokers N` or `--proxies N`: brokers or proxies as gateways, the job, and clients at full speed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from rich.console import Console

from sluice.configs.settings import Settings
from sluice.demo.broker_plugin import Heartbeats, new_exempt_client_id, plugin_cluster, wait_for_gateways
from sluice.demo.cluster import Cluster, make_topic
from sluice.demo.full_speed_client import FullSpeedClient, Role
from sluice.demo.gateways import proxies_of
from sluice.demo.job import Json, RunError, Sections, SluiceJob, embedded_profile, quotas_in, storage_in
from sluice.demo.options import DemoOptions
from sluice.demo.screen import running_job, show_until, waiting
from sluice.demo.work_folder import work_folder
from sluice.insight.texts import override_text
from sluice.kafka_io.topic_follower import Reading, TopicFollower
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.process.format import amount, printable
from sluice.process.processes import free_ports
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.records import Share
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import EntryKind, QuotaKind
from sluice.state.quotas.limits import LimitsView
from sluice.state.quotas.overrides import overrides_now

_TOPIC = "orders"
_PARTITIONS = 4
_LIMIT = 1_000_000.0
_BURST_MS = 10_000
"""The time of a fresh counter's burst, which no mean has."""

_MEAN_MS = 60_000
_LIMITS_S = 5.0
_KINDS = {Role.PRODUCE: QuotaKind.PRODUCER_BYTE_RATE, Role.CONSUME: QuotaKind.CONSUMER_BYTE_RATE}
_CLIENTS = {f"librdkafka-{role}r": role for role in _KINDS}
"""Client-id -> its role."""

_NEIGHBOUR = "noisy-neighbour"
_NEIGHBOURS_LIMIT, _CAPACITY = 20_000_000.0, 4_000_000.0
"""Bytes per second that the default client-id may use, and that each broker can take in and give out."""

_CYCLE_S, _NOISE_S = 120.0, (60.0, 100.0)
"""Period of the neighbour, and when in it it is there."""

Shares = Mapping[str, Sequence[Share]]
"""Broker or proxy -> its shares."""


def run_with_brokers(options: DemoOptions, stop: Event, console: Console) -> int:
    """Run it until `stop` or for this time; 0 if no client ended by itself. With proxies, brokers have no plugin."""
    size, proxies = options.brokers or 1, options.proxies or 0
    with ExitStack() as stack:
        kind = f"proxies-{proxies}" if proxies else "elastic-brokers" if options.elastic else "brokers"
        folder, client_id = (
            stack.enter_context(work_folder(f"run-{kind}-{size}", options.fresh)),
            new_exempt_client_id(),
        )
        with waiting(console, lambda: "for the embedded brokers to start"):
            brokers = folder / "brokers"
            started = Cluster(brokers, size) if proxies else plugin_cluster(brokers, size, client_id)
            cluster = stack.enter_context(started)
        print(f"brokers: {cluster.bootstrap_servers}", flush=True)
        job = SluiceJob(folder, *_layers(folder, cluster, client_id, elastic=options.elastic))
        ensure_topics(job.settings.topics, job.settings.kafka)
        named = f"--client-id {next(iter(_CLIENTS))}"
        web = stack.enter_context(running_job(console, job, stop, named, web_console=options.console))
        make_topic(cluster.bootstrap_servers, _TOPIC, [_PARTITIONS] * size)
        with waiting(console, lambda: "for the proxies: their jars are downloaded once") if proxies else nullcontext():
            gateways = [stack.enter_context(each) for each in proxies_of(folder, job.settings, proxies)]
        with waiting(console, lambda: "for the first decisions: Java and the workers warm up"):
            wait_for_gateways(job.settings, proxies or size)
        heartbeats = stack.enter_context(closing(Heartbeats(job.settings)))
        entrances = [each.bootstrap_servers for each in gateways] or [cluster.bootstrap_servers]
        if gateways:
            print(
                f"proxies: {', '.join(entrances)}; to try one, give it to any client as bootstrap.servers", flush=True
            )
        clients = [
            FullSpeedClient(name, role, servers, _TOPIC) for servers in entrances for name, role in _CLIENTS.items()
        ]
        neighbour = _Neighbour(lambda: FullSpeedClient(_NEIGHBOUR, Role.PRODUCE, entrances[0], _TOPIC))
        stack.callback(neighbour.leave)
        overriding = stack.enter_context(closing(_Overriding(job.settings))) if options.elastic else None
        uses = _Uses(clients, neighbour.clients, QuotasTable(job.settings.delta.quotas))

        def lines() -> Sequence[str]:
            told = () if overriding is None else overriding.lines(now_ms())
            return [*told, *client_lines(uses.now(), heartbeats.shares(), now_ms())]

        def check() -> None:
            if not cluster.alive:
                cluster.brokers[-1].check()
            for gateway in gateways:
                gateway.check()
            job.running()
            if options.elastic:
                neighbour.keep(time.monotonic())
            if web is not None:
                web.keep(console)
            if ended := [client.name for client in clients if not client.alive]:
                raise RunError(f"{', '.join(ended)} ended by itself")

        try:
            show_until(stop, options.seconds, console, lines, check)
        finally:
            for client in clients:
                client.stop()
        with waiting(console, lambda: "for the job to stop"):
            job.stop()
        print(*summary_lines(uses.now()), sep="\n", flush=True)
        return 0


def _layers(folder: Path, cluster: Cluster, client_id: str, *, elastic: bool) -> list[Sections]:
    capacity = {"capacity_in_bytes_per_s": int(_CAPACITY), "capacity_out_bytes_per_s": int(_CAPACITY)}
    return [
        embedded_profile(),
        storage_in(folder),
        quotas_in(folder, quotas_of(elastic=elastic)),
        {"elastic": {"limits": "elastic", **capacity} if elastic else {}},
        {
            "kafka": {"bootstrap.servers": cluster.bootstrap_servers, "client.id": client_id},
            "topics": {"replication_factor": min(len(cluster.brokers), 3)},
            "health": {"port": free_ports(1)[0]},
        },
    ]


def quotas_of(*, elastic: bool) -> list[Json]:
    """The quotas of the clients, as in a quotas file."""
    quotas: list[Json] = []
    for name, role in _CLIENTS.items():
        key = _KINDS[role].value
        numbers = {f"{key}_reservation": 0.4 * _LIMIT, f"{key}_ceiling": 3 * _LIMIT} if elastic else {}
        quotas.append({"entity": {"client_id": name}, "quotas": {key: _LIMIT, **numbers}})
    if elastic:
        of_all = {kind.value: _NEIGHBOURS_LIMIT for kind in _KINDS.values()}
        quotas.append({"entity": {"client_id": None}, "quotas": of_all})
    return quotas


class _Neighbour:
    """A client at full speed that comes and goes; `clients` are all of its lives."""

    def __init__(self, come: Callable[[], FullSpeedClient]) -> None:
        self.clients: list[FullSpeedClient] = []
        self._come = come
        self._begun_s: float | None = None

    def keep(self, now_s: float) -> None:
        """Come, or leave, if it is time for it."""
        self._begun_s = now_s if self._begun_s is None else self._begun_s
        is_time = _NOISE_S[0] <= (now_s - self._begun_s) % _CYCLE_S < _NOISE_S[1]
        is_there = bool(self.clients) and self.clients[-1].alive
        if is_time and not is_there:
            self.clients.append(self._come())
        elif is_there and not is_time:
            self.leave()

    def leave(self) -> None:
        """Leave, if it is there."""
        for client in self.clients[-1:]:
            client.stop()


class _Overriding:
    """The overrides in force, out of the limits topic, until `close`."""

    def __init__(self, settings: Settings) -> None:
        self._view = LimitsView()

        def take(key: bytes | None, value: bytes | None) -> None:
            with suppress(InvalidQuotaError):
                self._view.take(key, value)

        self._follower = TopicFollower(settings.kafka, Reading(settings.topics.limits, take))
        self._follower.start()

    def close(self) -> None:
        """Stop reading."""
        self._follower.stop()

    def lines(self, at_ms: int) -> Sequence[str]:
        """The overrides now, in words."""
        return [override_text(each) for _, each in overrides_now(self._view.overrides, at_ms)] or [
            "all limits are the quotas"
        ]


@dataclass(frozen=True)
class ClientUse:
    """A client, its quota and limit, its amounts so far (epoch milliseconds and bytes), and librdkafka's errors.

    The limit is None where it was removed.
    """

    client_id: str
    quota: QuotaKind
    limit: float | None
    samples: Sequence[tuple[int, float]]
    errors: Sequence[str]

    def rate(self, from_ms: int, to_ms: int) -> float:
        """Bytes per second between two times.

        >>> ClientUse("a", QuotaKind.PRODUCER_BYTE_RATE, 1e6, [(1_000, 500.0), (3_000, 700.0)], []).rate(0, 2_000)
        250.0
        """
        got = sum(amount for time_ms, amount in self.samples if from_ms <= time_ms < to_ms)
        return got / max(to_ms - from_ms, 1) * 1000

    def mean(self, at_ms: int) -> float:
        """Bytes per second of the last minute, without the burst at the begin; while it lasts, all the same."""
        begun_ms = min((time_ms for time_ms, _ in self.samples), default=at_ms)
        after_burst_ms = begun_ms + (_BURST_MS if at_ms > begun_ms + 2 * _BURST_MS else 0)
        return self.rate(max(at_ms - _MEAN_MS, after_burst_ms), at_ms)


class _Uses:
    """The clients with their present limits, read again every few seconds: `sluice quotas alter` changes them."""

    def __init__(
        self, clients: Sequence[FullSpeedClient], neighbours: Sequence[FullSpeedClient], table: QuotasTable
    ) -> None:
        self._clients, self._neighbours, self._table = clients, neighbours, table
        self._read_again_s = 0.0
        self._limits: dict[tuple[object, EntryKind], float] = {}

    def now(self) -> list[ClientUse]:
        """The amounts of the clients until now, with their limits."""
        if time.monotonic() >= self._read_again_s:
            self._read_again_s = time.monotonic() + _LIMITS_S
            self._limits = {(entry.entity.client_id, entry.kind): entry.value for entry in self._table.entries()}
        uses = []
        roles = _CLIENTS | ({_NEIGHBOUR: Role.PRODUCE} if self._neighbours else {})
        for name, role in roles.items():
            clients = [client for client in (*self._clients, *self._neighbours) if client.name == name]
            samples = sorted(sample for client in clients for sample in client.samples)
            errors = [error for client in clients for error in client.errors]
            kind = _KINDS[role]
            limit = self._limits.get((name, kind), self._limits.get((DEFAULT, kind)))
            uses.append(ClientUse(name, kind, limit, samples, errors))
        return uses


def client_lines(uses: Sequence[ClientUse], shares: Shares, at_ms: int) -> Sequence[str]:
    """A line for each client: its mean in the last minute, and of each broker or proxy the rate and the share."""
    return [
        f"{use.client_id:<22} {amount(use.quota, use.mean(at_ms))} of {_limit(use)};"
        f" shares: {', '.join(_parts(use, shares)) or 'none yet'}"
        for use in uses
    ]


def summary_lines(uses: Sequence[ClientUse]) -> Iterator[str]:
    """The rate of each client in all, the first 10 s left out, in which a fresh counter may burst."""
    yield "cluster-wide, the first 10 s left out:"
    for use in uses:
        times = [time_ms for time_ms, _ in use.samples] or [0]
        rate = use.rate(times[0] + _BURST_MS, times[-1])
        of_limit = "without a limit at the end" if use.limit is None else f"{rate / use.limit:.2f} of its quota"
        errors = f"{len(use.errors)} errors{''.join(f'; {printable(error)}' for error in use.errors[:1])}"
        yield f"  {use.client_id:<22} {amount(use.quota, rate)}, {of_limit}; {errors}"


def _limit(use: ClientUse) -> str:
    return "no limit" if use.limit is None else amount(use.quota, use.limit)


def _parts(use: ClientUse, shares: Shares) -> Iterator[str]:
    """Rate and share of the client's counter at each broker; - where a broker doesn't report it."""
    for broker, of_broker in shares.items():
        found = [s for s in of_broker if s.quota == use.quota.value and s.entity.client_id == use.client_id]
        used, share = (amount(use.quota, value) for value in (found[0].charged, found[0].share)) if found else "--"
        yield f"{printable(broker)} {used} of {share}"
