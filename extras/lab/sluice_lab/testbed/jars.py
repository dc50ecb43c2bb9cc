"""Jars of the test bed: a set for each purpose, never to be mixed with Spark's.

`python -m sluice_lab.testbed.jars NAME [--accept]` downloads a set, and with `--accept` records what the registry has:
of these sets, of those that are published, and of the compiler.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from scripts.java.compiler import COMPILER_JARS
from sluice.jvm.jars import JAR, SPARK_JARS, JarSet, home_lock, pyspark_jars, sha256
from sluice.state.errors import SluiceError
from sluice_demo.jars import BROKER_JARS
from sluice_proxy.jars import PROXY_JARS
from sluice_shared_storage.jars import S3_JARS
from sluice_telemetry.jars import TELEMETRY_JARS

_FOLDER = Path(__file__).resolve().parent


def _jars(name: str, *, added_to_pyspark: bool = False) -> JarSet:
    return JarSet.named(name, f"sluice_lab.testbed.jars {name}", added_to_pyspark=added_to_pyspark, folder=_FOLDER)


OLD_BROKER_JARS = _jars("old-broker")
"""An older Kafka, on which a long test runs the broker plugin."""

NEW_BROKER_JARS = _jars("new-broker")
"""A newer Kafka than that of the embedded broker, the same."""

NEW_PROXY_JARS = _jars("new-proxy")
"""The newest interface of Kroxylicious' filters, for the proxy's; its runtime isn't in any registry."""

HDFS_JARS = _jars("hdfs", added_to_pyspark=True)
"""HDFS's servers, on which `./scripts/cluster` runs; pyspark has everything else that they need."""

PEER_JARS = _jars("peers")
"""Kafka Streams in the bench."""

KAFKA_TEST_JARS = _jars("kafka-tests")
"""JUnit and a Kerberos server, for Kafka's own tests of any release."""

KAFKA_RELEASE_JARS = {release: _jars(f"kafka-{release}") for release in ("3.9", "4.0", "4.1", "4.2", "4.3")}
"""Kafka's own tests, by the release of Kafka, and its broker unless another set has it."""

JAVA_CLIENT_JARS = {release: _jars(f"java-client-{release}") for release in ("2.8", "3.6", "4.0")}
"""Kafka's Java client, by its release. PEER_JARS have that of 4.3."""

_OF_RELEASES = (*KAFKA_RELEASE_JARS.values(), *JAVA_CLIENT_JARS.values())
_PUBLISHED = (SPARK_JARS, BROKER_JARS, PROXY_JARS, S3_JARS, TELEMETRY_JARS, COMPILER_JARS)
_OWN = (OLD_BROKER_JARS, NEW_BROKER_JARS, NEW_PROXY_JARS, HDFS_JARS, PEER_JARS, KAFKA_TEST_JARS, *_OF_RELEASES)
JAR_SETS = {jars.name: jars for jars in (*_PUBLISHED, *_OWN)}


def accept_again(jars: JarSet) -> None:
    """Resolve the versions of a set again, and list the jars of the registry as the expected ones."""
    with home_lock(jars.name):
        resolved = jars.retrieved(jars.versions, f"[organisation]/[module]/[revision]/{JAR}", "-Dpoms=true")
        present = [jar.name for jar in pyspark_jars().glob("*.jar")] if jars.added_to_pyspark else []
        found = [jar for jar in sorted(resolved.rglob("*.jar")) if not has_artifact(jar.parts[-3], present)]
        jars.checksums.write_text("".join(f"{sha256(jar)}  {jar.relative_to(resolved)}\n" for jar in found))
        shutil.rmtree(resolved)


def has_artifact(artifact: str, names: list[str]) -> bool:
    """True if `names` (of jar files) hold `artifact` in any version."""
    pattern = re.compile(re.escape(artifact) + r"-\d.*\.jar")
    return any(pattern.fullmatch(name) for name in names)


def download(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(JAR_SETS)}.")],
    accept: Annotated[bool, typer.Option("--accept", help="Record the checksums of what the registry has.")] = False,
) -> None:
    """Download the jars that are missing, and check them."""
    if name not in JAR_SETS:
        raise typer.BadParameter(f"{name!r} is no set of jars; expected one of {', '.join(JAR_SETS)}")
    try:
        if accept:
            accept_again(JAR_SETS[name])
        JAR_SETS[name].paths()
    except SluiceError as error:
        sys.exit(f"jars: {error}")


if __name__ == "__main__":
    typer.run(download)
