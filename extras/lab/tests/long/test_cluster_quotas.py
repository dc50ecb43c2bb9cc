"""Brokers with the plugin do cluster-wide what Kafka's own system test asks of one broker."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.cluster import Cluster, create_topic
from sluice_demo.jars import BROKER_JARS
from sluice_demo.job import wait_until
from sluice_lab.scenarios.closed_loop.brokers import plugin_brokers, run_brokers
from sluice_lab.scenarios.closed_loop.situation import BrokersSituation, Spread
from sluice_lab.testbed.jmx import beans, own_beans
from sluice_toolbox.checks import broker_configs, plugin_verdict
from sluice_toolbox.machine import Jvm
from tests.kafka_bound import BURST_S

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

BROKERS = 3
TOPIC, PARTITIONS, CLIENT_ID = "test_topic", 6, "default_id"
RECORDS, RECORD_BYTES = 50_000, 3_000
PRODUCER_QUOTA, CONSUMER_QUOTA = 2_500_000, 2_000_000
QUOTAS = [
    {
        "entity": {"client_id": None},
        "quotas": {"producer_byte_rate": PRODUCER_QUOTA, "consumer_byte_rate": CONSUMER_QUOTA},
    }
]
OF_BROKERS, OF_CLIENT = 1.05, 2.0
"""Most that Kafka's test allows over a quota: the brokers' one-minute rate, and the client's own rate."""


def test_a_client_at_full_speed_is_held_by_three_brokers_together(tmp_path: Path) -> None:
    """But for the burst of a fresh counter, as in Kafka, whose own quotas would let three times as much through."""
    situation = BrokersSituation(QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0, BROKERS, 40, Spread.SKEW)

    measures = run_brokers(tmp_path, situation)

    assert measures.mean_after > 0.5  # a busy machine serves less
    assert measures.mean < 1.1 * (1 + BURST_S / situation.seconds)  # and decides late
    assert measures.client_errors == 0


class _Rates:
    """The most that JMX has shown, looked at every second while a Java client runs."""

    def __init__(self, jvm: Jvm, cluster: Cluster, direction: str, client_bean: str, client_attribute: str) -> None:
        self._own = own_beans(jvm)
        self._brokers = [beans(jvm, broker.jmx_port) for broker in cluster.brokers]
        # Of the topic alone: the brokers carry Sluice's own topics, too, which no quota holds.
        self._meter = f"kafka.server:type=BrokerTopicMetrics,name=Bytes{direction}PerSec,topic={TOPIC}"
        self._client = client_bean, client_attribute
        self.most_of_brokers = self.most_of_client = 0.0

    def poll(self) -> float:
        """Look once; returns the one-minute rate, summed over the brokers."""
        rate = sum(sum(broker.read(self._meter, "OneMinuteRate").values()) for broker in self._brokers)
        self.most_of_brokers = max(self.most_of_brokers, rate)
        self.most_of_client = max([self.most_of_client, *self._own.read(*self._client).values()])
        return rate

    def while_runs(self, client: Callable[[], int]) -> int:
        """Look until the client has ended; returns its result."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client)
            while not running.done():
                self.poll()
                time.sleep(1)  # a look a second, as kafkatest's JmxTool
            return running.result()


def _produce(jvm: Jvm, properties: Any) -> int:
    """Send every record with Kafka's Java producer; returns how many were acknowledged."""
    clients = jvm.packages.org.apache.kafka.clients.producer
    producer = clients.KafkaProducer(properties)
    record = clients.ProducerRecord(TOPIC, bytes(RECORD_BYTES))
    last = [producer.send(record) for _ in range(RECORDS)][-1]
    producer.flush()
    last.get()
    sent = int(
        sum(
            own_beans(jvm)
            .read(f"kafka.producer:type=producer-metrics,client-id={CLIENT_ID}", "record-send-total")
            .values()
        )
    )
    producer.close()
    return sent


def _consume(jvm: Jvm, properties: Any, wanted: int) -> int:
    """Read the topic from its beginning with Kafka's Java consumer, until so many records have come."""
    java = jvm.packages.java
    consumer = jvm.packages.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
    consumer.subscribe(java.util.List.of(TOPIC))
    came, poll = 0, java.time.Duration.ofSeconds(60)  # kafkatest's consumer gives up after 60 s without a record
    while came < wanted:
        records = consumer.poll(poll).count()
        if not records:
            break
        came += records
    consumer.close()
    return came


def _touch_every_partition(cluster: Cluster) -> None:
    """Write and read a record of each, so that the topic's meters are there before a client begins.

    A one-minute rate begins with that of its first 5 s, and a fresh counter lets through ten seconds of the quota.
    """
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
    for number in range(PARTITIONS):
        producer.send(TOPIC, b"first", partition=number).get(timeout=60)
    came = 0
    while came < PARTITIONS:
        came += sum(map(len, consumer.poll(timeout_ms=1000).values()))
    producer.close()
    consumer.close()


def _properties(jvm: Jvm, cluster: Cluster, **more: str) -> Any:
    properties = jvm.packages.java.util.Properties()
    for name, value in {"bootstrap_servers": cluster.bootstrap_servers, "client_id": CLIENT_ID, **more}.items():
        properties.setProperty(name.replace("_", "."), value)
    return properties


@pytest.fixture
def jvm() -> Iterator[Jvm]:
    """A Java machine with Kafka's own clients."""
    with Jvm(BROKER_JARS.paths()) as machine:
        yield machine


def test_kafkas_own_system_test_of_quotas_passes_cluster_wide(tmp_path: Path, jvm: Jvm) -> None:
    """kafkatest's quota_test.py with a default client-id quota: its sizes, JMX attributes and tolerances.

    There it is one broker; here the rates of three are summed.
    """
    strings = "org.apache.kafka.common.serialization."
    with plugin_brokers(tmp_path, BROKERS, QUOTAS) as (cluster, job):
        assert plugin_verdict(broker_configs(job.settings.kafka)) == f"all {BROKERS} brokers have the plugin"
        with KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
            create_topic(admin, TOPIC, [PARTITIONS // BROKERS] * BROKERS)
        producing = _Rates(
            jvm, cluster, "In", f"kafka.producer:type=producer-metrics,client-id={CLIENT_ID}", "outgoing-byte-rate"
        )
        consuming = _Rates(
            jvm,
            cluster,
            "Out",
            f"kafka.consumer:type=consumer-fetch-manager-metrics,client-id={CLIENT_ID}",
            "bytes-consumed-rate",
        )
        _touch_every_partition(cluster)
        wait_until(lambda: producing.poll() > 0 and consuming.poll() > 0, 120)
        serializers = {f"{kind}_serializer": f"{strings}ByteArraySerializer" for kind in ("key", "value")}
        produced = producing.while_runs(lambda: _produce(jvm, _properties(jvm, cluster, **serializers)))
        deserializers = {f"{kind}_deserializer": f"{strings}ByteArrayDeserializer" for kind in ("key", "value")}
        group = {"group_id": "system-test", "auto_offset_reset": "earliest"}
        consumer = _properties(jvm, cluster, **deserializers, **group)
        stored = RECORDS + PARTITIONS
        consumed = consuming.while_runs(lambda: _consume(jvm, consumer, stored))

    assert produced == RECORDS
    assert consumed == stored
    assert 0 < producing.most_of_brokers <= PRODUCER_QUOTA * OF_BROKERS
    assert 0 < producing.most_of_client <= PRODUCER_QUOTA * OF_CLIENT
    assert 0 < consuming.most_of_brokers <= CONSUMER_QUOTA * OF_BROKERS
    assert 0 < consuming.most_of_client <= CONSUMER_QUOTA * OF_CLIENT
