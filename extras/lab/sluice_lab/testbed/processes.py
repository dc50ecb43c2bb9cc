"""Processes: the output of a command, and those below one of ours, what they are and what they take."""

import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from sluice.process.folders import file_sizes
from sluice.state.errors import SluiceError


def output_of(command: Sequence[str | Path], error: type[SluiceError], problem: str, **options: Any) -> str:
    """Standard output of a command. Raises `error` if it fails: the problem, and the last line of the command.

    `options` are those of `subprocess.run`. A `{}` in the problem stands for the line.
    """
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["it printed nothing"]
        raise error(problem.replace("{}", lines[-1]))
    return done.stdout


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process started, and those that they started: process id -> command line."""
    found = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found[process.pid] = " ".join(process.cmdline())
    return found


def python_workers(pid: int) -> list[int]:
    """Spark's Python workers below a process. Their daemon forks them, so they have its command line."""
    daemons = {child for child, command in descendants(pid).items() if "pyspark.worker" in command}
    workers = []
    for child in daemons:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(child).ppid() in daemons:
                workers.append(child)
    return workers


def kill(pid: int) -> None:
    """kill -9; does nothing when the process has ended."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


def resident_mib(pids: Iterable[int]) -> float:
    """Resident memory of all processes together, in MiB; a process that has ended counts 0."""
    resident_bytes = 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            resident_bytes += psutil.Process(pid).memory_info().rss
    return resident_bytes / 2**20


_THREADS = {
    "C1 Compiler": "compilers",
    "C2 Compiler": "compilers",
    "Executor task": "tasks",
    "stream executio": "query's thread",
    "GC Thread": "garbage collection",
    "G1 ": "garbage collection",
    "dag-scheduler": "scheduler",
    "dispatcher": "scheduler",
    "task-result": "scheduler",
    "spark-listener": "listeners",
}
"""Beginning of a thread's name -> the part of Java that it belongs to."""


def thread_group(name: str) -> str:
    """The part of Java that a thread belongs to, by the first 15 letters of its name, which Linux keeps.

    >>> thread_group("C2 CompilerThre"), thread_group("stream executio"), thread_group("rocksdb:high")
    ('compilers', "query's thread", 'other threads of Java')
    """
    return next((group for start, group in _THREADS.items() if name.startswith(start)), "other threads of Java")


def thread_cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds so far of a Java process by part of it. Those of threads that have ended are lost."""
    spent_s: dict[str, float] = {}
    for thread in (Path("/proc") / str(pid) / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            group = thread_group((thread / "comm").read_text())
            spent_ns = int((thread / "schedstat").read_text().split()[0])
            spent_s[group] = spent_s.get(group, 0.0) + spent_ns / 1e9
    return spent_s


def compiler_cpu_s(pid: int) -> float:
    """CPU seconds so far of the threads in which a Java process compiles: for minutes, until it is warm."""
    return thread_cpu_s(pid).get("compilers", 0.0)


def folder_bytes(folder: Path) -> int:
    """Size of all files below the folder."""
    return sum(size for _, size in file_sizes(folder))
