"""What the broker plugin costs a broker: throughput, latency, and CPU time and memory with many clients.

Beside each broker with the plugin there is one with the same quotas of Kafka's own. Both run at the same time, and the
load goes to one and the other in turns.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import psutil
from confluent_kafka import Message, Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from scripts.benchmarks.many_clients import ManyClients
from scripts.benchmarks.report import Findings, at_least, at_most
from scripts.benchmarks.rig import BenchError, BenchmarkRig, Scale
from scripts.testbed.background_loop import BackgroundLoop
from scripts.testbed.broker import Broker
from scripts.testbed.broker_plugin import new_exempt_client_id, plugin_cluster, publish_limits
from scripts.testbed.cluster import Cluster, create_topic
from scripts.testbed.full_speed_client import FullSpeedClient, Library, Role
from scripts.testbed.job import wait_until
from scripts.testbed.kafka_quotas import AlteringAdmin
from sluice.configs.settings import load_settings
from sluice.jvm.java import find_java
from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation

PAIRS = 9
_TOPIC = "orders"
_AS_IN_PRODUCTION = ("-XX:TieredStopAtLevel=4",)
"""Java's second compiler, too, which brokers of the test bed do without."""

_WARM_S = 5.0
_RUN_S = 5.0
_BYTES_PER_S = 1e12
_PERCENT = 1e6
_VALUE = bytes(100_000)
_LATE_S = 30.0
_SHARES_S = 60.0

_BATCH_S = 0.2
"""How long events gather before they are decided: a micro-batch of the job takes longer."""

_MANY_WARM_S = 40.0
_MANY_S = 30.0
_SMALL_S = 10.0

_THROUGHPUT_BAR = 0.97
_LATENCY_BAR_MS = 1.0
_CPU_BAR = 0.10
_MEMORY_BAR_MIB = 100.0

_PLUGIN_THREADS = ("sluice-", "kafka-producer-n")
"""Beginnings of the names of its threads. A broker has no producer of its own."""


@dataclass(frozen=True)
class Side:
    """One of the two brokers."""

    cluster: Cluster

    @property
    def servers(self) -> str:
        """Its address."""
        return self.cluster.bootstrap_servers

    @property
    def broker(self) -> Broker:
        """Its only node."""
        return self.cluster.brokers[0]

    def cpu_s(self) -> float:
        """CPU seconds of its process so far."""
        return float(sum(psutil.Process(self.broker.pid).cpu_times()[:2]))

    def plugin_cpu_s(self) -> float:
        """CPU seconds so far of the plugin's own threads, by their names (Linux)."""
        threads = psutil.Process(self.broker.pid).threads()
        return sum(each.user_time + each.system_time for each in threads if self._is_plugins(each.id))

    def _is_plugins(self, thread: int) -> bool:
        return Path(f"/proc/{self.broker.pid}/task/{thread}/comm").read_text().startswith(_PLUGIN_THREADS)

    def live_mib(self) -> float:
        """MiB of what is alive on its heap. Java collects its garbage for it."""
        java, _ = find_java()
        command = [str(Path(java).resolve().with_name("jcmd")), str(self.broker.pid), "GC.class_histogram"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        total = re.search(r"^Total\s+\d+\s+(\d+)", shown, re.MULTILINE)
        if total is None:
            raise BenchError(f"jcmd shows no live objects of the broker: {shown[:200]!r}")
        return int(total[1]) / 2**20


class Deciding(BackgroundLoop):
    """Decides what a broker publishes, as the job does, in a thread; as a context manager.

    `produced_at_ms` has the times of the Produce events of each client-id.
    """

    def __init__(self, side: Side, client_id: str, quotas: list[QuotaEntry]) -> None:
        super().__init__()
        self.events = 0
        self.produced_at_ms: dict[str, list[int]] = {}
        self._kafka = {"bootstrap.servers": side.servers, "client.id": client_id}
        self._simulation = Simulation(Quotas(quotas, version=1), load_settings(environment={}))

    def _run(self) -> None:
        topics = load_settings(environment={}).topics
        with (
            closing(connect(KafkaConsumer, self._kafka, max_poll_records=5_000)) as consumer,
            closing(connect(KafkaProducer, self._kafka, linger_ms=5)) as producer,
        ):
            partitions = [TopicPartition(topics.requests, number) for number in range(topics.partitions)]
            consumer.assign(partitions)
            consumer.seek_to_end()
            while not self._left.wait(_BATCH_S):
                events = [record.value for batch in consumer.poll(100).values() for record in batch]
                self._note(events)
                for decision in self._simulation.decide(events):
                    producer.send(topics.decisions, decision.value, decision.key)
                producer.flush()

    def _note(self, events: list[bytes]) -> None:
        for event in events:
            fields = msgspec.json.decode(event)
            self.events += 1
            if fields["api"] == "Produce":
                self.produced_at_ms.setdefault(fields["client_id"], []).append(fields["timestamp_ms"])


@contextmanager
def both_sides(rig: BenchmarkRig, name: str, quotas: dict[QuotaKind, float]) -> Iterator[tuple[Side, Side, Deciding]]:
    """A broker with the plugin, one with the same quotas for each client-id by `kafka-configs`, and who decides."""
    folder, client_id = rig.folder / name, new_exempt_client_id()
    entries = [QuotaEntry(QuotaEntity(client_id=DEFAULT), kind, limit) for kind, limit in quotas.items()]
    with (
        plugin_cluster(folder / "plugin", 1, client_id, jvm_options=_AS_IN_PRODUCTION) as with_plugin,
        Cluster(folder / "own", 1, jvm_options=_AS_IN_PRODUCTION) as without,
    ):
        ensure_topics(
            load_settings(environment={}).topics,
            {"bootstrap.servers": with_plugin.bootstrap_servers, "client.id": client_id},
        )
        publish_limits(with_plugin.bootstrap_servers, entries, 1, {"client_id": client_id})
        with connect(AlteringAdmin, {"bootstrap.servers": without.bootstrap_servers}) as admin:
            admin.alter({"client-id": None}, {kind.value: limit for kind, limit in quotas.items()})
        for cluster in (with_plugin, without):
            with connect(KafkaAdminClient, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
                create_topic(admin, _TOPIC, [4])
        log = folder / "plugin" / "1" / "broker.log"
        wait_until(lambda: "Sluice knows the limits" in log.read_text(), _SHARES_S)
        with Deciding(Side(with_plugin), client_id, entries) as deciding:
            yield Side(with_plugin), Side(without), deciding


def measure_plugin_cost(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(j) what a broker does with the plugin, over what it does with the same quotas of Kafka's own."""
    _measure_speed(rig, findings)
    _measure_many_clients(rig, scale, findings)


def _measure_speed(rig: BenchmarkRig, findings: Findings) -> None:
    section = "A broker whose clients are far below their quotas"
    quotas = {
        QuotaKind.PRODUCER_BYTE_RATE: _BYTES_PER_S,
        QuotaKind.CONSUMER_BYTE_RATE: _BYTES_PER_S,
        QuotaKind.REQUEST_PERCENTAGE: _PERCENT,
    }
    mb_per_s: list[list[float]] = [[], []]
    p99_ms: list[list[float]] = [[], []]
    with both_sides(rig, "speed", quotas) as (plugin, own, _):
        for number in range(PAIRS + 1):
            for side, values in zip((plugin, own), mb_per_s, strict=True):
                values.append(_throughput(rig, side, number) / 1e6)
        half = min(float(np.median(values)) for values in mb_per_s) / 2 * 1e6
        for _ in range(PAIRS + 1):
            for side, values in zip((plugin, own), p99_ms, strict=True):
                values.append(_p99_ms(side, half))
    # The first pair warms both up.
    with_plugin = findings.add(section, "throughput with the plugin", "MB/s", mb_per_s[0][1:])
    without = findings.add(section, "throughput with own quotas", "MB/s", mb_per_s[1][1:])
    findings.compare("plugin / own quotas, throughput", with_plugin, without, at_least(_THROUGHPUT_BAR))
    findings.add(section, "p99 at half of the throughput, with the plugin", "ms", p99_ms[0][1:])
    findings.add(section, "p99 at half of the throughput, with own quotas", "ms", p99_ms[1][1:])
    more_ms = [ours - theirs for ours, theirs in zip(p99_ms[0][1:], p99_ms[1][1:], strict=True)]
    findings.add(section, "p99, how much more with the plugin", "ms", more_ms, at_most(_LATENCY_BAR_MS))


def _throughput(rig: BenchmarkRig, side: Side, number: int) -> float:
    """Bytes a second that a librdkafka producer gets acknowledged at full speed."""
    name = f"load-{side.broker.pid}-{number}"
    client = FullSpeedClient(rig.folder, name, Library.LIBRDKAFKA, Role.PRODUCE, side.servers, _TOPIC)
    wait_until(lambda: bool(client.samples()), _LATE_S)
    time.sleep(_WARM_S / 5 if number else _WARM_S)
    begun_ms = time.time_ns() // 1_000_000
    time.sleep(_RUN_S)
    ended_ms = time.time_ns() // 1_000_000
    client.stop()
    served = sum(amount for at_ms, amount in client.samples() if begun_ms < at_ms <= ended_ms)
    return served / (ended_ms - begun_ms) * 1000


def _p99_ms(side: Side, bytes_per_s: float) -> float:
    """p99 of the time until a record of 100 kB is acknowledged, at this speed; the first second left out."""
    latencies_ms: list[float] = []

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            raise BenchError(f"a record was not acknowledged: {error}")
        latencies_ms.append((message.latency() or 0.0) * 1000)

    producer = Producer({"bootstrap.servers": side.servers, "client.id": "steady", "linger.ms": 0})
    per_s = bytes_per_s / len(_VALUE)
    warm, count = int(per_s), int((1 + _RUN_S) * per_s)
    begun_s = time.monotonic()
    for number in range(count):
        ahead_s = begun_s + number / per_s - time.monotonic()
        producer.poll(max(0.0, ahead_s))
        while begun_s + number / per_s > time.monotonic():
            producer.poll(0.0005)
        producer.produce(_TOPIC, _VALUE, on_delivery=delivered)
    producer.flush()
    return float(np.percentile(latencies_ms[warm:], 99))


def _measure_many_clients(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    clients = ManyClients(_TOPIC)
    section = f"A broker with {clients.count} active clients, {clients.busy} of them near their share"
    quotas = {QuotaKind.PRODUCER_BYTE_RATE: clients.limit}
    cores: list[list[float]] = [[], []]
    live_mib: list[list[float]] = [[], []]
    plugin_cores: list[float] = []
    events_per_s: list[float] = []
    gaps_s: list[float] = []
    for run in range(scale.runs):
        with both_sides(rig, f"many-{run}", quotas) as (plugin, own, deciding):
            for number, side in enumerate((plugin, own)):
                with clients.sending(side.servers):
                    time.sleep(_MANY_WARM_S)
                    cpu_s, plugin_s, events, begun_s = side.cpu_s(), plugin.plugin_cpu_s(), deciding.events, time.time()
                    time.sleep(_MANY_S)
                    took_s = time.time() - begun_s
                    cores[number].append((side.cpu_s() - cpu_s) / took_s)
                    if side is plugin:
                        plugin_cores.append((plugin.plugin_cpu_s() - plugin_s) / took_s)
                        events_per_s.append((deciding.events - events) / took_s)
                    live_mib[number].append(side.live_mib())
            gaps_s.append(_shortest_gap_s(deciding, clients))
    findings.add(section, "CPU of the broker with the plugin", "cores", cores[0])
    findings.add(section, "CPU of the broker with own quotas", "cores", cores[1])
    more = [ours - theirs for ours, theirs in zip(*cores, strict=True)]
    findings.add(section, "CPU, how much more with the plugin", "cores", more, at_most(_CPU_BAR))
    findings.add(section, "CPU of the plugin's own threads", "cores", plugin_cores)
    findings.add(section, "events published", "events/s", events_per_s)
    findings.add(section, "live objects with the plugin", "MiB", live_mib[0])
    findings.add(section, "live objects with own quotas", "MiB", live_mib[1])
    more = [ours - theirs for ours, theirs in zip(*live_mib, strict=True)]
    findings.add(section, "live objects, how much more with the plugin", "MiB", more, at_most(_MEMORY_BAR_MIB))
    findings.add(section, "shortest time between events of a small client", "s", gaps_s, at_least(0.95 * _SMALL_S))


def _shortest_gap_s(deciding: Deciding, clients: ManyClients) -> float:
    """Of the clients below a tenth of their share; their first event, made when they appear, left out."""
    gaps_ms = [
        later - earlier
        for client, times_ms in deciding.produced_at_ms.items()
        if clients.is_small(client)
        for earlier, later in pairwise(times_ms[1:])
    ]
    if not gaps_ms:
        raise BenchError("no client below a tenth of its share was published twice")
    return min(gaps_ms) / 1000.0
