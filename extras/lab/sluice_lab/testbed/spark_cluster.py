"""A standalone Spark cluster on loopback, whose executors run the wheel of Sluice.

Master and workers are processes of their own that end with this one.
"""

import os
import re
import signal
import sys
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pyspark

from sluice_demo.job import Json, wait_until
from sluice_lab.testbed.distribution import build_extra, build_wheel
from sluice_lab.testbed.processes import descendants
from sluice_proxy.processes import Child, free_ports

_HOST = "127.0.0.1"
_EXTRAS = ("elastic", "native", "shared_storage")
_BUILD_S = 300
_START_S = 120
_STOP_S = 10
_CORES = "2"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_APPLICATION = re.compile(r"--app-id (\S+)")


def install_sluice(folder: Path) -> None:
    """Unpack Sluice's wheels into `sluice`, and link the libraries in `libraries`, without a way back to the checkout.

    Executors need the packages that the driver has: it hands them the sections of its extras, and native work.

    Raises BuildError.
    """
    libraries = folder / "libraries"
    for wheel in (build_wheel(folder), *(build_extra(extra, folder) for extra in _EXTRAS)):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "sluice")
    libraries.mkdir()
    for entry in Path(pyspark.__file__).parents[1].iterdir():
        if entry.suffix != ".pth" and "sluice" not in entry.name and entry.name != "__pycache__":
            (libraries / entry.name).symlink_to(entry)


class SparkCluster(AbstractContextManager["SparkCluster"]):
    """A master and `size` workers, as a context manager. A killed one can be started again.

    A worker has two cores: one for an executor of the leader, and one for that of a standby. The master keeps its state
    in files, so that running executors survive its restart.
    """

    def __init__(self, folder: Path, size: int, worker_memory: str) -> None:
        """Raises BuildError."""
        self._folder, self._memory = folder, worker_memory
        folder.mkdir(parents=True)
        install_sluice(folder)
        self._port = free_ports(1)[0]
        self._starts = 0
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={folder / 'recovery'}"
        os.environ |= {
            "SPARK_HOME": str(folder / "libraries/pyspark"),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": recovery,
            "PYSPARK_PYTHON": f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}",
        }
        os.environ.pop("PYTHONPATH", None)
        self.restart_master()
        self.workers = [self._start_worker(number) for number in range(size)]

    def __exit__(self, *_: object) -> None:
        for child in [*self.workers, self.master]:
            child.end(signal.SIGTERM, _STOP_S)

    @property
    def url(self) -> str:
        """The value of `spark.master`."""
        return f"spark://{_HOST}:{self._port}"

    def settings(self, executors: int) -> Json:
        """The section `spark` of a job with this number of executors of one core."""
        return {
            "spark.master": self.url,
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.executor.cores": "1",
            "spark.cores.max": str(executors),
            "spark.executorEnv.PYTHONPATH": f"{self._folder / 'sluice'}:{self._folder / 'libraries'}",
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
        """Start the master, or one in the place of one that was killed."""
        options = ["--port", str(self._port), "--webui-port", str(free_ports(1)[0])]
        self.master = self._start("master", "org.apache.spark.deploy.master.Master", *options)
        wait_until(lambda: self._port in _listened_ports(self.master.pid), _START_S)

    def restart_worker(self, number: int) -> None:
        """Start a worker in the place of one that was killed."""
        self.workers[number] = self._start_worker(number)

    def _start_worker(self, number: int) -> Child:
        work = self._folder / f"worker-{number}"
        options = ["--cores", _CORES, "--memory", self._memory, "--work-dir", str(work), self.url]
        return self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *options)

    def _start(self, name: str, main_class: str, *options: str) -> Child:
        self._starts += 1
        script = str(self._folder / "libraries/pyspark/bin/spark-class")
        log = self._folder / f"{name}-{self._starts}.log"
        return Child(["/bin/bash", script, main_class, "--host", _HOST, *options], log)


def _listened_ports(pid: int) -> set[int]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
