"""The jar of the broker plugin, compiled from the sources that are installed with Sluice.

`python -m sluice.jvm.plugin` compiles it, if that isn't done yet.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sluice.jvm.errors import PluginBuildError
from sluice.jvm.jars import REPOSITORY, SPARK_JARS, JarSet, jars_home, pyspark_jars
from sluice.jvm.java import find_java
from sluice.jvm.plugin_build import CALLBACK_CLASS, JAVA_RELEASE, REPORTER_CLASS, build_plugin, javac
from sluice.kafka_io.client import TopicSettings
from sluice.state.errors import SluiceError

__all__ = ["CALLBACK_CLASS", "REPORTER_CLASS", "java_compiler", "plugin_jar", "plugin_properties"]

KAFKA_REPORTER_CLASS = "org.apache.kafka.common.metrics.JmxReporter"
"""The reporter that a broker has unless `metric.reporters` names others."""

COMPILER_JARS = JarSet(
    "compiler",
    REPOSITORY / "configs" / "compiler-jars.xml",
    REPOSITORY / "configs" / "compiler-jars.sha256",
    "sluice.jvm.plugin",
    added_to_pyspark=False,
)
_COMPILED_AGAINST = ("jackson-annotations-*", "jackson-core-*", "jackson-databind-*", "slf4j-api-*")
"""Jars of pyspark that the plugin needs, next to kafka-clients; every broker has them."""


def plugin_jar() -> Path:
    """The plugin's jar, in the folder of all jars; compiled at the first call and when its sources have changed.

    Raises PluginBuildError, JarError (what it is compiled with can't be downloaded) and JavaError.
    """
    of_pyspark = [jar for pattern in _COMPILED_AGAINST for jar in sorted(pyspark_jars().glob(f"{pattern}.jar"))]
    clients = [jar for jar in SPARK_JARS.paths() if jar.name.startswith("kafka-clients-")]
    return build_plugin([*clients, *of_pyspark], jars_home() / "plugin", java_compiler)


def plugin_properties(kafka: Mapping[str, str], topics: TopicSettings) -> dict[str, str]:
    """The properties of a broker's `server.properties` that make it a gateway of a job with these settings."""
    return {
        "client.quota.callback.class": CALLBACK_CLASS,
        "metric.reporters": f"{KAFKA_REPORTER_CLASS},{REPORTER_CLASS}",
        "sluice.bootstrap.servers": kafka["bootstrap.servers"],
        "sluice.requests.topic": topics.requests,
        "sluice.decisions.topic": topics.decisions,
        "sluice.limits.topic": topics.limits,
    }


def java_compiler() -> Sequence[str]:
    """The command of the JDK's compiler; where there is none, one that runs on any Java."""
    try:
        return javac()
    except PluginBuildError:
        java, _ = find_java()
        (jar,) = COMPILER_JARS.paths()
        return (java, "-jar", str(jar), "-source", str(JAVA_RELEASE), "-target", str(JAVA_RELEASE), "-nowarn")


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
