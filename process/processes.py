"""Child processes that end with their parent, and the signals that end a run."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Run by a new, single-threaded Python, which execs the command and so keeps its process id. The kernel kills the
# command when its parent dies. A parent that died before prctl was called is detected by the changed parent id. Java
# reads paths as the locale says: they are UTF-8, whatever the terminal's locale.
_LAUNCHER = """
import ctypes, os, signal, sys
os.environ["LC_ALL"] = "C.UTF-8"
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run."""

SAID_S = 4.0
"""Interval of the lines that say how far a long step is."""


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

    with handled_by(leave):
        yield


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let this handle the signals that end a process while the block of the main thread runs."""
    before = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        if before[number] is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
