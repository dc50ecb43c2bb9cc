"""Sluice's own jars, compiled from the checkout's Java sources into folders `built`, from where the wheels have them.

`python -m scripts.java.build` makes those whose sources or class path have changed; ./scripts/setup does.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from scripts.java.compiler import Compiler, build_jar, java_compiler, javac
from sluice.jvm import plugin
from sluice.jvm.jars import BUILT, REPOSITORY, SPARK_JARS, JarSet, pyspark_jars
from sluice.jvm.java import OLDEST
from sluice.state.errors import SluiceError
from sluice_proxy import jars as proxy

_POM = {"": "http://maven.apache.org/POM/4.0.0"}


class Module(NamedTuple):
    """Folders of sources and resources, the module's own sources first; and the oldest Java that runs them."""

    sources: Sequence[Path]
    release: int


def module(folder: Path) -> Module:
    """The module of a folder, as its `pom.xml` says, which an IDE opens."""
    pom = ElementTree.parse(folder / "pom.xml").getroot()  # noqa: S314 - our own file
    own = pom.findtext("build/sourceDirectory", "src/main/java", _POM)
    others = [each.text or "" for each in pom.iterfind(".//source", _POM)]
    found = [(folder / name).resolve() for name in (own, *others, "src/main/resources")]
    release = pom.findtext("properties/maven.compiler.release", namespaces=_POM)
    return Module([each for each in found if each.is_dir()], int(release or OLDEST))


PLUGIN = module(REPOSITORY / "gateways" / "kafka")
PROXY = module(REPOSITORY / "extras" / "proxy")
_STORAGE = module(REPOSITORY / "extras" / "shared_storage")

_COMPILED_AGAINST = ("jackson-annotations-*", "jackson-core-*", "jackson-databind-*", "slf4j-api-*")
"""Jars of pyspark that the plugin needs, next to kafka-clients; every broker has them."""


def build_plugin(broker_jars: Sequence[Path], folder: Path, compiler: Compiler = javac) -> Path:
    """The plugin's jar in `folder`, compiled against these jars of a broker; compiled only if sources or jars differ.

    Kafka's own jars, Jackson and slf4j are on the class path of every broker, so it holds nothing but the plugin.
    Raises JavaBuildError with the compiler's first error.
    """
    return build_jar(folder / plugin.JAR_NAME, PLUGIN.sources, broker_jars, PLUGIN.release, compiler)


def build_telemetry(against: Sequence[Path], compiler: Compiler = javac, folder: Path | None = None) -> Path:
    """The jar of the receiver in brokers, compiled against these jars and Kafka's; `folder` is another than its own.

    Raises JavaBuildError and JarError.
    """
    from sluice_telemetry import jars as telemetry

    own, jar = module(REPOSITORY / "extras" / "telemetry"), (folder or telemetry.BUILT) / telemetry.JAR_NAME
    return build_jar(jar, own.sources, [*telemetry.TELEMETRY_JARS.paths(), *against], own.release, compiler)


def build_jars(*, is_whole: bool = True) -> list[Path]:
    """All jars, or all but those of shared storage and telemetry, whose packages a demo's set-up doesn't install.

    They are compiled where they aren't of these sources. Raises JavaBuildError, JarError and JavaError.
    """
    with ThreadPoolExecutor() as pool:  # the registry's answers take the time, not bytes
        of_spark, of_proxy = pool.map(JarSet.paths, (SPARK_JARS, proxy.PROXY_JARS))
    of_pyspark = sorted(pyspark_jars().glob("*.jar"))
    clients = [jar for jar in of_spark if jar.name.startswith("kafka-clients-")]
    of_brokers = [jar for pattern in _COMPILED_AGAINST for jar in of_pyspark if jar.match(pattern)]
    made = [
        build_plugin([*clients, *of_brokers], BUILT, java_compiler),
        build_jar(proxy.BUILT / proxy.JAR_NAME, PROXY.sources, of_proxy, PROXY.release, java_compiler),
    ]
    if is_whole:
        from sluice_shared_storage import jars as object_store

        jar, against = object_store.BUILT / object_store.JAR_NAME, [*object_store.S3_JARS.paths(), *of_pyspark]
        made.append(build_jar(jar, _STORAGE.sources, against, _STORAGE.release, java_compiler))
    if is_whole:
        made.append(build_telemetry([made[0], *of_brokers], java_compiler))
    remove_others(made)
    return made


def remove_others(made: Sequence[Path]) -> None:
    """Remove the jars beside these, such as one whose sources have moved: a wheel would have them."""
    for jar in {jar for folder in {each.parent for each in made} for jar in folder.glob("*.jar")}.difference(made):
        jar.unlink(missing_ok=True)  # another process may be as far


def main() -> None:
    """Compile Sluice's own Java code; exit 1 with one line if that fails."""
    try:
        build_jars()
    except SluiceError as error:
        sys.exit(f"build: {error}")


if __name__ == "__main__":
    main()
