"""Asks a cluster which of its brokers are away, and which have the plugin."""

import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from sluice.kafka_io.client import kafka_python_config
from sluice.state.troubles import BrokersSeen, Plugin

CALLBACK = "client.quota.callback.class"
"""The property of a broker that names who decides on its quotas."""

REPORTERS = "metric.reporters"
EXEMPT = ("sluice.exempt.principals", "sluice.exempt.client.id")

_CONNECT_S = 2.0
"""Longest wait for a broker to take a connection."""

_MOST_SERVERS = 20
"""Most addresses of bootstrap.servers that are tried."""

BrokerConfigs = Mapping[int, Mapping[str, str | None]]
"""Configuration of each broker, as far as it is of the plugin, by node id."""


def read_broker_configs(admin: KafkaAdminClient) -> BrokerConfigs:
    """The configuration of each broker. Raises KafkaError."""
    nodes = [node["broker_id"] for node in admin.describe_cluster()["brokers"] if not node.get("is_fenced")]
    asked = [ConfigResource(ConfigResourceType.BROKER, str(node), [CALLBACK, REPORTERS, *EXEMPT]) for node in nodes]
    found = admin.describe_configs(asked, config_filter="all").get("broker", {})  # a broker that wakes up knows of none
    return {int(node): {name: each["value"] for name, each in configs.items()} for node, configs in found.items()}


def plugins_of(brokers: BrokerConfigs, callback_class: str, reporter_class: str) -> dict[int, Plugin] | None:
    """The plugin of each broker, by these names of its classes; None if their configuration isn't told.

    >>> plugins_of({1: {"client.quota.callback.class": "x", "metric.reporters": "j,y"}, 2: {CALLBACK: None}}, "x", "y")
    {1: 'there', 2: 'missing'}
    """
    if not all(CALLBACK in configs for configs in brokers.values()):
        return None
    found: dict[int, Plugin] = {}
    for node, configs in brokers.items():
        is_there, hears = configs[CALLBACK] == callback_class, reporter_class in (configs.get(REPORTERS) or "")
        found[node] = ("there" if hears else "deaf") if is_there else "missing"
    return found


def read_replicas(admin: KafkaAdminClient, topics: Iterable[str]) -> BrokersSeen:
    """The brokers that are away, by these topics' replicas; none if the broker knows of none yet. Raises KafkaError."""
    brokers = admin.describe_cluster()["brokers"]
    nodes = {node["broker_id"] for node in brokers if not node.get("is_fenced")}
    away, leaderless, existing = dict[int, str](), list[str](), set(admin.list_topics())
    for topic in admin.describe_topics([name for name in topics if name in existing]):
        for partition in topic["partitions"]:
            away |= {node: topic["name"] for node in partition["replica_nodes"] if brokers and node not in nodes}
            if partition["leader_id"] < 0:
                leaderless.append(f"{topic['name']}-{partition['partition_index']}")
    return BrokersSeen(away=away, leaderless=leaderless)


def silent_servers(kafka: Mapping[str, str]) -> list[str]:
    """The addresses of bootstrap.servers where nobody takes a connection, in their order."""
    servers = cast("list[str]", kafka_python_config(kafka)["bootstrap_servers"])
    tried = list(dict.fromkeys(servers))[:_MOST_SERVERS]
    with ThreadPoolExecutor(max(1, len(tried))) as pool:
        return [server for server, takes in zip(tried, pool.map(_takes, tried), strict=True) if not takes]


def _takes(server: str) -> bool:
    host, _, port = server.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
            return True
    except (OSError, ValueError):
        return False
