"""Signals to the whole job: Java and the workers leave the end of the job to the driver, and end with it."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sluice_lab.testbed.processes import descendants, python_workers
from sluice_proxy.processes import Child
from tests.integration.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

EVENT = b'{"api": "Fetch", "user": "alice", "client_id": "app"}'


@pytest.fixture(scope="module")
def job(kafka_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    process = JobProcess(tmp_path_factory.mktemp("signals"), kafka_broker, [])
    yield process
    process.stop()


def at_work(job: JobProcess) -> tuple[Child, set[int]]:
    """The job's process and all processes below it, while micro-batches are under way."""
    job.start()
    child = job.running()
    before = job.count(job.settings.topics.requests)
    job.publish([EVENT] * 500)
    job.answered(before + 500)
    job.publish([EVENT] * 500)
    assert python_workers(child.pid)
    return child, set(descendants(child.pid))


def to_the_group(number: signal.Signals) -> Callable[[int], None]:
    """As Ctrl-C in a terminal does."""
    return lambda pid: os.killpg(pid, number)


def to_every_process(number: signal.Signals) -> Callable[[int], None]:
    """As systemd does by default, with all processes of the unit."""

    def send(pid: int) -> None:
        for process in [pid, *descendants(pid)]:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    return send


@pytest.mark.parametrize(
    "send",
    [
        pytest.param(to_the_group(signal.SIGINT), id="group-SIGINT"),
        pytest.param(to_every_process(signal.SIGTERM), id="all-SIGTERM"),
        pytest.param(to_the_group(signal.SIGTERM), id="group-SIGTERM", marks=pytest.mark.long),
        pytest.param(to_every_process(signal.SIGINT), id="all-SIGINT", marks=pytest.mark.long),
    ],
)
def test_a_signal_to_all_processes_ends_the_job_cleanly(job: JobProcess, send: Callable[[int], None]) -> None:
    """Exit code 0 and no traceback, with a micro-batch under way; its requests are decided once."""
    child, below = at_work(job)

    send(child.pid)

    assert child.wait(60) == 0
    wait_until(lambda: not any(map(psutil.pid_exists, below)), 120)
    assert not faults(job.log_file)
    assert job.status()["state"] == "stopped"
    assert {query["state"] for query in job.status()["queries"].values()} == {"stopped"}
    assert " asked it to" in job.log()[-1]["message"]
    decisions = [decision["decision_id"] for decision in job.decisions()]
    assert len(decisions) == len(set(decisions))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_java_starts_ends_the_job_cleanly(job: JobProcess, number: signal.Signals) -> None:
    """Java can't be told to leave signals alone before it runs."""
    child = job.launch()
    wait_until(lambda: any("SparkSubmit" in command for command in descendants(child.pid).values()), 120)
    below = set(descendants(child.pid))

    to_every_process(number)(child.pid)

    assert child.wait(60) == 0
    wait_until(lambda: not any(map(psutil.pid_exists, below)), 120)
    assert not faults(job.log_file)
    assert job.log()[-1]["message"] == f"the job ends: {number.name} asked it to"


def test_a_killed_driver_leaves_no_process_behind(job: JobProcess) -> None:
    """Java reads the end of its standard input, the daemon of the workers that of its own."""
    child, below = at_work(job)

    job.kill()

    assert child.wait(0) == -signal.SIGKILL
    wait_until(lambda: not any(map(psutil.pid_exists, below)), 120)


def faults(log: Path) -> list[str]:
    """Lines that an operator takes for a fault."""
    words = ("Traceback", "Error", "Exception", '"level": "error"')
    return [line for line in log.read_text().splitlines() if any(word in line for word in words)]
