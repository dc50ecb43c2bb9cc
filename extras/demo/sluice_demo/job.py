"""`sluice run` as a child process in a folder of its own, and the settings for it."""

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import yaml

from sluice.configs.settings import Settings, load_settings, reach_stores
from sluice.jvm.jars import REPOSITORY
from sluice.state.errors import SluiceError
from sluice_proxy.processes import Child, last_line

Json = dict[str, Any]
Sections = Mapping[str, Mapping[str, Any]]
"""Settings as the YAML file has them: section -> name -> value."""

_CONFIGS = REPOSITORY / "configs"
TABLES = ("quotas", "decisions", "quota_metrics", "dead_letters", "unreadable", "overrides")
_START_SECONDS = 180
_STOP_SECONDS = 90
_POLL_SECONDS = 0.2


class RunError(SluiceError):
    """A job under test ended, didn't start, or took too long."""


def storage_in(folder: Path) -> Sections:
    """Settings that put a job's checkpoints and tables into the folder."""
    return {
        "enforce": {"checkpoint": str(folder / "checkpoints/enforce")},
        "audit": {"checkpoint": str(folder / "checkpoints/audit")},
        "delta": {table: str(folder / "delta" / table) for table in TABLES},
    }


def embedded_profile() -> dict[str, Json]:
    """Settings of configs/embedded.yaml, with the first quotas of configs/quotas.yaml."""
    profile: dict[str, Json] = yaml.safe_load((_CONFIGS / "embedded.yaml").read_text())
    return profile | {"quotas": {"seed": str(_CONFIGS / "quotas.yaml")}}


def quotas_in(folder: Path, quotas: Sequence[Json]) -> Sections:
    """Settings that fill the quotas table of a new job with these quotas, which are written into the folder."""
    file = folder / "quotas.yaml"
    file.write_text(yaml.safe_dump(list(quotas)))
    return {"quotas": {"seed": str(file)}}


def write_settings(file: Path, *layers: Sections) -> Settings:
    """Write a settings file and load it, for this process too; a later layer replaces values of an earlier one."""
    content: dict[str, Json] = {}
    for layer in layers:
        for section, values in layer.items():
            content.setdefault(section, {}).update(values or {})
    file.write_text(yaml.safe_dump(content))
    settings = load_settings(file)
    reach_stores(settings)
    return settings


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    """Poll until `done`. Raises RunError when that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RunError(f"not done after {seconds:g} s")
        time.sleep(_POLL_SECONDS)


class SluiceJob:
    """`sluice run` in a folder, with the settings of these layers; can be ended and started again.

    Each start writes a log of its own, `job-1.log`, `job-2.log` and so on.
    """

    def __init__(self, folder: Path, *layers: Sections) -> None:
        self.folder = folder
        self.settings_file = folder / "settings.yaml"
        self.settings = write_settings(self.settings_file, *layers)
        self.status_file = folder / "status.json"
        self.child: Child | None = None
        self._starts = 0

    @property
    def log_file(self) -> Path:
        """The log of the last start."""
        return self.folder / f"job-{self._starts}.log"

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.child is not None and self.child.alive

    def running(self) -> Child:
        """The running process. Raises RunError when it has ended by itself."""
        if self.child is None or not self.child.alive:
            why = (self.child and self.child.killed_by) or self.last_line()
            raise RunError(f"the job ended by itself: {why}; see {self.log_file}")
        return self.child

    def launch(self, *options: str) -> Child:
        """Start the job's process with further options, and don't wait."""
        self.status_file.unlink(missing_ok=True)
        self._starts += 1
        command = [sys.executable, "-m", "sluice.cli.main", "run", "--config", str(self.settings_file)]
        self.child = Child([*command, "--status-file", str(self.status_file), *options], self.log_file)
        return self.child

    def start(self, cancel: Event | None = None) -> None:
        """Start the job, unless it is launched, and wait until both of its queries run. Its brokers answer by now.

        One that was launched before they did, and found none, is started again. Raises RunError when the queries don't
        run, or on `cancel`.
        """
        early = self.alive
        if not early:
            self.launch()
        cancel = cancel or Event()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if early and not self.alive and self.status().get("waiting_for") == "broker":
                self.launch()
                early = False
            self.running()
            if self.status().get("state") == "running":
                return
            if cancel.wait(_POLL_SECONDS) or time.monotonic() > deadline:
                waits = self.status().get("waiting_for") or "nothing"
                self.stop()
                raise RunError(
                    f"the job didn't start within {_START_SECONDS} s (it waited for: {waits}); see {self.log_file}"
                )

    def status(self) -> Json:
        """The content of the status file; empty before the job has written it."""
        try:
            status: Json = json.loads(self.status_file.read_text())
        except FileNotFoundError:
            return {}
        return status

    def last_line(self) -> str:
        """The last line that the last start wrote."""
        return last_line(self.log_file)

    def stop(self) -> None:
        """End the job by SIGTERM and wait; SIGKILL after 90 s."""
        if self.child is not None:
            self.child.end(signal.SIGTERM, _STOP_SECONDS)

    def kill(self) -> None:
        """kill -9, as a crash."""
        if self.child is not None:
            self.child.end(signal.SIGKILL, 10)
