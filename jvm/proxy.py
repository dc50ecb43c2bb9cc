"""The jars of the Kafka proxy: Kroxylicious, and Sluice's filter for it with the core of the broker plugin.

`python -m sluice.jvm.proxy` downloads and compiles what is missing.
"""

from collections.abc import Sequence
from pathlib import Path

from sluice.jvm.compiler import Compiler, build_jar, java_compiler
from sluice.jvm.jars import JarSet, jars_home, run_download_command
from sluice.jvm.plugin import SOURCES as CORE

PROXY_JARS = JarSet.named("proxy", "sluice.jvm.proxy")
"""Class path of Kroxylicious."""

SOURCES = Path(__file__).resolve().parents[1] / "gateways" / "proxy" / "src"
"""The folder of the filter's Java sources."""

JAR_NAME = "sluice-kafka-proxy.jar"

JAVA_RELEASE = 17
"""The oldest Java that runs Kroxylicious."""

MAIN_CLASS = "sluice.proxy.KafkaGateway"
"""Runs a proxy with the configuration file that is its argument."""

FILTER_TYPE = "SluiceQuotas"
"""For `type` of a filter definition of Kroxylicious."""


def build_filter(proxy_jars: Sequence[Path], folder: Path, compiler: Compiler = java_compiler) -> Path:
    """The filter's jar in `folder`, compiled against these jars of Kroxylicious if sources or jars differ.

    Raises PluginBuildError with the compiler's first error.
    """
    return build_jar(folder / JAR_NAME, [CORE, SOURCES], proxy_jars, JAVA_RELEASE, compiler)


def proxy_class_path() -> list[Path]:
    """The jars of a proxy; downloaded and compiled at the first call, compiled again when the sources have changed.

    Raises JarError, PluginBuildError and JavaError.
    """
    jars = PROXY_JARS.paths()
    return [*jars, build_filter(jars, jars_home() / "proxy-filter")]


if __name__ == "__main__":
    run_download_command(PROXY_JARS, proxy_class_path)
