"""The jars of the Kafka proxy: Kroxylicious, and Sluice's filter for it with the core of the broker plugin.

`python -m sluice.jvm.proxy` downloads what is missing, and archives Kroxylicious's classes.
"""

from pathlib import Path

from sluice.jvm.class_archive import ArchivedClasses
from sluice.jvm.jars import REPOSITORY, JarSet, built_jar, run_download_command

PROXY_JARS = JarSet.named("proxy", "sluice.jvm.proxy")
"""Class path of Kroxylicious."""

PROXY_CLASSES = ArchivedClasses(
    "the proxy's", "proxy-classes", REPOSITORY / "configs" / "proxy-classes.txt.gz", PROXY_JARS.paths
)
"""Those of Kroxylicious: with their archive a proxy serves in about half of the time."""

JAR_NAME = "sluice-kafka-proxy.jar"

MAIN_CLASS = "sluice.proxy.KafkaGateway"
"""Runs a proxy with the configuration file that is its argument."""

FILTER_TYPE = "SluiceQuotas"
"""For `type` of a filter definition of Kroxylicious."""


def proxy_class_path() -> list[Path]:
    """The jars of a proxy, downloaded at the first call. Raises JarError, also where the filter was not built."""
    own = built_jar(JAR_NAME)  # before a download that would be of no use without it
    return [*PROXY_JARS.paths(), own]


if __name__ == "__main__":
    run_download_command(PROXY_JARS, PROXY_CLASSES.make)
