"""Topics on a real broker: made where a cluster refuses configs, and compared where somebody else has made them."""

import logging
import os
import shlex
import subprocess
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from scripts.java.build import PLUGIN
from scripts.java.compiler import compile_java
from sluice.jvm.java import find_java
from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.errors import TopicCreationError
from sluice.kafka_io.topics import differing_topics, ensure_topics
from sluice_demo.broker import Broker
from sluice_demo.jars import BROKER_JARS
from tests.broker_plugin import JAVA_SOURCES
from tests.deciding_side import own_topics
from tests.waiting import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A broker that refuses topics with the configs in a file; the file and the broker's address."""
    folder = tmp_path_factory.mktemp("managed")
    refused, classes = folder / "refused", folder / "classes"
    refused.touch()
    classes.mkdir()
    policy = JAVA_SOURCES / "sluice" / "kafka" / "RefusingPolicy.java"
    compile_java([policy], BROKER_JARS.paths(), classes, PLUGIN.release)
    policies = dict.fromkeys(
        ("create.topic.policy.class.name", "alter.config.policy.class.name"), "sluice.kafka.RefusingPolicy"
    )
    properties = policies | {"test.refused.configs": str(refused)}
    with Broker(folder / "broker", properties, plugins=[classes]) as broker:
        yield refused, broker.bootstrap_servers


def configs_of(topics: TopicSettings, servers: str) -> dict[str, dict[str, str]]:
    """The configs that each topic sets itself, by the name of its setting."""
    names = {
        getattr(topics, name): name for name in ("requests", "decisions", "dead_letters", "limits", "waits", "sums")
    }
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])["topic"]
    return {
        names[topic]: {
            key: each["value"] for key, each in configs.items() if each["config_source"].endswith("TOPIC_CONFIG")
        }
        for topic, configs in found.items()
    }


@pytest.mark.parametrize(
    "refused",
    [["compression.type", "segment.ms"], ["compression.type", "segment.ms", "message.timestamp.before.max.ms"]],
    ids=["two configs", "three configs"],
)
def test_a_cluster_that_refuses_configs_gets_the_topics_without_them(
    managed: tuple[Path, str], caplog: pytest.LogCaptureFixture, refused: list[str]
) -> None:
    """One line for each topic says what is lost, and later starts name the rest."""
    file, servers = managed
    file.write_text("\n".join(refused))
    topics, kafka = own_topics(), {"bootstrap.servers": servers}
    caplog.set_level(logging.WARNING, "sluice.topics")

    created = ensure_topics(topics, kafka)

    found = configs_of(topics, servers)
    assert len(created) == len(found) == 6
    assert not set(refused) & {config for configs in found.values() for config in configs}
    assert {found["limits"]["cleanup.policy"], found["waits"]["cleanup.policy"]} == {"compact"}
    assert found["requests"]["retention.ms"] == "86400000"
    (line,) = [line for line in caplog.messages if topics.requests in line]
    assert "without compression.type a small record may fill Java's memory" in line
    assert "(Altering compression.type is not allowed.)" in line
    assert ensure_topics(topics, kafka) == []
    first = differing_topics(topics, kafka)[0]
    assert first.topic == topics.requests
    assert "compression.type is producer" in first.text
    asked: dict[tuple[str, str], bool] = {}
    assert topics.requests not in {each.topic for each in differing_topics(topics, kafka, refused=asked)}
    assert asked[topics.requests, "compression.type"]
    file.write_text("")
    assert "compression.type is producer" in differing_topics(topics, kafka, refused={})[0].text


def test_a_cluster_that_refuses_every_topic_is_answered_with_the_line_that_makes_one(managed: tuple[Path, str]) -> None:
    file, servers = managed
    file.write_text("replication.factor")
    topics = own_topics()

    with pytest.raises(TopicCreationError) as raised:
        ensure_topics(topics, {"bootstrap.servers": servers})

    text = str(raised.value)
    assert f"topic {topics.requests} can't be created: Altering replication.factor is not allowed." in text
    file.write_text("")
    run_lines(text)
    assert configs_of(topics, servers)["requests"]["compression.type"] == "uncompressed"


def test_the_lines_of_a_topic_that_was_made_otherwise_make_it_what_is_needed(kafka_broker: str) -> None:
    """As Kafka makes one by itself when somebody writes to it."""
    topics, kafka = own_topics(), {"bootstrap.servers": kafka_broker}
    with KafkaAdminClient(bootstrap_servers=kafka_broker) as admin:
        admin.create_topics({topics.requests: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    ensure_topics(topics, kafka)

    (found,) = differing_topics(topics, kafka)

    assert found.topic == topics.requests
    assert not found.is_fatal
    for what in ("compression.type is producer", "message.timestamp.before.max.ms is 9", "partitions are 1 of 4"):
        assert what in found.text
    run_lines(found.text)
    eventually(lambda: differing_topics(topics, kafka) == [])  # a broker applies configs after it has answered


def test_a_requests_topic_that_is_compacted_is_fatal(kafka_broker: str) -> None:
    """Events would vanish before the job has read them, and a dead letter without a key ends the query."""
    topics, kafka = own_topics(partitions=1), {"bootstrap.servers": kafka_broker}
    ensure_topics(topics, kafka)
    with KafkaAdminClient(bootstrap_servers=kafka_broker) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topics.requests, {"cleanup.policy": "compact"})])
    eventually(lambda: bool(differing_topics(topics, kafka)))  # a broker applies configs after it has answered

    (found,) = differing_topics(topics, kafka)

    assert found.is_fatal
    assert f"--entity-name {topics.requests} --add-config cleanup.policy=delete" in found.text


def test_topics_that_are_missing_or_of_one_replica_on_one_broker_do_not_differ(kafka_broker: str) -> None:
    topics, kafka = own_topics(), {"bootstrap.servers": kafka_broker}
    assert differing_topics(topics, kafka) == []
    ensure_topics(topics, kafka)

    assert differing_topics(topics, kafka) == []
    (found, *_) = differing_topics(replace(topics, replication_factor=3), kafka)
    assert "replicas are 1 of 3" in found.text


def run_lines(text: str) -> None:
    """Do what the command lines in a message say; Kafka's own tool does it where the broker's jars have that."""
    java, _ = find_java()
    for line in text.replace(": kafka-", "; kafka-").split("; "):
        words = shlex.split(line) if line.startswith("kafka-") else []
        if words[:1] == ["kafka-configs.sh"]:
            class_path = os.pathsep.join(map(str, BROKER_JARS.paths()))
            command = [java, "-XX:TieredStopAtLevel=1", "-cp", class_path, "kafka.admin.ConfigCommand", *words[1:]]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        elif words:
            run_kafka_topics(words[1:])


def run_kafka_topics(words: list[str]) -> None:
    """As kafka-topics.sh, whose jar the embedded broker lacks."""
    parser = ArgumentParser()
    for flag in ("--create", "--alter"):
        parser.add_argument(flag, action="store_true")
    for option in ("--bootstrap-server", "--topic"):
        parser.add_argument(option, required=True)
    parser.add_argument("--config", action="append", default=[])
    for number in ("--partitions", "--replication-factor"):
        parser.add_argument(number, type=int)
    asked = parser.parse_args(words)
    with KafkaAdminClient(bootstrap_servers=asked.bootstrap_server) as admin:
        if asked.alter:
            admin.create_partitions({asked.topic: asked.partitions})
            return
        configs = dict(config.split("=", 1) for config in asked.config)
        counts = {"num_partitions": asked.partitions, "replication_factor": asked.replication_factor}
        admin.create_topics({asked.topic: {**counts, "configs": configs}}, wait_for_metadata=True)
