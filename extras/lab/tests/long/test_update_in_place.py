"""An update of the package under a running job, which goes on by what it has loaded, or ends and says why."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mixed_load import QUOTAS, requests_of
from sluice.jvm.jars import REPOSITORY, jars_home
from sluice.kafka_io.topics import ensure_topics
from sluice_lab.testbed.processes import kill, python_workers
from sluice_lab.testbed.reconciliation import reconcile
from tests.integration.job_process import AUDITED, JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the package and its engine, as of an install, which processes that start from now on have."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "jars").symlink_to(jars_home())
    installed = tmp_path / "installed"
    for package in ("sluice", "extras/native/sluice_native"):
        copy = installed / Path(package).name
        shutil.copytree(REPOSITORY / package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(installed)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    return installed


@pytest.fixture
def job(kafka_broker: str, tmp_path: Path, package: Path) -> Iterator[JobProcess]:  # noqa: ARG001 - it runs that
    process = JobProcess(tmp_path / "job", kafka_broker, QUOTAS, audit=AUDITED)
    ensure_topics(process.settings.topics, process.settings.kafka)
    process.start()
    yield process
    process.stop()


def replace_files(package: Path, release: Callable[[str], str]) -> None:
    """Replace Python and C of the package by those of another release, and remove its library, as an installer does."""
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".c", ".h"):
            text = path.read_text()
            path.unlink()
            path.write_text(release(text))
    for library in (package / "sluice_native" / "built").iterdir():
        library.unlink()


def half_of_them_decided(job: JobProcess) -> tuple[list[bytes], int]:
    """Requests of which the job has decided the first half, and how many those are."""
    requests = requests_of(time.time_ns() // 1_000_000)
    half = len(requests) // 2
    job.publish(requests[:half])
    job.answered(half)
    return requests, half


def end_workers(job: JobProcess, *, daemon: bool) -> None:
    """End the workers, so that others are forked; with the daemon, so that another one starts before."""
    workers = python_workers(job.running().pid)
    daemons = {psutil.Process(pid).ppid() for pid in workers} if daemon else set()
    assert workers
    for pid in (*daemons, *workers):
        kill(pid)


def test_workers_that_are_forked_after_an_update_decide_and_audit_by_the_release_of_their_job(
    job: JobProcess, package: Path
) -> None:
    """Nothing of the next release is loaded: it would raise."""
    requests, half = half_of_them_decided(job)

    replace_files(package, lambda _: "raise RuntimeError('the next release')\n")
    end_workers(job, daemon=False)
    job.publish(requests[half:])
    job.answered(len(requests))
    wait_until(lambda: audited(job) == len(requests), 120)
    job.stop()

    said = job.log_file.read_text()
    assert "the next release" not in said
    assert "native code: " not in said
    found = reconcile(job.settings)
    assert (found.requests, found.simulated, found.answered) == (len(requests), True, True), str(found)


def audited(job: JobProcess) -> int:
    """The answers that the audit query has put into tables."""
    return sum(entry["events"] for entry in job.log() if entry["message"] == "batch" and entry["query"] == "audit")


def test_a_job_whose_workers_start_anew_by_another_release_ends_and_goes_on_when_it_is_started(
    job: JobProcess, package: Path
) -> None:
    requests, half = half_of_them_decided(job)

    replace_files(package, lambda text: text + "\n")
    end_workers(job, daemon=True)
    job.publish(requests[half:])

    assert job.running().wait(120) == 1
    assert job.count(job.settings.topics.decisions, job.settings.topics.dead_letters) == half
    last = job.log_file.read_text().splitlines()[-1]
    assert "the package of Sluice was replaced under the running job" in last
    assert last.endswith("and restart the job")
    job.start()
    job.answered(len(requests))
    job.stop()
    found = reconcile(job.settings)
    assert (found.requests, found.simulated, found.answered) == (len(requests), True, True), str(found)
