"""Telemetry and notices of a slow client, through topics of a real broker."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAlreadyExistsError

from recorded import write_decisions
from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice_insight.slow.sources import TELEMETRY_TOPIC
from tests.builders import decision
from tests.commands import SLUICE, run_sluice
from tests.deciding_side import own_topics
from tests.waiting import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture
def topics() -> TopicSettings:
    return own_topics(partitions=1)


@pytest.fixture
def settings(topics: TopicSettings, kafka_broker: str, tmp_path: Path) -> Path:
    ensure_topics(topics, {"bootstrap.servers": kafka_broker})
    names = {name: each for name, each in asdict(topics).items() if isinstance(each, str)}
    tables = {name: str(tmp_path / name) for name in ("quotas", "decisions", "overrides")}
    content = {"kafka": {"bootstrap.servers": kafka_broker}, "topics": names, "delta": tables}
    (file := tmp_path / "settings.yaml").write_text(yaml.safe_dump(content))
    return file


def send(servers: str, topic: str, *records: tuple[bytes, dict[str, Any]]) -> None:
    with closing(KafkaProducer(bootstrap_servers=servers)) as producer:
        for key, value in records:
            producer.send(topic, json.dumps(value).encode(), key).get(120)


def test_what_a_client_and_its_broker_told_is_in_the_line_of_time(
    settings: Path, kafka_broker: str, tmp_path: Path
) -> None:
    """Those of other clients and brokers are not."""
    at_ms, mine = now_ms() - 30_000, f"app-{tmp_path.name}"
    row = decision(at_ms, client_id=mine, gateway="b", instance="b-2-0a1b2c3d", throttled_by=[])
    write_decisions(tmp_path / "decisions", [row])
    with closing(KafkaAdminClient(bootstrap_servers=kafka_broker)) as admin, suppress(TopicAlreadyExistsError):
        admin.create_topics({TELEMETRY_TOPIC: {"num_partitions": 1, "replication_factor": 1}})
    own = {"kind": "client", "at_ms": at_ms, "broker": "2", "client_instance_id": "i", "user": "alice"}
    slow = {"consumer.time.between.poll.avg": 9_000.0, "consumer.poll.idle.ratio.avg": 0.01, "x": None}
    busy = {"kind": "broker", "at_ms": at_ms, "metrics": {"request_queue_ms_p99": 900.0}}
    send(
        kafka_broker,
        TELEMETRY_TOPIC,
        (b"client/i", own | {"client_id": mine, "metrics": slow}),
        (b"client/j", own | {"client_id": "another", "metrics": slow | {"consumer.time.between.poll.avg": 70_000.0}}),
        (b"broker/3", busy | {"broker": "3"}),
        (b"client/k", {"kind": "later", "at_ms": "?"}),
    )
    ended = run_sluice("explain", "--slow", "--client-id", mine, "--config", settings)

    assert ended.output.startswith("not by the cluster: the consumer polled every 9.0 s; look at what it does between")
    assert "polled every 9.0 s" in ended.output.partition("TIME")[2]
    assert "broker 3" not in ended.output


@contextmanager
def noticing(settings: Path, topic: str) -> Iterator["subprocess.Popen[str]"]:
    command = [*SLUICE, "notices", "--config", str(settings), "--topic", topic]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


def test_a_client_that_waits_gets_one_notice_and_none_again_after_a_new_start(
    settings: Path, topics: TopicSettings, kafka_broker: str, tmp_path: Path
) -> None:
    topic = f"notices-{tmp_path.name}"

    def notices(count: int) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()

        def read() -> bool:
            with TopicReader({"bootstrap.servers": kafka_broker}, topic) as reader:
                records = [record for _, record in reader.read_to_end()] if reader.partitions() else []
            found[:] = [json.loads(each.key or b"") | json.loads(each.value or b"") for each in records]
            return len(found) >= count

        eventually(read)
        return found

    def waits(user: str) -> None:
        send(kafka_broker, topics.decisions, (b"", decision(now_ms(), user=user, wait_ms=60_000)))

    waits("alice")
    with noticing(settings, topic):
        first = notices(2)
    waits("alice")
    waits("bob")
    with noticing(settings, topic):
        both = notices(4)

    assert {(each["entity"]["user"], each["threshold"]) for each in first} == {("alice", "100"), ("alice", "throttled")}
    assert [each["entity"]["user"] for each in both] == ["alice", "alice", "bob", "bob"]
    assert all(each["quota"] == "producer_byte_rate" and each["limit"] == 1000.0 for each in both)
