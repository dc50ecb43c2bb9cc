"""CPU time of a Java virtual machine by what its threads are for, as Linux counts it."""

import os
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

# Linux keeps the first 15 letters of a thread's name.
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
    """CPU seconds so far by group; those of threads that are gone are a group too, so the sum is the process's time."""
    seconds: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            group = _group((task / "comm").read_text())
            seconds[group] = seconds.get(group, 0.0) + _cpu_s(task / "stat")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended just now
    return seconds | {_ENDED: _cpu_s(Path(f"/proc/{pid}/stat")) - sum(seconds.values())}


def _group(name: str) -> str:
    return next((group for group, starts in _GROUPS if name.startswith(starts)), _OTHER)


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S  # utime and stime
