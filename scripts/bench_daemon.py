"""Spark's Python worker daemon with a sampling profiler in every worker (`spark.python.daemon.module`).

A sample is taken each few milliseconds of CPU time, so waiting counts nothing and C code counts to the line that
called it. Each worker writes the CPU seconds of its stages to a file in the folder that the environment names.
"""

import json
import os
import signal
import socket
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

from pyspark import daemon

FOLDER_VARIABLE = "SLUICE_BENCH_PROFILE"
LOOKUP = "quotas lookup"
"""Counted besides the stages: everything on behalf of finding the quotas of a request."""

_INTERVAL_S = 0.004  # the kernel's own tick

STAGES = {
    "streaming/events": "parse",
    "state/request": "parse",
    "state/resolution": "resolve",
    "state/charge": "resolve",
    "state/entity": "resolve",
    "streaming/checkpoint": "resolve",
    "streaming/planning": "plan",
    "streaming/records": "rows between stages and JSON",
    "streaming/operator": "Arrow",
    "streaming/deciding": "order",
    "state/meters": "arithmetic",
    "state/counters": "arithmetic",
    "state/sampled_rate": "arithmetic",
    "state/token_bucket": "arithmetic",
    "state/rounding": "arithmetic",
    "state/decision": "combine",
    "state/shard": "state codec",
    "state/codec": "state codec",
}
"""Module of the project -> its stage; other modules of these folders are stages of their own."""

PYSPARK = "Arrow, pandas and pickle in PySpark"
_LOOKUP_PLACES = ("state/resolution", "streaming/checkpoint")
_FOLDERS = ("state", "streaming")
_PROJECT = str(Path(__file__).resolve().parent.parent)


class Profile:
    """CPU seconds by stage of this process."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last_s = time.process_time()

    def start(self) -> None:
        """Begin sampling; time before this counts nothing."""
        self._last_s = time.process_time()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)

    def stop(self) -> None:
        """End sampling."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        now_s = time.process_time()
        spent_s, self._last_s = now_s - self._last_s, now_s
        places = [place for place in map(_place, _stack(frame)) if place]
        self.seconds[STAGES.get(places[0], places[0]) if places else PYSPARK] += spent_s
        if any(place in _LOOKUP_PLACES for place in places):
            self.seconds[LOOKUP] += spent_s


def _stack(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _place(frame: FrameType) -> str | None:
    """`folder/module` of a frame in the project's code, else None."""
    project, *parts = frame.f_code.co_filename.rsplit("/", 2)
    if project != _PROJECT or parts[0] not in _FOLDERS:
        return None
    return "/".join(parts).removesuffix(".py")


def run_daemon() -> None:
    """Spark's daemon; its function `worker` runs once for each task, in a process forked for it or used again."""
    profile, work = Profile(), daemon.worker

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
