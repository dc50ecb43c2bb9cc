"""The state of the job for people and tools: in the log, in the status file, and in health checks."""

import json
import logging
import os
from pathlib import Path
from typing import Any

from sluice.kafka_io.clock import now_ms
from sluice.streaming.runtime.health import JobHealth

log = logging.getLogger("sluice.job")


class JobStatus:
    """Publishes the state of the job. Without a `file` there is no status file."""

    def __init__(self, file: Path | None, health: JobHealth) -> None:
        self._file = file
        self._health = health
        self._status: dict[str, Any] = {"state": "starting"}

    def wait_for(self, what: str, words: str) -> None:
        """Publish the thing that the start waits for."""
        log.info("waiting for %s", words)
        self.publish(waiting_for=what)
        self._health.report_phase(f"waiting for {words}")

    def run(self, quota_version: int) -> None:
        """Publish that both queries run."""
        self.publish(state="running", waiting_for=None, quota_version=quota_version)
        self._health.report_phase(None)
        log.info("running with quotas version %d", quota_version)

    def stop(self) -> None:
        """Publish that the queries are stopped."""
        self.publish(state="stopping")
        self._health.report_phase("stopping")

    def publish(self, **changes: Any) -> None:
        """Publish these fields, beside those published before, in the status file."""
        self._status |= {**changes, "at_ms": now_ms()}
        if self._file is None:
            return
        try:
            write_status(self._file, self._status)
        except OSError as error:  # such as a full disk: no reason to stop deciding
            log.warning("can't write %s: %s", self._file, error.strerror)


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replace the status file in one step: a reader never sees an incomplete file. It is for its owner alone."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps(status))
    draft.replace(path)
