"""A real proxy in front of a real broker: clients get the limits of Sluice, and see no error."""

import select
import signal
import socket
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import (
    InvalidReplicationFactorError,
    NodeNotReadyError,
    PolicyViolationError,
    ThrottlingQuotaExceededError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.consumer import FetchRequest
from msgspec.structs import replace

from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Override
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.shares.load import DiskFloor
from sluice_demo.broker import Broker
from sluice_demo.cluster import create_topic
from sluice_demo.counts import ends
from sluice_demo.full_speed_client import RECORD_BYTES, FullSpeedClient, Role
from sluice_demo.jars import BROKER_JARS
from sluice_elastic.disks import read_log_dirs
from sluice_elastic.log_dirs import LogDirs
from sluice_lab.testbed.full_speed_clients import ReconnectingClient, produce_request, read_answer, request_bytes
from sluice_lab.testbed.jmx import read_beans
from sluice_lab.testbed.quotas_without_job import publish_limits
from sluice_proxy.gateway import KafkaGateway
from sluice_proxy.jars import proxy_class_path
from sluice_proxy.processes import Child
from sluice_toolbox.machine import Jvm
from tests.builders import member
from tests.commands import SLUICE
from tests.integration.front_cases import FRONT_LIMITS, Front, FrontCases
from tests.integration.plugin_broker import produce, proxy_settings, publish_overrides, published
from tests.kafka_bound import BURST_S, LARGEST_REQUEST, came, check_bound, check_held
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

QUOTA = 1_000_000.0
"""Bytes per second."""

HEAVY_BYTES = 400_000
"""Bytes of a request that is 32 or 40 s of its quota."""

RATE = 1.0
"""Requests per second; a fresh meter lets those of ten seconds through."""

MUTATIONS_PER_S = 2.0
BURST = 11 * MUTATIONS_PER_S
"""Tokens in Kafka's bucket at first: the quota for as many seconds as it has samples."""

ONE_PARTITION = {"num_partitions": 1, "replication_factor": 1}

PROXY_TENANTS = ("stormy", "crowded")
"""Tenants of client-ids that begin with their name and a hyphen; each has a limit that proxies alone hold."""

PRODUCERS = ("old", "reconnects", "many", "restarts")
LIMITS = [
    *(QuotaEntry(QuotaEntity(client_id=name), QuotaKind.PRODUCER_BYTE_RATE, QUOTA) for name in PRODUCERS),
    QuotaEntry(QuotaEntity(client_id="muted"), QuotaKind.PRODUCER_BYTE_RATE, 1_000.0),
    QuotaEntry(QuotaEntity(client_id="heavy"), QuotaKind.PRODUCER_BYTE_RATE, HEAVY_BYTES / 32),
    QuotaEntry(QuotaEntity(client_id="large"), QuotaKind.PRODUCER_BYTE_RATE, 1_000.0),
    QuotaEntry(QuotaEntity(client_id="heavy"), QuotaKind.CONSUMER_BYTE_RATE, HEAVY_BYTES / 40),
    QuotaEntry(QuotaEntity(client_id="pipelines"), QuotaKind.CONSUMER_BYTE_RATE, HEAVY_BYTES / 40),
    QuotaEntry(QuotaEntity(client_id="reader"), QuotaKind.CONSUMER_BYTE_RATE, QUOTA),
    QuotaEntry(QuotaEntity(client_id="group"), QuotaKind.CONSUMER_BYTE_RATE, HEAVY_BYTES / 4),
    QuotaEntry(QuotaEntity(topic="narrow"), QuotaKind.TOPIC_PRODUCER_BYTE_RATE, QUOTA),
    QuotaEntry(QuotaEntity(topic="narrow"), QuotaKind.TOPIC_CONSUMER_BYTE_RATE, QUOTA),
    QuotaEntry(QuotaEntity(client_id="storm"), QuotaKind.CONNECTION_RATE, RATE),
    QuotaEntry(QuotaEntity(client_id="one-number"), QuotaKind.CONSUMER_BYTE_RATE, 1e9),
    QuotaEntry(QuotaEntity(client_id="crowd"), QuotaKind.CONNECTION_COUNT, 3),
    QuotaEntry(QuotaEntity(client_id="maker"), QuotaKind.CONTROLLER_MUTATION_RATE, MUTATIONS_PER_S),
    QuotaEntry(QuotaEntity(client_id="old-maker"), QuotaKind.CONTROLLER_MUTATION_RATE, MUTATIONS_PER_S),
    QuotaEntry(QuotaEntity(client_id="summed"), QuotaKind.CONTROLLER_MUTATION_RATE, MUTATIONS_PER_S),
    QuotaEntry(QuotaEntity(client_id="clumsy"), QuotaKind.CONTROLLER_MUTATION_RATE, MUTATIONS_PER_S),
    QuotaEntry(QuotaEntity(client_id="asker"), QuotaKind.CONTROLLER_MUTATION_RATE, 0.5),
    *FRONT_LIMITS,
    *(member(tenant=name, client_id=f"{name}-*") for name in PROXY_TENANTS),
    QuotaEntry(QuotaEntity(tenant="stormy"), QuotaKind.CONNECTION_RATE, RATE),
    QuotaEntry(QuotaEntity(tenant="crowded"), QuotaKind.CONNECTION_COUNT, 3),
]


@dataclass(frozen=True)
class Proxied:
    """A broker and the proxy in front of it."""

    broker: Broker
    gateway: KafkaGateway

    @property
    def servers(self) -> str:
        return self.gateway.bootstrap_servers

    def override(self, decider: str, *overrides: Override) -> None:
        """Publish what a decider of the job would say."""
        publish_overrides(self.broker.bootstrap_servers, decider, overrides)

    def events(self) -> list[dict[str, Any]]:
        """All events that were published."""
        return published(self.broker.bootstrap_servers)

    def held(self) -> float:
        """The requests that the proxy has delayed for a second or more."""
        return self.metrics()["sluice_gateway_held_requests_total"]

    def metrics(self) -> dict[str, float]:
        """The proxy's own metrics, without their labels."""
        url = f"http://127.0.0.1:{self.gateway.management_port}/metrics"
        with urllib.request.urlopen(url, timeout=120) as answer:  # of our own
            lines = answer.read().decode().splitlines()
        return {line.partition("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("sluice_")}


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """No job runs, so shares alone decide: at once, as no decision is to be expected."""
    folder = tmp_path_factory.mktemp("proxied")
    with Broker(folder / "broker", {"auto.create.topics.enable": "true"}, jmx=True) as broker:
        settings = proxy_settings(broker.bootstrap_servers)
        publish_limits(broker.bootstrap_servers, LIMITS, 1, {})
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
            create_topic(admin, "orders", [4])
            for topic in ("narrow", "heavy", "pipelined", "stopped", "busy", "idle"):
                create_topic(admin, topic, [1])
            create_topic(
                admin, "read", [1], {"retention.bytes": "-1"}
            )  # a consumer of deleted records begins at the end
        with KafkaGateway(folder / "proxy", settings, properties={"sluice.decide.timeout.ms": 100}) as gateway:
            found = Proxied(broker, gateway)
            eventually(lambda: found.metrics()["sluice_gateway_limits_version"] == 1)
            yield found


@pytest.fixture(scope="module")
def front(proxied: Proxied) -> Front:
    return proxied


class TestProxy(FrontCases):
    """The cases that a broker with the plugin passes, too."""


@pytest.mark.parametrize(
    ("role", "name", "topic"), [(Role.CONSUME, "reader", "orders"), (Role.PRODUCE, "free", "narrow")]
)
def test_a_client_at_full_speed_gets_its_quota_or_that_of_its_topic_and_no_error(
    proxied: Proxied, role: Role, name: str, topic: str
) -> None:
    """The topic with a quota has one partition."""
    if role is Role.CONSUME:
        filler = FullSpeedClient("filler", Role.PRODUCE, proxied.broker.bootstrap_servers, topic)
        eventually(lambda: came(filler.samples) > 60_000_000)
        filler.stop()
    began_ms = now_ms()
    client = FullSpeedClient(name, role, proxied.servers, topic)
    check_held([client], QUOTA, began_ms, 2 * LARGEST_REQUEST)
    client.stop()
    assert (client.errors, client.waits[0][1] > 0) == ([], True), "a throttled response says how long to wait"


def test_what_is_charged_is_published(proxied: Proxied) -> None:
    """To within the record batches' headers; all that isn't published yet is published within a second or two."""
    before = bytes_of(proxied, "old")
    with KafkaProducer(bootstrap_servers=proxied.servers, client_id="old", acks=1, batch_size=0) as producer:
        for _ in range(10):
            producer.send("orders", bytes(50_000), partition=0).get(120)

    eventually(lambda: bytes_of(proxied, "old") - before >= 500_000)
    assert bytes_of(proxied, "old") - before < 505_000


def test_a_proxy_says_how_many_bytes_its_clients_move(proxied: Proxied) -> None:
    assert produce(proxied.servers, "unlimited", 60, most=1_000_000) == 1_000_000

    def rates_in() -> list[float]:
        beats = [each for each in proxied.events() if each["api"] == "GatewayHeartbeat"]
        return [each["heartbeat"]["load"]["bytes_in_per_s"] for each in beats]

    eventually(lambda: max(rates_in()) > 100_000)


def test_a_broker_without_the_plugin_is_asked_if_its_disk_is_low(proxied: Proxied) -> None:
    log_dirs = LogDirs(remembered_ms=60_000)
    log_dirs.take(read_log_dirs({"bootstrap.servers": proxied.broker.bootstrap_servers}), 0)

    assert log_dirs.low(DiskFloor(free_percent=100)) is not None
    assert log_dirs.low(DiskFloor(free_bytes=1)) is None


def test_what_a_partition_is_charged_is_published_without_a_client(proxied: Proxied) -> None:
    """Its client's bytes are in another event: the job charges the partition alone."""
    with KafkaProducer(bootstrap_servers=proxied.servers, client_id="old", acks=1, batch_size=0) as producer:
        producer.send("narrow", bytes(50_000), partition=0).get(120)

    def events() -> list[dict[str, Any]]:
        return [each for each in proxied.events() if each.get("topic_partitions")]

    eventually(lambda: bool(events()))
    assert all(each["topic_partitions"][0]["topic"] == "narrow" and each["bytes"] == 0 for each in events())
    assert not any("user" in each or "client_id" in each for each in events())


def bytes_of(proxied: Proxied, client_id: str) -> int:
    """Bytes of a client-id in the events that were published; the job accepts each of them."""
    sums: Counter[str] = Counter()
    for event in proxied.events():
        sums[event.get("client_id", "")] += event.get("bytes", 0)
    return sums[client_id]


def test_each_fetch_is_charged_though_a_client_gives_all_its_requests_one_number(proxied: Proxied) -> None:
    with KafkaProducer(bootstrap_servers=proxied.broker.bootstrap_servers, acks=1, batch_size=0) as producer:
        producer.send("narrow", bytes(100_000), partition=0).get(120)
        end = producer.send("narrow", bytes(100_000), partition=0).get(120).offset
    topics = struct.pack(">ih6siiqi", 1, 6, b"narrow", 1, 0, end, 1_000_000)
    request = request_bytes(1, 4, "one-number", struct.pack(">iiiib", -1, 0, 1, 1_000_000, 0) + topics)
    with connect(proxied.servers) as connection:
        connection.sendall(request * 20)
        for _ in range(20):
            read_answer(connection)

    eventually(lambda: bytes_of(proxied, "one-number") >= 20 * 100_000)


@pytest.mark.parametrize("version", [(1, 0), (2, 4)])
def test_clients_of_an_old_version_are_held(proxied: Proxied, version: tuple[int, int]) -> None:
    """A mute needs nothing of the client, whatever it makes of the response. A fresh meter lets ten seconds through."""
    options = {"bootstrap_servers": proxied.servers, "client_id": "old", "api_version": version}
    with KafkaProducer(acks=1, batch_size=0, max_request_size=4_000_000, **options) as producer:
        began_s = time.monotonic()
        for _ in range(5):
            producer.send("orders", bytes(3_500_000), partition=0).get(120)

    assert time.monotonic() - began_s > 3.0


def test_a_new_connection_of_a_muted_client_is_answered_at_once(proxied: Proxied) -> None:
    """Its handshake is never delayed: librdkafka gives up after 10 s, Java's clients after 30 s.

    The first request mutes this client for longer than the test takes.
    """
    client = FullSpeedClient("muted", Role.PRODUCE, proxied.servers, "orders")
    eventually(lambda: bool(client.samples))
    for _ in range(5):
        with closing(KafkaAdminClient(bootstrap_servers=proxied.servers, client_id="muted")) as admin:
            admin.list_topics()
    client.stop()

    assert came(client.samples) < 5 * LARGEST_REQUEST, "it is muted to the end"
    assert not client.errors


def test_a_client_that_connects_anew_for_each_request_is_held_too(proxied: Proxied) -> None:
    """On a broker it got 10.9 times its quota; here three connections are over by their last requests alone."""
    began_ms = now_ms()
    client = ReconnectingClient("reconnects", proxied.servers, "orders")
    check_held([client], QUOTA, began_ms, LARGEST_REQUEST)
    client.stop()

    assert not client.errors


def test_many_connections_share_one_quota(proxied: Proxied) -> None:
    began_ms = now_ms()
    clients = [FullSpeedClient("many", Role.PRODUCE, proxied.servers, "orders") for _ in range(6)]
    check_held(clients, QUOTA, began_ms, len(clients) * LARGEST_REQUEST)
    for client in clients:
        client.stop()

    assert not any(client.errors for client in clients)


def test_a_produce_without_a_turn_goes_nowhere_and_its_client_keeps_its_connection(proxied: Proxied) -> None:
    """After 15 s, past the 20 s for which Kroxylicious keeps a request by itself. A fetch is answered empty then.

    Those that were read with the request that mutes them wait as long as the mute.
    """
    produced, fetched = produce_request("heavy", "heavy", 0, HEAVY_BYTES, now_ms()), _fetch("heavy", "heavy", 0)
    with ExitStack() as stack:
        first, *others = [stack.enter_context(connect(proxied.servers)) for _ in range(9)]
        waiting, fetchers = others[:5], others[5:]
        first.sendall(produced * 3)
        read_answer(first)
        for each in waiting:
            each.sendall(produced)
        for each, most in zip(fetchers, (2 * HEAVY_BYTES, 1_000, 1_000), strict=True):
            each.sendall(fetched)
            assert read_answer(each) < most
        publish_limits(proxied.broker.bootstrap_servers, raised("heavy"), 2, {})
        assert all(read_answer(first) for _ in range(2))
        assert not select.select(waiting, [], [], 0)[0], "one is answered, or closed"
        assert ends(proxy_settings(proxied.broker.bootstrap_servers), "heavy") == {0: 3}


def test_fetches_that_are_sent_at_once_come_after_the_waits_of_those_before(proxied: Proxied) -> None:
    """A broker reads the second when the first is answered, and its connection not muted any more."""
    with connect(proxied.servers) as connection:
        connection.sendall(produce_request("free", "pipelined", 0, HEAVY_BYTES, now_ms()))
        read_answer(connection)
        before = proxied.held()
        connection.sendall(_fetch("pipelines", "pipelined", 0) * 3)
        assert read_answer(connection) > HEAVY_BYTES
        eventually(lambda: proxied.held() > before)
        assert not select.select([connection], [], [], 0)[0], "the second came at once"
        publish_limits(proxied.broker.bootstrap_servers, raised("pipelines"), 2, {})
        assert [read_answer(connection) > HEAVY_BYTES for _ in range(2)] == [True, True]


def raised(client_id: str) -> list[QuotaEntry]:
    """The limits, but for those of a client, which lets all that waits go on."""
    return [replace(each, value=1e9) if each.entity == QuotaEntity(client_id=client_id) else each for each in LIMITS]


def test_a_produce_that_is_stopped_is_forgotten_and_its_connection_ends_with_the_hold(proxied: Proxied) -> None:
    """Not before: its client would send it again at once. A fetch is answered after 10 s, which are over then."""
    stop = Override("hold", entity=CountedEntity(client_id="stopped"), reason="it floods", consumers=True)
    settings = proxy_settings(proxied.broker.bootstrap_servers)
    before = proxied.held()
    with connect(proxied.servers) as connection, connect(proxied.servers) as fetching:
        proxied.override("operator", stop)

        def is_stopped() -> bool:
            connection.sendall(produce_request("stopped", "stopped", 0, 100_000, now_ms()))
            eventually(lambda: bool(proxied.held() > before or select.select([connection], [], [], 0)[0]))
            return proxied.held() > before or not read_answer(connection)

        eventually(is_stopped)
        fetching.sendall(_fetch("stopped", "stopped", 0))
        assert read_answer(fetching) < 1_000
        assert not select.select([connection], [], [], 0)[0], "it is answered, or closed"
        stored = ends(settings, "stopped")
        proxied.override("operator")
        assert connection.recv(1) == b""
        assert ends(settings, "stopped") == stored


def test_requests_that_wait_leave_memory_to_other_clients(proxied: Proxied, tmp_path: Path) -> None:
    """60 requests of 4 MB of one client wait in a heap of 96 MiB; half of a quarter of it is for them."""
    large = produce_request("large", "heavy", 0, 4_000_000, now_ms())
    settings = proxy_settings(proxied.broker.bootstrap_servers)
    with KafkaGateway(tmp_path, settings, heap_mib=96) as gateway, ExitStack() as stack:
        eventually(lambda: Proxied(proxied.broker, gateway).metrics()["sluice_gateway_limits_version"] > 0)
        for _ in range(60):
            stack.enter_context(connect(gateway.bootstrap_servers)).sendall(large)
        for _ in range(20):
            with connect(gateway.bootstrap_servers) as connection:
                connection.sendall(produce_request("free", "busy", 0, 1_000_000, now_ms()))
                assert read_answer(connection)

        assert "heap space" not in gateway.log.read_text()


def test_a_client_that_goes_before_its_broker_is_reached_leaves_no_connection_to_it(proxied: Proxied) -> None:
    process = psutil.Process(proxied.gateway.pid)
    before = process.num_fds()
    for _ in range(100):
        with connect(proxied.servers) as connection:
            connection.sendall(produce_request("free", "busy", 0, 1_000, now_ms()))
    for _ in range(8):  # each event loop serves these after those
        with connect(proxied.servers) as connection:
            assert is_open(connection, "free")

    eventually(lambda: process.num_fds() < before + 20)


def _fetch(client_id: str, topic: str, longest_ms: int) -> bytes:
    """A request for all records of a partition, which waits so long for the first one."""
    name = topic.encode()
    where = struct.pack(f">ih{len(name)}siiqi", 1, len(name), name, 1, 0, 0, 1_000_000)
    return request_bytes(1, 4, client_id, struct.pack(">iiiib", -1, longest_ms, 1, 1_000_000, 0) + where)


def test_consumers_that_wait_for_records_take_nothing_from_one_that_reads(proxied: Proxied) -> None:
    with ExitStack() as stack:
        reader, *waiting = [stack.enter_context(connect(proxied.servers)) for _ in range(9)]
        reader.sendall(produce_request("free", "busy", 0, HEAVY_BYTES, now_ms()))
        read_answer(reader)
        reader.sendall(_fetch("group", "busy", 0))
        assert read_answer(reader) > HEAVY_BYTES

        for connection in waiting:
            connection.sendall(_fetch("group", "idle", 1))
            read_answer(connection)
        for connection in waiting:
            connection.sendall(_fetch("group", "idle", 60_000))
        reader.sendall(_fetch("group", "busy", 0))

        assert read_answer(reader) > HEAVY_BYTES


def test_a_fetch_without_a_limit_and_an_unlimited_producer_pass_unheld(proxied: Proxied) -> None:
    for role in (Role.PRODUCE, Role.CONSUME):
        client = FullSpeedClient("free", role, proxied.servers, "orders")
        eventually(lambda client=client: came(client.samples) > 2 * BURST_S * QUOTA)  # type: ignore[misc]
        client.stop()

        assert not client.waits
        assert not client.errors


def ask(connection: socket.socket, client_id: str) -> None:
    """Ask for the cluster's metadata (version 0)."""
    connection.sendall(request_bytes(3, 0, client_id, b"\0\0\0\0"))


def is_answered(connection: socket.socket) -> bool:
    """True if there is an answer before the connection ends."""
    with suppress(ConnectionError):
        return bool(connection.recv(4))
    return False


def is_open(connection: socket.socket, client_id: str) -> bool:
    ask(connection, client_id)
    return is_answered(connection)


def connect(servers: str, address: str = "127.0.0.1") -> socket.socket:
    host, port = servers.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 120, (address, 0))


def refusals(proxied: Proxied, quota: str, entity: dict[str, str]) -> list[dict[str, Any]]:
    """The events of what a limit has refused; the job accepts each, and charges nothing."""
    refused = [each for each in proxied.events() if each["api"] == "Refused"]
    waits = ((each, *each["throttled_by"]) for each in refused)
    return [each for each, wait in waits if (wait["quota"], wait["entity"]) == (quota, entity)]


@pytest.mark.parametrize(
    ("clients", "entity"),
    [(("crowd",), {"client_id": "crowd"}), (("crowded-1", "crowded-2"), {"tenant": "crowded"})],
)
def test_a_connection_too_many_is_closed_until_another_one_ends(
    proxied: Proxied, clients: tuple[str, ...], entity: dict[str, str]
) -> None:
    """The limit is a client's own, or counts those of a tenant together."""
    in_turn = cycle(clients)
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(proxied.servers)) for _ in range(4)]
        assert [is_open(each, next(in_turn)) for each in crowd] == [True, True, True, False]
        crowd[0].close()

        def is_admitted() -> bool:
            with connect(proxied.servers) as another:
                return is_open(another, clients[0])

        eventually(is_admitted)
    eventually(lambda: sum(each["requests"] for each in refusals(proxied, "connection_count", entity)) > 0)


@pytest.mark.parametrize(
    ("clients", "entity"), [(("storm",), {"client_id": "storm"}), (("stormy-1", "stormy-2"), {"tenant": "stormy"})]
)
def test_connections_that_come_too_fast_are_closed_and_others_are_served_at_once(
    proxied: Proxied, clients: tuple[str, ...], entity: dict[str, str]
) -> None:
    """And decisions tell of each that was refused."""
    before = proxied.metrics()["sluice_gateway_refused_connections_total"]
    in_turn = cycle(clients)
    admitted, first_s = 0, time.monotonic()
    for _ in range(5):
        with ExitStack() as stack:
            connections = [stack.enter_context(connect(proxied.servers)) for _ in range(10)]
            for each in connections:
                ask(each, next(in_turn))
            admitted += sum(map(is_answered, connections))
        with connect(proxied.servers) as other:
            assert is_open(other, "other")

    assert admitted <= RATE * (time.monotonic() - first_s + 10) + 5
    assert proxied.metrics()["sluice_gateway_refused_connections_total"] - before == 50 - admitted

    def told() -> list[dict[str, Any]]:
        return refusals(proxied, "connection_rate", entity)

    eventually(lambda: sum(each["requests"] for each in told()) == 50 - admitted)
    assert {each["client_id"] for each in told()} == {*clients}


def questions(proxied: Proxied) -> float:
    """Metadata requests that the broker has answered in the version in which proxies ask, and no client here."""
    name = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Metadata,version=12"
    return sum(read_beans(proxied.broker.jmx_port, name, "Count").values())


def oldest_versions(servers: str) -> dict[int, int]:
    """The oldest version of each request that is offered to a client."""
    with connect(servers) as connection, connection.makefile("rb") as answer:
        connection.sendall(request_bytes(18, 0, "app"))
        _, _, _, count = struct.unpack(">iihi", answer.read(14))
        return {api: oldest for api, oldest, _ in struct.iter_unpack(">hhh", answer.read(6 * count))}


def test_a_client_is_offered_the_produces_that_a_broker_offers_as_librdkafka_compresses_only_then(
    proxied: Proxied,
) -> None:
    direct, through = map(oldest_versions, (proxied.broker.bootstrap_servers, proxied.servers))

    assert through[0] == direct[0] == 0


HANDSHAKE = b"\0\5PLAIN"
"""The body of a request that begins a login (SaslHandshake)."""


@pytest.mark.parametrize(
    ("version", "reason"), [(0, "use kafka-python 2.1, Sarama 1.41 or newer"), (1, "before its login is answered")]
)
def test_a_login_that_nobody_could_read_ends_with_a_line_in_the_log(
    proxied: Proxied, tmp_path: Path, version: int, reason: str
) -> None:
    """It is outside of requests, or others come while it is under way: whose would they be?"""
    settings = with_bootstrap_servers(load_settings(), proxied.broker.bootstrap_servers)
    with KafkaGateway(tmp_path, settings) as gateway:
        for _ in range(2):
            with connect(gateway.bootstrap_servers) as connection, suppress(ConnectionError):
                connection.sendall(request_bytes(17, version, "app", HANDSHAKE))
                ask(connection, "app")
                while answer := connection.recv(4_096):
                    assert b"orders" not in answer
    log = (tmp_path / "proxy.log").read_text()
    assert log.count(reason) == log.count("is closed: ") == 1


@pytest.fixture(scope="module")
def other(proxied: Proxied, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """A proxy without limits for the tests below, of which the last one makes some."""
    with without_limits(proxied, tmp_path_factory.mktemp("other")) as other:
        yield other


@contextmanager
def without_limits(proxied: Proxied, folder: Path) -> Iterator[Proxied]:
    """Another proxy of the broker, whose limits are in another topic: none, as version 1."""
    settings = proxy_settings(proxied.broker.bootstrap_servers, limits="other-limits")
    publish_limits(proxied.broker.bootstrap_servers, [], 1, {}, "other-limits")
    with KafkaGateway(folder / "proxy", settings) as gateway:
        found = Proxied(proxied.broker, gateway)
        eventually(lambda: found.metrics()["sluice_gateway_limits_version"] == 1)
        yield found


def test_the_log_of_a_good_start_is_short_and_warns_of_nothing(other: Proxied) -> None:
    eventually(lambda: other.metrics()["sluice_gateway_published_events"] > 0)
    log = other.gateway.log.read_text()

    assert "Sluice is gateway" in log
    for noise in ("deprecated", "can't publish", "Config values", "org.apache.kafka"):
        assert noise not in log


def fetch(servers: str, topic_id: UUID) -> None:
    """Fetch a topic by an id, as clients do from version 13 on."""
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic_id=topic_id, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
    request.API_VERSION = 13
    request.with_header(correlation_id=1, client_id="by-id")
    with connect(servers) as connection:
        connection.sendall(bytes(request.encode(header=True, framed=True)))
        read_answer(connection)


def test_a_request_that_teaches_a_new_proxy_the_brokers_is_charged_to_nobody(proxied: Proxied, tmp_path: Path) -> None:
    """Kroxylicious asks for the metadata in its place, and closes the connection. The port is that of broker 1."""
    with without_limits(proxied, tmp_path) as started:
        host, port = started.servers.split(":")
        found = []
        for _ in range(2):
            with suppress(OSError):
                fetch(f"{host}:{int(port) + 2}", uuid4())
            found.append(started.metrics()["sluice_gateway_counters"])
    assert found == [0, 1]


def test_a_proxy_asks_for_names_of_topics_only_if_a_quota_on_topics_is_set(proxied: Proxied, other: Proxied) -> None:
    for each in (other, proxied):  # the first request of all is for metadata
        with connect(each.servers) as connection:
            assert is_open(connection, "by-id")
    before = questions(proxied)
    fetch(other.servers, uuid4())
    assert questions(proxied) == before
    fetch(proxied.servers, uuid4())
    assert questions(proxied) == before + 1  # the error in the response tells enough


def test_a_quota_on_a_topic_holds_a_consumer_whose_fetch_session_began_before_it(
    proxied: Proxied, other: Proxied
) -> None:
    """The session's requests don't name the topic any more. Unheld, all that is waited for would come in a second."""
    filler = FullSpeedClient("filler", Role.PRODUCE, proxied.broker.bootstrap_servers, "read")
    eventually(lambda: came(filler.samples) > 40_000_000)
    filler.stop()
    with Jvm(BROKER_JARS.paths()) as jvm:
        java, kafka = jvm.packages.java, jvm.packages.org.apache.kafka
        properties = java.util.Properties()
        properties.setProperty("bootstrap.servers", other.servers)
        deserializer = kafka.common.serialization.ByteArrayDeserializer
        consumer = kafka.clients.consumer.KafkaConsumer(properties, deserializer(), deserializer())
        partition = kafka.common.TopicPartition("read", 0)
        consumer.assign(java.util.List.of(partition))
        consumer.seekToBeginning(java.util.List.of(partition))
        samples: list[tuple[float, float]] = []

        def read() -> float:
            """Poll once. Returns the bytes so far."""
            records = consumer.poll(java.time.Duration.ofMillis(100)).count()
            samples.append((now_ms(), records * RECORD_BYTES))
            return came(samples)

        eventually(lambda: read() > 0)
        limit = QuotaEntry(QuotaEntity(topic="read"), QuotaKind.TOPIC_CONSUMER_BYTE_RATE, QUOTA)
        publish_limits(proxied.broker.bootstrap_servers, [limit], 2, {}, "other-limits")
        eventually(lambda: other.metrics()["sluice_gateway_limits_version"] == 2)
        held_ms, before = now_ms(), read()
        eventually(lambda: read() - before > 2 * BURST_S * QUOTA)
        consumer.close()

    check_bound(samples, QUOTA, held_ms, 3 * LARGEST_REQUEST)  # one that waits in the client, one under way, the last


def test_new_connections_of_an_address_that_come_too_fast_are_reset_and_another_one_is_served(
    proxied: Proxied, tmp_path: Path
) -> None:
    """An address alone gets half of the 40 in a second."""
    settings = with_bootstrap_servers(load_settings(), proxied.broker.bootstrap_servers)
    with KafkaGateway(tmp_path, settings, connections_per_s=40) as gateway, ExitStack() as stack:
        limited, began_s = Proxied(proxied.broker, gateway), time.monotonic()
        flood = flooded(stack, limited.servers, 200)
        assert is_open(stack.enter_context(connect(limited.servers, "127.0.0.3")), "other")
        flooded_s = time.monotonic() - began_s
        answered = answers(flood)
        assert 20 <= answered <= 20 * (flooded_s + 2)
        assert limited.metrics()["sluice_gateway_reset_connections_total"] == 200 - answered > 0


def flooded(stack: ExitStack, servers: str, connections: int, address: str = "127.0.0.2") -> Sequence[socket.socket]:
    """So many connections of one address, without those that are reset before they are made."""
    flood = []
    for _ in range(connections):
        with suppress(ConnectionError):
            flood.append(stack.enter_context(connect(servers, address)))
    return flood


def answers(flood: Sequence[socket.socket]) -> int:
    """The number of these connections that answer a request."""
    for each in flood:
        with suppress(ConnectionError):
            ask(each, "flood")
    return sum(map(is_answered, flood))


def test_an_address_that_holds_connections_open_leaves_file_descriptors_to_others(
    proxied: Proxied, tmp_path: Path
) -> None:
    """600 are for 200 connections and the proxy itself. An address alone gets half, until it closes some."""
    options = ("--bootstrap-servers", proxied.broker.bootstrap_servers, "--connections-per-s", "100000")
    log = tmp_path / "log"
    child = Child(["/bin/bash", "-c", 'ulimit -n 600; exec "$@"', "-", *SLUICE, "kafka-gateway", *options], log)
    with ExitStack() as stack:
        stack.callback(child.end, signal.SIGTERM, 30)
        eventually(lambda: "metrics: " in log.read_text())
        servers = log.read_text().partition("clients connect to ")[2].split()[0]
        flood = flooded(stack, servers, 300)
        assert answers(flood) == 100
        for number in range(4, 12):  # one after the other: half of what is left would soon be nothing
            flooded(stack, servers, 60, f"127.0.0.{number}")
        assert is_open(stack.enter_context(connect(servers, "127.0.0.3")), "other")
        for each in flood:
            each.close()
        eventually(lambda: answers(flooded(stack, servers, 1)) == 1)
        child.end(signal.SIGHUP, 30)
        assert not Path(log.read_text().partition("\nlog: ")[2].split()[0]).exists(), "its folder is left"


def test_an_ipv6_network_shares_connections_as_one_address() -> None:
    """A host has as many addresses of its network as it likes. One alone gets half of the 40."""
    with Jvm(proxy_class_path()) as jvm:
        java = jvm.packages.java
        of, object_type, bytes_type = java.lang.Class.forName, java.lang.Object, java.lang.Long.TYPE
        room, limit = of("sluice.proxy.FairRoom"), of("sluice.proxy.AcceptLimit")
        constructor = room.getDeclaredConstructor(jvm.array(java.lang.Class, [bytes_type]))
        take = room.getDeclaredMethod("take", jvm.array(java.lang.Class, [of("java.lang.Object"), bytes_type]))
        network = limit.getDeclaredMethod("network", jvm.array(java.lang.Class, [of("java.net.InetAddress")]))
        for each in (constructor, take, network):
            each.setAccessible(True)
        shares = constructor.newInstance(jvm.array(object_type, [jvm.packages.java.lang.Long.valueOf("40")]))

        def taken(prefix: str) -> int:
            hosts = (java.net.InetAddress.getByName(f"2001:db8:0:{prefix}::{host:x}") for host in range(1, 100))
            owners = (network.invoke(None, jvm.array(object_type, [host])) for host in hosts)
            one = java.lang.Long.valueOf("1")
            return sum(take.invoke(shares, jvm.array(object_type, [owner, one])) for owner in owners)

        assert [taken("1"), taken("2")] == [20, 10]


def test_topics_beyond_the_burst_are_refused_one_by_one(proxied: Proxied) -> None:
    """Strict: of one request some are made and others refused with error 89."""
    wanted = {f"made-{number}": {"num_partitions": 4, "replication_factor": 1} for number in range(10)}
    maker = KafkaAdminClient(bootstrap_servers=proxied.servers, client_id="maker")
    with closing(maker), pytest.raises(ThrottlingQuotaExceededError):
        maker.create_topics(wanted)
    with closing(KafkaAdminClient(bootstrap_servers=proxied.servers)) as admin:
        made = {*admin.list_topics()} & {*wanted}

    assert len(made) == int(BURST) // 4 + 1  # the one that overdraws the bucket is made, as in Kafka
    assert proxied.metrics()["sluice_gateway_refused_topics_total"] >= 10 - len(made)


def test_topics_that_the_broker_refuses_are_charged_to_nobody(proxied: Proxied) -> None:
    """Neither to the share nor, by an event, by the job. 20 partitions of 22 are asked for each time."""
    with closing(KafkaAdminClient(bootstrap_servers=proxied.servers, client_id="clumsy")) as admin:
        for _ in range(5):
            with pytest.raises(TopicAlreadyExistsError):
                admin.create_topics({"orders": {"num_partitions": 20, "replication_factor": 1}})
            with pytest.raises(UnknownTopicOrPartitionError):
                admin.delete_topics(["no-such-topic"])
        admin.create_topics({"clumsy": {"num_partitions": 3, "replication_factor": 1}})

    eventually(lambda: _mutations_of(proxied, "clumsy") == [3])


def _mutations_of(proxied: Proxied, client_id: str) -> list[int]:
    """The mutations of each event of a client that a proxy has published."""
    events = proxied.events()
    own = [each for each in events if each.get("client_id") == client_id and each["api"] != "Connect"]
    return [each["mutations_charged"] for each in own]


def test_topics_that_are_made_because_a_client_asks_about_them_are_charged_as_if_it_had_made_them(
    proxied: Proxied,
) -> None:
    """Once each, however often it asks. The others stay unknown, as in Kafka until there is room again."""
    wanted = [f"asked-{number}" for number in range(100)]
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in wanted)
    with connect(proxied.servers) as connection:
        for _ in range(3):
            connection.sendall(request_bytes(3, 4, "asker", struct.pack(">i", len(wanted)) + names + b"\1"))
            read_answer(connection)

    def made() -> int:
        with closing(KafkaAdminClient(bootstrap_servers=proxied.broker.bootstrap_servers)) as admin:
            return len({*admin.list_topics()} & {*wanted})

    eventually(lambda: made() == sum(_mutations_of(proxied, "asker")) > 0)
    assert made() < 30, "the burst is 5.5, and two seconds are a topic"
    with closing(KafkaProducer(bootstrap_servers=proxied.servers, client_id="asker", max_block_ms=120_000)) as producer:
        assert producer.send("asked-later", b"").get(120).topic == "asked-later"


def test_partitions_of_topics_that_are_too_large_are_given_back(proxied: Proxied) -> None:
    """The broker refuses so many replicas, or so many partitions, before it makes any."""
    wanted = {f"summed-{count}": {"num_partitions": count, "replication_factor": 9} for count in (1, 2**31 - 1)}
    old = KafkaAdminClient(bootstrap_servers=proxied.servers, client_id="summed", api_version=(2, 4))
    with closing(old), pytest.raises((InvalidReplicationFactorError, PolicyViolationError)):
        old.create_topics(wanted)
    new = KafkaAdminClient(bootstrap_servers=proxied.servers, client_id="summed")
    with closing(new):
        new.create_topics({"summed": ONE_PARTITION})


def test_an_old_version_makes_all_its_topics_and_waits_after(proxied: Proxied) -> None:
    """CreateTopics before version 6 can't be refused: the next request waits until the bucket isn't overdrawn."""
    wanted = {f"old-{number}": {"num_partitions": 10, "replication_factor": 1} for number in range(3)}
    with closing(
        KafkaAdminClient(bootstrap_servers=proxied.servers, client_id="old-maker", api_version=(2, 4))
    ) as admin:
        began_s = time.monotonic()
        admin.create_topics(wanted)

        def is_deleted() -> bool:
            with suppress(NodeNotReadyError):  # so kafka-python waits as it was told
                admin.delete_topics(["old-0"])
                return True
            return False

        eventually(is_deleted)

    assert time.monotonic() - began_s > (30 - BURST) / MUTATIONS_PER_S


def test_a_client_goes_on_when_the_broker_was_restarted(proxied: Proxied) -> None:
    client = FullSpeedClient("restarts", Role.PRODUCE, proxied.servers, "orders")
    eventually(lambda: came(client.samples) > 3 * QUOTA)
    proxied.broker.stop()
    down_ms = now_ms()
    proxied.broker.start()
    check_held([client], QUOTA, down_ms, LARGEST_REQUEST)
    client.stop()
