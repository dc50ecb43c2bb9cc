"""The threads that do the job's side work: what they do may fail, and is tried again."""

import logging
from collections.abc import Callable
from threading import Event, Thread, current_thread

log = logging.getLogger("sluice.background")


def _log_with_stack(error: Exception) -> None:
    log.error("%s failed: %s; trying again", current_thread().name, type(error).__name__, exc_info=error)


class BackgroundThread:
    """A thread that calls `work`, pauses, and calls it again until it is stopped.

    An error ends one call, never the thread; `failed` is told of it. Work that takes long has to look at `stopped`.
    """

    def __init__(
        self, name: str, work: Callable[[], None], pause_s: float, failed: Callable[[Exception], None] = _log_with_stack
    ) -> None:
        self.stopped = Event()
        self._work = work
        self._pause_s = pause_s
        self._failed = failed
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin with the first call."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Make no further call, end a pause, and wait at most so long for a call that is under way."""
        self.stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Whether it may still make a call."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                self._work()
            except Exception as error:  # any error: the thread must survive to try again
                self._failed(error)
            self.stopped.wait(self._pause_s)
