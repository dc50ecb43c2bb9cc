"""The use of a limit in the whole cluster, in the beans of each broker, against the bytes that clients sent and got."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sluice.configs.settings import Settings, load_settings
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.process.background import BackgroundService
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.cluster import Cluster, make_topic
from sluice_lab.testbed.jmx import beans
from sluice_lab.testbed.quotas_without_job import JobInMemory, settings_with_limits
from sluice_telemetry.jars import RECEIVER_CLASS, telemetry_jar
from sluice_toolbox.machine import Jvm
from tests.broker_plugin import SECRET
from tests.builders import quota
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

LIMIT = 4_000_000.0
SPAN_S = 10  # of a meter; in it both limits let through more than is sent
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
        _, sums = job.decide(record.value() for record in consumer.consume(100_000, timeout=0.05))
        for record in sums:
            producer.produce(settings.topics.sums, record, b"0")
        producer.flush()
        yield


def test_each_broker_shows_the_use_of_the_whole_limit_by_the_clients_bytes(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, _properties, [plugin_jar(), telemetry_jar()]) as cluster, Jvm() as jvm:
        servers = cluster.bootstrap_servers
        make_topic(servers, "orders", [1, 1])
        kafka = {"bootstrap.servers": servers, "client.id": SECRET}
        settings = settings_with_limits(servers, LIMITS, client_id=SECRET)
        readers = [beans(jvm, broker.jmx_port).read for broker in cluster.brokers]

        def shown(group: str) -> list[float]:
            name = f"sluice:type={group},client-id=app"
            return [percent for read in readers for percent in read(name, "quota-utilization").values()]

        with BackgroundService("deciding", partial(_decide, kafka, settings), 0.1):
            used = 100 * RECORDS * len(RECORD) / SPAN_S / LIMIT
            producer = Producer({"bootstrap.servers": servers, "client.id": "app"})
            for number in range(RECORDS):
                producer.produce("orders", RECORD, partition=number % 2)
            producer.flush()
            eventually(lambda: shown("Produce") == pytest.approx([used, used], rel=0.05))

            consumer = Consumer({"bootstrap.servers": servers, "client.id": "app", "group.id": "app"})
            consumer.assign([TopicPartition("orders", number, 0) for number in range(2)])
            assert sum(len(consumer.consume(1, timeout=60)) for _ in range(RECORDS)) == RECORDS
            eventually(lambda: shown("Fetch") == pytest.approx([used, used], rel=0.05))
            eventually(lambda: shown("Produce") == [0, 0])  # it is over
            consumer.close()
