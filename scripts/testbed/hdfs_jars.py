"""The jars of HDFS's servers, which `./scripts/cluster` runs on; pyspark has all that they need besides.

`python -m scripts.testbed.hdfs_jars` downloads them.
"""

from pathlib import Path

from sluice.jvm.jars import JarSet, run_download_command

_FOLDER = Path(__file__).resolve().parent

HDFS_JARS = JarSet(
    "hdfs",
    _FOLDER / "hdfs-jars.xml",
    _FOLDER / "hdfs-jars.sha256",
    "scripts.testbed.hdfs_jars",
    added_to_pyspark=True,
)

if __name__ == "__main__":
    run_download_command(HDFS_JARS)
