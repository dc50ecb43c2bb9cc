"""Output of `sluice demo`: progress of the start, commands to try, the live picture, and the console's address."""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from sluice.configs.settings import HealthSettings
from sluice.process.background import BackgroundService
from sluice_demo.announced import announced_run
from sluice_demo.job import SluiceJob
from sluice_proxy.processes import Child, free_ports, last_line

_WAITING_S = 3.0
_LINES_S = 5.0
_POLL_S = 0.5
_STOP_S = 5
_WAITING_FOR = {
    "broker": "for the broker to answer",
    "quotas": "for the cluster's quotas to be read",
    "session": "for the job's Spark session: Java starts",
    "queries": "for the job's queries to start",
}
"""Value of `waiting_for` in the job's status file -> the words for it."""


@contextmanager
def waiting(console: Console, reason: Callable[[], str]) -> Iterator[None]:
    """Say every few seconds why the run waits, while this block runs."""
    begun_s = time.monotonic()

    def say() -> None:
        console.print(f"{time.monotonic() - begun_s:>3.0f} s: waiting {reason()}", highlight=False)

    with BackgroundService("waiting", say, _WAITING_S):
        yield


def show_until(
    stop: Event,
    seconds: float,
    console: Console,
    lines: Callable[[], Sequence[str]],
    check: Callable[[], object],
    done: Callable[[], bool] = lambda: False,
) -> None:
    """Show lines until `stop`, `done` or the end of the time: in place on a terminal, elsewhere every few seconds.

    On a terminal a long line goes on below. `check` is called all the time, and raises an error if a part of the run
    has ended.
    """
    begun_s = shown_s = time.monotonic()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    if live is not None:
        live.start()
    try:
        while not stop.wait(_POLL_S) and not done() and time.monotonic() - begun_s < seconds:
            check()
            if live is not None:
                live.update(Text("\n".join(lines())), refresh=True)
            elif time.monotonic() - shown_s >= _LINES_S:
                shown_s = time.monotonic()
                print(*lines(), sep="\n", flush=True)
    finally:
        if live is not None:
            live.stop()


def commands_to_try(
    settings_file: Path, health: HealthSettings, client: str = "--user alice --client-id reporting"
) -> str:
    """Commands to try while it runs or afterwards; `client` names a throttled client of the load, as options.

    The first line is for a terminal in any folder, and lets the others be short.
    """
    address, program = f"http://{health.address}:{health.port}", Path(sys.executable).with_name("sluice")
    probes = (f"  curl {address}/readyz  # also /healthz and /metrics",) if health.port else ()
    sluice = shlex.quote(str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program))
    return "\n".join(
        (
            "to try in another terminal:",
            f"  cd {shlex.quote(str(Path.cwd()))}; export SLUICE_CONFIG={shlex.quote(str(settings_file.absolute()))}",
            f"  {sluice} top",
            f"  {sluice} explain {client}",
            f"  {sluice} quotas resolve {client}",
            f"  {sluice} quotas alter {client} --add-config producer_byte_rate=5000000",
            f"  {sluice} quotas history",
            f"  {sluice} doctor",
            *probes,
        )
    )


@contextmanager
def running_job(
    console: Console, job: SluiceJob, stop: Event, *client: str, web_console: bool
) -> Iterator["WebConsole | None"]:
    """Start the job and print commands to try; the web console, if wanted, is for the block to start.

    `client` is the one that the commands name, as options. Raises RunError, also on `stop`.
    """
    with ExitStack() as stack:
        stack.callback(job.stop)
        stack.enter_context(announced_run(job.folder.name, job.settings_file))
        reason = lambda: _WAITING_FOR.get(job.status().get("waiting_for", ""), "for the job to start")  # noqa: E731
        with waiting(console, reason):
            job.start(cancel=stop)
        print(commands_to_try(job.settings_file, job.settings.health, *client), flush=True)
        web = WebConsole(job.folder, job.settings_file) if web_console else None
        if web is not None:
            stack.callback(web.stop)
        yield web


class WebConsole:
    """`sluice console` with the settings of a run, in a process of its own; it answers at `url` once it is started."""

    def __init__(self, folder: Path, settings_file: Path) -> None:
        port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{port}/"
        self._log = folder / "console.log"
        self._command = [sys.executable, "-m", "sluice.cli.main", "console", "--config", str(settings_file)]
        self._command += ["--port", str(port)]
        self._child: Child | None = None
        self._has_ended = False

    def keep(self, console: Console) -> None:
        """Start it, the first time, and print its address; say it once if it has ended by itself.

        Call it after the first decision: until then its start would take time from the job's.
        """
        if self._child is None:
            self._child = Child(self._command, self._log)
            console.print(f"who is throttled, in a browser: {self.url}", highlight=False, soft_wrap=True)
        elif not self._child.alive and not self._has_ended:
            self._has_ended = True
            why = escape(last_line(self._log))
            console.print(f"the console ended: {why}; see {self._log}", highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """End it, if it was started."""
        if self._child is not None:
            self._child.end(signal.SIGTERM, _STOP_S)
