"""Signals to a command of the checkout at moments of its run: processes that are left, and its next start.

`python -m sluice_lab.scenarios.interrupts --moments 20 -- ./scripts/run` sends SIGINT to the process group, as Ctrl-C
in a terminal does, and SIGTERM to the first process alone, as supervisors do, in turn.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer

from scripts.command import run_command

MARK = "SLUICE_INTERRUPTED"
"""Variable by which the processes of a run are found, whoever their parents are by then."""

MOST_S = 3.0
"""Longest time in which all processes of a run have to end after a signal."""

_POLL_S = 0.1


@dataclass
class Interrupted:
    """A run that was interrupted: the moment in s, the signal, its exit code, and what was left after MOST_S."""

    after_s: float
    sent: str
    code: int | None
    took_s: float
    left: list[str]


def interrupt(
    command: Sequence[str | Path], folder: Path, after_s: float, number: signal.Signals, log: Path, *, group: bool
) -> Interrupted:
    """Start a command in a folder, send it a signal after this time, to its group or to it alone, and see it end.

    Processes that are left then are killed. A run that ends before is one whose code says so.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command)],
            cwd=folder,
            env=os.environ | {MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        (os.killpg if group else os.kill)(process.pid, number)
    sent_s = time.monotonic()
    while (left := marked(mark)) and time.monotonic() < sent_s + MOST_S:
        process.poll()
        time.sleep(_POLL_S)
    took_s = time.monotonic() - sent_s
    found = []
    for each in left:
        with suppress(psutil.NoSuchProcess):
            found.append(f"{each.pid} {' '.join(each.cmdline())[:150]}")
            each.kill()
    return Interrupted(after_s, f"{number.name} {'group' if group else 'alone'}", process.wait(10), took_s, found)


def marked(mark: str) -> list[psutil.Process]:
    """The processes with this mark in their environment that haven't ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:  # it has ended, or is another account's
            continue
    return found


@dataclass
class Options:
    """Interrupt a command at moments of its run; exit code 1 if a process was left."""

    command: Annotated[list[str], typer.Argument(help="the command and its arguments, after --")]
    moments: Annotated[int, typer.Option(min=1, help="number of runs")] = 20
    longest_s: Annotated[float, typer.Option(help="the last moment; the others are spread before it")] = 40.0
    folder: Annotated[Path, typer.Option(help="the folder in which the command runs")] = Path()


def run(options: Options) -> int:
    """Print a line for each moment."""
    failed, log = 0, options.folder / ".interrupted.log"
    kinds = [(signal.SIGINT, True), (signal.SIGTERM, False)]
    for moment in range(options.moments):
        number, group = kinds[moment % len(kinds)]
        after_s = options.longest_s * (moment + 1) / options.moments
        found = interrupt(options.command, options.folder, after_s, number, log, group=group)
        failed += bool(found.left)
        print(
            f"{found.after_s:5.1f} s {found.sent:<14} exit {found.code}, {found.took_s:.1f} s until all had ended;"
            f" left: {'; '.join(found.left) or 'none'}",
            flush=True,
        )
    log.unlink()
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(run_command("interrupts", Options, run))
