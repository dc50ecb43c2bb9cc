"""Servers as child processes, free ports for them, and the end of a run by a signal."""

import signal
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from random import SystemRandom
from threading import Event, Thread
from types import FrameType

from sluice.process.processes import ENDING, dying_with_this_thread
from sluice.state.errors import SluiceError

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_OUTGOING = 32_768
_UNPRIVILEGED, _SERVER_PORTS = 1_024, 12_768
_PORT_SEARCHES = 100


class PortError(SluiceError):
    """There are no free ports."""


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

    @property
    def killed_by(self) -> str | None:
        """The signal that ended it, in words, as it could write no reason; None if it runs or has an exit code."""
        code = self._process.poll()
        if code is None or code >= 0:
            return None
        why = ", from outside or for lack of memory" if code == -signal.SIGKILL else ""
        return f"{signal.Signals(-code).name} ended it{why}"

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
    """The last line of a log file that isn't blank; of a command of Sluice its error, if Java says more after it."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("sluice: error: ")]
    return (errors or lines or ["it left no message"])[-1]


def free_ports(count: int) -> list[int]:
    """TCP ports of loopback that follow each other and are free now; no outgoing connection gets one meanwhile.

    Raises PortError.
    """
    for _ in range(_PORT_SEARCHES):
        first = SystemRandom().choice(_server_ports()[: 1 - count or None])
        ports = range(first, first + count)
        if all(map(is_free, ports)):
            return list(ports)
    raise PortError(f"there are no {count} free ports in a row; end what listens on this machine, or choose ports")


def _server_ports() -> range:
    """The ports below those that Linux gives to outgoing connections."""
    try:
        first = int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = _USUAL_OUTGOING
    return range(max(_UNPRIVILEGED, first - _SERVER_PORTS), first) or range(_UNPRIVILEGED, _USUAL_OUTGOING)


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
    """Event that Ctrl-C, SIGTERM and SIGHUP set; another ends the process, but SIGHUP, which may come twice."""
    stop = Event()

    def set_stop(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)

    for number in ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
            signal.signal(number, set_stop)
    return stop


def _keep(command: Sequence[str], log: Path, started: "Future[subprocess.Popen[bytes]]") -> None:
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                dying_with_this_thread(command),
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
