"""PySpark's daemon, which forks the Python workers, deaf to SIGTERM and SIGINT (`spark.python.daemon.module`).

systemd ends a service by SIGTERM to all of its processes. Workers that obeyed would fail the micro-batch that the job
lets end. Java ends the daemon by closing its standard input, and with it the workers, however Java itself ends.
"""

import signal
from collections.abc import Callable

from pyspark import daemon


def run_daemon(prepare: Callable[[], None] = lambda: None) -> None:
    """Prepare what workers have when they are forked, and run Spark's daemon until Java closes its standard input."""
    # Blocked, not ignored: PySpark sets handlers of its own, in the workers too, which inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    prepare()
    daemon.manager()


if __name__ == "__main__":
    run_daemon()
