"""The worker daemon with batched workers (`spark.python.daemon.module`)."""

import socket

from pyspark import daemon

from sluice.streaming.workers.batched import use_batched_groups
from sluice.streaming.workers.daemon import Worker, run_daemon


def batched(work: Worker) -> Worker:
    """The worker with its path of groups replaced, in its own process: `pyspark.worker` can't be imported before."""

    def work_batched(connection: socket.socket, authenticated: bool) -> int:
        import pyspark.worker

        use_batched_groups(pyspark.worker)
        return work(connection, authenticated)

    return work_batched


if __name__ == "__main__":
    daemon.worker = batched(daemon.worker)  # type: ignore[assignment] # PySpark calls it with positions
    run_daemon()
