"""A thread that runs while a context manager is entered."""

from threading import Event, Thread
from typing import Self


class BackgroundLoop:
    """Runs `_run` in a thread while it is entered. `_run` has to end soon after `_left` is set."""

    def __init__(self) -> None:
        self._left = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
