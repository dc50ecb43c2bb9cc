"""Spark's Python worker daemon with a sampling profiler in every worker (`spark.python.daemon.module`).

A sample is taken every few milliseconds of CPU time, so waiting costs nothing, and C code is attributed to the line
that calls it. Each worker writes the CPU seconds of its stages to a file in the folder that the environment names.
"""

import json
import os
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from pyspark import daemon

from sluice.streaming.workers.batched_daemon import lean

FOLDER_VARIABLE = "SLUICE_BENCH_PROFILE"
LOOKUP = "quotas lookup"
"""Counted in addition to the stages: all time spent on finding the quotas of a request."""

_INTERVAL_S = 0.004  # the kernel's timer tick

STAGES = {
    "streaming/enforce/parsing": "parse",
    "state/decisions/request": "parse",
    "state/decisions/charge_plan": "resolve",
    "state/quotas/": "resolve",
    "streaming/checkpoint/": "resolve",
    "streaming/enforce/planning": "plan",
    "streaming/enforce/wire": "rows between stages and JSON",
    "streaming/enforce/stages": "Arrow",
    "streaming/enforce/": "order",
    "state/arithmetic/": "arithmetic",
    "state/decisions/": "combine",
    "state/store/": "state codec",
}
"""How a module's path begins -> its stage; the first match counts. Other modules are stages of their own."""

PYSPARK = "Arrow, pandas and pickle in PySpark"
_LOOKUP_MODULES = ("state/quotas/resolution", "streaming/checkpoint/")
_FOLDERS = ("state/", "streaming/")
_PROJECT = f"{Path(__file__).resolve().parents[2]}/"


class Profile:
    """CPU seconds by stage of this process."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last_s = time.process_time()

    def start(self) -> None:
        """Begin sampling; CPU time before this call is not counted."""
        self._last_s = time.process_time()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)

    def stop(self) -> None:
        """End sampling."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        now_s = time.process_time()
        spent_s, self._last_s = now_s - self._last_s, now_s
        modules = [module for module in map(_module, _stack(frame)) if module]
        self.seconds[_stage(modules[0]) if modules else PYSPARK] += spent_s
        if any(module.startswith(_LOOKUP_MODULES) for module in modules):
            self.seconds[LOOKUP] += spent_s


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str | None:
    """Path of the frame's module below the project's folder, such as `state/store/page`; None for other code."""
    path = frame.f_code.co_filename.removeprefix(_PROJECT)
    return path.removesuffix(".py") if path.startswith(_FOLDERS) else None


def _stage(module: str) -> str:
    return next((stage for start, stage in STAGES.items() if module.startswith(start)), module)


def run_daemon() -> None:
    """Run Spark's daemon. Its function `worker` runs once per task, in a new or a reused process."""
    profile, work = Profile(), lean(daemon.worker)

    def sampled(sock: socket.socket, authenticated: bool) -> int:
        profile.start()
        try:
            return work(sock, authenticated)
        finally:
            profile.stop()
            (Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.json").write_text(json.dumps(profile.seconds))

    daemon.worker = sampled
    daemon.manager()


if __name__ == "__main__":
    run_daemon()
