"""`sluice demo` as a process, in a folder of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.testbed.processes import descendants
from tests.integration.job_process import wait_until
from tests.web import answers

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]


def test_a_run_has_its_console_and_ends_with_one_line_if_its_broker_dies(tmp_path: Path) -> None:
    log, errors = tmp_path / "output", tmp_path / "errors"
    with log.open("w") as output, errors.open("w") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "sluice.cli.main", "demo", "--seconds", "300"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            stdout=output,
            stderr=said,
        )
    try:
        wait_until(lambda: "in a browser: " in log.read_text() or run.poll() is not None, 180)
        url = log.read_text().partition("in a browser: ")[2].split()[0]
        wait_until(lambda: answers(url), 120)
        wait_until(lambda: " decisions" in log.read_text() or run.poll() is not None, 180)
        (broker,) = [pid for pid, command in descendants(run.pid).items() if "kafka.Kafka" in command]
        os.kill(broker, signal.SIGKILL)

        assert run.wait(180) == 1  # the load gives up after 35 s, then the job ends
        assert "sluice: error: the broker ended by itself: " in errors.read_text()
        assert len(errors.read_text().splitlines()) == 1
        assert not descendants(run.pid)
    finally:
        run.kill()
