"""The web console beside `./scripts/run`: a process of its own, which ends with the run."""

import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from scripts.testbed.broker import free_ports
from scripts.testbed.processes import Child, last_line

_STOP_SECONDS = 5


class WebConsole:
    """`sluice console` with the settings of a run; it answers at `url` once it is started."""

    def __init__(self, folder: Path, settings_file: Path) -> None:
        port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{port}/"
        self._log = folder / "console.log"
        self._command = [sys.executable, "-m", "sluice.cli.main", "console", "--config", str(settings_file)]
        self._command += ["--port", str(port)]
        self._child: Child | None = None
        self._has_ended = False

    def keep(self, console: Console) -> None:
        """Start it, the first time, and say where it is; say it once if it has ended by itself.

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
            self._child.end(signal.SIGTERM, _STOP_SECONDS)
