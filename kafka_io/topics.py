"""Creates the Kafka topics that the job reads and writes, and compares those that exist with what it needs."""

import logging
from collections.abc import Container, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidConfigurationError, KafkaError, PolicyViolationError, TopicAlreadyExistsError

from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.errors import KafkaUnavailableError, TopicCreationError, UnfitTopicError
from sluice.kafka_io.kafka_python import ConfigsAdmin, topic_id_text
from sluice.kafka_io.topic_needs import (
    TopicDifference,
    TopicFound,
    TopicNeeds,
    creation_line,
    difference,
    lacking_configs,
    lease_needs,
    lost_without,
    needs,
)
from sluice.process.format import error_line

log = logging.getLogger("sluice.topics")

TOPIC_READY_TIMEOUT_MS = 30_000
"""Longest wait until all partitions of a new topic have leaders."""

_REFUSED = (PolicyViolationError.errno, InvalidConfigurationError.errno)
"""The errors of a cluster that doesn't want a config, or doesn't know it."""


def ensure_topics(topics: TopicSettings, kafka: Mapping[str, str]) -> list[str]:
    """Creates the topics of the job that are missing; returns the names created.

    Existing topics are left as they are, but compacted ones get the configs that they lack. Raises
    KafkaUnavailableError if no broker can be reached, TopicCreationError if one refuses, UnsupportedPropertyError as
    kafka_python_config does.
    """
    return _ensure(needs(topics), topics, kafka)


def topic_id_now(admin: KafkaAdminClient, topic: str) -> str | None:
    """Kafka's id of a topic, which is another one when it is made again; None if there is no topic or no id.

    Raises KafkaError.
    """
    (found,) = admin.describe_topics([topic])
    topic_id = found.get("topic_id")
    return topic_id_text(UUID(topic_id)) if topic_id and not found["error_code"] else None


def ensure_lease_topic(topics: TopicSettings, kafka: Mapping[str, str]) -> list[str]:
    """As `ensure_topics` for the lease topic, which only a job with its checkpoint in shared storage needs."""
    return _ensure(lease_needs(topics), topics, kafka)


def _ensure(wanted: Mapping[str, TopicNeeds], topics: TopicSettings, kafka: Mapping[str, str]) -> list[str]:
    with connect(KafkaAdminClient, kafka) as admin:
        try:
            existing = set(admin.list_topics())
            missing = {name: each for name, each in wanted.items() if name not in existing}
            _complete(admin, {name: each for name, each in wanted.items() if name in existing})
            if not missing:
                return []
            created = _TopicMaker(admin, topics.replicas, kafka["bootstrap.servers"]).make(missing)
            admin.wait_for_topics(list(missing), timeout_ms=TOPIC_READY_TIMEOUT_MS)
        except (KafkaError, OSError) as error:
            raise TopicCreationError(
                f"topics at {kafka['bootstrap.servers']} can't be listed or created: {error_line(error)}"
            ) from error
    return created


class _TopicMaker:
    """Makes topics in a cluster whose policy may refuse some of their configs."""

    def __init__(self, admin: KafkaAdminClient, replication_factor: int, servers: str) -> None:
        self._admin = admin
        self._replication_factor = replication_factor
        self._servers = servers

    def make(self, missing: Mapping[str, TopicNeeds]) -> list[str]:
        """Make topics; returns those that no other process made first. Raises TopicCreationError, KafkaError.

        A config that the cluster refuses is left out, and one line in the log says what is lost.
        """
        answers = self._ask(missing)
        for name in [name for name, answer in answers.items() if answer["error_code"] in _REFUSED]:
            allowed, refused = self._allowed(name, missing[name])
            answers |= self._ask({name: allowed})
            if refused and not answers[name]["error_code"]:
                lost = "; ".join(f"without {key} {lost_without(key)} ({why})" for key, why in refused.items())
                log.warning("topic %s is made without what the cluster refuses: %s", name, lost)
        for name, answer in answers.items():
            if answer["error_code"] not in (0, TopicAlreadyExistsError.errno):
                line = creation_line(self._servers, name, missing[name], self._replication_factor)
                raise TopicCreationError(
                    f"topic {name} can't be created: {_reason(answer)}; see section topics of the settings, or let an"
                    f" administrator make it: {line}"
                )
        return [name for name, answer in answers.items() if not answer["error_code"]]

    def _allowed(self, name: str, wanted: TopicNeeds) -> tuple[TopicNeeds, dict[str, str]]:
        """The topic with the configs that the cluster takes, and its reasons for refusing the others.

        The config that makes a topic compacted stays.
        """
        kept = {key: value for key, value in wanted.configs.items() if key == "cleanup.policy" and wanted.is_compacted}
        refused: dict[str, str] = {}
        for key in [key for key in wanted.configs if key not in kept]:
            tried = wanted._replace(configs={**kept, key: wanted.configs[key]})
            answer = self._ask({name: tried}, validate_only=True)[name]
            if answer["error_code"] in _REFUSED:
                refused[key] = _reason(answer)
            else:
                kept = dict(tried.configs)
        return wanted._replace(configs=kept), refused

    def _ask(self, wanted: Mapping[str, TopicNeeds], validate_only: bool = False) -> dict[str, dict[str, Any]]:
        asked = {
            name: {
                "num_partitions": each.partitions,
                "replication_factor": self._replication_factor,
                "configs": dict(each.configs),
            }
            for name, each in wanted.items()
        }
        answers = self._admin.create_topics(asked, raise_errors=False, validate_only=validate_only)["topics"]
        return {answer["name"]: answer for answer in answers}


def _reason(answer: Mapping[str, Any]) -> str:
    return answer.get("error_message") or f"error code {answer['error_code']}"


Refused = MutableMapping[tuple[str, str], bool]


def differing_topics(
    topics: TopicSettings, kafka: Mapping[str, str], *, in_shared_storage: bool = False, refused: Refused | None = None
) -> list[TopicDifference]:
    """The topics that exist and differ from what the job needs; the lease topic counts `in_shared_storage`.

    A config that the login may not see doesn't differ. `refused`, if given, has and gets for a topic's config whether
    the cluster refuses it: then it doesn't differ either. Raises KafkaUnavailableError, KafkaError and OSError.
    """
    wanted = needs(topics) | (lease_needs(topics) if in_shared_storage else {})
    with connect(ConfigsAdmin, kafka) as admin:
        brokers = len(admin.describe_cluster()["brokers"])
        described = {each["name"]: each for each in admin.describe_topics(list(wanted)) if not each["error_code"]}
        asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in described]
        configs = admin.describe_configs(asked, config_filter="all")["topic"] if asked else {}
        found = {name: _found(described[name], configs.get(name, {})) for name in wanted if name in described}
        for name, each in found.items():
            if refused is None:
                break
            for key, value in lacking_configs(wanted[name], each).items():
                if (name, key) not in refused:
                    with suppress(KafkaError):  # of this topic alone: the config counts as one that could be set
                        refused[name, key] = admin.tried_config(name, key, value) in _REFUSED
            kept = {key: value for key, value in wanted[name].configs.items() if not refused.get((name, key))}
            wanted[name] = wanted[name]._replace(configs=kept)
    replicas = topics.replication_factor or min(2, brokers)
    servers = kafka["bootstrap.servers"]
    differences = (difference(servers, name, wanted[name], each, replicas) for name, each in found.items())
    return [each for each in differences if each is not None]


def note_differences(
    topics: TopicSettings, kafka: Mapping[str, str], created: Container[str] = (), *, in_shared_storage: bool = False
) -> None:
    """Log each topic that differs from what the job needs; of those that were just `created` the log has it already.

    A cluster that doesn't answer is nothing to stop for. Raises UnfitTopicError for one that loses records.
    """
    try:
        found = differing_topics(topics, kafka, in_shared_storage=in_shared_storage)
    except (KafkaUnavailableError, KafkaError, OSError) as error:
        log.warning("can't compare topics with what is needed: %s", error_line(error))
        return
    for each in found:
        if each.is_fatal:
            raise UnfitTopicError(each.text)
        if each.topic not in created:
            log.warning("%s", each.text)


def max_record_bytes(topics: TopicSettings, kafka: Mapping[str, str]) -> int:
    """The largest record that the topics of the job's answers take, as far as the login may see; at most the settings'.

    Raises KafkaUnavailableError, KafkaError and OSError.
    """
    asked = [
        ConfigResource(ConfigResourceType.TOPIC, name, ["max.message.bytes"])
        for name in (topics.decisions, topics.dead_letters, topics.sums)
    ]
    with connect(KafkaAdminClient, kafka) as admin:
        found = admin.describe_configs(asked, config_filter="all")["topic"]
    seen = [int(each["max.message.bytes"]["value"]) for each in found.values() if "max.message.bytes" in each]
    return min([topics.max_message_bytes, *seen])


def _found(described: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]) -> TopicFound:
    partitions = described["partitions"]
    replicas = min((len(each["replica_nodes"]) for each in partitions), default=0)
    return TopicFound(len(partitions), replicas, {key: each["value"] for key, each in configs.items()})


def _complete(admin: KafkaAdminClient, topics: Mapping[str, TopicNeeds]) -> None:
    """Give the compacted ones of these topics the configs that they lack, such as those that were made by hand.

    A config that an operator has set stays. A login without the rights leaves a line in the log: all works, but whoever
    reads the topic from its beginning takes longer with each week.
    """
    for name, wanted in topics.items():
        if not wanted.is_compacted:
            continue
        topic = ConfigResource(ConfigResourceType.TOPIC, name)
        found = admin.describe_configs([topic], config_filter="all")["topic"][name]
        own = {key for key, config in found.items() if config["config_source"] == "DYNAMIC_TOPIC_CONFIG"}
        lacking = {key: value for key, value in wanted.configs.items() if key not in own}
        text = ",".join(f"{key}={value}" for key, value in lacking.items())
        if not found:
            log.info("this login can't see if topic %s is kept short (DescribeConfigs): it should have %s", name, text)
        elif lacking:
            topic = ConfigResource(ConfigResourceType.TOPIC, name, lacking)
            if (answer := admin.alter_configs([topic], raise_on_unknown=False)["topic"][name]) != "OK":
                log.warning(
                    "topic %s isn't kept short, as this login can't alter it (%s); give it %s", name, answer, text
                )
