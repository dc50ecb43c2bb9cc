"""The jars of the embedded broker, never to be mixed with Spark's; `python -m sluice.demo.jars` downloads them."""

from pathlib import Path

from sluice.jvm.jars import JarSet, run_download_command

BROKER_JARS = JarSet.named("broker", "sluice.demo.jars", folder=Path(__file__).resolve().parent)
"""Class path of a real Kafka."""


if __name__ == "__main__":
    run_download_command(BROKER_JARS)
