"""A job on the brokers of one of Kafka's own tests, which starts it.

`python -m sluice_lab.scenarios.peers.job FOLDER SERVERS` mirrors the quotas that the test sets in Kafka. It prints
`running` once it runs, and ends with its standard input.
"""

import sys
from pathlib import Path

from sluice.state.errors import SluiceError
from sluice_demo.job import Sections, SluiceJob, storage_in

EXEMPT_CLIENT_ID = "only-the-job-knows-this"
"""Begins the client-ids of the job and of the plugin, which the quotas of the tests would throttle too."""

_QUICK: Sections = {
    "audit": {"trigger_s": 86_400},
    "topics": {"partitions": 1},
    "spark": {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
}
"""Settings that make the start of a job short, as those of the integration tests."""


def main(folder: Path, servers: str) -> int:
    """Run the job until standard input ends."""
    folder.mkdir(parents=True)
    kafka = {"bootstrap.servers": servers, "client.id": EXEMPT_CLIENT_ID}
    job = SluiceJob(folder, storage_in(folder), _QUICK, {"kafka": kafka, "quotas": {"source": "kafka"}})
    try:
        job.start()
        print("running", flush=True)
        sys.stdin.read()
    except SluiceError as error:
        print(" ".join(str(error).split()), flush=True)
        return 1
    finally:
        job.kill()  # its brokers are about to end, so there is nothing that it could finish
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
