"""The example of an HTTP gateway on a real server and broker; the deciding side is the job's arithmetic alone."""

import http.client
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from kafka import KafkaAdminClient, KafkaProducer

from sluice import Gateway, WhenFull
from sluice.configs.settings import Settings, load_settings, with_bootstrap_servers
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.gateways import gateway_options
from sluice_http.examples.http_gateway.app import MAX_BODY_BYTES, KafkaService, create_app
from sluice_http.examples.retry import ThrottlingQuotaExceededError, TopicErrors, retry_topics
from tests.builders import quota
from tests.deciding_side import deciding_side, own_settings, read_events
from tests.gateway_loop import Clock
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

REPOSITORY = Path(__file__).parents[4]

QUOTAS = (
    quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, user="anna"),  # burst: 11 partitions
    quota(QuotaKind.CONTROLLER_MUTATION_RATE, 5.0, user="quick"),  # burst: 55
    quota(QuotaKind.PRODUCER_BYTE_RATE, 100.0, user="carol"),
)


class HttpClient:
    """A client of the HTTP gateway over a real connection."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call(self, method: str, path: str, user: str, body: object = None) -> tuple[int, http.client.HTTPMessage, Any]:
        """Status, headers and the JSON body."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=120)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"X-User": user, "X-Client-Id": "app"})
            response = connection.getresponse()
            content = response.read()
            is_json = "json" in (response.getheader("Content-Type") or "")
            return response.status, response.headers, json.loads(content) if is_json else content.decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def settings(kafka_broker: str) -> Settings:
    return own_settings(kafka_broker)


@pytest.fixture(scope="module")
def clock() -> Clock:
    clock = Clock()
    clock.ms = now_ms() - 600_000
    return clock


@pytest.fixture(scope="module")
def client(settings: Settings, clock: Clock, kafka_broker: str) -> Iterator[HttpClient]:
    """The client of a running HTTP gateway, whose events are decided."""
    with (
        deciding_side(settings, QUOTAS),
        Gateway(
            settings.kafka, gateway_options(settings, name="http", when_full=WhenFull.DROP), clock_ms=clock
        ) as gateway,
        KafkaAdminClient(bootstrap_servers=kafka_broker) as admin,
        KafkaProducer(
            bootstrap_servers=kafka_broker, allow_auto_create_topics=False, max_request_size=MAX_BODY_BYTES // 2
        ) as producer,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        eventually(lambda: gateway.stats().limits_version == 1)
        app = create_app(gateway, KafkaService(gateway, admin, producer))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join()


def partition_counts(settings: Settings, names: Sequence[str]) -> list[int]:
    """The number of partitions of each topic; 0 for one that doesn't exist."""
    with KafkaAdminClient(bootstrap_servers=settings.kafka["bootstrap.servers"]) as admin:
        described = {topic["name"]: topic for topic in admin.describe_topics(list(names))}
        return [0 if described[name]["error_code"] else len(described[name]["partitions"]) for name in names]


def own_topics(count: int) -> list[str]:
    return [f"topic-{uuid.uuid4().hex[:8]}" for _ in range(count)]


def produce_event(settings: Settings, user: str) -> dict[str, Any]:
    """The event of the one Produce request of this user."""

    def found() -> list[dict[str, Any]]:
        return [event for event in read_events(settings) if (event["api"], event.get("user")) == ("Produce", user)]

    eventually(lambda: bool(found()))
    [event] = found()
    return event


def test_a_body_that_is_too_long_or_never_complete_is_refused_and_its_connection_closed(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself would take a body of any length into memory, and wait for the rest of one for ever."""
    monkeypatch.setattr("sluice_http.examples.http_gateway.app.BODY_S", 0.2)
    place = urlsplit(client.address)
    for sent, status in ((b"x" * (MAX_BODY_BYTES + 1), 413), (b"x", 408)):
        with socket.create_connection((place.hostname, place.port), timeout=120) as connection:
            connection.sendall(b"POST /topics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n" + sent)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert (answer.status, answer.will_close) == (status, True)


def test_one_request_has_its_first_topics_created_and_the_rest_refused(client: HttpClient, settings: Settings) -> None:
    """Burst 11: 8 of 11 leave 3, 8 more leave -5, and the third topic is refused until 5 s have passed."""
    names = own_topics(3)

    status, _, answer = client.call("POST", "/topics", "anna", dict.fromkeys(names, 8))

    assert status == 200
    assert [topic["error_code"] for topic in answer["topics"]] == [0, 0, 89]
    assert answer["throttle_time_ms"] == 5_000
    assert partition_counts(settings, names) == [8, 8, 0]

    status, headers, answer = client.call("DELETE", f"/topics/{names[0]}", "anna")
    assert status == 429
    assert headers["Retry-After"] == "5"
    assert headers["RateLimit"] == '"controller_mutation_rate";r=0;t=5'
    assert headers["RateLimit-Policy"] == '"controller_mutation_rate";q=1;qu="sluice-partitions";w=1'
    assert answer["violated-policies"] == ["controller_mutation_rate"]
    assert partition_counts(settings, names[:1]) == [8]


def test_a_client_that_retries_gets_all_its_topics(client: HttpClient, settings: Settings, clock: Clock) -> None:
    """A burst of 55, then 5 partitions a second: KIP-599's client waits and asks for the refused topics alone."""
    names = own_topics(3)
    sizes = dict(zip(names, (50, 6, 1), strict=True))
    waited: list[int] = []

    def create(topics: Collection[str]) -> TopicErrors:
        status, headers, answer = client.call("POST", "/topics", "quick", {name: sizes[name] for name in topics})
        if status == 429 and "topics" not in answer:
            return dict.fromkeys(topics, ThrottlingQuotaExceededError(int(headers["Retry-After"]) * 1000))
        refused = ThrottlingQuotaExceededError(answer["throttle_time_ms"])
        return {topic["name"]: refused if topic["error_code"] == 89 else None for topic in answer["topics"]}

    def sleep(wait_ms: int) -> None:
        waited.append(wait_ms)
        clock.ms += wait_ms

    results = retry_topics(create, names, clock_ms=clock, sleep=sleep)

    assert results == dict.fromkeys(names)
    assert waited
    assert partition_counts(settings, names) == [50, 6, 1]


def test_records_are_charged_with_the_bytes_that_were_written(client: HttpClient, settings: Settings) -> None:
    [topic] = own_topics(1)
    assert client.call("POST", "/topics", "dave", {topic: 1})[0] == 200
    records = [{"value": "v" * 2_000, "key": "key"}, {"value": "é" * 500}]

    status, _, answer = client.call("POST", f"/topics/{topic}/records", "carol", records)

    assert (status, [offset["offset"] for offset in answer["offsets"]]) == (200, [0, 1])
    assert client.call("POST", f"/topics/{topic}/records", "carol", records)[0] == 429
    produced = produce_event(settings, "carol")
    assert sum(touched["bytes"] for touched in produced["topic_partitions"]) == 3_003
    assert produced["request_time_ns"] > 0
    assert produced["gateway"] == "http"


def test_records_beside_one_that_kafka_refuses_are_charged(client: HttpClient, settings: Settings) -> None:
    """Otherwise one record that is too large would make all others free."""
    [topic] = own_topics(1)
    assert client.call("POST", "/topics", "dave", {topic: 1})[0] == 200

    status, _, problem = client.call(
        "POST", f"/topics/{topic}/records", "erin", [{"value": "v" * 100}, {"value": "v" * (MAX_BODY_BYTES // 2)}]
    )

    assert (status, problem["title"]) == (502, "Kafka refused: MessageSizeTooLargeError")
    produced = produce_event(settings, "erin")
    assert sum(touched["bytes"] for touched in produced["topic_partitions"]) == 100


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/topics", [1], 400),
        ("DELETE", "/topics/no-such-topic", None, 404),
        ("GET", "/", None, 404),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(
    client: HttpClient, method: str, path: str, body: object, status: int
) -> None:
    assert client.call(method, path, "dave", body)[0] == status


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_calls_of_the_page_can_be_pasted(client: HttpClient) -> None:
    page = (REPOSITORY / "extras" / "http" / "README.md").read_text()
    lines = re.findall(r"^curl .*$", page, re.MULTILINE)

    commands = [shlex.split(line.replace("http://127.0.0.1:8080", client.address)) for line in lines]
    answers = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands]

    assert len(answers) == 4
    for answer in answers[:3]:
        assert answer.startswith("HTTP/1.1 200 OK")
    assert '"offset":0' in answers[1]
    assert 'sluice_gateway_sums_total{gateway="http"}' in answers[3]
    assert 'sluice_gateway_dropped_events_total{gateway="http"} 0.0' in answers[3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal_and_publishes_what_it_has_charged(kafka_broker: str, number: int) -> None:
    settings = with_bootstrap_servers(load_settings(), kafka_broker)
    ensure_topics(settings.topics, settings.kafka)
    name, [topic] = uuid.uuid4().hex, own_topics(1)
    with KafkaAdminClient(bootstrap_servers=kafka_broker) as admin:
        admin.create_topics({topic: {"num_partitions": 1}}, wait_for_metadata=True)
    command = [str(REPOSITORY / "scripts" / "gateway"), "--bootstrap-servers", kafka_broker, "--name", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        client = HttpClient(service.stdout.readline().strip())
        status, _, _ = client.call("POST", f"/topics/{topic}/records", "dave", [{"value": "v"}])
        service.send_signal(number)
        output, errors = service.communicate(timeout=120)

    assert (status, service.returncode, output, errors) == (200, 0, "", "")
    [event] = [event for event in read_events(settings) if event["gateway"] == name]
    assert event["topic_partitions"] == [{"topic": topic, "partition": 0, "bytes": 1}]
