"""The jars of Kafka Streams, which only the bench needs.

`python -m scripts.benchmarks.peers.streams_jars` downloads them; the bench does so when it needs them.
"""

from pathlib import Path

from streaming.java.jars import JarSet, run_download_command

_FOLDER = Path(__file__).resolve().parent

STREAMS_JARS = JarSet(
    "streams",
    _FOLDER / "streams-jars.xml",
    _FOLDER / "streams-jars.sha256",
    "scripts.benchmarks.peers.streams_jars",
    added_to_pyspark=False,
)

if __name__ == "__main__":
    run_download_command(STREAMS_JARS)
