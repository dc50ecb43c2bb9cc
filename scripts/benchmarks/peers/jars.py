"""The jars of the Kafka Streams peer, downloaded when the bench first needs them.

`python -m scripts.benchmarks.peers.jars` downloads them.
"""

from pathlib import Path

from sluice.jvm.jars import JarSet, run_download_command

_FOLDER = Path(__file__).resolve().parent

PEER_JARS = JarSet(
    "peers",
    _FOLDER / "jars.xml",
    _FOLDER / "jars.sha256",
    "scripts.benchmarks.peers.jars",
    added_to_pyspark=False,
)

if __name__ == "__main__":
    run_download_command(PEER_JARS)
