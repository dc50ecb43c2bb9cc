"""The needs of Sluice of its topics, and the lines that give it; tests/integration/test_topics.py runs them."""

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
from kafka.errors import UnknownTopicOrPartitionError

from sluice.kafka_io import topics
from sluice.kafka_io.topic_needs import TopicFound, difference, needs
from tests.builders import DEFAULTS

TOPICS = DEFAULTS.topics
NEEDED = needs(TOPICS)


def found(topic: str, **configs: str) -> TopicFound:
    """A topic as Sluice makes it, on three brokers, but for these configs."""
    of_topic = NEEDED[topic]
    changed = {name.replace("_", "."): value for name, value in configs.items()}
    return TopicFound(of_topic.partitions, 3, {**of_topic.configs, "min.insync.replicas": "2", **changed})


def text_of(topic: str, of_topic: TopicFound, replicas: int = 3) -> str:
    """The line of a topic that differs; empty for another one."""
    found = difference("h:9092", topic, NEEDED[topic], of_topic, replicas)
    return found.text if found else ""


@pytest.mark.parametrize("topic", NEEDED)
def test_a_topic_as_sluice_makes_it_is_as_it_needs_it(topic: str) -> None:
    assert not text_of(topic, found(topic))
    assert not text_of(topic, found(topic)._replace(configs={})), "what nobody may see isn't wrong"


@pytest.mark.parametrize(
    ("topic", "configs", "words", "change"),
    [
        ("requests", {"compression_type": "producer"}, "compression.type is producer", "compression.type=uncompressed"),
        ("requests", {"retention_ms": "3600000"}, "retention.ms is 3600000", "retention.ms=86400000"),
        (
            "requests",
            {"message_timestamp_type": "LogAppendTime"},
            "is LogAppendTime",
            "message.timestamp.type=CreateTime",
        ),
        (
            "decisions",
            {"message_timestamp_before_max_ms": str(2**63 - 1)},
            "before.max.ms is 9223372036854775807",
            "message.timestamp.before.max.ms=253402300799999",
        ),
        (
            "dead_letters",
            {"message_timestamp_after_max_ms": "7200000"},
            "after.max.ms is 7200000",
            "message.timestamp.after.max.ms=3600000",
        ),
        ("decisions", {"max_message_bytes": "1048588"}, "max.message.bytes is 1048588", "max.message.bytes=8388608"),
        ("sums", {"segment_ms": "604800000"}, "segment.ms is 604800000", "segment.ms=60000"),
        ("limits", {"cleanup_policy": "delete"}, "cleanup.policy is delete", "cleanup.policy=compact"),
        ("waits", {"min_cleanable_dirty_ratio": "0.5"}, "ratio is 0.5", "min.cleanable.dirty.ratio=0.1"),
        ("waits", {"min_insync_replicas": "3"}, "min.insync.replicas is 3 of 3", "min.insync.replicas=2"),
    ],
)
def test_a_config_that_differs_is_named_with_the_line_that_mends_it(
    topic: str, configs: dict[str, str], words: str, change: str
) -> None:
    topic = getattr(TOPICS, topic)

    text = text_of(topic, found(topic, **configs))

    line = f"--alter --entity-type topics --entity-name {topic} --add-config {change}"
    assert text.startswith(f"topic {topic}: ")
    assert words in text
    assert text.endswith(f"; kafka-configs.sh --bootstrap-server h:9092 {line}")


@pytest.mark.parametrize(
    "configs",
    [{"retention_ms": "-1"}, {"retention_ms": "604800000"}, {"message_timestamp_after_max_ms": "1000"}],
    ids=["kept for ever", "kept for longer", "a narrower bound"],
)
def test_a_config_that_gives_more_than_is_needed_is_right(configs: dict[str, str]) -> None:
    assert not text_of(TOPICS.requests, found(TOPICS.requests, **configs))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partitions": 1}, "partitions are 1 of 4 (as many tasks read and write it); kafka-topics.sh"),
        ({"replicas": 1}, "replicas are 1 of 3 (it is away with a broker); kafka-reassign-partitions.sh"),
    ],
)
def test_too_few_partitions_or_replicas_are_named(change: dict[str, Any], words: str) -> None:
    of_topic = found(TOPICS.requests)._replace(**change)

    assert words in text_of(TOPICS.requests, of_topic)


def test_more_replicas_in_sync_than_there_are_is_named_where_one_broker_is_all() -> None:
    """Before Kafka 4.0 such a topic takes no record with acks=all."""
    alone = found(TOPICS.requests)._replace(replicas=1)

    assert "min.insync.replicas is 2 of 1 replicas (it may take no records)" in text_of(TOPICS.requests, alone, 1)


@pytest.mark.parametrize("topic", NEEDED)
def test_only_compaction_that_removes_what_is_needed_is_fatal(topic: str) -> None:
    other = "delete" if NEEDED[topic].is_compacted else "compact,delete"
    different = difference("h:9092", topic, NEEDED[topic], found(topic, cleanup_policy=other), 3)

    assert different is not None
    assert different.is_fatal is not NEEDED[topic].is_compacted


@pytest.mark.parametrize(("chosen", "wanted"), [(None, 2), (1, None), (2, 2), (3, 3)])
def test_one_replica_is_a_fault_on_several_brokers_unless_the_settings_ask_for_it(
    chosen: int | None, wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trouble topic_unfit could not be ended in a cluster that has one replica of each topic on purpose."""
    partitions = [{"replica_nodes": [1]}] * 4
    admin = MagicMock()
    admin.describe_cluster.return_value = {"brokers": [1, 2, 3]}
    admin.describe_topics.side_effect = lambda names: [
        {"name": name, "error_code": 0, "partitions": partitions} for name in names
    ]
    admin.describe_configs.return_value = {"topic": {}}
    monkeypatch.setattr(topics, "connect", lambda *_: nullcontext(admin))

    differing = topics.differing_topics(replace(TOPICS, replication_factor=chosen), {"bootstrap.servers": "h:9092"})

    expected = [] if wanted is None else [f"replicas are 1 of {wanted}"] * len(NEEDED)
    assert [re.search("replicas are 1 of .", each.text)[0] for each in differing] == expected  # type: ignore[index]
    assert replace(TOPICS, replication_factor=chosen).replicas == (chosen or 1)


def test_a_config_that_can_not_be_tried_is_judged_as_it_is_and_hides_no_other_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = {TOPICS.requests: UnknownTopicOrPartitionError("it was just deleted"), TOPICS.decisions: 44}
    admin = MagicMock()
    admin.describe_cluster.return_value = {"brokers": [1]}
    admin.describe_topics.return_value = [
        {"name": name, "error_code": 0, "partitions": [{"replica_nodes": [1]}] * 4} for name in tried
    ]
    admin.describe_configs.return_value = {"topic": {name: {"retention.ms": {"value": "60000"}} for name in tried}}
    admin.tried_config.side_effect = lambda topic, *_: _told(tried[topic])
    monkeypatch.setattr(topics, "connect", lambda *_: nullcontext(admin))
    refused: dict[tuple[str, str], bool] = {}

    differing = topics.differing_topics(TOPICS, {"bootstrap.servers": "h:9092"}, refused=refused)

    assert [each.topic for each in differing] == [TOPICS.requests]
    assert refused == {(TOPICS.decisions, "retention.ms"): True}


def _told(answer: Exception | int) -> int:
    if isinstance(answer, Exception):
        raise answer
    return answer
