"""The job in an environment that was made for other programs, and one whose temporary files are taken away."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sluice.streaming.checkpoint.folder import RUNS
from sluice_lab.testbed.processes import descendants
from sluice_proxy.processes import Child
from tests.integration.job_process import AUDITED, JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

EVENT = b'{"api": "Fetch", "user": "alice", "client_id": "app"}'
NOWHERE = "/opt/another"

FOREIGN = {
    # of another Spark, of a notebook, of a cluster
    **dict.fromkeys(("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "PYSPARK_PYTHON"), NOWHERE),
    **dict.fromkeys(("PYSPARK_DRIVER_PYTHON", "HADOOP_HOME", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "CLASSPATH"), NOWHERE),
    **{"SPARK_LOCAL_IP": "192.0.2.1", "SPARK_REMOTE": "sc://192.0.2.1", "SPARK_API_MODE": "connect", "MASTER": "yarn"},
    **{"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell", "HADOOP_PROXY_USER": "bob", "SPARK_DIST_CLASSPATH": "/x"},
    # of Java
    **{"_JAVA_OPTIONS": "-Xmx16m", "JAVA_TOOL_OPTIONS": "-XX:+UseParallelGC", "JDK_JAVA_OPTIONS": "-XX:+UseZGC"},
    # of Python
    **{"PYTHONSTARTUP": NOWHERE, "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "latin-1"},
    # of the machine
    **{"LC_ALL": "C", "LANG": "tr_TR.ISO-8859-9", "TZ": "Mars/Phobos"},
    **{"TMPDIR": NOWHERE, "http_proxy": "http://192.0.2.1:3128", "https_proxy": "http://192.0.2.1:3128"},
}
"""Variables that some program reads which the job is made of, or starts."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's working directory, with a module of somebody else."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "random.py").write_text("print('my own dice')")
    return folder


@pytest.fixture(scope="module")
def job(kafka_broker: str, tmp_path_factory: pytest.TempPathFactory, here: Path) -> Iterator[JobProcess]:
    """A job that is started, again too, in a foreign environment."""
    folder = tmp_path_factory.mktemp("foreign") / "My Data #1, 'é' {2}" / "job"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        job = Launched(folder, kafka_broker, [], audit=AUDITED)
        for name, value in FOREIGN.items():
            patch.setenv(name, value)
        job.start()
        yield job


class Launched(JobProcess):
    """A job that is started by its script: with -m the working directory would be the first to import from."""

    def launch(self, *options: str) -> Child:
        self._starts += 1
        script, files = str(Path(sys.executable).with_name("sluice")), (self.settings_file, self.status_file)
        named = [each for pair in zip(("--config", "--status-file"), map(str, files), strict=True) for each in pair]
        self.status_file.unlink(missing_ok=True)
        self.child = Child([script, "run", *named, *options], self.log_file)
        return self.child


def test_nothing_of_a_foreign_environment_matters(job: JobProcess) -> None:
    """Requests are decided and written to tables, and libraries are unpacked where they are removed at the end."""
    job.publish([EVENT] * 20)
    job.answered(20)
    decisions = Path(job.settings.delta.decisions)
    wait_until(lambda: any(decisions.glob("date=*/*.parquet")), 120)
    mapped = {each.path for pid in descendants(job.running().pid) for each in psutil.Process(pid).memory_maps()}
    runs = Path(job.settings.enforce.checkpoint, RUNS).resolve()
    unpacked = [path for path in mapped if "rocksdbjni" in path]

    assert unpacked
    assert all(Path(path).is_relative_to(runs) for path in unpacked)


def said(job: JobProcess) -> str:
    """The log of its last start, in the encoding that FOREIGN wants."""
    return job.log_file.read_text("latin-1")


def still_told_to_end(child: Child) -> bool:
    """Send the signal of a supervisor; False once there is no process."""
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGTERM)
    return child.alive


def test_a_job_whose_files_are_taken_away_ends_so_that_its_supervisor_can_start_it(job: JobProcess, here: Path) -> None:
    """The audit query alone would fail for ever. Exit code 1, also if the supervisor loses its patience meanwhile.

    At the end nothing is left but checkpoints and tables.
    """
    child, before = job.running(), job.count(job.settings.topics.requests)
    runs = Path(job.settings.enforce.checkpoint, RUNS).resolve()
    (folder,) = runs.iterdir()

    shutil.rmtree(folder)
    job.publish([EVENT] * 20)
    wait_until(lambda: "is given up" in said(job), 120)
    wait_until(lambda: not still_told_to_end(child), 120)

    assert child.wait(120) == 1
    assert f"{folder} was removed while the job runs" in said(job)
    job.start()
    job.answered(before + 20)
    job.stop()
    assert not runs.exists()
    assert sorted(path.name for path in here.iterdir()) == ["random.py"]
    assert "Traceback" not in said(job)
