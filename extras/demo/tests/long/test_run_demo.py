"""`sluice demo` as a process, in a folder of its own."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from sluice_lab.testbed.processes import descendants
from tests.integration.job_process import wait_until
from tests.waiting import eventually
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


def marked(mark: str) -> dict[int, str]:
    """The processes that were started, directly or not, with this mark in their environment."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SLUICE_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline())[:200]
    return found


def is_gone(mark: str) -> bool:
    """True if no process is left that was started with this mark."""
    return not marked(mark)


def test_ctrl_c_at_any_moment_of_the_start_leaves_no_process_behind(tmp_path: Path) -> None:
    """Twenty times: while Python imports, while the broker or Java starts, and while the first requests are decided.

    There is one in each two seconds, drawn anew in each run; a failure says which it was. Every second time the
    terminal closes as well.
    """
    draw = random.Random()
    for number in range(20):
        after_s, closes = 2 * (number + draw.random()), number % 2 == 1
        mark = f"{os.getpid()}-{number}"
        with (tmp_path / f"output-{number}").open("w") as output:
            run = subprocess.Popen(
                [sys.executable, "-m", "sluice.cli.main", "demo", "--seconds", "300"],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(Path.cwd()), "SLUICE_TEST_MARK": mark},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        time.sleep(after_s)
        os.killpg(run.pid, signal.SIGINT)
        if closes:
            time.sleep(draw.uniform(0, 0.5))
            os.killpg(run.pid, signal.SIGHUP)
        with suppress(AssertionError):
            eventually(partial(is_gone, mark), 20)  # 3 s where the machine has nothing else to do
        left = marked(mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        run.wait()
        assert not left, f"Ctrl-C after {after_s:.2f} s, closed: {closes}"
