"""CPU time of a Java virtual machine by the purpose of its threads (Linux)."""

from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

# Linux keeps the first 15 characters of a thread's name.
_GROUPS = (
    ("Spark tasks (read, shuffle, state, write)", ("Executor task ",)),
    ("Kafka client", ("kafka-",)),
    ("planning and callbacks", ("stream executi", "Thread-", "broadcast-", "dag-scheduler")),
    ("JIT compiler", ("C1 ", "C2 ")),
    ("garbage collection", ("GC ", "G1 ", "VM Thread")),
)
_OTHER = "other threads"
_ENDED = "threads that ended"


def jvm_cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds so far by group. Threads that have ended are a group too, so the sum is that of the process."""
    process = psutil.Process(pid)
    seconds: defaultdict[str, float] = defaultdict(float)
    for thread in process.threads():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text()  # psutil gives no names
            seconds[_group(name)] += thread.user_time + thread.system_time
    total = process.cpu_times()
    return seconds | {_ENDED: total.user + total.system - sum(seconds.values())}


def descendants_cpu_s(pid: int) -> float:
    """CPU seconds so far of the processes below this one, also of those that have ended and been waited for."""
    seconds = 0.0
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _group(name: str) -> str:
    return next((group for group, starts in _GROUPS if name.startswith(starts)), _OTHER)
