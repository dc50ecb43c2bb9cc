"""The use of a limit in the whole cluster, in the beans of each broker, against the bytes that clients sent and got."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

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
SPAN_S = 10  # of a meter; in it both limits let through more than is sent
NAME = "quota-utilization"
RECORD, RECORDS = bytes(10_000), 800
LIMITS = [
    quota(QuotaKind.PRODUCER_BYTE_RATE, LIMIT, client_id="app"),
    quota(QuotaKind.CONSUMER_BYTE_RATE, LIMIT, client_id="app"),
]


def _properties(servers: str, node_id: int) -> dict[str, str]:
    properties = plugin_properties({"bootstrap.servers": servers}, load_settings().topics)
    properties["metric.reporters"] += f",{RECEIVER_CLASS}"
    return properties | {"sluice.gateway.name": f"broker-{node_id}", "sluice.exempt.client.id": SECRET}


def _decide(kafka: dict[str, str], settings: Settings) -> Iterator[None]:
    """Decide all events that have come, at each step, and publish the sums, as the job does."""
    consumer, producer = Consumer({**kafka, "group.id": "deciding", "enable.auto.commit": False}), Producer(kafka)
    consumer.assign([TopicPartition(settings.topics.requests, each, 0) for each in range(settings.topics.partitions)])
    job = JobInMemory(settings, LIMITS)
    while True:
        decided, sums = job.decide(record.value() for record in consumer.consume(100_000, timeout=0.05))
        decided.outputs.pop(job.pipeline.waits_topic, None)
        for output in decided.outputs.records():  # heartbeats among them, which say that all is decided until then
            producer.produce(output.topic, output.value, output.key)
        for record in sums:
            producer.produce(settings.topics.sums, record, b"0")
        producer.flush()
        yield


Beans = Callable[[str], list[float]]
"""The quota-utilization in the beans of all brokers whose name fits a pattern."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Beans]]:
    """Two brokers whose sums are decided, and their beans."""
    plugins, folder = [plugin_jar(), telemetry_jar()], tmp_path_factory.mktemp("cluster")
    with Cluster(folder, 2, _properties, plugins) as cluster, Jvm() as jvm:
        servers = cluster.bootstrap_servers
        make_topic(servers, "orders", [1, 1])
        kafka = {"bootstrap.servers": servers, "client.id": SECRET}
        settings = settings_with_limits(servers, LIMITS, client_id=SECRET)
        readers = [beans(jvm, broker.jmx_port).read for broker in cluster.brokers]
        with BackgroundService("deciding", partial(_decide, kafka, settings), 0.1):
            yield (
                servers,
                lambda of: [each for read in readers for each in read(f"sluice:{of}", "quota-utilization").values()],
            )


def _watch(shown: Beans, most: dict[str, list[float]]) -> Iterator[None]:
    """Note the most that each broker has shown of each quota."""
    while True:
        for group, known in most.items():
            now = shown(f"type={group},client-id=app")
            if len(now) == len(known):  # a broker shows a client from the first sums of it on
                known[:] = map(max, now, known)
        yield


def _most(samples: Sequence[tuple[int, float]]) -> float:
    """The most that a client used of its limit in any span of a meter, by what it has sent or got."""
    return max(utilization(samples, LIMIT, until_ms=at_ms) for at_ms, _ in samples)


def test_each_broker_shows_the_use_of_the_whole_limit_by_the_clients_bytes(cluster: tuple[str, Beans]) -> None:
    servers, shown = cluster
    sent, got = list[tuple[int, float]](), list[tuple[int, float]]()
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


def _sample() -> tuple[int, float]:
    return now_ms(), len(RECORD)


def test_more_clients_than_are_shown_take_no_more_memory(cluster: tuple[str, Beans]) -> None:
    servers, shown = cluster
    counters = [[{"client_id": f"client-{number}"}, [[0, LIMIT, 0, 0, [[0, 1.0]]]]] for number in range(1_500)]
    sums = {"job_id": "j", "batch": 1, "decided_at_ms": now_ms(), "base_ms": now_ms(), "sums": counters}
    sums |= {"quotas": [QuotaKind.PRODUCER_BYTE_RATE.value], "gateways": [["g", True, 0]]}
    producer = Producer({"bootstrap.servers": servers, "client.id": SECRET})
    producer.produce("quota-sums", json.dumps(sums), b"0")
    producer.flush()

    eventually(lambda: len(shown("type=Produce,*")) + len(shown("type=Fetch,*")) == 2 * 1_000)
