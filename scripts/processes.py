"""Looking at the processes below one of ours (Linux), to hurt them on purpose."""

import os
import resource
import signal
from collections.abc import Iterable
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process started, and those that they started: id -> command line."""
    alive, new = _processes(), {pid}
    found: dict[int, str] = {}
    while new:
        new = {child for child, (parent, _) in alive.items() if parent in new}
        found |= {child: alive[child][1] for child in new}
    return found


def python_workers(pid: int) -> list[int]:
    """Spark's Python workers below a process: forked by its daemon, which goes by the same name."""
    daemons = {child for child, command in descendants(pid).items() if "pyspark.daemon" in command}
    alive = _processes()
    return [child for child in daemons if child in alive and alive[child][0] in daemons]


def kill(pid: int) -> None:
    """kill -9; a process that has gone is left in peace."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def resident_mib(pids: Iterable[int]) -> float:
    """Resident memory of all of them; one that has gone has none."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pages * resource.getpagesize() / 2**20


def _processes() -> dict[int, tuple[int, str]]:
    """Process id -> parent and command line of every process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[1])
                found[int(folder.name)] = (parent, (folder / "cmdline").read_text().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
