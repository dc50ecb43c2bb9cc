"""The jars of the embedded broker: the classpath of a real Kafka, never to be mixed with Spark's.

`python -m scripts.testbed.broker_jars` downloads them.
"""

from pathlib import Path

from sluice.jvm.jars import JarSet, run_download_command

_FOLDER = Path(__file__).resolve().parent

BROKER_JARS = JarSet(
    "broker",
    _FOLDER / "broker-jars.xml",
    _FOLDER / "broker-jars.sha256",
    "scripts.testbed.broker_jars",
    added_to_pyspark=False,
)

if __name__ == "__main__":
    run_download_command(BROKER_JARS)
