"""The needs of Sluice of its topics, the loss without each, and the command lines that give it. Asks no broker."""

from collections.abc import Callable, Mapping
from shlex import quote
from typing import NamedTuple

from sluice.kafka_io.client import TopicSettings
from sluice.state.contract.records import MAX_TIMESTAMP_MS

_TIMES = {
    # A producer sets the time of its records. Spark's Kafka source fails at one whose microseconds are no 64-bit
    # integer, at every attempt, so the broker must refuse it. Kafka's own bound for the past is none.
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(MAX_TIMESTAMP_MS),
    "message.timestamp.after.max.ms": "3600000",  # Kafka's own since 4.0
}

_KEPT = {"cleanup.policy": "delete"}  # a cluster's own default may be another one

_EVENTS = {
    # A compressed record of 1 MiB may be one of a GiB, and Spark would read it whole, until Java has no memory. The
    # broker compares what it stores with the topic's max.message.bytes, so it has to store what gateways mean.
    "compression.type": "uncompressed",
}

_COMPACTED = {"cleanup.policy": "compact"}

_LEASE = _COMPACTED | {"segment.ms": "3600000"}  # a driver reads all of it when it starts

_SHORT = _COMPACTED | {
    # A new gateway reads this topic from its beginning, so it is kept short: segments are closed and compacted early.
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
}

# A driver that takes over, whose clock may be another, learns how long holds have lasted by the brokers' clock.
_LIMITS = _SHORT | {"message.timestamp.type": "LogAppendTime"}

_WAITS = _SHORT | {"delete.retention.ms": "60000"}

_SUMS = _KEPT | {
    # Gateways read it as it grows, a new one the last seconds. Without the segments an hour would stay.
    "retention.ms": "600000",
    "segment.ms": "60000",
}


class TopicNeeds(NamedTuple):
    """Partitions and configs that Sluice makes a topic with."""

    partitions: int
    configs: Mapping[str, str]

    @property
    def is_compacted(self) -> bool:
        """True if only the last record of each key counts."""
        return self.configs["cleanup.policy"] == "compact"


class TopicFound(NamedTuple):
    """A topic as the cluster has it; no configs where the login may not see them."""

    partitions: int
    replicas: int
    configs: Mapping[str, str]


class TopicDifference(NamedTuple):
    """The lacks of a topic, in one line with the command line that gives them; the job doesn't start on a fatal one."""

    topic: str
    text: str
    is_fatal: bool = False


class _Rule(NamedTuple):
    """A test of a value where Sluice asks for another one, and the loss if it fails."""

    does: Callable[[str, str], bool]
    lost: str


def _is_same(found: str, wanted: str) -> bool:
    return found.lower() == wanted.lower()


def _is_at_most(found: str, wanted: str) -> bool:
    return float(found) <= float(wanted)


def _is_at_least(found: str, wanted: str) -> bool:
    """For a time -1 is for ever."""
    return float(found) < 0 or 0 <= float(wanted) <= float(found)


_READS_MORE = _Rule(_is_at_most, "whoever starts reads more of it")
_TIME = _Rule(_is_at_most, "a record with a time that Spark can't keep ends the queries")

_RULES = {
    "cleanup.policy": _Rule(_is_same, "it loses records that are still needed"),
    "compression.type": _Rule(_is_same, "a small record may fill Java's memory when it is read"),
    "message.timestamp.type": _Rule(_is_same, "times are those of another clock than Sluice needs"),
    "message.timestamp.before.max.ms": _TIME,
    "message.timestamp.after.max.ms": _TIME,
    "max.message.bytes": _Rule(_is_at_least, "larger decisions become dead letters, and those are cut"),
    "retention.ms": _Rule(_is_at_least, "records are gone sooner than the settings say"),
    "segment.ms": _READS_MORE,
    "min.cleanable.dirty.ratio": _READS_MORE,
    "delete.retention.ms": _READS_MORE,
}


def needs(topics: TopicSettings) -> dict[str, TopicNeeds]:
    """The topics that every job needs, by name."""
    large = {"max.message.bytes": str(topics.max_message_bytes)}
    return {
        topics.requests: TopicNeeds(topics.partitions, _read_by_spark(topics.requests_retention_ms) | _EVENTS),
        topics.decisions: TopicNeeds(topics.partitions, _read_by_spark(topics.decisions_retention_ms) | large),
        topics.dead_letters: TopicNeeds(topics.partitions, _read_by_spark(topics.dead_letters_retention_ms) | large),
        topics.limits: TopicNeeds(1, _LIMITS),  # one partition: a version ends after all its records
        topics.waits: TopicNeeds(topics.partitions, _WAITS),
        topics.sums: TopicNeeds(topics.partitions, _SUMS | large),
    }


def lease_needs(topics: TopicSettings) -> dict[str, TopicNeeds]:
    """The topic that only a job with its checkpoint in shared storage needs."""
    return {topics.claims: TopicNeeds(1, _LEASE)}  # one partition: its offsets order the acquisitions


def _read_by_spark(retention_ms: int) -> dict[str, str]:
    return {**_KEPT, "retention.ms": str(retention_ms), **_TIMES}


def lost_without(config: str) -> str:
    """The loss where a topic lacks this config."""
    return _RULES[config].lost


def creation_line(servers: str, topic: str, wanted: TopicNeeds, replication_factor: int) -> str:
    """The command line that makes a topic as Sluice needs it."""
    configs = "".join(f" --config {key}={value}" for key, value in wanted.configs.items())
    return (
        f"kafka-topics.sh --bootstrap-server {quote(servers)} --create --topic {topic}"
        f" --partitions {wanted.partitions} --replication-factor {replication_factor}{configs}"
    )


def lacking_configs(wanted: TopicNeeds, found: TopicFound) -> dict[str, str]:
    """The configs with the values that a topic needs, and whose own don't do."""
    return {key: value for key, value in wanted.configs.items() if not _does(found, key, value)}


def difference(
    servers: str, topic: str, wanted: TopicNeeds, found: TopicFound, replicas: int
) -> TopicDifference | None:
    """The difference of a topic that exists from what Sluice needs, with so many replicas; None if there is none."""
    lacking = lacking_configs(wanted, found)
    texts = [f"{key} is {found.configs[key]} ({_RULES[key].lost})" for key in lacking]
    lines = []
    if lacking:
        lines.append(_configs_line(servers, topic, lacking))
    if found.partitions < wanted.partitions:
        texts.append(f"partitions are {found.partitions} of {wanted.partitions} (as many tasks read and write it)")
        lines.append(
            f"kafka-topics.sh --bootstrap-server {quote(servers)} --alter --topic {topic}"
            f" --partitions {wanted.partitions}"
        )
    if (of_replicas := _replicas(servers, topic, found, replicas)) is not None:
        texts.append(of_replicas[0])
        lines.append(of_replicas[1])
    if not texts:
        return None
    is_fatal = "cleanup.policy" in lacking and not wanted.is_compacted
    return TopicDifference(topic, f"topic {topic}: {', '.join(texts)}; {'; '.join(lines)}", is_fatal)


def _does(found: TopicFound, config: str, wanted: str) -> bool:
    """True if the topic's value does; also if this Kafka doesn't know the config, or doesn't show it."""
    value = found.configs.get(config)
    return value is None or _RULES[config].does(value, wanted)


def _configs_line(servers: str, topic: str, configs: Mapping[str, str]) -> str:
    changes = ",".join(f"{key}={value}" for key, value in configs.items())
    return (
        f"kafka-configs.sh --bootstrap-server {quote(servers)} --alter --entity-type topics --entity-name {topic}"
        f" --add-config {changes}"
    )


def _replicas(servers: str, topic: str, found: TopicFound, replicas: int) -> tuple[str, str] | None:
    """The fault in the number of replicas, and the command line that mends it; None if there is none."""
    in_sync = int(found.configs.get("min.insync.replicas", "1"))
    if found.replicas < replicas:
        return f"replicas are {found.replicas} of {replicas} (it is away with a broker)", (
            f"kafka-reassign-partitions.sh --bootstrap-server {quote(servers)} --reassignment-json-file FILE --execute"
        )
    if in_sync < found.replicas or in_sync == 1:
        return None
    lost = "it takes no records while a broker is away" if in_sync == found.replicas else "it may take no records"
    line = _configs_line(servers, topic, {"min.insync.replicas": str(max(1, found.replicas - 1))})
    return f"min.insync.replicas is {in_sync} of {found.replicas} replicas ({lost})", line
