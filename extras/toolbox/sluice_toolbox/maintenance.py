"""Maintenance of the Delta tables: compaction into large files, removal of unused files and of old commits.

The job does it every so many hours, and `sluice maintain` at once.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from shlex import quote

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.configs.settings import DeltaSettings, holds_path
from sluice.process.background import BackgroundService
from sluice.sinks.errors import storage_reason
from sluice.sinks.tables.trouble import lost_files, missing_rights
from sluice.state.errors import UNREADABLE, SluiceError
from sluice.streaming.checkpoint.folder import Checkpoint, CheckpointFiles
from sluice.streaming.runtime.job_parts import JobParts, JobView
from sluice_reading.owner import warn_of_owner

log = logging.getLogger("sluice.maintenance")

_HOUR_S = 3600.0
_POLL_S = 60.0
_RETRY_S = _HOUR_S
_FILE = "maintained.json"
_APPEND_ONLY = "delta.appendOnly"


class TableMaintenanceError(SluiceError):
    """A Delta table can't be compacted or cleaned."""


def parts(job: JobView) -> JobParts:
    """The service of the job, unless the settings leave it to the command (entry point of `sluice.job_parts`)."""
    settings = job.settings
    folder = Checkpoint(settings.audit.checkpoint).sluice
    schedules = [MaintenanceSchedule(settings.delta, folder)] if settings.delta.maintain_every_hours else []
    return JobParts(services=[each.service() for each in schedules])


@dataclass(frozen=True, slots=True)
class Maintained:
    """The work of maintenance on one table."""

    table: str
    files_before: int
    files_after: int
    files_removed: int
    rows_deleted: int = 0
    exists: bool = True

    def __str__(self) -> str:
        """One line of text."""
        if not self.exists:
            return f"{self.table}: nothing to do, there is no table yet"
        if self.files_before == self.files_after and not self.files_removed and not self.rows_deleted:
            return f"{self.table}: nothing to do, {_counted(self.files_after)} in use"
        deleted = f"{self.rows_deleted} rows of old days deleted, " if self.rows_deleted else ""
        # Compaction leaves the old files to readers of older versions until their retention is over.
        return (
            f"{self.table}: {deleted}{_counted(self.files_before)} became {self.files_after},"
            f" {_counted(self.files_removed)} of older versions removed"
        )


def maintain(delta: DeltaSettings, retention_hours: int, first_day: date | None = None) -> Iterator[Maintained]:
    """Compact the tables that the job writes, then remove files unused for longer than `retention_hours`.

    Commits that are older than a day go too, up to a checkpoint of the table's log.

    Yields what was done, table by table, also where there was nothing to do. Rows of days before `first_day` are
    deleted first; None keeps all. A table's day is the one on which a request was decided or a record read (UTC).

    The job may run at the same time: the writer whose commit comes second repeats it. Old versions of the quotas table
    and all rows of its holds stay, because they are the history. Raises TableMaintenanceError.
    """
    for path in _tables(delta):
        yield _maintain(path, delta, retention_hours, first_day)
    yield _maintain(holds_path(delta.quotas), delta, retention_hours)


class MaintenanceSchedule:
    """Maintains the tables every `maintain_every_hours`; a failure doesn't affect the queries.

    The time of the last maintenance is stored in `folder`, so that restarts don't delay it again and again.
    """

    def __init__(self, delta: DeltaSettings, folder: CheckpointFiles) -> None:
        self._delta = delta
        self._folder = folder
        self._retry_at_s = 0.0

    def service(self) -> BackgroundService:
        """The schedule in the background. Stopping it waits for no compaction: Delta commits it completely or not."""
        return BackgroundService(
            "maintenance", lambda: self.maintain_if_due(time.time()), _POLL_S, log=log, stop_timeout_s=0.0
        )

    def maintain_if_due(self, now_s: float) -> Iterator[float]:
        """Maintain the tables if it is time; gives the pause after each, none.

        A failure is logged in one line, and tried again after an hour.
        """
        try:
            if now_s >= self._due_s(now_s):
                yield from self._maintain_all(now_s)
        except Exception as error:  # of any class: an attempt in a minute would be too soon
            self._fail(error, now_s)

    def _due_s(self, now_s: float) -> float:
        """When the next maintenance is due, in epoch seconds; for a new job the interval starts now."""
        content = self._folder.read(_FILE)
        if content is None:
            self._folder.write(_FILE, msgspec.json.encode(now_s))
            return now_s + self._delta.maintain_every_hours * _HOUR_S
        try:
            last_s = msgspec.json.decode(content, type=float)
        except UNREADABLE:  # a damaged file: maintenance is due
            last_s = 0.0
        return max(last_s + self._delta.maintain_every_hours * _HOUR_S, self._retry_at_s)

    def _maintain_all(self, now_s: float) -> Iterator[float]:
        failed = False
        delta, hours = self._delta, self._delta.retention_hours
        for path in (*_tables(delta), holds_path(delta.quotas)):
            try:
                log.info("maintained %s", _maintain(path, delta, hours))
            except TableMaintenanceError as error:  # go on with the other tables
                failed = True
                self._fail(error, now_s)
            yield 0.0
        if not failed:
            self._folder.write(_FILE, msgspec.json.encode(now_s))

    def _fail(self, error: Exception, now_s: float) -> None:
        self._retry_at_s = now_s + _RETRY_S
        log.error("%s", error)


def _tables(delta: DeltaSettings) -> tuple[str, ...]:
    return (delta.decisions, delta.quota_metrics, delta.dead_letters, delta.unreadable, delta.overrides)


def _counted(files: int) -> str:
    return f"{files} file" if files == 1 else f"{files} files"


def _maintain(path: str, delta: DeltaSettings, retention_hours: int, first_day: date | None = None) -> Maintained:
    """Raises TableMaintenanceError. A table that the job hasn't created yet needs nothing."""
    try:
        table = DeltaTable(path, storage_options=dict(delta.storage_options))
        before = len(table.file_uris())
        deleted = 0
        if first_day is not None and any(str(each["date"]) < f"{first_day}" for each in table.partitions()):
            if table.metadata().configuration.get(_APPEND_ONLY) == "true":
                code = f"DeltaTable({path!r}).alter.set_table_properties({{{_APPEND_ONLY!r}: 'false'}})"
                raise TableMaintenanceError(
                    f"{path} has {_APPEND_ONLY}, which somebody has set: no day of it can be deleted; run without"
                    f" --keep-days, or take it back: python -c {quote(f'from deltalake import DeltaTable; {code}')}"
                )
            # a condition on the folders of days alone: no file is rewritten
            deleted = table.delete(f"date < DATE '{first_day}'")["num_deleted_rows"] or 0
        table.optimize.compact(max_concurrent_tasks=1)  # leaves the other cores to decisions
        removed = _unused(table, path, retention_hours)
        if removed:
            _vacuum(table, retention_hours, dry_run=False)
        table.cleanup_metadata()
        warn_of_owner(path)
        return Maintained(path, before, len(table.file_uris()), removed, deleted)
    except TableNotFoundError:
        if reason := missing_rights(path):
            raise TableMaintenanceError(f"{path} can't be maintained: {reason}") from None
        return Maintained(path, 0, 0, 0, exists=False)
    except (DeltaError, OSError) as error:
        if reason := missing_rights(path) or lost_files(path):
            raise TableMaintenanceError(f"{path} can't be maintained: {reason}") from error
        raise TableMaintenanceError(
            f"{path} can't be maintained ({storage_reason(error)}); nothing is lost, try again"
        ) from error


def _unused(table: DeltaTable, path: str, retention_hours: int) -> int:
    """Number of files that a vacuum removes. delta-rs lists those again that earlier ones have removed."""
    listed = _vacuum(table, retention_hours, dry_run=True)
    if "://" in path:  # looking each up in an object store would cost more than it tells
        return len(listed)
    return sum((Path(path) / file).exists() for file in listed)


def _vacuum(table: DeltaTable, retention_hours: int, *, dry_run: bool) -> list[str]:
    # Without the check Delta refuses less than the table's property, which operators may ask for. The log forgets
    # removed files before they are old enough, and never knew those of a commit that failed: a full listing shows them.
    return table.vacuum(retention_hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
