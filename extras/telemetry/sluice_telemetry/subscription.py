"""The subscription by which brokers ask clients for their metrics (KIP-714)."""

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

METRICS = (
    *("org.apache.kafka.producer.", "org.apache.kafka.consumer.poll.", "org.apache.kafka.consumer.time."),
    *("org.apache.kafka.consumer.last.", "org.apache.kafka.consumer.node.", "org.apache.kafka.consumer.request."),
    *("org.apache.kafka.consumer.fetch.manager.fetch.", "org.apache.kafka.consumer.fetch.manager.records.lag.max"),
    "org.apache.kafka.consumer.coordinator.",
)
"""Prefixes of the names of those metrics that the receiver keeps; a client sends nothing else."""

NAME = "sluice"


def subscription(interval_ms: int = 30_000) -> dict[str, str]:
    """Settings of a resource of the type `client-metrics`: how often all clients push which metrics.

    >>> subscription()["interval.ms"]
    '30000'
    """
    return {"interval.ms": str(interval_ms), "metrics": ",".join(METRICS)}


def subscribe(options: Mapping[str, Any], interval_ms: int = 30_000) -> None:
    """Make or change the subscription; `options` are those of kafka-python's clients. Raises KafkaError."""
    admin = KafkaAdminClient(**options)
    try:
        admin.alter_configs([ConfigResource(ConfigResourceType.CLIENT_METRICS, NAME, subscription(interval_ms))])
    finally:
        admin.close()
