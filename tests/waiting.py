"""Clocks that a test moves, and waiting for what other threads do."""

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], seconds: float = 120) -> None:
    """Fails unless the condition comes true in time, which is what a busy machine needs: failures alone take it all.

    Between two checks it rests for as long as a check takes, as there is other work for the machine.
    """
    asked = time.monotonic()
    deadline = asked + seconds
    while not holds():
        now = time.monotonic()
        assert now < deadline, "it never came true"
        time.sleep(max(0.02, now - asked))
        asked = time.monotonic()


class DriverClock:
    """The clock of one driver, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s
