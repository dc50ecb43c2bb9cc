"""The jar of the broker plugin, compiled from the sources that are installed with Sluice against a broker's jars.

Kafka's own jars, Jackson and slf4j are on the class path of every broker, so the jar holds nothing but the plugin.
`python -m sluice.jvm.plugin` compiles it, if that isn't done yet.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from sluice.jvm.errors import PluginBuildError
from sluice.jvm.jars import REPOSITORY, SPARK_JARS, JarSet, jars_home, pyspark_jars
from sluice.jvm.java import find_java
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

_MANIFEST = b"Manifest-Version: 1.0\r\n\r\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file in the jar, so that the same classes make the same jar

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

Compiler = Callable[[], Sequence[str]]
"""Gives the command of a Java compiler, with the options that say for which Java, and what it warns of."""


def javac() -> Sequence[str]:
    """The compiler of the JDK that JAVA_HOME names, else of that on PATH. Raises PluginBuildError if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=str(Path(home) / "bin") if home else None)
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH, and JAVA_HOME is not set"
        raise PluginBuildError(f"no javac {where}; install a whole JDK")
    return (found, "--release", str(JAVA_RELEASE), "-Xlint:all,-path,-options", "-Werror")


def build_plugin(broker_jars: Sequence[Path], folder: Path, compiler: Compiler = javac) -> Path:
    """The plugin's jar in `folder`, compiled against these jars of a broker; compiled only if sources or jars differ.

    Raises PluginBuildError with the compiler's first error.
    """
    jar, wanted = folder / JAR_NAME, _fingerprint(broker_jars)
    if jar.is_file() and zipfile.is_zipfile(jar) and _made_of(jar) == wanted:
        return jar
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as compiled:
        compile_java(sorted(SOURCES.rglob("*.java")), broker_jars, Path(compiled), compiler)
        fresh = folder / f"{JAR_NAME}.{os.getpid()}"
        _write_jar(Path(compiled), fresh, wanted)
    fresh.replace(jar)  # at once: another process may be starting a broker with it
    return jar


def compile_java(sources: Sequence[Path], jars: Sequence[Path], out: Path, compiler: Compiler = javac) -> None:
    """Compile Java sources into the folder `out`. Raises PluginBuildError."""
    command = [*compiler(), "-d", str(out), "-cp", os.pathsep.join(map(str, jars)), *map(str, sources)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PluginBuildError(f"{command[0]} can't be run ({error}); install a whole JDK") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines() or ["it printed nothing"]
        problem = next((line for line in lines if ": error:" in line or ": warning:" in line), lines[0])
        raise PluginBuildError(f"the Java code can't be compiled: {problem}")


def _fingerprint(broker_jars: Sequence[Path]) -> bytes:
    digest = hashlib.sha256(f"{JAVA_RELEASE} {sorted(jar.name for jar in broker_jars)}".encode())
    for source in sorted(SOURCES.rglob("*.java")):
        digest.update(f"\0{source.relative_to(SOURCES)}\0".encode() + source.read_bytes())
    return digest.hexdigest().encode()


def _made_of(jar: Path) -> bytes:
    with zipfile.ZipFile(jar) as archive:
        return archive.comment


def _write_jar(classes: Path, jar: Path, fingerprint: bytes) -> None:
    """Write the jar. Its comment is the fingerprint: in a file beside it, that could be of another jar."""
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = fingerprint
        archive.writestr(_entry("META-INF/MANIFEST.MF"), _MANIFEST)
        for file in sorted(classes.rglob("*.class")):
            archive.writestr(_entry(file.relative_to(classes).as_posix()), file.read_bytes())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


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
        "sluice.sums.topic": topics.sums,
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
