"""A real broker with the plugin: Kafka throttles by the limits of Sluice, and what it charged is published."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.errors import ThrottlingQuotaExceededError

from sluice.jvm.jars import JarSet
from sluice.jvm.java import find_java
from sluice.kafka_io.topics import differing_topics
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Override
from sluice.state.contract.records import RELEASE, CountedEntity
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker, BrokerError
from sluice_demo.cluster import Cluster
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_demo.jars import BROKER_JARS
from sluice_lab.testbed.jars import NEW_BROKER_JARS, OLD_BROKER_JARS
from sluice_lab.testbed.jmx import read_beans
from tests.broker_plugin import OLD_LOG, SECRET, plugin_properties
from tests.builders import quota
from tests.integration.front_cases import FRONT_LIMITS, Front, FrontCases, is_producer_held, waits
from tests.integration.plugin_broker import (
    PluginBroker,
    check_throttled,
    consume,
    produce,
    proxy_settings,
    published,
    published_bytes,
)
from tests.waiting import eventually, eventually_equal

pytestmark = pytest.mark.kafka

QUOTA = 100_000.0
"""Bytes per second. A fresh meter lets ten seconds of it through at once."""

PRETENDERS = ("job", f"x-{SECRET}-job", f"{SECRET}job", f"{SECRET[:-1]}-job")
"""Client-ids that are none of Sluice's own."""

LIMITS = [
    quota(QuotaKind.PRODUCER_BYTE_RATE, QUOTA, client_id="greedy"),
    quota(QuotaKind.CONSUMER_BYTE_RATE, QUOTA, client_id="greedy"),
    quota(QuotaKind.PRODUCER_BYTE_RATE, 1.0, client_id=f"{SECRET}-job"),
    *(quota(QuotaKind.PRODUCER_BYTE_RATE, QUOTA, client_id=name) for name in PRETENDERS),
    quota(QuotaKind.CONTROLLER_MUTATION_RATE, 0.5, client_id="maker"),
    quota(QuotaKind.CONSUMER_BYTE_RATE, 20_000.0, client_id="sharing"),
    quota(QuotaKind.REQUEST_PERCENTAGE, 0.01, client_id="working"),
    *FRONT_LIMITS,
]

SHARE_GROUPS = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.max.record.lock.duration.ms": "600000",
    "group.share.record.lock.duration.ms": "600000",
}
"""A record that was acquired and didn't reach the reader doesn't come again while a test lasts."""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory, classes: list[Path]) -> Iterator[PluginBroker]:
    """A broker whose limits the plugin has read."""
    with limited(PluginBroker(tmp_path_factory.mktemp("plugin"), classes, properties=SHARE_GROUPS)) as plugin:
        yield plugin


@contextmanager
def limited(plugin: PluginBroker) -> Iterator[PluginBroker]:
    """Start a broker, and wait until the plugin has read LIMITS."""
    with plugin.broker:
        plugin.create_topics("quota-requests", "quota-decisions", "quota-sums", "quota-limits", "orders")
        plugin.publish_limits(LIMITS)
        eventually(lambda: "Sluice knows the limits (version 1)" in plugin.log.read_text())
        yield plugin


def charged_bytes(plugin: PluginBroker) -> Counter[str]:
    """Kafka's charges of the greedy client, by API."""
    return Counter({api: round(plugin.charged("total")[api, "greedy"]) for api in ("Produce", "Fetch")})


def test_greedy_clients_are_held_and_events_sum_up_to_what_kafka_charged(plugin: PluginBroker) -> None:
    produce(plugin.servers, "unlimited", 60, most=4_000_000)

    def are_held() -> bool:
        """After four seconds at full speed, once Kafka has forgotten those before. A busy machine needs several."""
        eventually(lambda: not any(charge for (_, name), charge in plugin.charged().items() if name == "greedy"))
        with ThreadPoolExecutor() as pool:
            consuming = pool.submit(consume, plugin.servers, "greedy", 4)
            produced, consumed = produce(plugin.servers, "greedy", 4), consuming.result()
        assert max(produced, consumed) < 20 * QUOTA, "the burst, and four seconds of the quota"
        # Either may be told first. A Fetch that Kafka takes back as it is published is made up for in the next round.
        try:
            eventually_equal(lambda: published_bytes(plugin.servers), lambda: charged_bytes(plugin), seconds=40)
        except pytest.fail.Exception as difference:
            print(difference)
            return False
        held[:] = [event for event in published(plugin.servers) if event.get("throttled_by")]
        return {event["api"] for event in held} == {"Produce", "Fetch"}

    held = list[dict[str, Any]]()
    eventually(are_held)
    assert all(event["throttled_by"][0]["entity"] == {"client_id": "greedy"} for event in held)


@pytest.fixture(scope="module")
def front(plugin: PluginBroker) -> Front:
    return plugin


class TestBroker(FrontCases):
    """The cases that a proxy passes, too."""

    def test_the_log_and_events_say_why_producers_were_held(self, plugin: PluginBroker) -> None:
        log = plugin.log.read_text()
        assert "throttled by the job: tenant hoarders (stored_bytes: all is taken)" in log
        assert "throttled by the job: all (disk_guard: broker 9: /data" in log
        assert "throttled by the job: none" in log
        assert any(wait["quota"] == "disk_guard" and wait["ms"] > 5_000 for wait in waits(plugin))

    def test_a_disk_that_is_low_holds_no_client_of_sluice(self, plugin: PluginBroker) -> None:
        plugin.override("disk_guard", Override("hold", reason="broker 8: /data has 5 of 100 bytes free"))
        eventually(lambda: "all (disk_guard: broker 8" in plugin.log.read_text())
        produced = produce(plugin.servers, f"{SECRET}-job", 60, most=1_000_000)
        plugin.override("disk_guard")

        assert produced == 1_000_000


@pytest.mark.parametrize(("client_id", "size"), [("sharing", 20_000), ("working", 1_000), ("stopped", 1_000)])
def test_a_share_group_gets_each_record_once_whether_a_quota_or_an_operator_throttles_it(
    plugin: PluginBroker, classes: list[Path], client_id: str, size: int
) -> None:
    check_share_group(plugin, classes, client_id, size)


@pytest.mark.long
def test_a_share_group_gets_each_record_once_of_the_newest_kafka(tmp_path: Path, classes: list[Path]) -> None:
    with limited(PluginBroker(tmp_path, classes, NEW_BROKER_JARS, SHARE_GROUPS)) as plugin:
        check_share_group(plugin, classes, "sharing", 20_000)


def check_share_group(plugin: PluginBroker, classes: list[Path], client_id: str, size: int) -> None:
    """Kafka has acquired records when it asks for the wait: answered without them twice, it would archive them."""
    topic = f"of-{client_id}"
    plugin.create_topics(topic)
    with closing(KafkaProducer(bootstrap_servers=plugin.servers, client_id=SECRET, batch_size=0)) as producer:
        for number in range(40):
            producer.send(topic, number.to_bytes(4, "big") + bytes(size), partition=0).get(120)
    entity = CountedEntity(client_id="stopped")
    plugin.override("operator", Override("hold", entity=entity, reason="it floods", consumers=True))
    eventually(lambda: is_producer_held(plugin, "stopped"))

    read = [read_in_share_group(plugin.servers, classes, client_id, topic, mode) for mode in ("implicit", "explicit")]
    plugin.override("operator")

    assert read == ["40 40 1 0", "40 50 2 0"], "accepted, came, most deliveries of one, lag"
    if client_id == "sharing":
        eventually(lambda: published_bytes(plugin.servers, client_id)["Fetch"] > 90 * size)


def read_in_share_group(servers: str, classes: Sequence[Path], client_id: str, topic: str, mode: str) -> str:
    """Read as a Java client of a share group until it has 40 records, or for 4 minutes; returns what it prints."""
    java, _ = find_java()
    class_path = os.pathsep.join(map(str, [*classes, *BROKER_JARS.paths()]))
    command = [java, "-cp", class_path, "sluice.kafka.ShareReader", servers, client_id, topic, "40", "240", mode]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_gateway_says_once_a_second_that_it_is_alive(plugin: PluginBroker) -> None:
    def heartbeats() -> list[dict[str, Any]]:
        return [event for event in published(plugin.servers) if event["api"] == "GatewayHeartbeat"]

    eventually(lambda: len(heartbeats()) >= 3)
    times = [event["timestamp_ms"] for event in heartbeats()]
    assert len({event["instance"] for event in heartbeats()}) == 1
    between_ms = [later - earlier for earlier, later in pairwise(times)]
    assert all(ms >= 900 for ms in between_ms)
    assert min(between_ms) < 3_000, "a busy machine may be late once, and not each time"


def loads(servers: str) -> list[dict[str, Any]]:
    """The loads of all heartbeats so far."""
    beats = [event["heartbeat"] for event in published(servers) if event["api"] == "GatewayHeartbeat"]
    return [beat["load"] for beat in beats if "load" in beat]


def bytes_told(servers: str) -> float:
    """Bytes that all clients have produced, by the loads: the rate of each, for the time since the heartbeat before."""
    beats = [event for event in published(servers) if event["api"] == "GatewayHeartbeat"]
    rates: list[float] = [beat["heartbeat"].get("load", {}).get("bytes_in_per_s", 0.0) for beat in beats]
    times: list[int] = [beat["timestamp_ms"] for beat in beats]
    return sum(
        rate * (later - earlier) / 1000 for rate, (earlier, later) in zip(rates[1:], pairwise(times), strict=True)
    )


def test_a_broker_says_how_much_it_has_to_do(plugin: PluginBroker) -> None:
    """In a node that is broker and controller, the request queue is not known.

    A broker that starts slowly has its request handlers after its first look: that load lacks their idle time.
    """
    began_ms, before = now_ms(), bytes_told(plugin.servers)
    produced = produce(plugin.servers, "unlimited", 3)

    def is_told() -> bool:
        """Or more is produced: a slow broker has looks at its load between heartbeats that it doesn't tell of."""
        nonlocal produced
        if bytes_told(plugin.servers) - before > 0.5 * produced:
            return True
        produced += produce(plugin.servers, "unlimited", 1)
        return False

    eventually(is_told)
    told = loads(plugin.servers)
    last = told[-1]
    assert last.keys() >= {"broker_id", "bytes_in_per_s", "bytes_out_per_s", "handler_idle", "network_idle", "log_dirs"}
    assert "queue_used" not in last
    (log_dir,) = last["log_dirs"]
    assert 0 < log_dir["free_bytes"] < log_dir["total_bytes"]
    assert any(0 < each.get("queue_wait_ms", 0) < now_ms() - began_ms for each in told)
    assert any(each.get("handler_idle", 1) < 0.999 for each in told)


@pytest.mark.long
@pytest.mark.parametrize("jars", [BROKER_JARS, OLD_BROKER_JARS, NEW_BROKER_JARS], ids=lambda jars: jars.name)
@pytest.mark.parametrize("controllers", [0, 1], ids=["combined", "separate"])
def test_each_kafka_says_its_load_combined_and_separate(
    tmp_path: Path, classes: list[Path], jars: JarSet, controllers: int
) -> None:
    (tmp_path / "log4j.properties").write_text(OLD_LOG)
    topics = ("quota-requests", "quota-decisions", "quota-sums", "quota-limits", "orders")
    with (
        Cluster(tmp_path, 1, lambda *_: plugin_properties(), [*classes, tmp_path], controllers, jars=jars) as cluster,
        closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers, client_id=SECRET)) as admin,
    ):
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1} for topic in topics})
        produce(cluster.bootstrap_servers, "unlimited", 3)
        eventually(lambda: bool(loads(cluster.bootstrap_servers)))
        known = loads(cluster.bootstrap_servers)[-1].keys()

    assert known >= {"broker_id", "bytes_in_per_s", "bytes_out_per_s", "network_idle", "log_dirs"}
    assert ("queue_used" in known) == (controllers == 1)
    assert ("handler_idle" in known) == (controllers == 1 or jars is not OLD_BROKER_JARS)


@pytest.mark.long
def test_a_broker_below_its_own_floor_holds_producers_at_once(tmp_path: Path, classes: list[Path]) -> None:
    plugin = PluginBroker(tmp_path, classes, properties={"sluice.disk.min.free.percent": "100"})
    with plugin.broker:
        plugin.create_topics("orders")
        eventually(lambda: "disk of this broker is low: all (broker 1: " in plugin.log.read_text())
        assert produce(plugin.servers, "anybody", 5) <= 100_000


def test_a_broker_with_a_value_that_the_plugin_cant_use_doesnt_start(tmp_path: Path, classes: list[Path]) -> None:
    properties = plugin_properties(sum_ms="fast")
    broker = Broker(tmp_path, properties=properties, plugins=classes)
    with pytest.raises(BrokerError, match=r"sluice\.sum\.ms is fast; expected a whole number from 10 to 1000"):
        broker.start()


def test_clients_of_sluice_itself_are_exempt(plugin: PluginBroker) -> None:
    assert produce(plugin.servers, f"{SECRET}-job", 60, most=2_000_000) == 2_000_000
    assert not any(client_id == f"{SECRET}-job" for _, client_id in plugin.charged())


@pytest.mark.parametrize("client_id", PRETENDERS)
def test_the_name_of_a_client_of_sluice_without_the_secret_exempts_nobody(plugin: PluginBroker, client_id: str) -> None:
    client = FullSpeedClient(client_id, Role.PRODUCE, plugin.servers, "orders")
    eventually(lambda: bool(client.waits))
    client.stop()

    eventually(lambda: plugin.charged("total").get(("Produce", client_id), 0.0) > 5 * QUOTA)


def test_mutations_beyond_the_limit_are_refused_with_error_89(plugin: PluginBroker) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=plugin.servers, client_id="maker")) as admin:
        admin.create_topics({"wide": {"num_partitions": 12, "replication_factor": 1}})  # the burst is 5.5
        with pytest.raises(ThrottlingQuotaExceededError):
            admin.create_topics({"one-more": {"num_partitions": 1, "replication_factor": 1}})

    def made() -> list[dict[str, Any]]:
        return [event for event in published(plugin.servers) if event.get("client_id") == "maker"]

    def mutations() -> int:
        return sum(event.get("mutations_charged", 0) for event in made())

    eventually(lambda: mutations() > 0)
    assert mutations() == 12
    eventually(lambda: any(event.get("throttled_by") for event in made()))
    told = [event for event in made() if event["throttled_by"]]
    assert {event["api"] for event in told} == {"Mutations"}, "what tells of request time would end the wait"
    [wait] = told[0]["throttled_by"]
    assert (wait["quota"], wait["entity"]) == ("controller_mutation_rate", {"client_id": "maker"})
    assert 0 < wait["ms"] <= 13_000  # 6.5 beyond the burst


def test_a_limit_that_was_1_by_mistake_holds_nobody_10_s_after_it_was_taken_back(plugin: PluginBroker) -> None:
    """Kafka alone mutes the connections for as long as the limit asked, which here is a million seconds."""
    slips = [QuotaEntity(client_id=role) for role in Role if role is not Role.REQUESTS]

    def publish(version: int, limit: float) -> None:
        kinds = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE)
        entries = [QuotaEntry(entity, kind, limit) for entity in slips for kind in kinds]
        plugin.publish_limits([*LIMITS, *entries], version)
        eventually(lambda: plugin.metric("LimitsVersion") == version)

    publish(2, 5 * QUOTA)
    produce(plugin.servers, "unlimited", 60, most=4_000_000)
    roles = (Role.PRODUCE, Role.CONSUME)
    clients = [FullSpeedClient(role, role, plugin.servers, "orders") for role in roles]
    eventually(lambda: all(sum(amount for _, amount in client.samples) > 5 * QUOTA for client in clients))
    publish(3, 1.0)
    eventually(lambda: all(now_ms() - client.samples[-1][0] > 3_000 for client in clients))
    publish(4, 5 * QUOTA)
    back_ms = now_ms()
    eventually(lambda: all(client.samples[-1][0] > back_ms for client in clients), 120)
    for client in clients:
        client.stop()
        assert not client.errors


def test_quotas_of_kafka_hold_until_the_limits_topic_can_be_read(tmp_path: Path, classes: list[Path]) -> None:
    holds_and_lets_go(PluginBroker(tmp_path, classes))


@pytest.mark.long
def test_quotas_of_kafka_hold_while_the_topics_are_silent_or_unreadable(tmp_path: Path, classes: list[Path]) -> None:
    plugin = PluginBroker(tmp_path, classes)
    with plugin.broker:
        plugin.create_topics("quota-requests", "quota-decisions", "quota-sums", "quota-limits", "orders")
        for client_id in ("cautious", "careful"):
            plugin.alter_kafka_quota(client_id, "producer_byte_rate", QUOTA)
        eventually(lambda: "Sluice reads topic quota-limits" in plugin.log.read_text())
        check_throttled(plugin.servers, "cautious", QUOTA)

        with closing(KafkaProducer(bootstrap_servers=plugin.servers, client_id=SECRET)) as producer:
            producer.send("quota-limits", b"garbage", b"garbage").get(120)
        eventually(lambda: plugin.metric("UnreadableRecords") == 1)
        check_throttled(plugin.servers, "careful", QUOTA)
        assert not plugin.metric("LimitsRead")

        eventually(lambda: "Sluice hasn't decided for 30 s" in plugin.log.read_text())
        assert plugin.metric("StalenessMs") > 30_000
        said = "Sluice hasn't decided for 30 s: the quotas set with kafka-configs hold on each broker"
        assert plugin.log.read_text().count(said) == 1


def test_a_plugin_that_is_there_before_the_topics_makes_none_and_publishes_once_they_are_made(
    tmp_path: Path, classes: list[Path]
) -> None:
    """Kafka would make one of its defaults, such as compressed records and a week of retention."""
    plugin = PluginBroker(tmp_path, classes, properties={"auto.create.topics.enable": "true"})
    with plugin.broker:
        eventually(
            lambda: "Sluice can't publish to topic quota-requests (it doesn't exist yet)" in plugin.log.read_text()
        )
        with closing(KafkaAdminClient(bootstrap_servers=plugin.servers)) as admin:
            assert "quota-requests" not in admin.list_topics()
            proxy_settings(plugin.servers)

            eventually(lambda: plugin.metric("Published") > 0)

            assert differing_topics(proxy_settings(plugin.servers).topics, {"bootstrap.servers": plugin.servers}) == []


def test_reporters_that_are_changed_while_a_broker_runs_are_said_and_come_back_without_a_restart(
    tmp_path: Path, classes: list[Path]
) -> None:
    """As another tool or an operator does, who sets the list anew."""
    plugin = PluginBroker(tmp_path, classes)

    def seen() -> bool:
        (*_, last) = [event for event in published(plugin.servers) if event["api"] == "GatewayHeartbeat"]
        assert last["heartbeat"]["release"] == RELEASE
        return bool(last["heartbeat"]["metrics_seen"])

    with plugin.broker, closing(KafkaAdminClient(bootstrap_servers=plugin.servers)) as admin:
        plugin.create_topics("quota-requests", "quota-sums", "quota-limits", "orders")
        plugin.publish_limits([quota(QuotaKind.PRODUCER_BYTE_RATE, QUOTA, client_id=DEFAULT)])
        eventually(lambda: plugin.metric("LimitsVersion") == 1 and plugin.metric("Published") > 0)
        assert plugin.metric("MetricsSeen")
        assert seen()

        def alter(change: object) -> None:
            admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", {"metric.reporters": change})])

        alter("org.apache.kafka.common.metrics.JmxReporter")
        eventually(lambda: not seen())
        assert not plugin.metric("MetricsSeen")
        assert plugin.log.read_text().count("Sluice no longer sees the metrics of node 1") == 1

        alter((AlterConfigOp.DELETE, None))
        eventually(seen)
        assert plugin.metric("MetricsSeen")
        produce(plugin.servers, "late", 60, int(2 * QUOTA))
        eventually(lambda: published_bytes(plugin.servers, "late")["Produce"] >= 2 * QUOTA)
    assert plugin.log.read_text().count("Sluice no longer sees the metrics") == 1, "not when the broker ends"


def test_limits_are_read_anew_from_a_topic_that_was_made_again(tmp_path: Path, classes: list[Path]) -> None:
    """Though the new one has more records when the plugin comes to see it, so that its next offset is one of it too."""
    entries = [quota(QuotaKind.PRODUCER_BYTE_RATE, QUOTA, client_id=name) for name in ("a", "b", "c")]
    rarely = {"sluice.client.retry.backoff.ms": "8000", "sluice.client.retry.backoff.max.ms": "8000"}
    plugin = PluginBroker(tmp_path, classes, properties=rarely)
    with plugin.broker:
        plugin.create_topics("quota-limits")
        plugin.publish_limits(entries[:1])
        eventually(lambda: plugin.metric("LimitsVersion") == 1)
        plugin.delete_topics("quota-limits")
        plugin.create_topics("quota-limits")
        plugin.publish_limits(entries[1:], version=2)

        eventually(lambda: plugin.metric("LimitsVersion") == 2)


@pytest.mark.long
@pytest.mark.parametrize("jars", [OLD_BROKER_JARS, NEW_BROKER_JARS], ids=lambda jars: jars.name)
def test_the_plugin_works_on_the_oldest_and_the_newest_kafka(tmp_path: Path, classes: list[Path], jars: JarSet) -> None:
    (tmp_path / "log4j.properties").write_text(OLD_LOG)  # without it, the oldest writes no log
    holds_and_lets_go(PluginBroker(tmp_path, [*classes, tmp_path], jars))


@pytest.mark.long
@pytest.mark.parametrize("jars", [OLD_BROKER_JARS, BROKER_JARS, NEW_BROKER_JARS], ids=lambda jars: jars.name)
def test_a_plugin_whose_brokers_do_not_answer_logs_little(tmp_path: Path, classes: list[Path], jars: JarSet) -> None:
    (tmp_path / "log4j.properties").write_text(OLD_LOG)
    away = {"sluice.bootstrap.servers": "127.0.0.1:9"}
    plugin = PluginBroker(tmp_path, [*classes, tmp_path], jars, away)
    began_s = monotonic()
    with plugin.broker:
        eventually(lambda: plugin.log.read_text().count("-sums] Connection to node -1") > 20)
        log = plugin.log.read_text()
        renewals = 1 + (monotonic() - began_s) // 60

    assert not re.search(r"AdminClient.*Rebootstrapping", log)
    assert log.count("AdminClientConfig values") <= 3 * renewals, "one for each topic that it reads or writes"
    assert log.count("Sluice can't read topic") == 2, "once for each"


@pytest.mark.long
@pytest.mark.parametrize("jars", [BROKER_JARS, OLD_BROKER_JARS, NEW_BROKER_JARS], ids=lambda jars: jars.name)
def test_brokers_know_how_many_they_are_before_anything_is_decided(
    tmp_path: Path, classes: list[Path], jars: JarSet
) -> None:
    """Each would take the whole limit otherwise. Kafka 3.9 doesn't tell a callback, and 5.0 won't."""
    (tmp_path / "log4j.properties").write_text(OLD_LOG)
    plugins = [*classes, tmp_path]
    with Cluster(tmp_path, 2, lambda *_: plugin_properties(), plugins, jars=jars) as cluster:
        ports = [broker.jmx_port for broker in cluster.brokers]
        eventually(
            lambda: all({*read_beans(port, "sluice:type=gateway,*", "Gateways").values()} == {2} for port in ports)
        )


def holds_and_lets_go(plugin: PluginBroker) -> None:
    """A quota of Kafka holds a client, until the limits topic is there and lets it go."""
    with plugin.broker:
        plugin.create_topics("orders")
        plugin.alter_kafka_quota("cautious", "producer_byte_rate", QUOTA)
        check_throttled(plugin.servers, "cautious", QUOTA)
        assert plugin.log.read_text().count("Sluice can't read topic quota-limits (it doesn't exist yet)") == 1

        plugin.create_topics("quota-requests", "quota-decisions", "quota-sums", "quota-limits")
        plugin.publish_limits([quota(QuotaKind.PRODUCER_BYTE_RATE, 1e9, client_id="cautious")])
        eventually(lambda: "Sluice knows the limits" in plugin.log.read_text())
        assert produce(plugin.servers, "cautious", 60, most=4_000_000) == 4_000_000
        eventually(lambda: published_bytes(plugin.servers, "cautious")["Produce"] > 4_000_000)
        assert "read from the meters, exactly" in plugin.log.read_text()
