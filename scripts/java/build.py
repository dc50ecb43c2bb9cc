"""Sluice's own jars, compiled from the Java sources of the checkout into `jvm/built`, from where the wheel has them.

`python -m scripts.java.build` makes those whose sources or class path have changed; ./scripts/setup does.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from scripts.java.compiler import COMPILER_JARS, Compiler, build_jar, java_compiler, javac
from sluice.jvm import object_store, plugin, proxy
from sluice.jvm.jars import BUILT, REPOSITORY, SPARK_JARS, JarSet, pyspark_jars
from sluice.jvm.java import OLDEST
from sluice.state.errors import SluiceError

PLUGIN_SOURCES = REPOSITORY / "gateways" / "kafka" / "src"
PROXY_SOURCES = REPOSITORY / "gateways" / "proxy" / "src"
_SPARK_SOURCES = REPOSITORY / "jvm" / "src"

PLUGIN_RELEASE = 11
"""The oldest Java that can load the plugin: that of the brokers of Kafka 3.9."""

PROXY_RELEASE = 17
"""The oldest Java that runs Kroxylicious."""

_COMPILED_AGAINST = ("jackson-annotations-*", "jackson-core-*", "jackson-databind-*", "slf4j-api-*")
"""Jars of pyspark that the plugin needs, next to kafka-clients; every broker has them."""


def build_plugin(broker_jars: Sequence[Path], folder: Path, compiler: Compiler = javac) -> Path:
    """The plugin's jar in `folder`, compiled against these jars of a broker; compiled only if sources or jars differ.

    Kafka's own jars, Jackson and slf4j are on the class path of every broker, so it holds nothing but the plugin.
    Raises JavaBuildError with the compiler's first error.
    """
    return build_jar(folder / plugin.JAR_NAME, [PLUGIN_SOURCES], broker_jars, PLUGIN_RELEASE, compiler)


def build_jars() -> list[Path]:
    """All jars, compiled where they aren't of these sources. Raises JavaBuildError, JarError and JavaError."""
    sets = (SPARK_JARS, proxy.PROXY_JARS, object_store.S3_JARS)
    with ThreadPoolExecutor() as pool:  # the registry's answers take the time, not bytes
        of_spark, of_proxy, of_s3 = pool.map(JarSet.paths, sets)
    of_pyspark = sorted(pyspark_jars().glob("*.jar"))
    clients = [jar for jar in of_spark if jar.name.startswith("kafka-clients-")]
    of_brokers = [jar for pattern in _COMPILED_AGAINST for jar in of_pyspark if jar.match(pattern)]
    proxy_sources, spark_jar = [PLUGIN_SOURCES, PROXY_SOURCES], BUILT / object_store.JAR_NAME
    return [
        build_plugin([*clients, *of_brokers], BUILT, java_compiler),
        build_jar(BUILT / proxy.JAR_NAME, proxy_sources, of_proxy, PROXY_RELEASE, java_compiler),
        build_jar(spark_jar, [_SPARK_SOURCES], [*of_s3, *of_pyspark], OLDEST, java_compiler),
    ]


def main(
    accept: Annotated[
        bool, typer.Option("--accept", help="Record the checksum of the compiler for machines without a JDK.")
    ] = False,
) -> None:
    """Compile Sluice's own Java code."""
    try:
        if accept:
            COMPILER_JARS.accept()
        build_jars()
    except SluiceError as error:
        sys.exit(f"build: {error}")


if __name__ == "__main__":
    typer.run(main)
