"""Situations of the closed loop: a quota, gateways or brokers, clients, and their faults and changes.

Each class is a command, its fields are the options, and its docstring is the help.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from sluice.state.quotas.kinds import Family, QuotaKind

QUOTAS = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)
DEFAULT_LIMITS = {Family.BYTES: 1_000_000.0, Family.REQUEST_TIME: 10.0}
DEFAULT_DEMAND = 20.0
DEFAULT_SIZE_S = 0.1

SKEW = 0.7
"""Part of the traffic that goes to the first gateway with Spread.SKEW."""

STAY_S = 5.0
"""Stay of a client that hops at a gateway."""

PARTITIONS = 4
"""Partitions of a client that a broker leads, as a rule."""

CLIENT = "app"


class Spread(StrEnum):
    """Spread of a client's traffic over the gateways; a client that moves or hops uses one at a time."""

    EVEN = "even"
    SKEW = "skew"
    ONE = "one"
    MOVE = "move"
    HOP = "hop"

    def stay_s(self, seconds: float, hop_s: float = STAY_S) -> float:
        """Time for which a client uses the same gateways: a whole run of so many seconds, unless it moves or hops."""
        return {Spread.MOVE: seconds / 2, Spread.HOP: hop_s}.get(self, seconds)


class Counters(StrEnum):
    """Counters of the clients: one for all, or one for each."""

    SHARED = "shared"
    OWN = "own"


class Waits(StrEnum):
    """Waits that clients obey: those of inline charging, those of the decisions, or the longer one."""

    IN_LINE = "in-line"
    DECIDED = "decided"
    BOTH = "both"


class Pair(NamedTuple):
    """Two seconds, or a second and a limit."""

    first: float
    second: float


def span(text: str) -> Pair:
    """The seconds of `300-360`. Raises typer.BadParameter."""
    return _pair(text, "-", "FROM-TO in seconds, such as 300-360")


def change(text: str) -> Pair:
    """The second and the limit of `300:500000`. Raises typer.BadParameter."""
    return _pair(text, ":", "S:Q, such as 300:500000")


def _pair(text: str, separator: str, meaning: str) -> Pair:
    first, _, second = text.partition(separator)
    try:
        pair = Pair(float(first), float(second))
    except ValueError:
        pair = Pair(math.nan, math.nan)
    if not all(0 <= value < math.inf for value in pair) or not pair[1] or (separator == "-" and pair[0] >= pair[1]):
        raise typer.BadParameter(f"{text!r} is not right; expected {meaning}")
    return pair


def _second(help_text: str) -> Any:
    return typer.Option(min=0, metavar="S", help=help_text)


Quota = Annotated[QuotaKind, typer.Option(metavar="KIND", help=f"Quota kind: {', '.join(QUOTAS)}.")]
Limit = Annotated[float, typer.Option(show_default="1000000 bytes/s or 10 percent", help="Limit of the quota.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seconds = Annotated[int, typer.Option(min=20, help="Length of the run.")]
JobDown = Annotated[
    Pair | None, typer.Option(parser=span, metavar="FROM-TO", help="Nothing is decided between these seconds.")
]


@dataclass(frozen=True)
class Situation:
    """Simulate clients, gateways and the job.

    The gateways and the job are simulated with the code that they run. Every client has a connection to each gateway,
    which sends one request after the other. Demand, size and limit are in the unit of the quota: bytes/s and bytes, or
    percent and percent-seconds, so that 10 ms of a thread are 1.
    """

    quota: Quota = QuotaKind.PRODUCER_BYTE_RATE
    limit: Limit = math.nan
    demand: Annotated[
        float, typer.Option(show_default="20 times the limit", help="Demand of all clients together.")
    ] = math.nan
    size: Annotated[
        float, typer.Option(show_default="a tenth of a second of the limit", help="Size of one request.")
    ] = math.nan
    gateways: Annotated[int, typer.Option(min=1, max=1000, help="Number of gateways.")] = 4
    latency_ms: Annotated[int, typer.Option(min=0, help="From a request to the arrival of its decision.")] = 300
    spread: Annotated[
        Spread,
        typer.Option(
            help="Traffic over gateways: even, skew (70 % on the first), one, move (to another half way), "
            "or hop (to the next every 5 s, or --stay)."
        ),
    ] = Spread.EVEN
    stay: Annotated[float, typer.Option(min=0.1, help="Seconds that a client which hops is at a gateway.")] = STAY_S
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 1
    counters: Annotated[Counters, typer.Option(help="One counter for all clients, or one for each.")] = Counters.SHARED
    seconds: Seconds = 900
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 1
    join: Annotated[float | None, _second("One more gateway starts at this second.")] = None
    leave: Annotated[float | None, _second("A gateway crashes at this second.")] = None
    job_down: JobDown = None
    limit_change: Annotated[
        Pair | None, typer.Option(parser=change, metavar="S:Q", help="At second S the limit becomes Q.")
    ] = None
    clock_skew_ms: Annotated[int, typer.Option(min=0, help="Largest difference of the gateways' clocks.")] = 0
    waits: Annotated[
        Waits, typer.Option(help="Waits that clients obey: those of inline charging, decided ones, or both.")
    ] = Waits.IN_LINE
    compare: Annotated[
        bool, typer.Option("--compare", help="Print the same clients on one gateway with no latency beside it.")
    ] = False
    as_json: AsJson = False

    def __post_init__(self) -> None:
        """Fill in the defaults. Raises typer.BadParameter for an impossible situation."""
        _fill_in(self, "limit", DEFAULT_LIMITS.get(self.quota.family, math.nan))
        _fill_in(self, "demand", self.limit * DEFAULT_DEMAND)
        _fill_in(self, "size", self.limit * DEFAULT_SIZE_S)
        if self.size < 1 and self.quota.family is Family.BYTES:
            raise typer.BadParameter(f"--size is {self.size}; expected at least one byte")
        if self.leave is not None and self.gateways == 1 and self.join is None:
            raise typer.BadParameter("--leave is given with one gateway; expected --gateways 2 or more")
        for name in ("join", "leave", "job_down", "limit_change"):
            begins = getattr(self, name)
            second = begins[0] if isinstance(begins, tuple) else begins
            if second is not None and second >= self.seconds:
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(f"{option} begins at second {second:g}; expected --seconds above {second:g}")

    def alone(self) -> "Situation":
        """The same clients on one gateway whose decisions take no time, which is one Kafka broker."""
        one = replace(self, gateways=1, latency_ms=0, spread=Spread.EVEN, join=None, leave=None)
        return replace(one, job_down=None, clock_skew_ms=0, waits=Waits.IN_LINE)

    def limit_at(self, time_ms: float) -> float:
        """The limit of a counter at a time."""
        if self.limit_change is not None and time_ms >= self.limit_change[0] * 1000:
            return self.limit_change[1]
        return self.limit

    def allowed(self, from_ms: float, to_ms: float) -> float:
        """Amount that the quota allows all clients together between two times."""
        counters = self.clients if self.counters is Counters.OWN else 1
        changed_ms = min(max((self.limit_change or (self.seconds, 0.0))[0] * 1000, from_ms), to_ms)
        before, after = changed_ms - from_ms, to_ms - changed_ms
        return (before * self.limit_at(from_ms) + after * self.limit_at(to_ms)) / 1000 * counters

    def parts(self, gateways: int, time_ms: float = 0.0) -> list[float]:
        """The part of a client's demand that goes to each gateway at a time."""
        if gateways == 1 or self.spread is Spread.EVEN:
            return [1.0 / gateways] * gateways
        if self.spread is not Spread.SKEW:
            used = int(time_ms / 1000.0 / self.spread.stay_s(self.seconds, self.stay)) % gateways
            return [float(gateway == used) for gateway in range(gateways)]
        return [SKEW] + [(1.0 - SKEW) / (gateways - 1)] * (gateways - 1)


@dataclass(frozen=True)
class Gateways:
    """Run a broker, the job and gateway processes.

    A greedy client of each kind of quota asks for 50 times its quota.
    """

    gateways: Annotated[int, typer.Option(min=1, max=100, help="Number of gateway processes.")] = 4
    seconds: Seconds = 900
    job_down: JobDown = None
    as_json: AsJson = False


@dataclass(frozen=True)
class BrokersSituation:
    """Run Kafka brokers with the plugin, or proxies in front of brokers, and the job.

    A client of librdkafka sends at full speed, with proxies one at each of them, all of the same name; members of a
    tenant are behind one each, in turn. It prints JSON.
    """

    quota: Quota = QuotaKind.PRODUCER_BYTE_RATE
    limit: Limit = math.nan
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of brokers.")] = 3
    seconds: Seconds = 900
    spread: Annotated[
        Spread,
        typer.Option(
            help="Leaders of partitions: even, skew (80 % on the first), one, or those of one broker at a time: "
            "a producer that moves half way or hops every 5 s."
        ),
    ] = Spread.EVEN
    proxies: Annotated[int, typer.Option(min=0, max=9, help="Kafka proxies in front of brokers without plugin.")] = 0
    members: Annotated[
        int, typer.Option(min=0, max=500, help="Clients of one tenant, whose limit it is; 0 is one client in none.")
    ] = 0
    own_quotas: Annotated[bool, typer.Option("--own-quotas", help="Kafka's own quotas, without plugin and job.")] = (
        False
    )
    reconnect: Annotated[
        bool, typer.Option("--reconnect", help="A producer with a new connection for each request, by three sockets.")
    ] = False
    kill_job_at: Annotated[float | None, _second("The job is killed, and back 60 s later.")] = None
    kill_broker_at: Annotated[float | None, _second("A broker is killed, and back 60 s later.")] = None
    slip_at: Annotated[float | None, _second("The limit is 1, and the right one again 16 s later.")] = None
    capacity: Annotated[
        float | None, typer.Option(min=1_024, help="Bytes/s that each broker can take in: overloaded ones tighten.")
    ] = None

    compare: Annotated[bool, typer.Option("--compare", help="Also run one broker with Kafka's own quota.")] = False

    def __post_init__(self) -> None:
        """Fill in the limit. Raises typer.BadParameter for one that isn't above 0, and for an impossible situation."""
        _fill_in(self, "limit", DEFAULT_LIMITS.get(self.quota.family, math.nan))
        if self.proxies and (self.own_quotas or self.quota.family is not Family.BYTES):
            raise typer.BadParameter("--proxies hold bytes; expected a byte rate as --quota, and no --own-quotas")
        alone = self.own_quotas or self.reconnect or self.slip_at is not None
        if self.members and (alone or self.quota.family is not Family.BYTES):
            raise typer.BadParameter("--members have a byte rate; expected no --own-quotas, --reconnect or --slip-at")
        if self.capacity is not None and (self.proxies or self.own_quotas):
            raise typer.BadParameter("--capacity needs brokers with the plugin; expected no --own-quotas")

    def alone(self) -> "BrokersSituation":
        """The same client on one broker with Kafka's own quota."""
        return BrokersSituation(self.quota, self.limit, 1, self.seconds, own_quotas=True, reconnect=self.reconnect)

    def partition(self, time_s: float) -> int:
        """The partition of records at a time: -1 is any, as it is for a client that neither moves nor hops.

        >>> [BrokersSituation(brokers=3, seconds=60, spread=Spread.HOP).partition(time_s) for time_s in (1, 6, 11, 16)]
        [0, 4, 8, 0]
        """
        if self.spread not in (Spread.MOVE, Spread.HOP):
            return -1
        return PARTITIONS * (int(time_s / self.spread.stay_s(self.seconds)) % self.brokers)

    def leaders(self) -> list[int]:
        """Number of the client's partitions that each broker leads.

        >>> BrokersSituation(brokers=3, spread=Spread.SKEW).leaders()
        [8, 1, 1]
        """
        others = self.brokers - 1
        if self.spread is Spread.SKEW and others:
            return [4 * others] + [1] * others
        return [PARTITIONS] + [0] * others if self.spread is Spread.ONE else [PARTITIONS] * self.brokers


def check_quota(quota: QuotaKind) -> None:
    """Raises typer.BadParameter for a quota that has no default limit."""
    if quota not in QUOTAS:
        raise typer.BadParameter(f"--quota is {quota}; expected one of {', '.join(QUOTAS)}")


def _fill_in(situation: Situation | BrokersSituation, name: str, default: float) -> None:
    value = getattr(situation, name)
    if math.isnan(value):
        object.__setattr__(situation, name, default)
    elif not (0 < value < math.inf):
        raise typer.BadParameter(f"--{name} is {value}; expected a number above 0")


class FloodedBrokers(StrEnum):
    """Brokers: with the plugin, and Kafka's own without quotas or with a request quota for every client-id."""

    PLUGIN = "plugin"
    KAFKA = "kafka"
    REQUEST_QUOTAS = "request-quotas"


@dataclass(frozen=True)
class NameFlood:
    """Flood brokers with client-ids that nobody has named; no login and no right is needed.

    The requests are ApiVersions, through one connection to each broker. It prints JSON: live objects in the heaps of
    all brokers in MiB, and a victim's latency, before and afterwards.
    """

    brokers: Annotated[int, typer.Option(min=1, max=9)] = 3
    kind: Annotated[FloodedBrokers, typer.Option(help="The brokers.")] = FloodedBrokers.PLUGIN
    requests: Annotated[int, typer.Option(min=1, help="Number of requests.")] = 3_300
    per_second: Annotated[
        float | None, typer.Option(min=1, help="Requests a second.", show_default="as fast as brokers answer")
    ] = None
    length: Annotated[int, typer.Option(min=12, max=32_767, help="Characters of a client-id.")] = 32_700
    limited: Annotated[bool, typer.Option("--limited", help="Every client-id has a default limit.")] = False


@dataclass(frozen=True)
class ConnectionFlood:
    """Flood a proxy with connections of one client, each with a request, and connect as another one beside it.

    It prints JSON: seconds from the connect to the first answer, alone and during the flood.
    """

    per_second: Annotated[float, typer.Option(min=1, help="Attempts a second.")] = 10_000
    addresses: Annotated[int, typer.Option(min=1, max=250, help="Addresses that they come from.")] = 1
    connections_per_s: Annotated[
        int | None, typer.Option(min=1, help="New connections a second that the proxy accepts.", show_default="its own")
    ] = None
    seconds: Seconds = 20


class HoldsGateway(StrEnum):
    """The throttling side: a broker's own quotas, a broker with the plugin, or a proxy."""

    KAFKA = "kafka"
    PLUGIN = "plugin"
    PROXY = "proxy"


class Library(StrEnum):
    """A client library."""

    JAVA = "java"
    LIBRDKAFKA = "librdkafka"
    KAFKA_PYTHON = "kafka-python"
    SARAMA = "sarama"


LIBRARIES = (Library.JAVA, Library.LIBRDKAFKA, Library.KAFKA_PYTHON)
"""Those that run where nothing is said: Sarama needs Go."""


@dataclass(frozen=True)
class Holds:
    """Run producers of librdkafka and of Kafka's Java library, whose requests are 1, 5 and 10 s of their quota.

    They are idempotent, with five requests in flight, and all else as the library has it. It prints JSON: for each the
    rate over the quota, the longest time to an acknowledgement, requests that were sent again, connections that were
    closed, errors, and records that arrived twice or not at all. Exit code 1 if there are any of those.

    With `--connections N`, N producers of each `--library` share a quota, and each request is `--request-s` of it: what
    they got in the worst minute after the first, by the broker's log. Exit code 1 if that is over 1.05 of the quota.
    """

    gateway: Annotated[HoldsGateway, typer.Option(help="Gateway that makes them wait.")] = HoldsGateway.PROXY
    limit: Annotated[float, typer.Option(min=1_000, max=90_000, help="Quota of each, bytes/s.")] = 20_000
    seconds: Seconds = 600
    connections: Annotated[int, typer.Option(min=0, max=100, help="Producers that share a quota; 0: none do.")] = 0
    request_s: Annotated[float, typer.Option(min=0.01, help="Size of their requests, in seconds of it.")] = 4.0
    library: Annotated[
        list[Library] | None,
        typer.Option(help="A library of theirs; may be repeated. Sarama needs Go.", show_default="all but sarama"),
    ] = None


class Noise(StrEnum):
    """Kinds of noisy neighbours, by the names of a public design of multi-tenant Kafka (N1 to N10)."""

    PRODUCE = "N1-produce"
    REPLAY = "N2-replay"
    CONNECTIONS = "N3-connections"
    METADATA = "N4-metadata"
    TOPICS = "N5-topics"
    PRODUCER_IDS = "N6-producer-ids"
    REBALANCES = "N7-rebalances"
    LARGE = "N8-large-messages"
    COMPACTION = "N9-compaction"
    TRANSACTIONS = "N10-transactions"


class BrokersQuotas(StrEnum):
    """Quotas of brokers: Sluice's by the plugin, Kafka's own, or none."""

    SLUICE = "sluice"
    KAFKA = "kafka"
    NONE = "none"


@dataclass(frozen=True)
class Neighbours:
    """Measure five victims beside noisy neighbours, over alone: with Sluice, Kafka's own quotas, and none.

    A line for each kind of noise comes once it is measured. Exit code 1 if with Sluice p99 is more than 1.5 times that
    of alone, or throughput below 0.99.
    """

    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of brokers.")] = 3
    seconds: Annotated[int, typer.Option(min=5, help="Length of a measurement of the victims.")] = 20
    noise: Annotated[list[Noise] | None, typer.Option(help="A kind of noise; may be repeated.", show_default="all")] = (
        None
    )
    quotas: Annotated[
        list[BrokersQuotas] | None, typer.Option(help="Quotas of the brokers; may be repeated.", show_default="all")
    ] = None
    as_json: AsJson = False


@dataclass(frozen=True)
class ElasticSimulation:
    """Simulate elastic quotas under the rule that the job runs: overload, random loads and a week.

    It prints JSON.
    """

    tenants: Annotated[int, typer.Option(min=8, help="Tenants of the week.")] = 1_000
    mean_demand: Annotated[float, typer.Option(min=0.01, help="Mean demand of the week, over the capacity.")] = 0.8
    minutes: Annotated[int, typer.Option(min=1, help="Minutes that stand for the week.")] = 10_080
    loads: Annotated[int, typer.Option(min=1, help="Random loads.")] = 20
