"""A storm of CreateTopics of Kafka's Java admin client under the client-id `storm`, and what a quota lets through."""

import time
from typing import Any

from kafka import KafkaAdminClient

from sluice.kafka_io.client import connect
from sluice_demo.jars import BROKER_JARS
from sluice_toolbox.machine import Jvm
from tests.waiting import eventually

PER_S = 5.0
BURST = 11 * PER_S
"""Tokens in Kafka's bucket at first: the quota for as many seconds as it has samples, 11 by default."""
TOPICS = 130
STORM_S = (TOPICS - BURST) / PER_S


def storm(servers: str, brokers: str, patience_s: float) -> list[tuple[float, int]]:
    """Seconds since the storm on `servers` began, and how many topics `brokers` had then, until all are there.

    All are asked for at once, and again what is refused.
    """
    there: list[tuple[float, int]] = []
    with Jvm(BROKER_JARS.paths()) as jvm, connect(KafkaAdminClient, {"bootstrap.servers": brokers}) as watcher:
        begun_s = time.monotonic()
        admin = _create_topics(jvm, servers)

        def poll() -> bool:
            count = sum(topic.startswith("storm-") for topic in watcher.list_topics())
            there.append((time.monotonic() - begun_s, count))
            return bool(count == TOPICS)

        eventually(poll, patience_s)
        admin.close()
    return there


def _create_topics(jvm: Jvm, servers: str) -> Any:
    """Send a CreateTopics for every topic; returns the client, for its caller to close."""
    java = jvm.packages.java.util
    properties = java.Properties()
    properties.setProperty("bootstrap.servers", servers)
    properties.setProperty("client.id", "storm")
    clients = jvm.packages.org.apache.kafka.clients.admin
    admin = clients.Admin.create(properties)
    for number in range(TOPICS):
        admin.createTopics(java.List.of(clients.NewTopic(f"storm-{number}", 1, 1)))
    return admin
