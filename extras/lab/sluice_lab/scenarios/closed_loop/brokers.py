"""The closed loop with Kafka brokers or proxies as gateways, and clients of librdkafka at full speed."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

import psutil
from py4j.protocol import Py4JError

from sluice.process.clock import now_ms
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.broker_plugin import new_exempt_client_id, plugin_cluster, wait_for_gateways
from sluice_demo.cluster import Cluster, make_topic
from sluice_demo.full_speed_client import Client, FullSpeedClient, Role
from sluice_demo.gateways import proxies_of
from sluice_demo.job import Json, Sections, wait_until
from sluice_lab.scenarios.closed_loop.measures import FIRST_MS, Measures, Served, measure
from sluice_lab.scenarios.closed_loop.situation import CLIENT, BrokersSituation, Situation
from sluice_lab.testbed.full_speed_clients import ReconnectingClient
from sluice_lab.testbed.jmx import beans
from sluice_lab.testbed.quotas_without_job import set_kafkas_quotas
from sluice_lab.testbed.rig import Rig
from sluice_proxy.gateway import KafkaGateway
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_toolbox.machine import Jvm

OUTAGE_S = 60.0
"""Outage of the job, or of a broker, that was killed."""

SLIP_S = 16.0
"""Time for which a limit is 1 by mistake."""

TOPIC = "orders"

_START_S = 120.0
_SAMPLE_S = 1.0
_STORED_BYTES = 60_000_000
"""Size of the topic before a consumer reads it, again and again: more than a fresh counter lets through at once."""

_OF_MEMBERS = {"batch.size": 100_000, "queue.buffering.max.kbytes": 4096}
"""Options of producers that are members of a tenant: many requests of librdkafka's size are too much for one limit."""

_ROLES = {
    QuotaKind.PRODUCER_BYTE_RATE: Role.PRODUCE,
    QuotaKind.CONSUMER_BYTE_RATE: Role.CONSUME,
    QuotaKind.REQUEST_PERCENTAGE: Role.REQUESTS,
}


@dataclass(frozen=True)
class BrokersMeasures(Measures):
    """Amounts of the clients, errors that librdkafka reported, and the cores that the brokers used together.

    `back_s` is the time from the end of a slip to the client's first bytes; None without either. `least_part` and
    `largest_part` are what a member of the tenant got after the first 10 s, over an equal part of the limit.
    """

    client_errors: int
    broker_cpu: float
    back_s: float | None
    least_part: float | None
    largest_part: float | None


def run_brokers(folder: Path, situation: BrokersSituation) -> BrokersMeasures:
    """Start brokers, and the job if they have the plugin, and measure the client. Everything is kept in `folder`."""
    entity: Json = {"entity": {"client_id": CLIENT}}
    if situation.members:
        entity = {"tenant": "shop", "client_ids": [f"{CLIENT}-*"]}
    numbers = {situation.quota.value: situation.limit}
    with held_brokers(folder, situation, [entity | {"quotas": numbers}]) as (cluster, rig, entrances):
        make_topic(cluster.bootstrap_servers, TOPIC, situation.leaders())
        if situation.quota is QuotaKind.CONSUMER_BYTE_RATE:
            fill(cluster.bootstrap_servers, TOPIC)
        return _measure(situation, cluster, rig, entrances)


@contextmanager
def held_brokers(
    folder: Path, situation: BrokersSituation, quotas: Sequence[Json]
) -> Iterator[tuple[Cluster, Rig | None, Sequence[str]]]:
    """The situation's brokers with these quotas, the job if they aren't the brokers' own, and where clients connect."""
    with ExitStack() as stack:
        if situation.own_quotas:
            cluster = stack.enter_context(Cluster(folder / "brokers", situation.brokers))
            for quota in quotas:
                client_id = {"client-id": quota["entity"]["client_id"]}
                set_kafkas_quotas(cluster.bootstrap_servers, client_id, quota["quotas"])
            yield cluster, None, [cluster.bootstrap_servers]
        elif situation.proxies:
            started = proxied_brokers(folder, situation.brokers, situation.proxies, quotas)
            cluster, rig, proxies = stack.enter_context(started)
            yield cluster, rig, [proxy.bootstrap_servers for proxy in proxies]
        else:
            elastic = {} if situation.capacity is None else _elastic(folder, situation.capacity)
            kinds = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE)
            of_all: Json = {"entity": {"client_id": None}, "quotas": {kind.value: 1e9 for kind in kinds}}
            quotas = [*quotas, of_all] if elastic else quotas  # without it limits are strict
            cluster, rig = stack.enter_context(plugin_brokers(folder, situation.brokers, quotas, elastic))
            yield cluster, rig, [cluster.bootstrap_servers]


def _elastic(folder: Path, capacity: float) -> Sections:
    """Settings of a job whose limits give way, with the brokers' capacity in bytes/s."""
    rate = str(capacity / 1024)
    capacities = {"brokerCapacities": [{"brokerId": "-1", "capacity": {"NW_IN": rate, "NW_OUT": rate}}]}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "capacity.json"
    file.write_text(json.dumps(capacities))
    return {"elastic": {"limits": "elastic"}, "brokers": {"capacity_file": str(file)}}


@contextmanager
def plugin_brokers(
    folder: Path, size: int, quotas: Sequence[Json], more: Sections = MappingProxyType({})
) -> Iterator[tuple[Cluster, Rig]]:
    """`size` brokers with the plugin, and a job with these quotas, once they know each other. All is in `folder`.

    The job has `more` settings.
    """
    client_id = new_exempt_client_id()
    sections: Sections = {
        "kafka": {"client.id": client_id},
        "topics": {"partitions": 2, "replication_factor": min(size, 3)},
        "audit": {"trigger_s": 5},
        **more,
    }
    with (
        plugin_cluster(folder / "brokers", size, client_id) as cluster,
        Rig(folder, cluster.bootstrap_servers, sections, quotas) as rig,
    ):
        rig.start()
        wait_for_gateways(rig.settings, size)
        yield cluster, rig


@contextmanager
def proxied_brokers(
    folder: Path, size: int, proxies: int, quotas: Sequence[Json]
) -> Iterator[tuple[Cluster, Rig, Sequence[KafkaGateway]]]:
    """`size` plain brokers behind so many proxies, and a job with these quotas, once the proxies know each other."""
    sections: Sections = {"topics": {"partitions": 2, "replication_factor": min(size, 3)}, "audit": {"trigger_s": 5}}
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder / "brokers", size))
        rig = stack.enter_context(Rig(folder, cluster.bootstrap_servers, sections, quotas))
        rig.start()
        started = [stack.enter_context(proxy) for proxy in proxies_of(folder, rig.settings, proxies)]
        wait_for_gateways(rig.settings, proxies)
        yield cluster, rig, started


def _set_limit(situation: BrokersSituation, cluster: Cluster, rig: Rig | None, limit: float) -> None:
    """Set the client's limit, at the job or at the brokers themselves."""
    if rig is not None:
        entry = QuotaEntry(QuotaEntity(client_id=CLIENT), situation.quota, limit)
        table = QuotasAdmin(rig.settings.delta.quotas, rig.settings.delta.storage_options)
        table.alter(lambda _: [entry], "closed-loop", datetime.now(UTC))
        return
    set_kafkas_quotas(cluster.bootstrap_servers, {"client-id": CLIENT}, {situation.quota.value: limit})


def fill(servers: str, topic: str) -> None:
    """Produce the records for consumers, under another name, which no quota limits."""
    filler = FullSpeedClient("filler", Role.PRODUCE, servers, topic)
    wait_until(lambda: sum(amount for _, amount in filler.samples) > _STORED_BYTES, _START_S)
    filler.stop()


def _measure(
    situation: BrokersSituation, cluster: Cluster, rig: Rig | None, entrances: Sequence[str]
) -> BrokersMeasures:
    """Let a client run at each of the entrances, which are addresses of brokers or proxies."""
    role = _ROLES[situation.quota]
    began_ms, cpu_before_s = now_ms(), _cpu_s(cluster)

    def partition() -> int:
        return situation.partition((now_ms() - began_ms) / 1000.0)

    named = [(f"{CLIENT}-{number}", entrances[number % len(entrances)]) for number in range(situation.members)]
    clients: list[Client] = [
        ReconnectingClient(name, servers, TOPIC)
        if situation.reconnect
        else FullSpeedClient(name, role, servers, TOPIC, partition, _OF_MEMBERS if named else {})
        for name, servers in named or [(CLIENT, servers) for servers in entrances]
    ]
    request_time = _run(situation, cluster, rig)
    for client in clients:
        client.stop()
    samples = request_time or [sample for client in clients for sample in client.samples]
    served = served_since(began_ms, situation.seconds, samples)
    asked = full_speed(situation.quota, situation.limit, situation.seconds)
    first_ms = began_ms + FIRST_MS
    allowed = asked.allowed(FIRST_MS, situation.seconds * 1000.0)
    parts = [
        sum(amount for at_ms, amount in client.samples if at_ms >= first_ms) * situation.members / allowed
        for client in clients[: situation.members]
    ]
    cpu_s = sum(used_s - cpu_before_s.get(pid, 0.0) for pid, used_s in _cpu_s(cluster).items())
    return BrokersMeasures(
        **vars(measure(asked, served)),
        client_errors=sum(len(client.errors) for client in clients),
        broker_cpu=cpu_s / situation.seconds,
        back_s=_back_s(situation, served),
        least_part=min(parts, default=None),
        largest_part=max(parts, default=None),
    )


def full_speed(quota: QuotaKind, limit: float, seconds: int) -> Situation:
    """A client that wants far more than its limit."""
    return Situation(quota, limit, limit * 1e6, 1, seconds=seconds)


def served_since(began_ms: int, seconds: int, samples: Sequence[tuple[int, float]]) -> Served:
    """The samples of so many seconds, in order."""
    end_ms = began_ms + seconds * 1000
    return [(float(at_ms - began_ms), amount, 0) for at_ms, amount in sorted(samples) if at_ms <= end_ms]


def _back_s(situation: BrokersSituation, served: Served) -> float | None:
    """Seconds from the end of the slip to the first bytes."""
    if situation.slip_at is None:
        return None
    end_ms = (situation.slip_at + SLIP_S) * 1000
    return next(((at_ms - end_ms) / 1000 for at_ms, _, _ in served if at_ms > end_ms), None)


def _cpu_s(cluster: Cluster) -> dict[int, float]:
    """CPU seconds of the brokers so far, by process id."""
    return {broker.pid: sum(psutil.Process(broker.pid).cpu_times()[:2]) for broker in cluster.alive}


def _run(situation: BrokersSituation, cluster: Cluster, rig: Rig | None) -> list[tuple[int, float]]:
    """Let the client run, with the situation's faults.

    Returns samples of its request time at all brokers, in percent-seconds, if that has the quota. They are those of
    Kafka's own metric, a rate over some 10 s, which is the only one that a broker has of it.
    """
    faults: list[tuple[float, Callable[[], object]]] = []
    if situation.kill_job_at is not None and rig is not None:
        faults += [(situation.kill_job_at, rig.kill), (situation.kill_job_at + OUTAGE_S, rig.launch)]
    if situation.kill_broker_at is not None:
        broker = cluster.brokers[0]  # with every spread the client has partitions there
        faults += [(situation.kill_broker_at, broker.kill), (situation.kill_broker_at + OUTAGE_S, broker.start)]
    if situation.slip_at is not None:
        set_limit = partial(_set_limit, situation, cluster, rig)
        slip = [(situation.slip_at, 1.0), (situation.slip_at + SLIP_S, situation.limit)]
        faults += [(at_s, partial(set_limit, limit)) for at_s, limit in slip]
    faults.sort(key=lambda fault: fault[0])
    samples: list[tuple[int, float]] = []
    began_s = last_s = time.monotonic()
    with Jvm() if situation.quota is QuotaKind.REQUEST_PERCENTAGE else nullcontext() as jvm:
        while time.monotonic() - began_s < situation.seconds:
            time.sleep(_SAMPLE_S)
            while faults and faults[0][0] <= time.monotonic() - began_s:
                faults.pop(0)[1]()
            if jvm is not None:
                percent = sum(_request_percent(jvm, broker) for broker in cluster.alive)
                now_s = time.monotonic()
                samples.append((now_ms(), percent * (now_s - last_s)))
                last_s = now_s
    return samples


def _request_percent(jvm: Jvm, broker: Broker) -> float:
    """Percent of a thread that the client uses at this broker; 0 if it doesn't answer."""
    pattern = f"kafka.server:type=Request,client-id={CLIENT},*"
    try:
        return sum(beans(jvm, broker.jmx_port).read(pattern, "request-time").values())
    except Py4JError:
        return 0.0
