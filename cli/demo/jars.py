"""The jars of the embedded broker, never to be mixed with Spark's; `python -m sluice.cli.demo.jars` downloads them."""

from sluice.jvm.jars import REPOSITORY, JarSet, run_download_command

BROKER_JARS = JarSet(
    "broker",
    REPOSITORY / "configs" / "broker-jars.xml",
    REPOSITORY / "configs" / "broker-jars.sha256",
    "sluice.cli.demo.jars",
    added_to_pyspark=False,
)
"""Class path of a real Kafka."""


if __name__ == "__main__":
    run_download_command(BROKER_JARS)
