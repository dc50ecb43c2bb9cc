"""Servers in Java that are child processes of this one, and what their logs say."""

import re
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from sluice.state.errors import SluiceError
from sluice_proxy.processes import Child

_STOP_S = 30.0
_POLL_S = 0.05


class Service(ABC):
    """Something that runs from `start` to `stop`, or as a context manager."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start it and return when it serves."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it cleanly; does nothing when it isn't running."""


class JavaServer(Service):
    """A Java virtual machine that ends with this process, even if this process is killed. `log` has its output."""

    kind: ClassVar[str]
    """Its name in errors, such as `broker`."""
    error: ClassVar[type[SluiceError]]
    """The error of one that doesn't run."""
    started: ClassVar[str]
    """The text in its log when it serves."""
    start_s: ClassVar[float]
    """Longest time that it may take to start."""

    def __init__(self, folder: Path, log: str) -> None:
        self._folder = folder.absolute()
        self._log = self._folder / log
        self.child: Child | None = None  # its process, if it was started

    @property
    def pid(self) -> int:
        """Its process id. Raises `error` when it isn't started."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """True if its process runs."""
        return self.child is not None and self.child.alive

    def stop(self) -> None:
        """Stop it cleanly (SIGTERM, then SIGKILL after 30 s); does nothing when it isn't running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def check(self) -> None:
        """Raises `error` when it has ended by itself, or is not started."""
        if not self._running().alive:
            raise self.error(f"the {self.kind} ended by itself: {self._reason()}; all of it: {self._log}")

    def _running(self) -> Child:
        if self.child is None:
            raise self.error(f"the {self.kind} in {self._folder} is not started")
        return self.child

    def _end(self, sign: signal.Signals) -> None:
        if self.child is not None:
            self.child.end(sign, _STOP_S)
            self.child = None

    def _run(self, command: list[str]) -> bool:
        """Run a command as the server. True once its log says that it serves: an open port may be another process's."""
        child = self.child = Child(command, self._log)
        deadline_s = time.monotonic() + self.start_s
        while child.alive and time.monotonic() < deadline_s:
            if self.started in self._log.read_text(errors="replace"):
                return True
            time.sleep(_POLL_S)
        return False

    def _reason(self) -> str:
        return (self.child and self.child.killed_by) or last_error(self._log.read_text(errors="replace"))


def last_error(log: str) -> str:
    """The most informative line of a Kafka log: the last innermost cause, else the last error, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("\tat ")]
    for sign in (r"^Caused by: |^(Exception in thread \S+ )?[\w.$]+(Exception|Error): ", r"\b(ERROR|FATAL)\b"):
        for line in reversed(lines):
            if re.search(sign, line):
                return line.removeprefix("Caused by: ")
    return lines[-1] if lines else "it printed nothing"
