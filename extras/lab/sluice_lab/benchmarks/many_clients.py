"""Cost of the plugin in a broker with many clients: its CPU time, beside that of a broker with Kafka's own quota."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from sluice.configs.settings import Settings, load_settings
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.broker_plugin import new_exempt_client_id
from sluice_demo.cluster import make_topic
from sluice_lab.benchmarks.report import Findings
from sluice_lab.benchmarks.rig import BenchmarkRig
from sluice_lab.benchmarks.scale import Scale
from sluice_lab.testbed.full_speed_clients import produce_request
from sluice_lab.testbed.quotas_without_job import JobInMemory, set_kafkas_quotas, settings_with_limits

_CLIENTS = 10_000
_BUSY = 500
"""Clients that send a request a second, 70 % of their quota; the others send a small one in 8 s."""

_BUSY_BYTES, _SMALL_BYTES = 2_000, 300
_LIMIT = QuotaEntry(QuotaEntity(client_id=DEFAULT), QuotaKind.PRODUCER_BYTE_RATE, 3_000.0)
_PERIOD_S = 8
_CONNECTIONS = 12
_TOPIC, _PARTITIONS = "orders", 4
_TICK_S = 0.01

_FIRST, _NEW_PER_S = 4_500, 90
"""Clients at the beginning, and those that come then: a broker makes no more counters for names that nobody named."""

_WARM_S = 90.0
"""Time after which all clients are there, and Java's optimizing compiler has done most."""

_MEASURED_S = 60.0
_BATCH_S = 0.5
_HEAP_MIB = 1_024
_AS_IN_PRODUCTION = ("-XX:TieredStopAtLevel=4",)
"""Java's optimizing compiler, which brokers of the test bed do without."""

_PLUGIN_THREADS = ("sluice-", "kafka-producer-n")
"""Beginnings of the names of its threads; a broker has no producer of its own."""

_SECTION = f"A broker with {_CLIENTS} active clients"


class _Counted(NamedTuple):
    """CPU seconds of a broker's process, and of the plugin's threads; records of two topics. In all, or a second."""

    cpu_s: float
    plugin_s: float
    produced: float
    events: float


def measure_many_clients(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """CPU time of a broker with the plugin, and of one with the same quota of Kafka's own, in turns."""
    found: dict[bool, list[_Counted]] = {True: [], False: []}
    for run in range(scale.runs):
        for has_plugin, counted in found.items():
            counted.append(_counted_a_second(rig.folder / f"many-{run}-{has_plugin}", has_plugin))
    plugin, own = found[True], found[False]
    with_plugin = findings.add(_SECTION, "CPU with the plugin", "cores", [each.cpu_s for each in plugin])
    without = findings.add(_SECTION, "CPU with Kafka's own quota", "cores", [each.cpu_s for each in own])
    more = [ours.cpu_s - theirs.cpu_s for ours, theirs in zip(plugin, own, strict=True)]
    findings.add(_SECTION, "CPU, how much more with the plugin", "cores", more)
    findings.add(_SECTION, "CPU of the plugin's own threads", "cores", [each.plugin_s for each in plugin])
    findings.add(_SECTION, "requests with the plugin", "requests/s", [each.produced for each in plugin])
    findings.add(_SECTION, "requests with Kafka's own quota", "requests/s", [each.produced for each in own])
    findings.add(_SECTION, "events published", "events/s", [each.events for each in plugin])
    findings.compare("CPU with the plugin / with Kafka's own quota", with_plugin, without)


def _counted_a_second(folder: Path, has_plugin: bool) -> _Counted:
    """Let the clients send to a new broker, and count for a minute what it does."""
    with _broker(folder, has_plugin) as (broker, topics):
        schedule = _schedule(now_ms())
        with BackgroundService("clients", partial(_send, broker.bootstrap_servers, schedule), _TICK_S):
            time.sleep(_WARM_S)
            before, began_s = _count(broker, topics), time.monotonic()
            time.sleep(_MEASURED_S)
            after, took_s = _count(broker, topics), time.monotonic() - began_s
    return _Counted(*((late - early) / took_s for late, early in zip(after, before, strict=True)))


@contextmanager
def _broker(folder: Path, has_plugin: bool) -> Iterator[tuple[Broker, list[str]]]:
    """A broker with the quota, decided for as long as this block runs, and its topics of data and of events."""
    client_id = new_exempt_client_id()
    topics, properties, plugins = load_settings(environment={}).topics, {}, []
    if has_plugin:
        properties = plugin_properties({"bootstrap.servers": "127.0.0.1:{port}"}, topics)
        properties["sluice.exempt.client.id"] = client_id
        plugins = [plugin_jar()]
    with ExitStack() as stack:
        broker = Broker(folder, properties, plugins=plugins, heap_mib=_HEAP_MIB, jvm_options=_AS_IN_PRODUCTION)
        servers = stack.enter_context(broker).bootstrap_servers
        make_topic(servers, _TOPIC, [_PARTITIONS])
        if not has_plugin:
            set_kafkas_quotas(servers, {"client-id": None}, {_LIMIT.kind.value: _LIMIT.value})
            yield broker, [_TOPIC]
            return
        settings = settings_with_limits(servers, [_LIMIT], client_id=client_id)
        kafka = {"bootstrap.servers": servers, "client.id": client_id}
        stack.enter_context(BackgroundService("deciding", partial(_decide, kafka, settings), _BATCH_S))
        yield broker, [_TOPIC, topics.requests]


def _decide(kafka: dict[str, str], settings: Settings) -> Iterator[None]:
    """Decide all events that have come, at each step; decisions and sums are published as the job does."""
    consumer = Consumer({**kafka, "group.id": "deciding", "enable.auto.commit": False})
    producer = Producer({**kafka, "linger.ms": 5})
    consumer.assign(
        [TopicPartition(settings.topics.requests, number, 0) for number in range(settings.topics.partitions)]
    )
    job = JobInMemory(settings, [_LIMIT])
    while True:
        decided, sums = job.decide(record.value() for record in consumer.consume(100_000, timeout=0.05))
        decided.outputs.pop(job.pipeline.waits_topic, None)
        for record in decided.outputs.records():
            producer.produce(record.topic, record.value, record.key)
        for of_entity in sums:
            producer.produce(settings.topics.sums, of_entity, b"0")
        producer.flush()
        yield


def _schedule(at_ms: int) -> list[tuple[float, int, bytes]]:
    """The requests of all clients in _PERIOD_S, in their order: seconds from its beginning, client, request."""
    schedule = []
    for client in range(_CLIENTS):
        is_busy = client < _BUSY
        size = _BUSY_BYTES if is_busy else _SMALL_BYTES
        request = produce_request(f"client-{client}", _TOPIC, client % _PARTITIONS, size, at_ms)
        first_s = client / _BUSY if is_busy else client / _CLIENTS * _PERIOD_S
        schedule += [(first_s + second, client, request) for second in range(_PERIOD_S if is_busy else 1)]
    return sorted(schedule)


def _send(server: str, schedule: list[tuple[float, int, bytes]]) -> Iterator[None]:
    """Send what is due, at each step, on a few connections, and drop the answers."""
    host, port = server.rsplit(":", 1)
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(_CONNECTIONS)]
        began_s = time.monotonic()
        for period in count():
            for due_s, client, request in schedule:
                while time.monotonic() - began_s < period * _PERIOD_S + due_s:
                    yield
                    for connection in connections:
                        with suppress(BlockingIOError):
                            connection.recv(1 << 16, socket.MSG_DONTWAIT)
                if client < _FIRST + (time.monotonic() - began_s) * _NEW_PER_S:
                    connections[client % _CONNECTIONS].sendall(request)


def _count(broker: Broker, topics: list[str]) -> _Counted:
    process = psutil.Process(broker.pid)
    names = {each.id: Path(f"/proc/{broker.pid}/task/{each.id}/comm").read_text() for each in process.threads()}
    plugin_s = sum(
        each.user_time + each.system_time
        for each in process.threads()
        if names.get(each.id, "").startswith(_PLUGIN_THREADS)
    )
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "counting"})
    ends = [
        sum(reader.get_watermark_offsets(TopicPartition(topic, number))[1] for number in range(_PARTITIONS))
        for topic in topics
    ]
    reader.close()
    return _Counted(sum(process.cpu_times()[:2]), plugin_s, *[*ends, 0][:2])
