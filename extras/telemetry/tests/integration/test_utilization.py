"""The use of a limit in the whole cluster, in the beans of each broker, against the bytes that clients sent and got."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from statistics import fmean
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sluice.configs.settings import Settings, load_settings
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.cluster import Cluster, make_topic
from sluice_lab.testbed.jmx import beans
from sluice_lab.testbed.quotas_without_job import JobInMemory, settings_with_limits
from sluice_telemetry.jars import RECEIVER_CLASS, telemetry_jar
from sluice_telemetry.utilization import utilization
from sluice_toolbox.machine import Jvm
from tests.broker_plugin import SECRET
from tests.builders import quota
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

LIMIT = 4_000_000.0
"""In the span of a meter it lets through more than is sent."""

LOW_LIMIT = 500_000.0
NAME = "quota-utilization"
SETTLED_MS = 2_000
"""Time after which the span of a gauge ends."""

RECORD, RECORDS = bytes(10_000), 800
LIMITS = [
    quota(QuotaKind.PRODUCER_BYTE_RATE, LIMIT, client_id="app"),
    quota(QuotaKind.CONSUMER_BYTE_RATE, LIMIT, client_id="app"),
    quota(QuotaKind.PRODUCER_BYTE_RATE, LOW_LIMIT, client_id="throttled"),
]
Sample = tuple[int, int, float]
"""Bytes that a client has sent or got, at a time."""


def _properties(servers: str, node_id: int) -> dict[str, str]:
    properties = plugin_properties({"bootstrap.servers": servers}, load_settings().topics)
    properties["metric.reporters"] += f",{RECEIVER_CLASS}"
    return properties | {"sluice.gateway.name": f"broker-{node_id}", "sluice.exempt.client.id": SECRET}


class _Deciding:
    """Decides the events of `batch_s` seconds at each step, and publishes the sums, as the job does."""

    def __init__(self, kafka: dict[str, str], settings: Settings) -> None:
        self.batch_s = 0.05
        self._kafka, self._settings = kafka, settings

    def __call__(self) -> Iterator[None]:
        kafka, settings = self._kafka, self._settings
        consumer, producer = Consumer({**kafka, "group.id": "deciding", "enable.auto.commit": False}), Producer(kafka)
        consumer.assign(
            [TopicPartition(settings.topics.requests, each, 0) for each in range(settings.topics.partitions)]
        )
        job = JobInMemory(settings, LIMITS)
        while True:
            decided, sums = job.decide(record.value() for record in consumer.consume(100_000, timeout=self.batch_s))
            decided.outputs.pop(job.pipeline.waits_topic, None)
            for output in decided.outputs.records():  # heartbeats among them, which say that all is decided until then
                producer.produce(output.topic, output.value, output.key)
            for record in sums:
                producer.produce(settings.topics.sums, record, b"0")
            producer.flush()
            yield


Beans = Callable[[str], list[float]]
"""The quota-utilization in the beans of all brokers whose name fits a pattern."""


class Bed(NamedTuple):
    servers: str
    shown: Beans
    deciding: _Deciding


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Two brokers whose sums are decided, and their beans."""
    plugins, folder = [plugin_jar(), telemetry_jar()], tmp_path_factory.mktemp("cluster")
    with Cluster(folder, 2, _properties, plugins) as cluster, Jvm() as jvm:
        servers = cluster.bootstrap_servers
        make_topic(servers, "orders", [1, 1])
        kafka = {"bootstrap.servers": servers, "client.id": SECRET}
        settings = settings_with_limits(servers, LIMITS, client_id=SECRET)
        readers = [beans(jvm, broker.jmx_port).read for broker in cluster.brokers]
        deciding = _Deciding(kafka, settings)

        def shown(of: str) -> list[float]:
            return [each for read in readers for each in read(f"sluice:{of}", NAME).values()]

        with BackgroundService("deciding", deciding, 0.1):
            yield Bed(servers, shown, deciding)


def _watch(shown: Beans, most: dict[str, list[float]]) -> Iterator[None]:
    """Note the most that each broker has shown of each quota."""
    while True:
        for group, known in most.items():
            now = shown(f"type={group},client-id=app")
            if len(now) == len(known):  # a broker shows a client from the first sums of it on
                known[:] = map(max, now, known)
        yield


def _most(samples: Sequence[Sample]) -> float:
    """The most that a client used of its limit in any span of a meter, by what it has sent or got."""
    return max(utilization(samples, LIMIT, until_ms=at_ms) for at_ms, *_ in samples)


def test_each_broker_shows_the_use_of_the_whole_limit_by_the_clients_bytes(cluster: Bed) -> None:
    servers, shown, _ = cluster
    sent, got = list[Sample](), list[Sample]()
    most = {"Produce": [0.0, 0.0], "Fetch": [0.0, 0.0]}
    with BackgroundService("watching", partial(_watch, shown, most), 0.1):
        producer = Producer({"bootstrap.servers": servers, "client.id": "app", "linger.ms": 50})
        for number in range(RECORDS):
            producer.produce("orders", RECORD, partition=number % 2, callback=lambda *_: sent.append(_sample()))
            if number < 2:  # brokers charge a try at a partition that has no leader yet, too
                producer.flush()
        producer.flush()
        # Part of a batch at the end of an answer is charged, thrown away and fetched again: answers take all there is.
        consumer = Consumer(
            {"bootstrap.servers": servers, "client.id": "app", "group.id": "app", "fetch.message.max.bytes": 10_000_000}
        )
        consumer.assign([TopicPartition("orders", number, 0) for number in range(2)])
        while len(got) < RECORDS:
            got += [_sample() for _ in consumer.consume(100, timeout=1)]
        consumer.close()
        for group, known in most.items():
            eventually(partial(_is_over, shown, group, known))

    assert len(sent) == RECORDS
    assert most["Produce"] == pytest.approx([_most(sent)] * 2, rel=0.05)
    assert most["Fetch"] == pytest.approx([_most(got)] * 2, rel=0.05)


def _is_over(shown: Beans, group: str, most: Sequence[float]) -> bool:
    """True once each broker has shown the use of a quota, and shows no more than a consumer without records uses."""
    return min(most) > 0 and max(shown(f"type={group},client-id=app")) < 0.1


def _sample() -> Sample:
    return now_ms(), now_ms(), len(RECORD)


@pytest.mark.long
def test_the_use_by_a_throttled_client_is_that_of_its_bytes_also_with_long_micro_batches(cluster: Bed) -> None:
    """If the span of a gauge ended with one, what was sent before the span would count in it."""
    cluster.deciding.batch_s = 1.5
    sent, seen = list[Sample](), list[tuple[int, list[float]]]()
    options = {"client.id": "throttled", "batch.size": 20_000, "queue.buffering.max.kbytes": 1_000}
    producer = Producer({"bootstrap.servers": cluster.servers, **options})
    while len(sent) < 2_000:  # of which 500 are the burst
        with suppress(BufferError):
            for number in range(100):
                producer.produce("orders", RECORD, partition=number % 2, callback=lambda *_: sent.append(_sample()))
        producer.poll(0.1)
        shown = cluster.shown("type=Produce,client-id=throttled")
        if len(sent) >= 1_400 and len(shown) == 2:
            seen.append((now_ms() - SETTLED_MS, shown))
    producer.purge()
    used = fmean(utilization(sent, LOW_LIMIT, until_ms=at_ms) for at_ms, _ in seen)

    assert [fmean(of_broker) for of_broker in zip(*(each for _, each in seen), strict=True)] == pytest.approx(
        [used] * 2, rel=0.05
    )


def test_more_clients_than_are_shown_take_no_more_memory(cluster: Bed) -> None:
    servers, shown, _ = cluster
    counters = [[{"client_id": f"client-{number}"}, [[0, LIMIT, 0, 0, [[0, 1.0]]]]] for number in range(1_500)]
    sums = {"job_id": "j", "batch": 1, "decided_at_ms": now_ms(), "base_ms": now_ms(), "sums": counters}
    sums |= {"quotas": [QuotaKind.PRODUCER_BYTE_RATE.value], "gateways": [["g", True, 0]]}
    producer = Producer({"bootstrap.servers": servers, "client.id": SECRET})
    producer.produce("quota-sums", json.dumps(sums), b"0")
    producer.flush()

    eventually(lambda: len(shown("type=Produce,*")) + len(shown("type=Fetch,*")) == 2 * 1_000)
