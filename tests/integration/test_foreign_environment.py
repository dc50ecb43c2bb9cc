"""The job in an environment that was made for other programs, and one whose temporary files are taken away."""

import os
import shutil
import signal
import sys
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


def launched(job: JobProcess) -> Child:
    """Start it by its script: with -m the working directory would be the first to import from, as for any module."""
    script = Path(sys.executable).with_name("sluice")
    options = ["--config", str(job.settings_file), "--status-file", str(job.status_file)]
    job.child = Child([str(script), "run", *options], job.folder / "job-0.log")
    wait_until(lambda: job.running().alive and job.status().get("state") == "running", 180)
    return job.child


def test_nothing_of_a_foreign_environment_matters(
    kafka_broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are decided and written to tables, and nothing is left but checkpoints and tables."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "random.py").write_text("print('my own dice')")
    monkeypatch.chdir(here)
    job = JobProcess(tmp_path / "My Data #1, 'é' {2}" / "job", kafka_broker, [], audit=AUDITED)
    for name, value in FOREIGN.items():
        monkeypatch.setenv(name, value)

    child = launched(job)
    job.publish([EVENT] * 20)
    job.answered(20)
    decisions = Path(job.settings.delta.decisions)
    wait_until(lambda: any(decisions.glob("date=*/*.parquet")), 120)
    mapped = {each.path for pid in descendants(child.pid) for each in psutil.Process(pid).memory_maps()}
    runs = Path(job.settings.enforce.checkpoint, RUNS).resolve()
    unpacked = [path for path in mapped if "rocksdbjni" in path]
    job.stop()

    assert unpacked
    assert all(Path(path).is_relative_to(runs) for path in unpacked)
    assert not runs.exists()
    assert sorted(path.name for path in here.iterdir()) == ["random.py"]
    assert "Traceback" not in (job.folder / "job-0.log").read_text()


def still_told_to_end(child: Child) -> bool:
    """Send the signal of a supervisor; False once there is no process."""
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGTERM)
    return child.alive


def test_a_job_whose_files_are_taken_away_ends_so_that_its_supervisor_can_start_it(
    kafka_broker: str, tmp_path: Path
) -> None:
    """The audit query alone would fail for ever. Exit code 1, also if the supervisor loses its patience meanwhile."""
    job = JobProcess(tmp_path / "job", kafka_broker, [], audit=AUDITED)
    job.start()
    child = job.running()
    (folder,) = Path(job.settings.enforce.checkpoint, RUNS).resolve().iterdir()

    shutil.rmtree(folder)
    job.publish([EVENT] * 20)
    wait_until(lambda: "is given up" in job.log_file.read_text(), 120)
    wait_until(lambda: not still_told_to_end(child), 120)

    assert child.wait(120) == 1
    assert f"{folder} was removed while the job runs" in job.last_line()
    job.start()
    job.answered(20)
    job.stop()
