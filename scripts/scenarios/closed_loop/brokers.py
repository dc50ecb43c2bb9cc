"""The closed loop with Kafka brokers as gateways, and clients of librdkafka at full speed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import psutil
from kafka import KafkaAdminClient
from py4j.protocol import Py4JError

from scripts.scenarios.closed_loop.measures import Measures, measure
from scripts.scenarios.closed_loop.simulation import Served
from scripts.scenarios.closed_loop.situation import BrokersSituation, Situation, Spread
from scripts.testbed.broker import Broker
from scripts.testbed.broker_plugin import new_exempt_client_id, plugin_cluster, wait_for_gateways
from scripts.testbed.cluster import Cluster, create_topic
from scripts.testbed.full_speed_client import FullSpeedClient, Role
from scripts.testbed.jmx import Beans, Jvm
from scripts.testbed.job import Json, Sections, wait_until
from scripts.testbed.kafka_quotas import AlteringAdmin
from scripts.testbed.rig import Rig
from sluice.kafka_io.client import connect
from sluice.kafka_io.clock import now_ms
from sluice.state.quotas.kinds import QuotaKind

OUTAGE_S = 60.0
"""Outage of the job, or of a broker, that was killed."""

SETTLED_S = 12.0
"""Time within which a client that has moved has to have its quota at its new broker."""

TOPIC = "orders"

_START_S = 120.0
_SAMPLE_S = 1.0
_STORED_BYTES = 60_000_000
"""Size of the topic before a consumer reads it, again and again: more than a fresh counter lets through at once."""

_ROLES = {
    QuotaKind.PRODUCER_BYTE_RATE: Role.PRODUCE,
    QuotaKind.CONSUMER_BYTE_RATE: Role.CONSUME,
    QuotaKind.REQUEST_PERCENTAGE: Role.REQUESTS,
}


@dataclass(frozen=True)
class BrokersMeasures(Measures):
    """Amounts of the clients, errors that librdkafka reported, and the cores that the brokers used together.

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
            rig = None
        else:
            quota = {"entity": situation.entity, "quotas": {situation.quota.value: situation.limit}}
            cluster, rig = stack.enter_context(plugin_brokers(folder, situation.brokers, [quota]))
        with connect(KafkaAdminClient, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            create_topic(admin, TOPIC, situation.leaders())
        if situation.quota is QuotaKind.CONSUMER_BYTE_RATE:
            _fill(cluster)
        return _measure(situation, cluster, rig)


@contextmanager
def plugin_brokers(folder: Path, size: int, quotas: Sequence[Json]) -> Iterator[tuple[Cluster, Rig]]:
    """`size` brokers with the plugin, and a job with these quotas, once they know each other. All is in `folder`."""
    client_id = new_exempt_client_id()
    sections: Sections = {
        "kafka": {"client.id": client_id},
        "topics": {"partitions": 2, "replication_factor": min(size, 3)},
        "audit": {"trigger_s": 5},
    }
    with (
        plugin_cluster(folder / "brokers", size, client_id) as cluster,
        Rig(folder, cluster.bootstrap_servers, sections, quotas) as rig,
    ):
        rig.start()
        wait_for_gateways(rig.settings, size)
        yield cluster, rig


def _set_own_quota(cluster: Cluster, situation: BrokersSituation) -> None:
    entity = {name.replace("_", "-"): value for name, value in situation.entity.items()}
    with connect(AlteringAdmin, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        admin.alter(entity, {situation.quota.value: situation.limit})


def _fill(cluster: Cluster) -> None:
    """Produce the records for the consumer, under another name, which no quota limits."""
    filler = FullSpeedClient("filler", Role.PRODUCE, cluster.bootstrap_servers, TOPIC)
    wait_until(lambda: sum(amount for _, amount in filler.samples) > _STORED_BYTES, _START_S)
    filler.stop()


def _measure(situation: BrokersSituation, cluster: Cluster, rig: Rig | None) -> BrokersMeasures:
    role, servers = _ROLES[situation.quota], cluster.bootstrap_servers
    began_s, began_ms, cpu_s = time.monotonic(), now_ms(), _CpuSeconds(cluster)
    clients = [
        FullSpeedClient(name, role, servers, TOPIC, situation.visits(), situation.stay_s) for name in situation.names
    ]
    with _request_time(cluster, situation) as request_time:
        _let_run(began_s, situation.seconds, _faults(situation, cluster, rig))
        for client in clients:
            client.stop()
    got = [client.samples for client in clients]
    served = Served()
    for time_ms, amount in request_time or sorted(sample for samples in got for sample in samples):
        if time_ms - began_ms <= situation.seconds * 1000:
            served.add(time_ms - began_ms, amount, 0)
    asked = Situation(situation.quota, situation.limit, situation.limit * 1e6, 1, seconds=situation.seconds)
    return BrokersMeasures(
        **vars(measure(asked, served)),
        client_errors=sum(len(client.errors) for client in clients),
        broker_cpu=cpu_s.used() / situation.seconds,
        mean_after_move=_mean_after_move(situation, served) if situation.spread is Spread.MOVE else None,
        least_part=_least_part(got) if situation.clients > 1 else None,
    )


def _mean_after_move(situation: BrokersSituation, served: Served) -> float:
    from_ms, to_ms = (situation.stay_s + SETTLED_S) * 1000.0, situation.seconds * 1000.0
    got = sum(amount for time_ms, amount in zip(served.times_ms, served.amounts, strict=True) if time_ms > from_ms)
    return got / (situation.limit * (to_ms - from_ms) / 1000.0)


def _least_part(got: Sequence[Sequence[tuple[int, float]]]) -> float:
    sums = [sum(amount for _, amount in samples) for samples in got]
    return min(sums) / sum(sums)


def _faults(situation: BrokersSituation, cluster: Cluster, rig: Rig | None) -> list[tuple[float, Callable[[], object]]]:
    """Seconds after the start and faults, in order."""
    faults: list[tuple[float, Callable[[], object]]] = []
    if situation.kill_job_at is not None and rig is not None:
        faults += [(situation.kill_job_at, rig.kill), (situation.kill_job_at + OUTAGE_S, rig.launch)]
    if situation.kill_broker_at is not None:
        broker = cluster.brokers[0]  # with every spread the client has partitions there
        faults += [(situation.kill_broker_at, broker.kill), (situation.kill_broker_at + OUTAGE_S, broker.start)]
    return sorted(faults, key=lambda fault: fault[0])


def _let_run(began_s: float, seconds: float, faults: list[tuple[float, Callable[[], object]]]) -> None:
    for at_s, happen in [*(fault for fault in faults if fault[0] < seconds), (seconds, lambda: None)]:
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        happen()


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
                samples.append((now_ms(), percent * (now_s - last_s)))
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
