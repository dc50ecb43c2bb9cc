"""A real broker with the plugin: Kafka throttles by the limits of Sluice, and what it charged is published."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, ThrottlingQuotaExceededError
from kafka.protocol.admin import AlterClientQuotasRequest

from configs.settings import load_settings
from scripts.testbed.broker import Broker, BrokerError
from scripts.testbed.broker_jars import BROKER_JARS
from scripts.testbed.old_broker_jars import OLD_BROKER_JARS
from state.quotas.entity import QuotaEntity
from state.quotas.entry import QuotaEntry
from state.quotas.kinds import QuotaKind
from state.quotas.limits import VERSION_KEY, limit_key, limit_value, version_end
from state.quotas.resolution import Quotas
from streaming.enforce.parsing import EventLimits, parse_request
from streaming.enforce.simulation import Simulation
from streaming.enforce.source import Source
from streaming.java.jars import JarSet
from tests.broker_plugin import SECRET, plugin_classes, plugin_properties

pytestmark = pytest.mark.kafka

QUOTA = 100_000.0
"""Bytes per second. A fresh meter lets ten seconds of it through at once."""

LIMITS = [
    QuotaEntry(QuotaEntity(client_id="greedy"), QuotaKind.PRODUCER_BYTE_RATE, QUOTA),
    QuotaEntry(QuotaEntity(client_id="greedy"), QuotaKind.CONSUMER_BYTE_RATE, QUOTA),
    QuotaEntry(QuotaEntity(client_id=f"{SECRET}-job"), QuotaKind.PRODUCER_BYTE_RATE, 1.0),
    QuotaEntry(QuotaEntity(client_id="maker"), QuotaKind.CONTROLLER_MUTATION_RATE, 0.5),
]
VALUE = bytes(50_000)

OLD_LOG = """
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %m%n
"""


class PluginBroker:
    """A broker with the plugin, and what its meters were charged."""

    def __init__(self, folder: Path, classes: list[Path], jars: JarSet = BROKER_JARS) -> None:
        self._sums = folder / "sums.json"
        properties = plugin_properties() | {"test.meter.sums": str(self._sums), "message.max.bytes": "9000000"}
        properties["metric.reporters"] += ",sluice.kafka.MeterSums"
        self.log = folder / "broker.log"
        self.broker = Broker(folder, properties=properties, jars=jars, plugins=classes)

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    def create_topics(self, *topics: str) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self.servers)) as admin:
            admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1} for topic in topics})

    def publish_limits(self, entries: list[QuotaEntry], version: int = 1) -> None:
        with closing(KafkaProducer(bootstrap_servers=self.servers, client_id=SECRET)) as producer:
            for entry in entries:
                producer.send("quota-limits", limit_value(entry, version), limit_key(entry), partition=0)
            producer.send("quota-limits", version_end(version, len(entries)), VERSION_KEY, partition=0).get(10)

    def charged(self) -> dict[tuple[str, str], float]:
        """What each meter (group, client-id) was charged in the last ten seconds, by Kafka's own methods."""
        sums = json.loads(self._sums.read_text())
        return {(each["group"], each["client_id"]): each["sum"] for each in sums}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What a broker needs on its class path."""
    return plugin_classes(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory, classes: list[Path]) -> Iterator[PluginBroker]:
    """A broker whose limits the plugin has read."""
    plugin = PluginBroker(tmp_path_factory.mktemp("plugin"), classes)
    with plugin.broker:
        plugin.create_topics("quota-requests", "quota-decisions", "quota-limits", "orders")
        plugin.publish_limits(LIMITS)
        wait_until(lambda: "Sluice knows the limits (version 1)" in plugin.log.read_text())
        yield plugin


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def produce(servers: str, client_id: str, seconds: float, most: int = 10**9) -> int:
    """Produce as fast as the broker lets it; returns how many bytes of values were accepted."""
    accepted, until = 0, time.monotonic() + seconds
    producer = KafkaProducer(bootstrap_servers=servers, client_id=client_id, acks=1, batch_size=0, retries=0)
    while time.monotonic() < until and accepted < most:
        try:
            producer.send("orders", VALUE, partition=0).get(max(0.01, until - time.monotonic()))
        except KafkaError:
            break  # it was muted to the end
        accepted += len(VALUE)
    with suppress(KafkaError):
        producer.close(timeout=0)
    producer._sender.force_close()  # what is still on its way is given up
    return accepted


def consume(servers: str, client_id: str, seconds: float) -> int:
    consumer = KafkaConsumer(bootstrap_servers=servers, client_id=client_id, max_partition_fetch_bytes=200_000)
    consumer.assign([TopicPartition("orders", 0)])
    consumer.seek_to_beginning()
    read, until = 0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for records in consumer.poll(timeout_ms=int(left * 1000)).values():
            read += sum(len(record.value) for record in records)
    consumer.close()
    return read


def published(servers: str) -> list[dict[str, Any]]:
    """All events of the requests topic; each is one that the job accepts."""
    consumer = KafkaConsumer(bootstrap_servers=servers, client_id=SECRET, consumer_timeout_ms=500)
    partition = TopicPartition("quota-requests", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    end, events = consumer.end_offsets([partition])[partition], []
    while consumer.position(partition) < end:
        for records in consumer.poll(timeout_ms=200).values():
            for record in records:
                source = Source("quota-requests", 0, record.offset, record.timestamp)
                parse_request(record.value, source, EventLimits(10**6, 60_000))
                events.append(json.loads(record.value))
    consumer.close()
    return events


def published_bytes(servers: str, client_id: str = "greedy") -> Counter[str]:
    """What the events of a client say, by API."""
    sums: Counter[str] = Counter()
    for event in published(servers):
        if "bytes" in event and event["client_id"] == client_id:
            sums[event["api"]] += event["bytes"]
    return sums


def charged_bytes(plugin: PluginBroker) -> Counter[str]:
    """What Kafka charged the greedy client, by API."""
    return Counter({api: round(plugin.charged()[api, "greedy"]) for api in ("Produce", "Fetch")})


def test_greedy_clients_are_held_and_events_sum_up_to_what_kafka_charged(plugin: PluginBroker) -> None:
    produce(plugin.servers, "unlimited", 20, most=4_000_000)

    consumed: list[int] = []
    consumer = Thread(target=lambda: consumed.append(consume(plugin.servers, "greedy", 4)))
    consumer.start()
    produced = produce(plugin.servers, "greedy", 4)
    consumer.join()

    assert 5 * QUOTA < produced < 20 * QUOTA
    assert 5 * QUOTA < consumed[0] < 20 * QUOTA
    wait_until(lambda: published_bytes(plugin.servers) >= charged_bytes(plugin), 5)
    assert published_bytes(plugin.servers) == charged_bytes(plugin)
    held = [event for event in published(plugin.servers) if event.get("throttled_by")]
    assert {event["api"] for event in held} == {"Produce", "Fetch"}
    assert all(event["throttled_by"][0]["entity"] == {"client_id": "greedy"} for event in held)


def test_a_gateway_says_once_a_second_that_it_is_alive(plugin: PluginBroker) -> None:
    def heartbeats() -> list[dict[str, Any]]:
        return [event for event in published(plugin.servers) if event["api"] == "GatewayHeartbeat"]

    wait_until(lambda: len(heartbeats()) >= 3)
    times = [event["timestamp_ms"] for event in heartbeats()]
    assert len({event["instance"] for event in heartbeats()}) == 1
    assert all(900 <= later - earlier < 3_000 for earlier, later in pairwise(times))


class EchoJob:
    """Decides the events of the topic with the job's arithmetic, and as many of a gateway that doesn't exist.

    As a context manager it decides until the end. `other_lives` says whether that gateway serves the same clients.
    """

    def __init__(self, servers: str, entries: list[QuotaEntry]) -> None:
        self.other_lives = True
        self._servers = servers
        self._simulation = Simulation(Quotas(entries, version=1), load_settings(environment={}))
        self._ended = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with (
            closing(KafkaConsumer(bootstrap_servers=self._servers, client_id=SECRET)) as consumer,
            closing(KafkaProducer(bootstrap_servers=self._servers, client_id=SECRET)) as producer,
        ):
            consumer.assign([TopicPartition("quota-requests", 0)])
            consumer.seek_to_end()
            while not self._ended.is_set():
                events = [record.value for batch in consumer.poll(100).values() for record in batch]
                if self.other_lives:
                    events += [_as_others(event) for event in events]
                for decision in self._simulation.decide(events):
                    producer.send("quota-decisions", decision.value, partition=0)
                producer.flush()


def _as_others(event: bytes) -> bytes:
    """The same event of the other gateway, whose client wants more."""
    fields = json.loads(event) | {"instance": "other"}
    if fields["api"] == "Produce":
        entity = {"client_id": fields["client_id"]}
        fields["throttled_by"] = [{"quota": "producer_byte_rate", "entity": entity, "ms": 1_000}]
    return json.dumps(fields).encode()


def test_a_broker_shares_a_limit_with_a_gateway_for_as_long_as_that_one_is_alive(plugin: PluginBroker) -> None:
    def share() -> float:
        """The newest that the broker has told, while a client makes it tell."""
        produce(plugin.servers, "greedy", 0.2)
        beats = [event for event in published(plugin.servers) if event["api"] == "GatewayHeartbeat"]
        told = [share for beat in beats[-1:] for share in beat["heartbeat"]["shares"]]
        shares = [share for share in told if share["quota"] == "producer_byte_rate"]
        return float(shares[0]["share"]) if shares else math.nan

    with EchoJob(plugin.servers, LIMITS) as job:
        wait_until(lambda: share() < 0.7 * QUOTA)  # half of it, and what is made up for
        job.other_lives = False
        wait_until(lambda: share() == QUOTA)


def test_a_broker_with_a_value_that_the_plugin_cant_use_doesnt_start(tmp_path: Path, classes: list[Path]) -> None:
    properties = plugin_properties(sum_ms="fast")
    broker = Broker(tmp_path, properties=properties, plugins=classes)
    with pytest.raises(BrokerError, match=r"sluice\.sum\.ms is fast; expected a whole number from 10 to 1000"):
        broker.start()


def test_clients_of_sluice_itself_are_exempt(plugin: PluginBroker) -> None:
    assert produce(plugin.servers, f"{SECRET}-job", 20, most=2_000_000) == 2_000_000
    assert not any(SECRET in client_id for _, client_id in plugin.charged())


def test_mutations_beyond_the_limit_are_refused_with_error_89(plugin: PluginBroker) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=plugin.servers, client_id="maker")) as admin:
        admin.create_topics({"wide": {"num_partitions": 12, "replication_factor": 1}})  # the burst is 5.5
        with pytest.raises(ThrottlingQuotaExceededError):
            admin.create_topics({"one-more": {"num_partitions": 1, "replication_factor": 1}})

    def mutations() -> int:
        events = published(plugin.servers)
        return sum(event.get("mutations_charged", 0) for event in events if event.get("client_id") == "maker")

    wait_until(lambda: mutations() > 0, 5)
    assert mutations() == 12


def test_quotas_of_kafka_hold_until_the_limits_topic_can_be_read(tmp_path: Path, classes: list[Path]) -> None:
    holds_and_lets_go(PluginBroker(tmp_path, classes))


@pytest.mark.long
def test_the_plugin_works_on_the_older_kafka(tmp_path: Path, classes: list[Path]) -> None:
    (tmp_path / "log4j.properties").write_text(OLD_LOG)  # without it, it writes no log
    holds_and_lets_go(PluginBroker(tmp_path, [*classes, tmp_path], OLD_BROKER_JARS))


def holds_and_lets_go(plugin: PluginBroker) -> None:
    """A quota of Kafka holds a client, until the limits topic is there and lets it go."""
    with plugin.broker:
        plugin.create_topics("orders")
        alter_kafka_quota(plugin.servers, "cautious", "producer_byte_rate", QUOTA)
        assert 5 * QUOTA < produce(plugin.servers, "cautious", 4) < 20 * QUOTA
        assert plugin.log.read_text().count("Sluice can't read topic quota-limits (it doesn't exist yet)") == 1

        plugin.create_topics("quota-requests", "quota-decisions", "quota-limits")
        plugin.publish_limits([QuotaEntry(QuotaEntity(client_id="cautious"), QuotaKind.PRODUCER_BYTE_RATE, 1e9)])
        wait_until(lambda: "Sluice knows the limits" in plugin.log.read_text())
        assert produce(plugin.servers, "cautious", 20, most=4_000_000) == 4_000_000
        wait_until(lambda: published_bytes(plugin.servers, "cautious")["Produce"] > 4_000_000)
        assert "read from the meters, exactly" in plugin.log.read_text()


class _QuotaAdmin(KafkaAdminClient):  # type: ignore[misc] # kafka-python ships no type hints
    def alter(self, client_id: str, key: str, value: float) -> None:
        entry = AlterClientQuotasRequest.EntryData(
            entity=[AlterClientQuotasRequest.EntryData.EntityData(entity_type="client-id", entity_name=client_id)],
            ops=[AlterClientQuotasRequest.EntryData.OpData(key=key, value=value, remove=False)],
        )

        async def send() -> Any:
            return await self._manager.send(AlterClientQuotasRequest(entries=[entry], validate_only=False))

        response = self._manager.run(send)
        assert [entry.error_code for entry in response.entries] == [0]


def alter_kafka_quota(servers: str, client_id: str, key: str, value: float) -> None:
    """What `kafka-configs --alter` does."""
    with closing(_QuotaAdmin(bootstrap_servers=servers)) as admin:
        admin.alter(client_id, key, value)
