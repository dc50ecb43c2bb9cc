"""The processes that a demo starts: what it says when one is gone."""

import os
import signal
import sys
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest

from sluice_demo import broker_plugin
from sluice_demo.broker import Broker, BrokerError
from sluice_demo.job import RunError, SluiceJob
from sluice_proxy.processes import Child

LAST = '{"message": "batch"}'


def killed(log: Path) -> Child:
    """A child that has written a line of its usual log and was killed from outside."""
    child = Child([sys.executable, "-c", f"import signal; print({LAST!r}, flush=True); signal.pause()"], log)
    while LAST not in log.read_text():
        os.sched_yield()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(120)
    return child


def test_a_process_that_was_killed_is_said_to_be_killed_not_by_the_last_line_of_its_log(tmp_path: Path) -> None:
    job, broker = SluiceJob(tmp_path), Broker(tmp_path)
    job.child = killed(job.log_file)
    broker.child = killed(tmp_path / "broker.log")

    with pytest.raises(RunError, match=r"^the job ended by itself: SIGKILL ended it, .* lack of memory; see ") as ended:
        job.running()
    with pytest.raises(BrokerError, match=r"^the broker ended by itself: SIGKILL ended it, .* lack of memory; all of"):
        broker.check()
    assert LAST not in str(ended.value)


def test_a_job_that_ends_says_why_whatever_its_java_says_after_it(tmp_path: Path) -> None:
    job = SluiceJob(tmp_path)
    after = "print('sluice: error: no room left', 'at org.apache.spark.Main', sep='\\n')"  # Java ends later
    job.child = Child([sys.executable, "-c", after], job.log_file)
    job.child.wait(120)

    with pytest.raises(RunError, match=r"^the job ended by itself: sluice: error: no room left; see "):
        job.running()


def test_ctrl_c_and_a_job_that_ends_end_the_wait_for_the_first_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_plugin, "Heartbeats", lambda _: Mock(shares=dict))

    broker_plugin.wait_for_gateways(Mock(), 3, lambda: True)
    with pytest.raises(RunError, match="the job ended"):
        broker_plugin.wait_for_gateways(Mock(), 3, Mock(side_effect=RunError("the job ended")))


def test_the_folder_of_a_broker_may_have_letters_that_java_properties_have_not(tmp_path: Path) -> None:
    folder = tmp_path / "Büro 東京"
    folder.mkdir()

    broker = Broker(folder)
    written = broker.write_properties(broker.choose_node()).read_bytes()

    assert f"log.dirs={tmp_path}/B\\u00fcro \\u6771\\u4eac/data\n".encode() in written


def test_a_broker_has_the_address_that_it_was_given_before_its_start(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    address = broker.choose_address()

    broker.write_properties(broker.choose_node())

    assert broker.bootstrap_servers == address


def test_a_job_that_is_launched_already_is_waited_for_and_not_started_again(tmp_path: Path) -> None:
    job = SluiceJob(tmp_path)
    job.child = Child([sys.executable, "-c", "import signal; signal.pause()"], job.log_file)
    job.status_file.write_text('{"state": "running"}')
    launched = job.child.pid

    job.start()

    assert job.running().pid == launched
    job.kill()


def test_a_job_that_found_no_broker_before_there_was_one_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the job's process was up before the broker's."""
    job, pauses = SluiceJob(tmp_path), [sys.executable, "-c", "import signal; signal.pause()"]
    job.child = Child(pauses, job.log_file)
    job.status_file.write_text('{"state": "starting", "waiting_for": "broker"}')

    class Ending(Event):
        def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 # no time passes here
            job.kill()
            return False

    def launch(self: SluiceJob) -> Child:
        self.status_file.write_text('{"state": "running"}')
        self.child = Child(pauses, self.log_file)
        return self.child

    monkeypatch.setattr(SluiceJob, "launch", launch)

    job.start(Ending())

    assert job.alive
    job.kill()
