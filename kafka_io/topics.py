"""Creates the Kafka topics that the job reads and writes."""

import logging
from collections.abc import Mapping
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError

from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.errors import TopicCreationError
from sluice.kafka_io.kafka_python import topic_id_text
from sluice.process.format import error_line
from sluice.state.contract.records import MAX_TIMESTAMP_MS

log = logging.getLogger("sluice.topics")

_Spec = tuple[int, Mapping[str, str]]
"""Partitions and configs of a topic."""

TOPIC_READY_TIMEOUT_MS = 30_000
"""Longest wait until all partitions of a new topic have leaders."""


_TIMES = {
    # A producer sets the time of its records. Spark's Kafka source fails at one whose microseconds are no 64-bit
    # integer, at every attempt, so the broker must refuse it. Kafka's own bound for the past is none.
    "message.timestamp.before.max.ms": str(MAX_TIMESTAMP_MS),
    "message.timestamp.after.max.ms": "3600000",  # Kafka's own since 4.0
}

_EVENTS = {
    # A compressed record of 1 MiB may be one of a GiB, and Spark would read it whole, until Java has no memory. The
    # broker compares what it stores with the topic's max.message.bytes, so it has to store what gateways mean.
    "compression.type": "uncompressed",
}

_LEASE = {"cleanup.policy": "compact", "segment.ms": "3600000"}  # a driver reads all of it when it starts

_LIMITS = {
    "cleanup.policy": "compact",
    # A new gateway reads this topic from its beginning, so it is kept short: segments are closed and compacted early.
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
}

_WAITS = _LIMITS | {"delete.retention.ms": "60000"}


_SUMS = {
    # Gateways read it as it grows, a new one the last seconds. Without the segments an hour would stay.
    "retention.ms": "600000",
    "segment.ms": "60000",
}


def ensure_topics(topics: TopicSettings, kafka: Mapping[str, str]) -> list[str]:
    """Creates the topics of the job that are missing; returns the names created.

    Existing topics are left as they are, but compacted ones get the configs that they lack. Raises
    KafkaUnavailableError if no broker can be reached, TopicCreationError if one refuses, UnsupportedPropertyError as
    kafka_python_config does.
    """
    return _ensure(_topic_specs(topics), topics, kafka)


def topic_id_now(admin: KafkaAdminClient, topic: str) -> str | None:
    """Kafka's id of a topic, which is another one when it is made again; None if there is no topic or no id.

    Raises KafkaError.
    """
    (found,) = admin.describe_topics([topic])
    topic_id = found.get("topic_id")
    return topic_id_text(UUID(topic_id)) if topic_id and not found["error_code"] else None


def ensure_lease_topic(topics: TopicSettings, kafka: Mapping[str, str]) -> list[str]:
    """As `ensure_topics` for the lease topic, which only a job with its checkpoint in shared storage needs."""
    return _ensure({topics.claims: (1, _LEASE)}, topics, kafka)  # one partition: its offsets order the acquisitions


def _ensure(specs: Mapping[str, _Spec], topics: TopicSettings, kafka: Mapping[str, str]) -> list[str]:
    wanted = {
        name: {"num_partitions": partitions, "replication_factor": topics.replication_factor, "configs": configs}
        for name, (partitions, configs) in specs.items()
    }
    with connect(KafkaAdminClient, kafka) as admin:
        try:
            existing = set(admin.list_topics())
            missing = {name: spec for name, spec in wanted.items() if name not in existing}
            _complete(admin, {name: configs for name, (_, configs) in specs.items() if name in existing})
            if not missing:
                return []
            answers = admin.create_topics(missing, raise_errors=False)["topics"]
            created = [answer["name"] for answer in answers if _is_created(answer)]
            admin.wait_for_topics(list(missing), timeout_ms=TOPIC_READY_TIMEOUT_MS)
        except (KafkaError, OSError) as error:
            raise TopicCreationError(
                f"topics at {kafka['bootstrap.servers']} can't be listed or created: {error_line(error)}"
            ) from error
    return created


def _complete(admin: KafkaAdminClient, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Give the compacted ones of these topics the configs that they lack, such as those that an earlier release made.

    A config that an operator has set stays. A login without the rights leaves a line in the log: all works, but whoever
    reads the topic from its beginning takes longer with each week.
    """
    for name, configs in topics.items():
        if "cleanup.policy" not in configs:
            continue
        topic = ConfigResource(ConfigResourceType.TOPIC, name)
        found = admin.describe_configs([topic], config_filter="all")["topic"][name]
        own = {key for key, config in found.items() if config["config_source"] == "DYNAMIC_TOPIC_CONFIG"}
        lacking = {key: value for key, value in configs.items() if key not in own}
        text = ",".join(f"{key}={value}" for key, value in lacking.items())
        if not found:
            log.info("this login can't see if topic %s is kept short (DescribeConfigs): it should have %s", name, text)
        elif lacking:
            topic = ConfigResource(ConfigResourceType.TOPIC, name, lacking)
            if (answer := admin.alter_configs([topic], raise_on_unknown=False)["topic"][name]) != "OK":
                log.warning(
                    "topic %s isn't kept short, as this login can't alter it (%s); give it %s", name, answer, text
                )


def _topic_specs(topics: TopicSettings) -> dict[str, _Spec]:
    large = {"max.message.bytes": str(topics.max_message_bytes)}
    return {
        topics.requests: (topics.partitions, _read_by_spark(topics.requests_retention_ms) | _EVENTS),
        topics.decisions: (topics.partitions, _read_by_spark(topics.decisions_retention_ms) | large),
        topics.dead_letters: (topics.partitions, _read_by_spark(topics.dead_letters_retention_ms) | large),
        topics.limits: (1, _LIMITS),  # one partition: a version ends after all its records
        topics.waits: (topics.partitions, _WAITS),
        topics.sums: (topics.partitions, _SUMS | large),
    }


def _read_by_spark(retention_ms: int) -> dict[str, str]:
    return {"retention.ms": str(retention_ms), **_TIMES}


def _is_created(answer: Mapping[str, object]) -> bool:
    """True for a topic created now, False if another process created it first. Raises TopicCreationError."""
    code = answer["error_code"]
    if code == TopicAlreadyExistsError.errno:
        return False
    if code != 0:
        reason = answer.get("error_message") or f"error code {code}"
        raise TopicCreationError(
            f"topic {answer['name']} can't be created: {reason}; see section topics of the settings"
        )
    return True
