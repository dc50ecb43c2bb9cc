"""Keeping the Delta tables small: few large files, and no files that nobody needs any more."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event, Thread

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from configs.settings import DeltaSettings
from sinks.errors import TableMaintenanceError
from streaming.checkpoint import CheckpointFolder

log = logging.getLogger("sluice.maintenance")

_HOUR_S = 3600.0
_LOOK_S = 60.0
_RETRY_S = _HOUR_S
_FILE = "maintained.json"


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done to a table."""

    table: str
    files_before: int
    files_after: int
    files_removed: int

    def __str__(self) -> str:
        """In a line."""
        return f"{self.table}: {self.files_before} files became {self.files_after}, {self.files_removed} removed"


def maintain(delta: DeltaSettings, retention_hours: int) -> Iterator[Maintained]:
    """Compact the tables that the job writes, then remove files unused for longer than `retention_hours`.

    The job may run meanwhile: whose commit comes second repeats it. The quotas table is left alone, for its old
    versions are the history of the quotas. Raises TableMaintenanceError.
    """
    for path in _tables(delta):
        done = _maintain(path, delta, retention_hours)
        if done is not None:
            yield done


class MaintenanceSchedule:
    """Maintains the tables every so many hours, in a thread beside the queries, which a failure leaves alone.

    When it was last done is kept in `folder`, so that restarts of the job don't put it off for ever.
    """

    def __init__(self, delta: DeltaSettings, folder: CheckpointFolder) -> None:
        self._delta = delta
        self._folder = folder
        self._retry_at_s = 0.0
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="maintenance", daemon=True)

    def start(self) -> None:
        """Begin, unless the settings want none."""
        if self._delta.maintain_every_hours:
            self._thread.start()

    def stop(self) -> None:
        """End; a table that is being compacted isn't waited for, what it is at is committed whole or not at all."""
        self._stopped.set()

    def look(self, now_s: float) -> None:
        """Maintain the tables if it is time; what fails is logged in a line and tried again in an hour."""
        try:
            if now_s >= self._due_s(now_s):
                self._maintain_all(now_s)
        except Exception as error:  # whatever it is, it is no reason to give it up until the next start
            self._fail(error, now_s)

    def _due_s(self, now_s: float) -> float:
        """When it is time, in epoch seconds; a job that is new counts from now on."""
        content = self._folder.read(_FILE)
        if content is None:
            self._folder.write(_FILE, msgspec.json.encode(now_s))
            return now_s + self._delta.maintain_every_hours * _HOUR_S
        try:
            last_s = msgspec.json.decode(content, type=float)
        except msgspec.MsgspecError:  # a date that is lost is no reason for not doing it
            last_s = 0.0
        return max(last_s + self._delta.maintain_every_hours * _HOUR_S, self._retry_at_s)

    def _maintain_all(self, now_s: float) -> None:
        failed = False
        for path in _tables(self._delta):
            if self._stopped.is_set():
                return
            try:
                done = _maintain(path, self._delta, self._delta.retention_hours)
                log.info("maintained %s", done or f"nothing: there is no {path} yet")
            except TableMaintenanceError as error:  # the other tables may do well
                failed = True
                self._fail(error, now_s)
        if not failed:
            self._folder.write(_FILE, msgspec.json.encode(now_s))

    def _fail(self, error: Exception, now_s: float) -> None:
        self._retry_at_s = now_s + _RETRY_S
        log.error("%s", error)

    def _run(self) -> None:
        self.look(time.time())
        while not self._stopped.wait(_LOOK_S):
            self.look(time.time())


def _tables(delta: DeltaSettings) -> tuple[str, ...]:
    return (delta.decisions, delta.quota_metrics, delta.dead_letters)


def _maintain(path: str, delta: DeltaSettings, retention_hours: int) -> Maintained | None:
    """What was done; None for a table that the job hasn't made yet. Raises TableMaintenanceError."""
    try:
        table = DeltaTable(path, storage_options=dict(delta.storage_options))
        before = len(table.file_uris())
        table.optimize.compact(max_concurrent_tasks=1)  # the other cores are for decisions
        # Shorter than the table's own week is what the operator asked for.
        removed = table.vacuum(retention_hours=retention_hours, dry_run=False, enforce_retention_duration=False)
        return Maintained(path, before, len(table.file_uris()), len(removed))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise TableMaintenanceError(
            f"{path} can't be maintained ({' '.join(str(error).split())}); nothing is lost, try again"
        ) from error
