"""Clocks that a test moves, and waiting for what other threads do."""

import time
from collections.abc import Callable

import psutil
import pytest


def eventually(holds: Callable[[], bool], seconds: float = 120) -> None:
    """Fails unless the condition comes true in time, which is what a busy machine needs: failures alone take it all.

    Between two checks it rests for twice as long as a check takes, as there is other work for the machine.
    """
    asked = time.monotonic()
    deadline = asked + seconds
    while not holds():
        now = time.monotonic()
        assert now < deadline, "it never came true"
        time.sleep(max(0.02, 2 * (now - asked)))
        asked = time.monotonic()


def eventually_equal(one: Callable[[], object], other: Callable[[], object], seconds: float = 120) -> None:
    """Fails unless both become the same in time, and says then what they were last."""
    last = list[object]()

    def are_equal() -> bool:
        last[:] = [one(), other()]
        return last[0] == last[1]

    try:
        eventually(are_equal, seconds)
    except AssertionError:
        pytest.fail(f"they never became the same: {last[0]!r} and {last[1]!r}")


def is_over(pid: int) -> bool:
    """True if a process has ended, though the one that started it may not have asked for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class DriverClock:
    """The clock of one driver, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s
