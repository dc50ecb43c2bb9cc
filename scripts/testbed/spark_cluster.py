"""A standalone Spark cluster on loopback: a master and workers, each a process of its own that ends with this one."""

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from scripts.testbed.broker import free_ports
from scripts.testbed.installed_sluice import InstalledSluice
from scripts.testbed.job import Json, wait_until
from scripts.testbed.processes import Child, descendants

_HOST = "127.0.0.1"
_START_S = 120
_STOP_S = 10
_DAEMON_HEAP = "256m"
_CORES = "2"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_APPLICATION = re.compile(r"--app-id (\S+)")


class SparkCluster:
    """A master and `size` workers, as a context manager. A killed one can be started again.

    A worker has two cores: one for an executor of the leader, and one for that of a standby. The master keeps its state
    in files, so that running executors survive its restart.
    """

    def __init__(self, folder: Path, size: int, environment: InstalledSluice, worker_memory: str) -> None:
        self._folder, self._environment, self._memory = folder, environment, worker_memory
        folder.mkdir(parents=True)
        self._port = free_ports(1)[0]
        self._starts = 0
        os.environ |= {
            "SPARK_HOME": str(environment.spark_home),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_DAEMON_MEMORY": _DAEMON_HEAP,
            "SPARK_MASTER_OPTS": (
                f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={folder / 'recovery'}"
            ),
            "PYSPARK_PYTHON": str(environment.python),
        }
        os.environ.pop("PYTHONPATH", None)
        self.master = self._start_master()
        self.workers = [self._start_worker(number) for number in range(size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*self.workers, self.master]:
            child.end(signal.SIGTERM, _STOP_S)

    @property
    def url(self) -> str:
        """The value of `spark.master`."""
        return f"spark://{_HOST}:{self._port}"

    def settings(self, executors: int) -> Json:
        """The section `spark` of a job with so many executors of one core."""
        return {
            "spark.master": self.url,
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.executor.cores": "1",
            "spark.cores.max": str(executors),
            "spark.executorEnv.PYTHONPATH": self._environment.pythonpath,
            "spark.executorEnv.SPARK_LOCAL_IP": _HOST,
        }

    def executors(self) -> list[int]:
        """Process ids of the active driver's executors: of the driver that started first."""
        found = [
            (application[1], pid)
            for worker in self.workers
            for pid, command in descendants(worker.pid).items()
            if _EXECUTOR in command and (application := _APPLICATION.search(command))
        ]
        first = min(found, default=("", 0))[0]
        return [pid for application, pid in found if application == first]

    def restart_master(self) -> None:
        """Start a master in the place of one that was killed."""
        self.master = self._start_master()

    def restart_worker(self, number: int) -> None:
        """Start a worker in the place of one that was killed."""
        self.workers[number] = self._start_worker(number)

    def _start_master(self) -> Child:
        options = ["--host", _HOST, "--port", str(self._port), "--webui-port", str(free_ports(1)[0])]
        child = self._start("master", "org.apache.spark.deploy.master.Master", options)
        wait_until(lambda: _listens(child.pid, self._port), _START_S)
        return child

    def _start_worker(self, number: int) -> Child:
        work = self._folder / f"worker-{number}"
        options = ["--host", _HOST, "--cores", _CORES, "--memory", self._memory, "--work-dir", str(work), self.url]
        return self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", options)

    def _start(self, name: str, main_class: str, options: Sequence[str]) -> Child:
        self._starts += 1
        script = self._environment.spark_home / "bin/spark-class"
        return Child(["/bin/bash", str(script), main_class, *options], self._folder / f"{name}-{self._starts}.log")


def _listens(pid: int, port: int) -> bool:
    return any(
        connection.laddr.port == port and connection.status == psutil.CONN_LISTEN
        for connection in psutil.Process(pid).net_connections("tcp")
    )
