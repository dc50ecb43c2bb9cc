"""The jar of the broker plugin, compiled from the sources that are installed with Sluice against a broker's jars.

Kafka's own jars, Jackson and slf4j are on the class path of every broker, so the jar holds nothing but the plugin.
`python -m sluice.jvm.plugin` compiles it, if that isn't done yet.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sluice.jvm.compiler import COMPILER_JARS, Compiler, build_jar, java_compiler, javac
from sluice.jvm.jars import SPARK_JARS, jars_home, pyspark_jars
from sluice.kafka_io.client import TopicSettings
from sluice.state.errors import SluiceError

SOURCES = Path(__file__).resolve().parents[1] / "gateways" / "kafka" / "src"
"""The folder of the Java sources."""

JAR_NAME = "sluice-kafka-plugin.jar"

JAVA_RELEASE = 11
"""The oldest Java that can load the plugin: that of the brokers of Kafka 3.9."""

CALLBACK_CLASS = "sluice.kafka.SluiceQuotaCallback"
"""For a broker's `client.quota.callback.class`."""

REPORTER_CLASS = "sluice.kafka.SluiceMetricsReporter"
"""For a broker's `metric.reporters`, beside Kafka's own reporter."""

KAFKA_REPORTER_CLASS = "org.apache.kafka.common.metrics.JmxReporter"
"""The reporter that a broker has unless `metric.reporters` names others."""

_COMPILED_AGAINST = ("jackson-annotations-*", "jackson-core-*", "jackson-databind-*", "slf4j-api-*")
"""Jars of pyspark that the plugin needs, next to kafka-clients; every broker has them."""


def build_plugin(broker_jars: Sequence[Path], folder: Path, compiler: Compiler = javac) -> Path:
    """The plugin's jar in `folder`, compiled against these jars of a broker; compiled only if sources or jars differ.

    Raises PluginBuildError with the compiler's first error.
    """
    return build_jar(folder / JAR_NAME, [SOURCES], broker_jars, JAVA_RELEASE, compiler)


def plugin_jar() -> Path:
    """The plugin's jar, in the folder of all jars; compiled at the first call and when its sources have changed.

    Raises PluginBuildError, JarError (what it is compiled with can't be downloaded) and JavaError.
    """
    of_pyspark = [jar for pattern in _COMPILED_AGAINST for jar in sorted(pyspark_jars().glob(f"{pattern}.jar"))]
    clients = [jar for jar in SPARK_JARS.paths() if jar.name.startswith("kafka-clients-")]
    return build_plugin([*clients, *of_pyspark], jars_home() / "plugin", java_compiler)


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


def main(
    accept: Annotated[
        bool, typer.Option("--accept", help="Record the checksum of the compiler for machines without a JDK.")
    ] = False,
) -> None:
    """Compile the broker plugin."""
    try:
        if accept:
            COMPILER_JARS.accept()
        plugin_jar()
    except SluiceError as error:
        sys.exit(f"broker plugin: {error}")


if __name__ == "__main__":
    typer.run(main)
