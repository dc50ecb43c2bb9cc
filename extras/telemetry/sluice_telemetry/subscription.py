"""The subscription by which brokers ask clients for their metrics (KIP-714).

`python -m sluice_telemetry.subscription` prints its settings as `kafka-configs.sh` takes them.
"""

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

_PRODUCER = (
    *("produce.throttle.time", "request.latency", "node.request.latency", "record.queue.time", "requests.in.flight"),
    *("record.error.total", "record.retry.total", "waiting.threads", "buffer.available", "bufferpool.wait.ratio"),
)
_CONSUMER = (
    *("fetch.manager.fetch.throttle.time", "fetch.manager.fetch.latency", "fetch.manager.records.lag.max"),
    *("node.request.latency", "poll.idle.ratio", "time.between.poll", "last.poll", "coordinator.commit.latency"),
    *("coordinator.rebalance", "coordinator.failed.rebalance", "coordinator.last.rebalance"),
    "coordinator.heartbeat.response",
)
METRICS = (
    *(f"org.apache.kafka.producer.{name}" for name in _PRODUCER),
    *(f"org.apache.kafka.consumer.{name}" for name in _CONSUMER),
)
"""Beginnings of the names of those metrics that the receiver keeps; a client sends no others."""

NAME = "sluice"


def subscription(interval_ms: int = 30_000) -> dict[str, str]:
    """Settings of a resource of the type `client-metrics`: how often all clients push which metrics."""
    return {"interval.ms": str(interval_ms), "metrics": ",".join(METRICS)}


def subscribe(options: Mapping[str, Any], interval_ms: int = 30_000) -> None:
    """Make or change the subscription; `options` are those of kafka-python's clients. Raises KafkaError."""
    admin = KafkaAdminClient(**options)
    try:
        asked = ConfigResource(ConfigResourceType.CLIENT_METRICS, NAME, subscription(interval_ms))
        admin.alter_configs([asked], raise_on_unknown=False, incremental=True)  # Kafka 3.9 tells no names of settings
    finally:
        admin.close()


if __name__ == "__main__":
    print(",".join(f"{key}=[{value}]" for key, value in subscription().items()))
