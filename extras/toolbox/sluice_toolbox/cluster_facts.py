"""Asks a cluster for what `sluice quotas exposure` says of it: leaders, rights, logins and consumer groups."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import KafkaError

from sluice.kafka_io.client import OF_COMMANDS, connect
from sluice.process.format import error_line
from sluice_reading.brokers_seen import CALLBACK, read_broker_configs
from sluice_toolbox.cluster import ClusterQuota
from sluice_toolbox.cluster_quotas import ClientQuotasAdmin, describe_quotas
from sluice_toolbox.exposure import ClusterFacts

MAX_GROUPS = 2_000
"""Most consumer groups that are asked for their members."""

_ALL_ACLS = ACLFilter(
    principal=None,
    host=None,
    operation=ACLOperation.ANY,
    permission_type=ACLPermissionType.ALLOW,
    resource_pattern=ResourcePatternFilter(ResourceType.TOPIC, None, ACLResourcePatternType.ANY),
)
_USER = "User:"

Leaders = Mapping[str, Mapping[int, int]]
"""Topic -> partition -> the broker that leads it."""


def read_cluster(kafka: Mapping[str, str], callback_class: str) -> tuple[list[ClusterQuota], ClusterFacts]:
    """The client quotas of the cluster, and its facts of brokers and clients. Changes nothing.

    Brokers whose quota callback is `callback_class` share each quota.

    Raises KafkaUnavailableError where the cluster can't be reached, or doesn't tell its quotas. All else that it
    refuses to tell is named among the facts.
    """
    with connect(ClientQuotasAdmin, kafka | OF_COMMANDS) as admin:
        quotas = describe_quotas(admin, kafka)
        unknown: list[str] = []

        def asked(what: str, ask: Callable[[], Any], otherwise: Any) -> Any:
            try:
                return ask()
            except (KafkaError, OSError, ValueError) as error:
                unknown.append(f"{what} ({error_line(error)})")
                return otherwise

        brokers = [node["broker_id"] for node in admin.describe_cluster()["brokers"] if not node.get("is_fenced")]
        topics = admin.describe_topics()
        leaders = {
            topic["name"]: {
                each["partition_index"]: each["leader_id"] for each in topic["partitions"] if each["leader_id"] >= 0
            }
            for topic in topics
            if not topic["is_internal"]
        }
        logins = asked("logins by SCRAM", admin.describe_user_scram_credentials, {})
        acls = asked("rights", lambda: _allowed(admin), [])
        groups = asked("consumer groups", admin.list_groups, [])
        members = asked("members of consumer groups", lambda: list(_members(admin, groups)), [])
        if newer := sum(group.get("group_type") == "consumer" for group in groups):
            unknown.append(
                f"members of {newer} consumer groups of the newer protocol (KIP-848), which this can't ask for"
            )
        sharing = asked("which brokers have Sluice's plugin", lambda: _with_callback(admin, callback_class), [])
    written, read = _of_users(acls, leaders, ACLOperation.WRITE), _of_users(acls, leaders, ACLOperation.READ)
    return quotas, ClusterFacts(
        brokers=frozenset(brokers),
        leaders=frozenset(broker for of_topic in leaders.values() for broker in of_topic.values()),
        users=frozenset(logins) | written.keys() | read.keys(),
        written=written,
        read=read,
        fetched=_of_members(members, leaders),
        sharing=frozenset(sharing),
        unknown=tuple(unknown),
    )


def _allowed(admin: ClientQuotasAdmin) -> list[Any]:
    """The ACLs that allow something on topics. Raises KafkaError, also where the cluster has no authorizer."""
    acls, _ = admin.describe_acls(_ALL_ACLS)
    return list(acls)


def _of_users(acls: Iterable[Any], leaders: Leaders, operation: ACLOperation) -> dict[str, frozenset[int]]:
    """User -> the brokers that lead partitions of topics on which it has this right."""
    found: dict[str, set[int]] = {}
    for acl in acls:
        if acl.operation in (operation, ACLOperation.ALL) and acl.principal.startswith(_USER):
            pattern = acl.resource_pattern
            is_prefix = pattern.pattern_type is ACLResourcePatternType.PREFIXED
            for topic, of_topic in leaders.items():
                if pattern.resource_name in ("*", topic) or (is_prefix and topic.startswith(pattern.resource_name)):
                    found.setdefault(acl.principal.removeprefix(_USER), set()).update(of_topic.values())
    found.pop("*", None)  # everybody
    return {user: frozenset(brokers) for user, brokers in found.items()}


def _with_callback(admin: ClientQuotasAdmin, callback_class: str) -> list[int]:
    """The brokers with this quota callback. Raises KafkaError, and ValueError where the user may not ask."""
    found = read_broker_configs(admin)
    if not all(CALLBACK in configs for configs in found.values()):
        raise ValueError("the user may not describe the configuration of brokers")
    return [broker for broker, configs in found.items() if configs[CALLBACK] == callback_class]


def _members(admin: ClientQuotasAdmin, groups: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The members of consumer groups."""
    consumers = (group["group_id"] for group in groups if group.get("protocol_type") == "consumer")
    for group in admin.describe_groups(list(islice(consumers, MAX_GROUPS))).values():
        yield from group["members"]


def _of_members(members: Iterable[Mapping[str, Any]], leaders: Leaders) -> dict[str, frozenset[int]]:
    """Client-id -> the brokers that lead partitions which it was assigned."""
    found: dict[str, set[int]] = {}
    for member in members:
        for topic, partitions in _assigned(member):
            of_topic = leaders.get(topic, {})
            brokers = {of_topic[partition] for partition in partitions if partition in of_topic}
            found.setdefault(member["client_id"], set()).update(brokers)
    return {client_id: frozenset(brokers) for client_id, brokers in found.items() if brokers}


def _assigned(member: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """The topics and partitions of a member, as far as its assignment is one of Kafka's own consumers."""
    assignment = member.get("member_assignment")
    if isinstance(assignment, Mapping):
        for each in assignment.get("assigned_partitions") or ():
            yield each["topic"], each["partitions"]
