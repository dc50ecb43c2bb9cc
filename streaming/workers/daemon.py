"""PySpark's daemon, which forks the Python workers, deaf to SIGTERM and SIGINT (`spark.python.daemon.module`).

systemd ends a service by SIGTERM to all of its processes. Workers that obeyed would fail the micro-batch that the job
lets end. Java ends the daemon by closing its standard input, and with it the workers, however Java itself ends.
"""

import signal
import socket
from collections.abc import Callable

from pyspark import daemon

Worker = Callable[[socket.socket, bool], int]


def quietly(work: Worker) -> Worker:
    """The worker without the traceback of one that Java has left: the end of the job is no fault."""

    def work_quietly(connection: socket.socket, authenticated: bool) -> int:
        try:
            return work(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return work_quietly


def run_daemon() -> None:
    """Run Spark's daemon until Java closes its standard input."""
    # Blocked, not ignored: PySpark sets handlers of its own, in the workers too, which inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    daemon.worker = quietly(daemon.worker)  # type: ignore[assignment] # PySpark calls it with positions
    daemon.manager()


if __name__ == "__main__":
    run_daemon()
