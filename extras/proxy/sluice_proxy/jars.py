"""The jars of the Kafka proxy: Kroxylicious, and Sluice's filter for it with the core of the broker plugin.

`python -m sluice_proxy.jars` downloads what is missing, and archives Kroxylicious's classes.
"""

from pathlib import Path

from sluice.jvm.class_archive import ArchivedClasses
from sluice.jvm.jars import JarSet, built_jar, run_download_command

_FOLDER = Path(__file__).resolve().parent

PROXY_JARS = JarSet.named("proxy", "sluice_proxy.jars", folder=_FOLDER)

PROXY_CLASSES = ArchivedClasses("the proxy's", "proxy-classes", _FOLDER / "proxy-classes.txt.gz", PROXY_JARS.paths)
"""Those of Kroxylicious: with their archive a proxy serves in about half of the time."""

BUILT = _FOLDER / "built"
"""The folder of the filter's jar: the wheel has it, and ./scripts/setup makes that of a checkout."""

JAR_NAME = "sluice-kafka-proxy.jar"

MAIN_CLASS = "sluice.proxy.KafkaGateway"
"""Runs a proxy with the configuration file that is its argument."""

FILTER_TYPE = "SluiceQuotas"
"""For `type` of a filter definition of Kroxylicious."""


def proxy_class_path() -> list[Path]:
    """The jars of a proxy, downloaded at the first call. Raises JarError, also where the filter was not built."""
    own = built_jar(JAR_NAME, BUILT, "sluice-kafka-proxy")  # before a download that would be of no use without it
    return [*PROXY_JARS.paths(), own]


if __name__ == "__main__":
    run_download_command(PROXY_JARS, PROXY_CLASSES.make)
