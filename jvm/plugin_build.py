"""Builds the jar of the broker plugin: compiles its Java sources against a broker's jars.

Kafka's own jars, Jackson and slf4j are on the class path of every broker, so the jar holds nothing but the plugin.
"""

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.jvm.errors import PluginBuildError

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
    jar, stamp = folder / JAR_NAME, folder / f"{JAR_NAME}.stamp"
    wanted = _fingerprint(broker_jars)
    if jar.is_file() and stamp.is_file() and stamp.read_text() == wanted:
        return jar
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as compiled:
        compile_java(sorted(SOURCES.rglob("*.java")), broker_jars, Path(compiled), compiler)
        fresh = folder / f"{JAR_NAME}.{os.getpid()}"
        _write_jar(Path(compiled), fresh)
    fresh.replace(jar)  # at once: another process may be starting a broker with it
    stamp.write_text(wanted)
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


def _fingerprint(broker_jars: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{JAVA_RELEASE} {sorted(jar.name for jar in broker_jars)}".encode())
    for source in sorted(SOURCES.rglob("*.java")):
        digest.update(f"\0{source.relative_to(SOURCES)}\0".encode() + source.read_bytes())
    return digest.hexdigest()


def _write_jar(classes: Path, jar: Path) -> None:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry("META-INF/MANIFEST.MF"), _MANIFEST)
        for file in sorted(classes.rglob("*.class")):
            archive.writestr(_entry(file.relative_to(classes).as_posix()), file.read_bytes())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
