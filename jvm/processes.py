"""Child processes that end with their parent, ports for them, and the signals that end a run."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from types import FrameType

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


def last_line(log: Path) -> str:
    """The last line of a log file that isn't blank."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it left no message"


def free_ports(count: int) -> list[int]:
    """Different TCP ports of loopback that are free now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def is_free(port: int) -> bool:
    """True if a server may listen on this port of loopback now."""
    with socket.socket() as probe:
        # As Kafka does: closed connections don't block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def stop_on_signals() -> Event:
    """Event that Ctrl-C or SIGTERM sets; a second signal ends the process immediately."""
    stop = Event()

    def set_stop(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, set_stop)
    return stop


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
