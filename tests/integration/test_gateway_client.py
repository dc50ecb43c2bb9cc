"""The gateway client and the HTTP gateway against a real broker; the deciding side is the job's arithmetic alone."""

import http.client
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from scripts.testbed.broker import Broker
from sluice import (
    Gateway,
    GatewayOptions,
    Request,
    StalePolicy,
    ThrottlingQuotaExceededError,
    WhenFull,
    retry_topics,
)
from sluice.configs.settings import Settings, load_settings, with_bootstrap_servers
from sluice.gateways.client.retry import TopicErrors
from sluice.gateways.http.app import create_app
from sluice.gateways.http.backend import KafkaBackend
from sluice.gateways.http.server import HttpServer
from sluice.kafka_io.clock import now_ms
from sluice.kafka_io.topics import ensure_topics
from sluice.sinks.limits import LimitsPublisher
from sluice.state.decisions.request import HEARTBEAT_API
from sluice.state.decisions.wait_records import WaitRecord, wait_key, wait_value
from sluice.state.quotas.entity import QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation

pytestmark = pytest.mark.kafka

QUOTAS = (
    QuotaEntry(QuotaEntity(user="alice"), QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, False),  # burst: 11 partitions
    QuotaEntry(QuotaEntity(user="old"), QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, False),
    QuotaEntry(QuotaEntity(user="quick"), QuotaKind.CONTROLLER_MUTATION_RATE, 50.0, False),  # burst: 550
    QuotaEntry(QuotaEntity(user="carol"), QuotaKind.PRODUCER_BYTE_RATE, 100.0, False),
)


def eventually(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Fails unless the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def own_settings(bootstrap_servers: str) -> Settings:
    """Settings with topics that no other test uses; they exist."""
    settings = with_bootstrap_servers(load_settings(), bootstrap_servers)
    stem = uuid.uuid4().hex[:8]
    topics = replace(
        settings.topics,
        requests=f"requests-{stem}",
        decisions=f"decisions-{stem}",
        dead_letters=f"dead-letters-{stem}",
        limits=f"limits-{stem}",
        waits=f"waits-{stem}",
    )
    settings = replace(settings, topics=topics)
    ensure_topics(settings.topics, settings.kafka)
    return settings


def options(settings: Settings, **changes: Any) -> GatewayOptions:
    topics = settings.topics
    return GatewayOptions(
        requests_topic=topics.requests,
        decisions_topic=topics.decisions,
        limits_topic=topics.limits,
        waits_topic=topics.waits,
        **changes,
    )


def decision(user: str, mute_until_ms: int | None, request_id: str = "r", timestamp_ms: int | None = None) -> bytes:
    """A decision written by hand, with what a gateway reads of it: a charge on the counter of the user's client app."""
    entity = {"user": user, "client_id": "app"}
    fields = {
        "request_id": request_id,
        "timestamp_ms": now_ms() if timestamp_ms is None else timestamp_ms,
        "user": user,
        "client_id": "app",
        "mute_until_ms": mute_until_ms,
        "decided_by": "producer_byte_rate",
        "charges": [{"quota": "producer_byte_rate", "entity": entity, "limit": 1024.0, "throttle_ms": 5000}],
    }
    return json.dumps(fields).encode()


def write(settings: Settings, *values: bytes | None, timestamp_ms: int | None = None) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.kafka["bootstrap.servers"])
    for value in values:
        producer.send(settings.topics.decisions, value, key=b"key", timestamp_ms=timestamp_ms).get(timeout=30)
    producer.close()


def write_to(settings: Settings, topic: str, *records: tuple[bytes, bytes | None]) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.kafka["bootstrap.servers"], linger_ms=5)
    for key, value in records:
        producer.send(topic, value, key=key)
    producer.flush(60)
    producer.close()


def read_events(settings: Settings) -> list[dict[str, Any]]:
    """Every event in the requests topic, heartbeats left out."""
    return [event for event in read_records(settings) if event["api"] != HEARTBEAT_API]


def read_records(settings: Settings) -> list[dict[str, Any]]:
    """Every record in the requests topic."""
    with KafkaConsumer(bootstrap_servers=settings.kafka["bootstrap.servers"], auto_offset_reset="earliest") as consumer:
        topic = settings.topics.requests
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        events: list[dict[str, Any]] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for records in consumer.poll(timeout_ms=200).values():
                events += [json.loads(record.value) for record in records]
        return events


@contextmanager
def deciding_side(settings: Settings) -> Iterator[None]:
    """Decides every event of the requests topic in a thread, as the job would, from the beginning of the topic.

    The quotas in force are published, too.
    """
    stop = threading.Event()
    publisher = LimitsPublisher(settings.topics, settings.kafka, lambda: (1, QUOTAS))
    simulation = Simulation(Quotas(QUOTAS), settings)
    servers, topic = settings.kafka["bootstrap.servers"], settings.topics.requests

    def events() -> Iterator[bytes]:
        with KafkaConsumer(bootstrap_servers=servers) as consumer:
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            while not stop.is_set():
                for records in consumer.poll(timeout_ms=50).values():
                    yield from (record.value for record in records)

    def decide() -> None:
        producer = KafkaProducer(bootstrap_servers=servers)
        for decided in simulation.decide(events()):
            producer.send(decided.topic, decided.value, decided.key)
        producer.close()

    thread = threading.Thread(target=decide)
    thread.start()
    publisher.start()
    try:
        yield
    finally:
        publisher.stop()
        stop.set()
        thread.join()


def test_a_decision_mutes_its_client_until_the_time_it_names(kafka_broker: str) -> None:
    settings, clock = own_settings(kafka_broker), [now_ms()]
    until_ms = clock[0] + 5_000
    with Gateway(settings.kafka, options(settings), clock_ms=lambda: clock[0]) as gateway:
        write(settings, decision("alice", until_ms), decision("bob", None))
        eventually(lambda: gateway.stats().decisions == 2)

        assert gateway.check("alice", "app") == 5_000
        assert gateway.check("bob", "app") == 0
        wait = gateway.find_wait("alice", "app")
        assert wait is not None
        assert (wait.quota, wait.limit) == ("producer_byte_rate", 1024.0)

        clock[0] = until_ms
        assert gateway.check("alice", "app") == 0
        eventually(lambda: gateway.stats().muted == 0)


def test_what_is_no_decision_is_passed_over(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    with Gateway(settings.kafka, options(settings)) as gateway:
        rubbish = (None, b"", b"\xff\xfe", b"[1]", b'{"request_id": 7}', b'{"user": "alice"}')
        odd_charges = json.loads(decision("mallory", now_ms() + 60_000)) | {"charges": "none"}
        write(settings, *rubbish, json.dumps(odd_charges).encode(), decision("alice", now_ms() + 60_000))

        eventually(lambda: gateway.check("alice", "app") > 0)
        assert gateway.check("mallory", "app") == 0
        assert gateway.stats().unreadable_records == len(rubbish) + 1


def test_a_record_that_no_decoder_can_follow_ends_no_reader(kafka_broker: str) -> None:
    """Neither in a gateway that runs nor in one that starts later."""
    settings, now = own_settings(kafka_broker), now_ms()
    deep = decision("mallory", now + 60_000)[:-1] + b', "new": ' + b"[" * 2_000 + b"]" * 2_000 + b"}"
    with Gateway(settings.kafka, options(settings)) as running:
        assert running.wait_until_ready(30)
        write(settings, deep, decision("alice", now + 60_000))
        with Gateway(settings.kafka, options(settings)) as later:
            for gateway in (running, later):
                eventually(lambda gateway=gateway: gateway.check("alice", "app") > 0)  # type: ignore[misc]
                assert (gateway.stats().unreadable_records, gateway.stats().reader_restarts) == (1, 0)


class NoText(str):
    """The name of a header that the producer sends as bytes which are no UTF-8."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:
        return b"\xff\xfe"


def test_a_batch_that_the_consumer_cant_decode_is_passed_over(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    with Gateway(settings.kafka, options(settings)) as gateway:
        assert gateway.wait_until_ready(30)
        producer = KafkaProducer(bootstrap_servers=kafka_broker, linger_ms=0)
        for partition in range(settings.topics.partitions):
            headers = [(NoText("name"), b"x")]
            producer.send(settings.topics.decisions, b"x", partition=partition, headers=headers).get(30)
        producer.close()
        write(settings, *(decision(f"user-{number}", now + 60_000) for number in range(20)))

        eventually(lambda: gateway.stats().decisions == 20)
        assert gateway.stats().unreadable_records == settings.topics.partitions
        assert gateway.stats().reader_restarts == 0


def test_a_gateway_follows_the_limits_in_force_also_when_their_topic_is_made_again(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    in_force: list[tuple[int, tuple[QuotaEntry, ...]]] = [(1, (bytes_limit("alice"),))]
    publisher = LimitsPublisher(settings.topics, settings.kafka, lambda: in_force[0])
    with Gateway(settings.kafka, options(settings, before_limits="hold")) as gateway:
        assert gateway.check("bob", "app") == 1_000
        publisher.start()
        try:
            eventually(lambda: gateway.stats().limits_version == 1)
            assert gateway.check("bob", "app") == 0
            write(settings, decision("alice", now + 60_000))
            write_to(settings, settings.topics.limits, (b"key", b"garbage"))
            eventually(lambda: gateway.stats().unreadable_records == 1)

            in_force[0] = (2, (bytes_limit("alice"), bytes_limit("bob")))
            eventually(lambda: gateway.stats().limits_version == 2)
            with KafkaAdminClient(bootstrap_servers=settings.kafka["bootstrap.servers"]) as admin:
                admin.delete_topics([settings.topics.limits])
            in_force[0] = (3, (bytes_limit("carol"),))
            eventually(lambda: gateway.stats().limits_version == 3, seconds=60)
            assert gateway.check("alice", "app") == 0  # the limit is gone, and its wait with it
        finally:
            publisher.stop()


def bytes_limit(user: str) -> QuotaEntry:
    return QuotaEntry(QuotaEntity(user=user, client_id="app"), QuotaKind.PRODUCER_BYTE_RATE, 1024.0)


def test_a_new_gateway_knows_ten_thousand_kept_waits_within_seconds(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    records: list[tuple[bytes, bytes | None]] = []
    for number in range(10_000):
        wait = WaitRecord(now + 600_000 + number, 1_200_000, 1024.0, 9999.0, now - 600_000, number)
        records.append((wait_key(("producer_byte_rate", Tags(f"user-{number}"))), wait_value(wait)))
    records.append((wait_key(("producer_byte_rate", Tags("user-0"))), None))
    write_to(settings, settings.topics.waits, *records)

    start_s = time.monotonic()
    with Gateway(settings.kafka, options(settings, before_current="hold"), clock_ms=lambda: now) as gateway:
        assert gateway.check("nobody", "app") == 1_000
        assert gateway.wait_until_ready(30)
        assert time.monotonic() - start_s < 10
        assert gateway.check("nobody", "app") == 0
        assert gateway.check("user-0", "app") == 0
        assert [gateway.check(f"user-{number}", "any") for number in (1, 9_999)] == [600_001, 609_999]


def test_a_failing_callback_stops_nothing(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    seen: list[str] = []

    def on_decision(fields: dict[str, Any]) -> None:
        seen.append(fields["user"])
        raise RuntimeError("the caller's mistake")

    with Gateway(settings.kafka, options(settings), on_decision) as gateway:
        write(settings, decision("alice", None), decision("bob", now_ms() + 60_000))

        eventually(lambda: gateway.check("bob", "app") > 0 and seen == ["alice", "bob"])


def test_a_new_gateway_starts_from_the_recent_past_of_the_topic(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    write(settings, decision("long ago", now + 60_000), timestamp_ms=now - 120_000)
    write(settings, decision("lately", now + 60_000), timestamp_ms=now - 30_000)

    with Gateway(settings.kafka, options(settings, lookback_s=60)) as gateway:
        assert gateway.wait_until_ready(30)
        assert gateway.check("lately", "app") > 0
        assert gateway.check("long ago", "app") == 0


def test_ten_gateways_agree_on_who_is_muted(kafka_broker: str) -> None:
    settings, now = own_settings(kafka_broker), now_ms()
    users = [f"user-{number}" for number in range(50)]
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(Gateway(settings.kafka, options(settings, name=f"gateway-{n}"), clock_ms=lambda: now))
            for n in range(10)
        ]
        mutes = {user: now + 1_000 * number for number, user in enumerate(users)}
        write(settings, *(decision(user, until_ms, timestamp_ms=now) for user, until_ms in mutes.items()))
        eventually(lambda: all(gateway.stats().decisions == len(users) for gateway in gateways))

        expected = [until_ms - now for until_ms in mutes.values()]
        for gateway in gateways:
            assert [gateway.check(user, "app") for user in users] == expected


def test_a_published_event_has_id_time_and_gateway_filled_in(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    with Gateway(settings.kafka, options(settings, name="front"), clock_ms=lambda: 1_760_000_000_000) as gateway:
        first = gateway.publish({"api": "Produce", "user": "alice"})
        gateway.publish(Request("Fetch", request_id="mine", timestamp_ms=5, gateway="other"))

    one, other = sorted(read_events(settings), key=lambda event: event["api"], reverse=True)
    assert (one["request_id"], one["timestamp_ms"], one["gateway"]) == (first, 1_760_000_000_000, "front")
    assert (other["request_id"], other["timestamp_ms"], other["gateway"]) == ("mine", 5, "other")


def test_an_awaited_decision_comes_to_the_one_who_waits(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    with deciding_side(settings), Gateway(settings.kafka, options(settings)) as gateway:
        topics = [{"topic": name, "partitions": 8} for name in ("a", "b", "c")]
        decided = gateway.decide({"api": "CreateTopics", "user": "alice", "mutations": topics}, timeout_s=30)

        assert decided is not None
        assert [result["error_code"] for result in decided["topic_results"]] == [0, 0, 89]
        assert 0 < gateway.check("alice", None) <= decided["throttle_time_ms"] == 5_000


def test_nobody_waits_longer_than_asked(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    with Gateway(settings.kafka, options(settings)) as gateway:
        assert gateway.decide({"api": "CreateTopics"}, timeout_s=0.01) is None
        assert gateway.wait_for("never published", timeout_s=60) is None


@pytest.mark.alone
def test_a_broker_that_dies_and_returns_loses_no_event_and_holds_up_no_request(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        settings = own_settings(broker.bootstrap_servers)
        with Gateway(settings.kafka, options(settings, close_timeout_s=60)) as gateway:
            published = [gateway.publish({"api": "Produce", "user": f"user-{n % 20}"}) for n in range(500)]
            eventually(lambda: gateway.stats().unsent == 0)
            write(settings, decision("before", now_ms() + 600_000))
            eventually(lambda: gateway.check("before", "app") > 0)

            broker.kill()
            longest_s = 0.0
            for number in range(5_000):
                start_s = time.perf_counter()
                assert gateway.check("before", "app") > 0
                assert gateway.check("nobody", "app") == 0
                published.append(gateway.publish({"api": "Produce", "user": f"user-{number % 20}"}))
                longest_s = max(longest_s, time.perf_counter() - start_s)
            assert longest_s < 1.0  # a thread that waited for Kafka would take as long as the outage
            assert gateway.stats().unsent > 0
            broker.start()
            eventually(lambda: gateway.stats().unsent == 0, seconds=60)
            write(settings, decision("after", now_ms() + 600_000))
            eventually(lambda: gateway.check("after", "app") > 0)
            assert gateway.check("before", "app") > 0

        assert {event["request_id"] for event in read_events(settings)} == set(published)
        assert gateway.stats().failed == 0


def test_a_gateway_may_start_before_its_broker_and_its_topics(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        settings = with_bootstrap_servers(load_settings(), broker.bootstrap_servers)
        broker.stop()
        with Gateway(settings.kafka, options(settings)) as gateway:
            gateway.publish({"api": "Produce"})
            assert gateway.check("alice", "app") == 0
            broker.start()
            ensure_topics(settings.topics, settings.kafka)
            eventually(lambda: gateway.stats().unsent == 0, seconds=60)
            write(settings, decision("alice", now_ms() + 60_000))
            eventually(lambda: gateway.check("alice", "app") > 0, seconds=60)


def test_fail_closed_refuses_everybody_while_nothing_is_decided(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    closed = options(settings, policy=StalePolicy.FAIL_CLOSED, stale_after_s=1.5)
    with Gateway(settings.kafka, closed) as gateway:
        assert gateway.check("alice", "app") == 0
        eventually(lambda: gateway.check("alice", "app") >= 1_000)
        assert gateway.refuses_all()
        with deciding_side(settings):
            eventually(lambda: gateway.check("alice", "app") == 0)  # by the heartbeats, for nobody may publish

    assert {record["api"] for record in read_records(settings)} == {HEARTBEAT_API}


def test_fail_open_lets_everybody_go_on_while_nothing_is_decided(kafka_broker: str) -> None:
    settings, clock = own_settings(kafka_broker), [now_ms()]
    with Gateway(settings.kafka, options(settings, policy="fail_open"), clock_ms=lambda: clock[0]) as gateway:
        gateway.publish({"api": "Produce"})
        clock[0] += 3_600_000

        assert gateway.is_stale()
        assert gateway.stats().stale_s == 3_600
        assert gateway.check("alice", "app") == 0


def test_a_closed_gateway_leaves_no_thread_behind(kafka_broker: str) -> None:
    settings, before = own_settings(kafka_broker), set(threading.enumerate())
    gateway = Gateway(settings.kafka, options(settings))
    published = gateway.publish({"api": "Produce"})
    gateway.wait_until_ready(30)

    gateway.close()
    gateway.close()

    eventually(lambda: set(threading.enumerate()) <= before)
    assert [event["request_id"] for event in read_events(settings)] == [published]


def test_many_threads_publish_and_check_at_once(kafka_broker: str) -> None:
    settings = own_settings(kafka_broker)
    crowded = options(settings, max_unsent=100, when_full=WhenFull.BLOCK, close_timeout_s=60)
    with Gateway(settings.kafka, crowded) as gateway:

        def work(thread: int) -> None:
            for number in range(300):
                gateway.publish(Request("Produce", request_id=f"{thread}-{number}", user=f"user-{thread}"))
                gateway.check("alice", "app")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    events = read_events(settings)
    for thread_number in range(8):  # nothing lost, and each client's events in order
        mine = [event["request_id"] for event in events if event["user"] == f"user-{thread_number}"]
        assert mine == [f"{thread_number}-{number}" for number in range(300)]
    assert len(events) == 2_400


class HttpClient:
    """A client of the HTTP gateway over a real connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._address = urlsplit(address).netloc

    def call(
        self, method: str, path: str, user: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, Any]:
        """Status, headers and the JSON body."""
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"X-User": user, "X-Client-Id": "app", **(headers or {})})
            response = connection.getresponse()
            content = response.read()
            is_json = "json" in (response.getheader("Content-Type") or "")
            return response.status, response.headers, json.loads(content) if is_json else content.decode()
        finally:
            connection.close()


@pytest.fixture
def settings(kafka_broker: str) -> Settings:
    return own_settings(kafka_broker)


@pytest.fixture
def client(settings: Settings) -> Iterator[HttpClient]:
    """A running HTTP gateway and deciding side; the client of that gateway."""
    backend = KafkaBackend(settings.kafka)
    with (
        deciding_side(settings),
        Gateway(settings.kafka, options(settings, name="http")) as gateway,
    ):
        eventually(lambda: gateway.stats().limits_version == 1)
        server = HttpServer(create_app(gateway, backend))
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield HttpClient(server.address)
        finally:
            server.stop()
            thread.join()
            backend.close()


def partition_counts(settings: Settings, names: Sequence[str]) -> list[int]:
    """How many partitions each topic has; 0 for one that doesn't exist."""
    with KafkaAdminClient(bootstrap_servers=settings.kafka["bootstrap.servers"]) as admin:
        described = {topic["name"]: topic for topic in admin.describe_topics(list(names))}
        return [0 if described[name]["error_code"] else len(described[name]["partitions"]) for name in names]


def own_topics(count: int) -> list[str]:
    return [f"topic-{uuid.uuid4().hex[:8]}" for _ in range(count)]


def eight_partitions(names: Sequence[str]) -> dict[str, object]:
    return {"topics": [{"name": name, "partitions": 8} for name in names]}


def test_one_request_has_its_first_topics_created_and_the_rest_refused(client: HttpClient, settings: Settings) -> None:
    """Burst 11: 8 of 11 leave 3, 8 more leave -5, and the third topic is refused until 5 s have passed."""
    names = own_topics(3)

    status, _, answer = client.call("POST", "/topics", "alice", eight_partitions(names))

    assert status == 200
    assert {topic["name"]: topic["error_code"] for topic in answer["topics"]} == dict(
        zip(names, (0, 0, 89), strict=True)
    )
    assert answer["throttle_time_ms"] == 5_000
    assert partition_counts(settings, names) == [8, 8, 0]

    status, headers, answer = client.call("DELETE", f"/topics/{names[0]}", "alice")
    assert status == 429
    assert 1 <= int(headers["Retry-After"]) <= 5
    assert headers["RateLimit"] == f'"controller_mutation_rate";r=0;t={headers["Retry-After"]}'
    assert headers["RateLimit-Policy"] == '"controller_mutation_rate";q=1;qu="sluice-partitions";w=1'
    assert answer["violated-policies"] == ["controller_mutation_rate"]
    assert partition_counts(settings, names[:1]) == [8]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_calls_of_the_page_can_be_pasted(client: HttpClient) -> None:
    page = (Path(__file__).parents[2] / "docs" / "gateways.md").read_text()
    lines = re.findall(r"^curl .*$", page, re.MULTILINE)

    commands = [shlex.split(line.replace("http://127.0.0.1:8080", client.address)) for line in lines]
    answers = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands]

    assert len(answers) == 5
    for answer in answers[:4]:
        assert answer.startswith("HTTP/1.1 200 OK")
        assert '"throttle_time_ms":0' in answer
    assert '"offset":0' in answers[2]
    assert 'sluice_gateway_decisions_total{gateway="http"}' in answers[4]


def test_an_old_client_is_never_refused_and_muted_afterwards(client: HttpClient, settings: Settings) -> None:
    names = own_topics(3)

    status, _, answer = client.call("POST", "/topics?api_version=5", "old", eight_partitions(names))

    assert status == 200
    assert {topic["error_code"] for topic in answer["topics"]} == {0}
    assert answer["throttle_time_ms"] == 13_000
    assert partition_counts(settings, names) == [8, 8, 8]
    assert client.call("DELETE", f"/topics/{names[0]}?api_version=4", "old")[0] == 429


@pytest.mark.alone
def test_a_client_that_retries_gets_all_its_topics(client: HttpClient, settings: Settings) -> None:
    """550 of 1 100 partitions at 50 a second: KIP-599's client waits and asks for the refused topics alone."""
    names = own_topics(3)
    sizes = dict(zip(names, (500, 60, 1), strict=True))
    waited: list[int] = []

    def create(topics: Any) -> TopicErrors:
        body = {"topics": [{"name": name, "partitions": sizes[name]} for name in topics]}
        status, headers, answer = client.call("POST", "/topics", "quick", body)
        if status == 429 and "topics" not in answer:
            return dict.fromkeys(topics, ThrottlingQuotaExceededError(int(headers["Retry-After"]) * 1000))
        assert "topics" in answer, (status, answer)
        refused = ThrottlingQuotaExceededError(answer["throttle_time_ms"])
        return {topic["name"]: refused if topic["error_code"] == 89 else None for topic in answer["topics"]}

    def sleep(wait_ms: int) -> None:
        waited.append(wait_ms)
        time.sleep(wait_ms / 1000)  # the client's own waiting is what is tested

    results = retry_topics(create, names, sleep=sleep)

    assert results == dict.fromkeys(names)
    assert waited
    assert partition_counts(settings, names) == [500, 60, 1]


def test_records_are_charged_with_the_bytes_that_were_written(client: HttpClient, settings: Settings) -> None:
    [topic] = own_topics(1)
    assert client.call("POST", "/topics", "dave", {"topics": [{"name": topic, "partitions": 2}]})[0] == 200
    records = [{"value": "v" * 2_000, "key": "key", "partition": 0}, {"value": "é" * 500, "partition": 1}]

    status, _, answer = client.call("POST", f"/topics/{topic}/records", "carol", {"records": records})

    assert (status, [offset["offset"] for offset in answer["offsets"]]) == (200, [0, 0])
    eventually(lambda: client.call("POST", f"/topics/{topic}/records", "carol", {"records": records[1:]})[0] == 429)
    produced = next(event for event in read_events(settings) if event["api"] == "Produce")
    sizes = {touched["partition"]: touched["bytes"] for touched in produced["topic_partitions"]}
    assert sizes == {0: 2_003, 1: 1_000}
    assert produced["request_time_ns"] > 0
    assert produced["gateway"] == "http"


def test_a_record_for_a_partition_that_is_not_there_is_refused(client: HttpClient) -> None:
    [topic] = own_topics(1)
    client.call("POST", "/topics", "dave", {"topics": [{"name": topic, "partitions": 2}]})

    status, _, problem = client.call(
        "POST", f"/topics/{topic}/records", "dave", {"records": [{"value": "v", "partition": 2}]}
    )

    assert (status, problem["title"]) == (400, "a record is for a partition that the topic doesn't have; it has 2")


def test_partitions_are_charged_by_how_many_are_added(client: HttpClient, settings: Settings) -> None:
    [topic] = own_topics(1)
    client.call("POST", "/topics", "dave", {"topics": [{"name": topic, "partitions": 2}]})

    status, _, answer = client.call("POST", f"/topics/{topic}/partitions", "dave", {"count": 5})

    assert (status, answer["topics"][0]["error_code"]) == (200, 0)
    assert partition_counts(settings, [topic]) == [5]
    assert client.call("DELETE", f"/topics/{topic}", "dave")[0] == 200
    charged = {event["api"]: event["mutations"] for event in read_events(settings) if "mutations" in event}
    assert charged == {
        "CreateTopics": [{"topic": topic, "partitions": 2}],
        "CreatePartitions": [{"topic": topic, "partitions": 3}],
        "DeleteTopics": [{"topic": topic, "partitions": 5}],
    }


def test_validating_changes_nothing(client: HttpClient, settings: Settings) -> None:
    [topic] = own_topics(1)
    body = {"topics": [{"name": topic, "partitions": 50}], "validate_only": True}

    assert client.call("POST", "/topics", "alice", body)[0] == 200
    assert partition_counts(settings, [topic]) == [0]
    assert client.call("POST", "/topics", "alice", eight_partitions([topic]))[0] == 200


def test_a_topic_that_exists_is_reported_and_not_charged(client: HttpClient, settings: Settings) -> None:
    [topic] = own_topics(1)
    client.call("POST", "/topics", "dave", eight_partitions([topic]))

    status, _, answer = client.call("POST", "/topics", "alice", eight_partitions([topic]))

    assert (status, answer["topics"][0]["error_code"]) == (200, 36)
    assert not [event for event in read_events(settings) if event["user"] == "alice" and "mutations" in event]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/topics", {"topics": []}, 400),
        ("POST", "/topics", [1], 400),
        ("POST", "/topics", {"topics": [{"name": "a/b"}]}, 400),
        ("POST", "/topics", {"topics": [{"name": "a"}, {"name": "a"}]}, 400),
        ("POST", "/topics?api_version=x", {"topics": [{"name": "a"}]}, 400),
        ("POST", "/topics/no-such-topic/records", {"records": [{"value": "v"}]}, 404),
        ("DELETE", "/topics/no-such-topic", None, 404),
        ("DELETE", "/topics/a%2F..%2Fb", None, 400),
        ("GET", "/", None, 404),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(
    client: HttpClient, method: str, path: str, body: object, status: int
) -> None:
    answered, headers, problem = client.call(method, path, "dave", body)

    assert answered == status
    assert headers["Content-Type"] == "application/problem+json"
    assert problem["status"] == status


def test_headers_of_strangers_are_never_echoed(client: HttpClient) -> None:
    for name in ("x" * 1_000, "a%0d%0aSet-Cookie:%20b"):
        status, headers, problem = client.call("POST", "/topics", name, {})
        assert status == 400
        assert name[:20] not in json.dumps(problem)
        assert "Set-Cookie" not in headers


def test_too_large_a_body_is_refused_unread(client: HttpClient) -> None:
    status, _, _ = client.call("POST", "/topics", "dave", headers={"Content-Length": "99999999"})

    assert status == 413


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal_and_answers_what_is_under_way(kafka_broker: str, number: int) -> None:
    """Nothing decides, so a mutation is held: it is answered before the command ends."""
    arguments = ["--bootstrap-servers", kafka_broker, "--name", "by-hand"]
    command = [sys.executable, "-m", "scripts.demo.http_gateway", *arguments]
    settings = with_bootstrap_servers(load_settings(), kafka_broker)
    ensure_topics(settings.topics, settings.kafka)
    before = len(read_events(settings))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        client = HttpClient(service.stdout.readline().strip())
        body = {"topics": [{"name": own_topics(1)[0]}]}
        answers: list[int] = []
        held = threading.Thread(target=lambda: answers.append(client.call("POST", "/topics", "dave", body)[0]))
        held.start()
        eventually(lambda: len(read_events(settings)) > before)

        service.send_signal(number)
        held.join()
        output, errors = service.communicate(timeout=60)

    assert answers == [200]
    assert (service.returncode, output, errors) == (0, "", "")


def test_prometheus_can_read_the_gateway(client: HttpClient) -> None:
    client.call("POST", "/topics", "dave", eight_partitions(own_topics(1)))

    status, _, text = client.call("GET", "/metrics", "")

    assert status == 200
    assert 'sluice_gateway_dropped_events_total{gateway="http"} 0.0' in text
    assert 'sluice_gateway_decision_age_seconds{gateway="http",quantile="0.99"}' in text
