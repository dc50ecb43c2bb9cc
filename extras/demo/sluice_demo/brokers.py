"""`sluice demo --brokers N` or `--proxies N`: brokers or proxies as gateways, the job, and clients at full speed."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import NamedTuple

from rich.console import Console

from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.process.format import printable
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.records import Share
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import ElasticKey, EntryKind, QuotaKind
from sluice_demo.broker_plugin import Heartbeats, new_exempt_client_id, plugin_cluster, wait_for_gateways
from sluice_demo.cluster import Cluster, make_topic
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_demo.gateways import proxies_of
from sluice_demo.in_force import InForce
from sluice_demo.job import Json, RunError, Sections, SluiceJob, embedded_profile, quotas_in, storage_in
from sluice_demo.options import DemoOptions
from sluice_demo.screen import running_job, show_until, waiting
from sluice_demo.work_folder import work_folder
from sluice_insight.live import CounterId
from sluice_insight.row_marks import RowMark, RowMarks
from sluice_proxy.processes import free_ports
from sluice_reading.format import amount

_TOPIC = "orders"
_PARTITIONS = 4
_LIMIT = 1_000_000.0
_BURST_MS = 10_000
"""The time of a fresh counter's burst, which no mean has; limits need no longer to give way to load."""

_MEAN_MS, _ELASTIC_MEAN_MS = 60_000, 10_000
"""Span of the means that are shown; limits that give way change within seconds."""

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

Span = tuple[int, int]
"""Begin and end in epoch milliseconds."""


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
            wait_for_gateways(job.settings, proxies or size, lambda: bool(job.running()) and stop.is_set())
        heartbeats = stack.enter_context(closing(Heartbeats(job.settings)))
        entrances = [each.bootstrap_servers for each in gateways] or [cluster.bootstrap_servers]
        if gateways:
            print(
                f"proxies: {', '.join(entrances)}; to try one, give it to any client as bootstrap.servers", flush=True
            )
        clients = [
            FullSpeedClient(name, role, servers, _TOPIC) for servers in entrances for name, role in _CLIENTS.items()
        ]
        neighbour = Neighbour(lambda: FullSpeedClient(_NEIGHBOUR, Role.PRODUCE, entrances[0], _TOPIC))
        stack.callback(neighbour.leave)
        in_force = stack.enter_context(closing(InForce.following(job.settings)))
        uses = _Uses(clients, neighbour.clients, QuotasTable(job.settings.delta.quotas))

        span_ms = _ELASTIC_MEAN_MS if options.elastic else _MEAN_MS

        def lines() -> Sequence[str]:
            at_ms = now_ms()
            marks = in_force.marks(heartbeats.instances(), at_ms)
            rows = client_lines(uses.now(), Screen(heartbeats.shares(), marks, span_ms), at_ms)
            return [*head_lines(in_force.lines(at_ms), span_ms, elastic=options.elastic), *rows]

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
        print(*summary_lines(uses.now(), neighbour.times() if options.elastic else None), sep="\n", flush=True)
        return 0


def _layers(folder: Path, cluster: Cluster, client_id: str, *, elastic: bool) -> list[Sections]:
    capacity = {"capacity_in_bytes_per_s": int(_CAPACITY), "capacity_out_bytes_per_s": int(_CAPACITY)}
    return [
        embedded_profile(),
        storage_in(folder),
        quotas_in(folder, quotas_of(elastic=elastic)),
        {"elastic": {"limits": "elastic"}, "brokers": capacity} if elastic else {},
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
        numbers = {f"{key}_reservation": 0.4 * _LIMIT} if elastic else {}
        quotas.append({"entity": {"client_id": name}, "quotas": {key: _LIMIT, **numbers}})
    if elastic:
        of_all = {kind.value: _NEIGHBOURS_LIMIT for kind in _KINDS.values()}
        quotas.append({"entity": {"client_id": None}, "quotas": of_all})
    return quotas


class Neighbour:
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

    def times(self) -> list[Span]:
        """The times in which it was there, by what it sent."""
        return [(each.samples[0][0], each.samples[-1][0]) for each in self.clients if each.samples]

    def leave(self) -> None:
        """Leave, if it is there."""
        for client in self.clients[-1:]:
            client.stop()


@dataclass(frozen=True)
class ClientUse:
    """A client, its quota and limit, its amounts so far (epoch milliseconds and bytes), and librdkafka's errors.

    The limit is None where it was removed; so is the reservation where there is none.
    """

    client_id: str
    quota: QuotaKind
    limit: float | None
    samples: Sequence[tuple[int, float]]
    errors: Sequence[str]
    reservation: float | None = None

    @property
    def begun_ms(self) -> int:
        """Time of its first amount; 0 if it has none."""
        return min((time_ms for time_ms, _ in self.samples), default=0)

    def rate(self, *spans: Span) -> float:
        """Bytes per second in all of these times.

        >>> use = ClientUse("a", QuotaKind.PRODUCER_BYTE_RATE, 1e6, [(1_000, 500.0), (3_000, 700.0)], [])
        >>> use.rate((0, 2_000)), use.rate((0, 2_000), (3_000, 4_000))
        (250.0, 400.0)
        """
        got = sum(amount for time_ms, amount in self.samples if any(begin <= time_ms < end for begin, end in spans))
        return got / max(sum(end - begin for begin, end in spans), 1) * 1000

    def has_burst(self, at_ms: int) -> bool:
        """True while a mean has the burst at the begin: there is too little else yet."""
        return at_ms <= self.begun_ms + 2 * _BURST_MS

    def mean(self, at_ms: int, span_ms: int) -> float:
        """Bytes per second of so much time before `at_ms`, without the burst at the begin; while it lasts, all."""
        after_burst_ms = self.begun_ms + (0 if self.has_burst(at_ms) else _BURST_MS)
        return self.rate((max(at_ms - span_ms, after_burst_ms), at_ms))


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
            with suppress(QuotasTableError):  # the job goes on with what it read last, and the console says why
                self._limits = {(entry.entity.client_id, entry.kind): entry.value for entry in self._table.entries()}
        uses = []
        roles = _CLIENTS | ({_NEIGHBOUR: Role.PRODUCE} if self._neighbours else {})
        for name, role in roles.items():
            clients = [client for client in (*self._clients, *self._neighbours) if client.name == name]
            samples = sorted(sample for client in clients for sample in client.samples)
            errors = [error for client in clients for error in client.errors]
            kind = _KINDS[role]
            limit = self._limits.get((name, kind), self._limits.get((DEFAULT, kind)))
            reservation = next(self._limits.get((name, key)) for key in ElasticKey if key.quota is kind)
            uses.append(ClientUse(name, kind, limit, samples, errors, reservation))
        return uses


def head_lines(overrides: Sequence[str], span_ms: int, *, elastic: bool) -> Sequence[str]:
    """The lines above the clients: the overrides, and for limits that give way the span of the means."""
    if not elastic:
        return overrides
    return [*(overrides or ["all limits are the quotas"]), f"means of the last {span_ms / 1000:.0f} s:"]


class Screen(NamedTuple):
    """The part of lines beside the amounts: shares, marks of overrides, the span."""

    shares: Shares
    marks: RowMarks
    span_ms: int


def client_lines(uses: Sequence[ClientUse], screen: Screen, at_ms: int) -> Sequence[str]:
    """A line for each client: its mean, the limit in force, and of each broker or proxy the rate and the share."""
    lines = []
    for use in uses:
        mark = screen.marks.of(CounterId(use.quota, False, "", use.client_id, None, -1), use.limit)
        burst = " (with its burst)" if use.has_burst(at_ms) else ""
        mean = f"{amount(use.quota, use.mean(at_ms, screen.span_ms))}{burst}"
        shares = ", ".join(_parts(use, screen.shares)) or "none yet"
        lines.append(f"{use.client_id:<22} {mean} of {_limit(use, mark)}; shares: {shares}")
    return lines


def summary_lines(uses: Sequence[ClientUse], beside: Sequence[Span] | None = None) -> Iterator[str]:
    """The rate of each client in all, the first 10 s left out, in which a fresh counter may burst.

    With the times `beside` the neighbour, in which limits give way, the rates are those of each phase.
    """
    if beside is not None:
        yield from phase_lines(uses, beside)
        return
    yield "cluster-wide, the first 10 s left out:"
    for use in uses:
        rate = use.rate((use.begun_ms + _BURST_MS, _ended_ms(use)))
        of_limit = "without a limit at the end" if use.limit is None else f"{rate / use.limit:.2f} of its quota"
        yield f"  {use.client_id:<22} {amount(use.quota, rate)}, {of_limit}; {_errors(use)}"


def phase_lines(uses: Sequence[ClientUse], beside: Sequence[Span]) -> Iterator[str]:
    """The rate of each client while the neighbour was away and `beside` it; the first 10 s of each time left out.

    In those limits give way, and a fresh counter may burst.
    """
    yield "cluster-wide, while the neighbour is away and beside it, the first 10 s of each time left out:"
    for use in uses:
        begins, ends = [use.begun_ms, *(end for _, end in beside)], [*(begin for begin, _ in beside), _ended_ms(use)]
        phases = {
            "away": [] if use.client_id == _NEIGHBOUR else _without_begin(zip(begins, ends, strict=True)),
            "beside": _without_begin(beside),
        }
        promised = {"away": ("limit", use.limit), "beside": ("reservation", use.reservation)}
        parts = [
            f"{phase} {amount(use.quota, use.rate(*spans))}" + (f" ({name} {amount(use.quota, of)})" if of else "")
            for (phase, spans), (name, of) in zip(phases.items(), promised.values(), strict=True)
            if spans
        ]
        yield f"  {use.client_id:<22} {', '.join(parts) or 'too short'}; {_errors(use)}"


def _without_begin(spans: Iterable[Span]) -> list[Span]:
    """The spans without their first 10 s, and none of those that are shorter."""
    return [(begin + _BURST_MS, end) for begin, end in spans if end > begin + _BURST_MS]


def _ended_ms(use: ClientUse) -> int:
    return max((time_ms for time_ms, _ in use.samples), default=0)


def _errors(use: ClientUse) -> str:
    return f"{len(use.errors)} errors{''.join(f'; {printable(error)}' for error in use.errors[:1])}"


def _limit(use: ClientUse, mark: RowMark) -> str:
    if use.limit is None:
        return f"no limit{mark.words}"
    return amount(use.quota, use.limit) + mark.words


def _parts(use: ClientUse, shares: Shares) -> Iterator[str]:
    """Rate and share of the client's counter at each broker; - where a broker doesn't report it."""
    for broker, of_broker in shares.items():
        found = [s for s in of_broker if s.quota == use.quota.value and s.entity.client_id == use.client_id]
        used, share = (amount(use.quota, value) for value in (found[0].charged, found[0].share)) if found else "--"
        yield f"{printable(broker)} {used} of {share}"
