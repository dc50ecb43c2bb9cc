"""The jar of the broker plugin, and the properties of brokers and proxies."""

from collections.abc import Mapping
from pathlib import Path

from sluice.jvm.jars import built_jar
from sluice.kafka_io.client import TopicSettings

JAR_NAME = "sluice-kafka-plugin.jar"

CALLBACK_CLASS = "sluice.kafka.SluiceQuotaCallback"
"""For a broker's `client.quota.callback.class`."""

REPORTER_CLASS = "sluice.kafka.SluiceMetricsReporter"
"""For a broker's `metric.reporters`, beside Kafka's own reporter."""

KAFKA_REPORTER_CLASS = "org.apache.kafka.common.metrics.JmxReporter"
"""The reporter that a broker has unless `metric.reporters` names others."""


def plugin_jar() -> Path:
    """The plugin's jar. Raises JarError where it was not built."""
    return built_jar(JAR_NAME)


def gateway_properties(kafka: Mapping[str, str], topics: TopicSettings) -> dict[str, str]:
    """The properties of a broker or a proxy that name the brokers and the topics of a job with these settings."""
    return {
        "sluice.bootstrap.servers": kafka["bootstrap.servers"],
        "sluice.requests.topic": topics.requests,
        "sluice.sums.topic": topics.sums,
        "sluice.limits.topic": topics.limits,
    }


def plugin_properties(kafka: Mapping[str, str], topics: TopicSettings) -> dict[str, str]:
    """The properties of a broker's `server.properties` that make it a gateway of a job with these settings."""
    return {
        "client.quota.callback.class": CALLBACK_CLASS,
        "metric.reporters": f"{KAFKA_REPORTER_CLASS},{REPORTER_CLASS}",
        **gateway_properties(kafka, topics),
    }
