"""The jars of the embedded broker, never to be mixed with Spark's.

`python -m sluice_demo.jars` downloads them, and archives their classes.
"""

from pathlib import Path

from sluice.jvm.class_archive import ArchivedClasses
from sluice.jvm.jars import JarSet, run_download_command

_FOLDER = Path(__file__).resolve().parent

BROKER_JARS = JarSet.named("broker", "sluice_demo.jars", folder=_FOLDER)
"""Class path of a real Kafka."""

BROKER_CLASSES = ArchivedClasses("the broker's", "broker-classes", _FOLDER / "broker-classes.txt.gz", BROKER_JARS.paths)
"""Those of a broker: with their archive it serves in about half of the time."""


if __name__ == "__main__":
    run_download_command(BROKER_JARS, BROKER_CLASSES.make)
