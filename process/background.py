"""The threads that do side work: polling, publishing, following topics. An attempt may fail, and is made again."""

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from threading import Event, Thread
from types import TracebackType
from typing import Self

from kafka.errors import KafkaError

from sluice.process.format import error_line
from sluice.state.errors import SluiceError

Work = Callable[[], Iterable[float | None] | None]
"""One step of a service. A generator function takes a step with each `yield`, and keeps what it has opened meanwhile.

A number that it yields is the pause after the step in seconds, in place of the usual one.
"""


class LastError:
    """The error that keeps a thread from its work, so that the log has it once: until it changes or is over.

    >>> error = LastError()
    >>> error.is_new(OSError("gone")), error.is_new(OSError("gone")), error.ends(), error.ends()
    (True, False, True, False)
    """

    def __init__(self) -> None:
        self.line: str | None = None
        """The error in one line; None while there is none."""

    def is_new(self, error: BaseException) -> bool:
        """Note an error. True if it differs from the one before."""
        before, self.line = self.line, error_line(error)
        return self.line != before

    def ends(self) -> bool:
        """Note that there is none. True if there was one."""
        before, self.line = self.line, None
        return before is not None


class BackgroundService:
    """A thread that works, pauses, and works again until it is stopped. As a context it runs in a block.

    An error ends one attempt, never the thread: it is logged once as `failure`, until it changes or is over, and the
    next attempt begins anew after `retry_s`. An error that isn't of Kafka, the system or Sluice is counted in `crashes`
    and logged with its stack. Work that takes long has to look at `stopped`.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        pause_s: float,
        *,
        retry_s: float | None = None,
        failure: str | None = None,
        log: logging.Logger | None = None,
        level: int = logging.ERROR,
        stop_timeout_s: float = 10.0,
    ) -> None:
        """`level` is that of a `failure` in the log. `retry_s` is by default `pause_s`."""
        self.stopped = Event()
        self.last_error = LastError()
        self.crashes = 0
        self._work = work
        self._pause_s = pause_s
        self._retry_s = pause_s if retry_s is None else retry_s
        self._failure = failure or f"{name} failed"
        self._log = log or logging.getLogger("sluice.background")
        self._level = level
        self._stop_timeout_s = stop_timeout_s
        self._thread = Thread(target=self._run, name=f"sluice-{name}", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Begin with the first step."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Take no further step, end a pause, and wait for a step under way: at most `timeout_s` or `stop_timeout_s`."""
        self.stopped.set()
        if self._thread.is_alive():
            self._thread.join(self._stop_timeout_s if timeout_s is None else timeout_s)

    def is_alive(self) -> bool:
        """True while it may still take a step."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                with closing(self._steps()) as steps:
                    for pause_s in steps:
                        self.last_error.ends()
                        if self.stopped.wait(self._pause_s if pause_s is None else pause_s):
                            return
            except BaseException as error:  # of any class, SystemExit too: the thread must survive to try again
                self._note(error)
                self.stopped.wait(self._retry_s)

    def _steps(self) -> Generator[float | None]:
        while True:
            steps = self._work()
            if steps is not None:
                yield from steps
            yield None

    def _note(self, error: BaseException) -> None:
        expected = isinstance(error, KafkaError | SluiceError | OSError)
        self.crashes += not expected
        if self.last_error.is_new(error):
            level = self._level if expected else logging.ERROR
            self._log.log(level, "%s: %s; trying again", self._failure, self.last_error.line, exc_info=not expected)
