"""The log file of a job, and the signals of tools that rotate logs."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.job_process import wait_until

pytestmark = [pytest.mark.spark]


def test_a_job_with_a_log_file_leaves_the_signals_of_logrotate_alone(tmp_path: Path, silent_broker: str) -> None:
    log = tmp_path / "job.log"
    command = [sys.executable, "-m", "sluice.cli.main", "run", "--bootstrap-servers", silent_broker]
    with subprocess.Popen([*command, "--log-file", str(log)], cwd=tmp_path) as job:
        wait_until(lambda: log.exists() and log.read_text() != "", 120)

        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):  # Python takes them in this order
            job.send_signal(number)

        assert job.wait(120) == 0
    assert "the job ends: SIGTERM asked it to" in log.read_text().splitlines()[-1]
