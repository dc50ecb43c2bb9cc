"""The jars of the embedded broker, never to be mixed with Spark's; `python -m sluice.cli.demo.jars` downloads them."""

from sluice.jvm.jars import JarSet, run_download_command

BROKER_JARS = JarSet.named("broker", "sluice.cli.demo.jars")
"""Class path of a real Kafka."""


if __name__ == "__main__":
    run_download_command(BROKER_JARS)
