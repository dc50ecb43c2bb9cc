"""The closed loop with Kafka brokers as gateways: librdkafka clients at full speed, which their quotas hold."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import psutil
from kafka import KafkaAdminClient
from py4j.protocol import Py4JError

from scripts.closed_loop.measures import Measures, measure
from scripts.closed_loop.simulation import Served
from scripts.closed_loop.situation import Situation, Spread
from scripts.testbed.broker import Broker
from scripts.testbed.broker_plugin import new_exempt_client_id, plugin_cluster, wait_for_gateways
from scripts.testbed.cluster import Cluster, create_topic
from scripts.testbed.full_speed_client import FullSpeedClient, Library, Role
from scripts.testbed.jmx import Beans, Jvm
from scripts.testbed.job import Json, Sections, wait_until
from scripts.testbed.job_under_test import JobOnBrokers
from scripts.testbed.kafka_quotas import AlteringAdmin
from sluice.kafka_io.client import connect
from sluice.state.quotas.kinds import QuotaKind

OUTAGE_S = 60.0
"""How long the job, or a broker, is away when it was killed."""

SETTLED_S = 12.0
"""How soon a client that has moved is to have its quota at its new broker."""

STAY_S = 5.0
"""How long a client that hops stays at a broker."""

CLIENT = "app"
USER = "ANONYMOUS"
"""Kafka's name for whoever doesn't log in."""

TOPIC = "orders"

_PARTITIONS = 4
_START_S = 120.0
_SAMPLE_S = 1.0
_STORED_BYTES = 60_000_000
"""What is in the topic before a consumer reads it, again and again: more than a fresh counter lets through at once."""

_ROLES = {
    QuotaKind.PRODUCER_BYTE_RATE: Role.PRODUCE,
    QuotaKind.CONSUMER_BYTE_RATE: Role.CONSUME,
    QuotaKind.REQUEST_PERCENTAGE: Role.REQUESTS,
}


@dataclass(frozen=True)
class BrokersSituation:
    """What is tried. With `own_quotas` the brokers have Kafka's own quotas, and there is neither plugin nor job.

    `spread` says where the leaders of the client's partitions are: even, 80 % on the first broker, or all on it. Who
    moves or hops uses those of one broker at a time. The quota is on the client-id of one client, the user of several.
    `kill_job_at` and `kill_broker_at` are seconds; what is killed is back after OUTAGE_S.
    """

    quota: QuotaKind
    limit: float
    brokers: int
    seconds: int
    spread: Spread = Spread.EVEN
    own_quotas: bool = False
    kill_job_at: float | None = None
    kill_broker_at: float | None = None
    library: Library = Library.LIBRDKAFKA
    clients: int = 1

    def alone(self) -> "BrokersSituation":
        """The same client on one broker with Kafka's own quota."""
        return BrokersSituation(self.quota, self.limit, 1, self.seconds, own_quotas=True, clients=self.clients)

    @property
    def names(self) -> list[str]:
        """The client-ids."""
        return [CLIENT] if self.clients == 1 else [f"{CLIENT}-{number}" for number in range(1, self.clients + 1)]

    @property
    def entity(self) -> Json:
        """Whose quota it is."""
        return {"client_id": CLIENT} if self.clients == 1 else {"user": USER}

    @property
    def stay_s(self) -> float:
        """How long a client that moves or hops uses one broker."""
        return self.seconds / 2 if self.spread is Spread.MOVE else STAY_S

    def visits(self) -> list[list[int]]:
        """The partitions that a client which moves or hops uses one after the other, none for others.

        >>> BrokersSituation(QuotaKind.PRODUCER_BYTE_RATE, 1e6, 3, 60, Spread.MOVE).visits()
        [[0, 1, 2, 3], [4, 5, 6, 7]]
        """
        visited = {Spread.MOVE: 2, Spread.HOP: self.brokers}.get(self.spread, 0)
        return [list(range(_PARTITIONS * number, _PARTITIONS * (number + 1))) for number in range(visited)]

    def leaders(self) -> list[int]:
        """Number of the client's partitions that each broker leads.

        >>> BrokersSituation(QuotaKind.PRODUCER_BYTE_RATE, 1e6, 3, 60, Spread.SKEW).leaders()
        [8, 1, 1]
        """
        others = self.brokers - 1
        match self.spread:
            case Spread.SKEW if others:
                return [4 * others] + [1] * others
            case Spread.ONE:
                return [_PARTITIONS] + [0] * others
        return [_PARTITIONS] * self.brokers


@dataclass(frozen=True)
class BrokersMeasures(Measures):
    """What the clients got; how many errors their library reported; and the cores that the brokers used together.

    `mean_after_move` is from SETTLED_S after the move on. `least_part` is the part of the client that got least.
    """

    client_errors: int
    broker_cpu: float
    mean_after_move: float | None = None
    least_part: float | None = None


def run_brokers(folder: Path, situation: BrokersSituation) -> BrokersMeasures:
    """Start brokers, and the job if they have the plugin, and measure the client. Everything is kept in `folder`."""
    with ExitStack() as stack:
        if situation.own_quotas:
            cluster = stack.enter_context(Cluster(folder / "brokers", situation.brokers))
            _set_own_quota(cluster, situation)
            job = None
        else:
            quota = {"entity": situation.entity, "quotas": {situation.quota.value: situation.limit}}
            cluster, job = stack.enter_context(plugin_brokers(folder, situation.brokers, [quota]))
        with connect(KafkaAdminClient, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            create_topic(admin, TOPIC, situation.leaders())
        if situation.quota is QuotaKind.CONSUMER_BYTE_RATE:
            _fill(folder, cluster)
        return _measure(folder, situation, cluster, job)


@contextmanager
def plugin_brokers(folder: Path, size: int, quotas: Sequence[Json]) -> Iterator[tuple[Cluster, JobOnBrokers]]:
    """So many brokers with the plugin, and a job with these quotas, once they know each other. All is in `folder`."""
    client_id = new_exempt_client_id()
    sections: Sections = {
        "kafka": {"client.id": client_id},
        "topics": {"partitions": 2, "replication_factor": min(size, 3)},
        "audit": {"trigger_s": 5},
    }
    with (
        plugin_cluster(folder / "brokers", size, client_id) as cluster,
        JobOnBrokers(folder, cluster.bootstrap_servers, sections, quotas) as job,
    ):
        job.start()
        wait_for_gateways(job.settings, size)
        yield cluster, job


def _set_own_quota(cluster: Cluster, situation: BrokersSituation) -> None:
    entity = {name.replace("_", "-"): value for name, value in situation.entity.items()}
    with connect(AlteringAdmin, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        admin.alter(entity, {situation.quota.value: situation.limit})


def _fill(folder: Path, cluster: Cluster) -> None:
    """Produce what the consumer is to read, under another name, which no quota limits."""
    filler = FullSpeedClient(folder, "filler", Library.LIBRDKAFKA, Role.PRODUCE, cluster.bootstrap_servers, TOPIC)
    wait_until(lambda: sum(amount for _, amount in filler.samples()) > _STORED_BYTES, _START_S)
    filler.stop()


def _measure(folder: Path, situation: BrokersSituation, cluster: Cluster, job: JobOnBrokers | None) -> BrokersMeasures:
    clients = [_client(folder, situation, name, cluster.bootstrap_servers) for name in situation.names]
    wait_until(lambda: all(client.is_ready for client in clients), _START_S)
    began_s, began_ms, cpu_s = time.monotonic(), time.time_ns() // 1_000_000, _CpuSeconds(cluster)
    with _request_time(cluster, situation) as request_time:
        _go_on_until(began_s + situation.seconds, _faults(situation, cluster, job, began_s))
        for client in clients:
            client.stop()
    got = [client.samples() for client in clients]
    served = Served()
    for time_ms, amount in request_time or sorted(sample for samples in got for sample in samples):
        if time_ms - began_ms <= situation.seconds * 1000:
            served.add(time_ms - began_ms, amount, 0)
    asked = Situation(situation.quota, situation.limit, situation.limit * 1e6, 1, seconds=situation.seconds)
    return BrokersMeasures(
        **vars(measure(asked, served)),
        client_errors=sum(len(client.errors()) for client in clients),
        broker_cpu=cpu_s.used() / situation.seconds,
        mean_after_move=_mean_after_move(situation, served) if situation.spread is Spread.MOVE else None,
        least_part=_least_part(got) if situation.clients > 1 else None,
    )


def _client(folder: Path, situation: BrokersSituation, name: str, servers: str) -> FullSpeedClient:
    role, visits = _ROLES[situation.quota], situation.visits()
    return FullSpeedClient(folder, name, situation.library, role, servers, TOPIC, visits, situation.stay_s)


def _mean_after_move(situation: BrokersSituation, served: Served) -> float:
    from_ms, to_ms = (situation.stay_s + SETTLED_S) * 1000.0, situation.seconds * 1000.0
    got = sum(amount for time_ms, amount in zip(served.times_ms, served.amounts, strict=True) if time_ms > from_ms)
    return got / (situation.limit * (to_ms - from_ms) / 1000.0)


def _least_part(got: Sequence[Sequence[tuple[int, float]]]) -> float:
    sums = [sum(amount for _, amount in samples) for samples in got]
    return min(sums) / sum(sums)


_Fault = tuple[float, Callable[[], object]]
"""When, on the monotonic clock, and what."""


def _faults(situation: BrokersSituation, cluster: Cluster, job: JobOnBrokers | None, began_s: float) -> list[_Fault]:
    """What happens while the client runs, in order."""
    faults: list[_Fault] = []
    if situation.kill_job_at is not None and job is not None:
        faults += [
            (began_s + situation.kill_job_at, job.kill),
            (began_s + situation.kill_job_at + OUTAGE_S, job.launch),
        ]
    if situation.kill_broker_at is not None:
        broker: Broker = cluster.brokers[0]  # with every spread the client has partitions there
        faults += [
            (began_s + situation.kill_broker_at, broker.kill),
            (began_s + situation.kill_broker_at + OUTAGE_S, broker.start),
        ]
    return sorted(faults, key=lambda fault: fault[0])


def _go_on_until(end_s: float, faults: list[_Fault]) -> None:
    for at_s, happen in faults:
        if at_s < end_s:
            time.sleep(max(0.0, at_s - time.monotonic()))
            happen()
    time.sleep(max(0.0, end_s - time.monotonic()))


class _CpuSeconds:
    """CPU seconds that the brokers use from now on; those of a broker that was started later count from its start."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = self._now()

    def _now(self) -> dict[int, float]:
        return {pid: sum(psutil.Process(pid).cpu_times()[:2]) for pid in (broker.pid for broker in self._cluster.alive)}

    def used(self) -> float:
        """Those used since then."""
        return sum(used_s - self._before.get(pid, 0.0) for pid, used_s in self._now().items())


@contextmanager
def _request_time(cluster: Cluster, situation: BrokersSituation) -> Iterator[list[tuple[int, float]]]:
    """Samples of the clients' request time at all brokers, in percent-seconds, taken while this block runs.

    They are those of Kafka's own metric, a rate over some 10 s, which is all that a broker says of it.
    """
    samples: list[tuple[int, float]] = []
    if situation.quota is not QuotaKind.REQUEST_PERCENTAGE:
        yield samples
        return
    tag = ",".join(f"{name.replace('_', '-')}={value}" for name, value in situation.entity.items())
    stop = Event()

    def sample() -> None:
        with Jvm() as jvm:
            last_s = time.monotonic()
            while not stop.wait(_SAMPLE_S):
                percent = sum(_request_percent(jvm, broker, tag) for broker in cluster.alive)
                now_s = time.monotonic()
                samples.append((time.time_ns() // 1_000_000, percent * (now_s - last_s)))
                last_s = now_s

    thread = Thread(target=sample, daemon=True)
    thread.start()
    yield samples
    stop.set()
    thread.join()


def _request_percent(jvm: Jvm, broker: Broker, tag: str) -> float:
    """Percent of a thread that the clients of this tag use at this broker; 0 if it doesn't answer."""
    try:
        beans: Beans = jvm.beans(broker.jmx_port)
        used = beans.read(f"kafka.server:type=Request,{tag},*", "request-time")
    except Py4JError:
        return 0.0
    return sum(used.values())
