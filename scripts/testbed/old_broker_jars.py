"""The jars of an older broker, which a long test of the broker plugin runs on.

`python -m scripts.testbed.old_broker_jars` downloads them.
"""

from pathlib import Path

from sluice.jvm.jars import JarSet, run_download_command

_FOLDER = Path(__file__).resolve().parent

OLD_BROKER_JARS = JarSet(
    "old-broker",
    _FOLDER / "old-broker-jars.xml",
    _FOLDER / "old-broker-jars.sha256",
    "scripts.testbed.old_broker_jars",
    added_to_pyspark=False,
)

if __name__ == "__main__":
    run_download_command(OLD_BROKER_JARS)
