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


def compiler_cpu_s(pid: int) -> float:
    """CPU seconds so far of the threads in which a Java process compiles: for minutes, until it is warm."""
    process, tasks = psutil.Process(pid), Path("/proc") / str(pid) / "task"
    spent_s = 0.0
    for thread in process.threads():
        with suppress(FileNotFoundError):  # Java ends compiler threads that have nothing to do
            if (tasks / str(thread.id) / "comm").read_text().startswith(("C1 Compiler", "C2 Compiler")):
                spent_s += thread.user_time + thread.system_time
    return spent_s


def folder_bytes(folder: Path) -> int:
    """Size of all files below the folder."""
    return sum(size for _, size in file_sizes(folder))
