"""The worker daemon that loads what workers run before it forks them (`spark.python.daemon.module`).

PySpark's own imports nothing before, as a library might have started a thread: those that these start are jemalloc's,
which is made for forks.
"""

import ctypes
import gc
import os
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from pyspark import daemon

from sluice.streaming.errors import ReleaseError
from sluice.streaming.workers.daemon import run_daemon
from sluice.streaming.workers.engine_start import NATIVE_LOADED, NATIVE_VARIABLE, PYTHON_INSTEAD, engine_missing
from sluice.streaming.workers.release import check_release

_LOADED = (
    "sluice.streaming.enforce.stages",
    "sluice.streaming.audit.worker_pass",
    "sluice.sinks.tables.decisions",
    "sluice.sinks.tables.dead_letters",
)
"""All that workers run, imported once the release is known to be the driver's, and numpy to have no threads.

A worker that loaded something later would have it of the release that was installed meanwhile.
"""

_TASKS_TO_A_FULL_COLLECTION = 100

_MALLOC = {-1: (1 << 30,), -3: (1 << 30, 32 << 20)}
"""Parameters of glibc's malloc: free bytes from which it gives memory back, and bytes from which a block is mapped.

The page batches of a task take more than the 32 MiB that are the most for the second one before glibc 2.35.
"""

Worker = Callable[[socket.socket, bool], int]


def quietly(work: Worker) -> Worker:
    """The worker without the traceback of one that Java has left: the end of the job is no fault."""

    def work_quietly(connection: socket.socket, authenticated: bool) -> int:
        try:
            return work(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return work_quietly


def collect_after_task() -> int:
    """Collect what a task has left; after each hundredth task old objects too. PySpark collects all after each task.

    With the plans of 50 000 clients that takes 53 ms of CPU, as much as a small task.
    """
    return gc.collect(2 if gc.get_count()[2] >= _TASKS_TO_A_FULL_COLLECTION else 1)


def keep_memory() -> None:
    """Let malloc keep what a task frees for the next one, which would get it from the kernel anew, page by page."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # of glibc alone
        for parameter, values in _MALLOC.items():
            any(mallopt(parameter, value) for value in values)  # until one is taken


def refuse(error: ReleaseError) -> None:
    """Make each worker raise this before it reads what Java sends, which is of another release.

    Java would say of a daemon that ends no more than that it has.
    """
    worker: Any = import_module("pyspark.worker")

    def raise_it(_: object) -> None:
        raise error

    worker.check_python_version = raise_it  # a worker calls it before it reads what it has to run


def load(use_paths: Callable[[], None]) -> None:
    """Load what workers run, their engine too, and call `use_paths`. Raises ReleaseError if it isn't the driver's."""
    check_release()
    for name in _LOADED:
        import_module(name)
    load_engine()
    use_paths()


def load_engine() -> None:
    """Load the engine, if the job wants native code, once for all workers to come.

    Say in one line why there is none, unless the driver, which says so in the log, has none either.
    """
    of_driver = os.environ.get(NATIVE_VARIABLE)
    if of_driver and (reason := engine_missing()) and of_driver == NATIVE_LOADED:
        print(f"sluice: native code: {PYTHON_INSTEAD}: {reason}", file=sys.stderr, flush=True)


def run_loaded(use_paths: Callable[[], None] = lambda: None) -> None:
    """Run the daemon with what workers run, `use_paths` called; it collects and keeps memory as is best for tasks."""

    def prepare() -> None:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # no threads of numpy's, which would not be there after a fork
        keep_memory()
        try:
            load(use_paths)
        except ReleaseError as error:
            refuse(error)
        gc.set_threshold(0)  # never within a task: a collection there looks at all rows of the micro-batch
        daemon.gc = SimpleNamespace(collect=collect_after_task)  # type: ignore[attr-defined, assignment] # all it calls
        daemon.worker = quietly(daemon.worker)  # type: ignore[assignment] # PySpark calls it with positions

    run_daemon(prepare)


if __name__ == "__main__":
    run_loaded()
