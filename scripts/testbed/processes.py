"""Child processes that end with their parent, and a look at the processes below one of ours."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psutil

# Run by a new, single-threaded Python, which execs the command and so keeps its process id. The kernel kills the
# command when its parent dies. A parent that died before prctl was called is detected by the changed parent id.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """A child process that dies with this process, however this one ends; its output goes to the file `log`.

    The kernel ties such a child to the *thread* that starts it, so a separate thread starts it and lives as long as it.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        started: Future[subprocess.Popen[bytes]] = Future()
        Thread(target=_keep, args=(command, log, started), daemon=True).start()
        self._process = started.result()

    @property
    def pid(self) -> int:
        """Process id of the command itself."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> int:
        """Wait for the end; returns the exit code, -9 after SIGKILL. Raises TimeoutExpired."""
        return self._process.wait(seconds)

    def end(self, sign: signal.Signals, patience_seconds: float) -> None:
        """Send `sign`, and SIGKILL when the process still runs after `patience_seconds`."""
        self._process.send_signal(sign)
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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


def last_line(log: Path) -> str:
    """The last line of a log file that isn't blank."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it left no message"


def _keep(command: Sequence[str], log: Path, started: "Future[subprocess.Popen[bytes]]") -> None:
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                launcher,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent, which stops the child cleanly
            )
    except OSError as error:
        started.set_exception(error)
        return
    started.set_result(process)
    process.wait()
