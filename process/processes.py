"""Child processes that end with their parent, ports for them, and the signals that end a run."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import FrameType
from typing import Any, NoReturn

from sluice.state.errors import SluiceError

# Run by a new, single-threaded Python, which execs the command and so keeps its process id. The kernel kills the
# command when its parent dies. A parent that died before prctl was called is detected by the changed parent id.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_OUTGOING = 32_768
_UNPRIVILEGED, _SERVER_PORTS = 1_024, 12_768
_PORT_SEARCHES = 100

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SAID_S = 4.0
"""Interval of the lines that say how far a long step is."""


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


def dying_with_this_thread(command: Sequence[str]) -> list[str]:
    """The command for this thread to start: the kernel kills its process when the thread ends, whatever it does."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]


def run_saying(command: Sequence[str], say: Callable[[], str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command that dies with this thread, and write a line of `say` to standard error every few seconds.

    `options` are those of `subprocess.Popen`, with text. Raises OSError if there is no such command.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    with subprocess.Popen(dying_with_this_thread(command), text=True, errors="replace", **options) as process:
        while True:
            try:
                output, errors = process.communicate(timeout=SAID_S)
            except subprocess.TimeoutExpired:
                print(say(), file=sys.stderr, flush=True)
            except BaseException:
                process.kill()
                raise
            else:
                return subprocess.CompletedProcess(command, process.returncode, output, errors)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """End the process at Ctrl-C, SIGTERM or the end of its terminal while this block of the main thread runs.

    Python would wait for its threads, which wait for commands that they run.
    """

    def leave(number: int, _: FrameType | None) -> None:
        with suppress(OSError):  # of a terminal that is gone
            os.write(2, b"sluice: error: interrupted\n")
        os._exit(128 + number)

    with _handled_by(leave):
        yield


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder of temporary files that is gone after this block of the main thread, also at SIGTERM and SIGHUP.

    They end the process by SystemExit, so that other blocks end too.
    """

    def leave(number: int, _: FrameType | None) -> NoReturn:
        for each in _ENDING:
            signal.signal(each, lambda *_: None)  # a further one would cut the end short
        sys.exit(128 + number)

    with _handled_by(leave), TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let this handle the signals that end a process while the block of the main thread runs."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        if before[number] is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


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

    for number in _ENDING:
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
