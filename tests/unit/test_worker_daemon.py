"""The daemon of the Python workers: what Java's end and signals do to it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sluice.streaming.workers.release import VARIABLE, check_release, package_digest


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that has told its parent the port it listens on."""
    command = [sys.executable, "-m", "sluice.streaming.workers.daemon", "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(4)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ignores_signals_and_ends_with_its_standard_input(
    daemon: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    """Java holds that open, so it ends with Java, also when Java is killed."""
    assert daemon.stdin is not None
    assert daemon.stderr is not None
    os.kill(daemon.pid, number)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(0.5)

    daemon.stdin.close()

    daemon.wait(120)
    assert not daemon.stderr.read()


@pytest.mark.parametrize("of_driver", [None, package_digest()])
def test_a_worker_of_the_driver_s_release_or_without_a_driver_works(
    monkeypatch: pytest.MonkeyPatch, of_driver: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if of_driver is not None:
        monkeypatch.setenv(VARIABLE, of_driver)

    check_release()
