"""Keeping the Delta tables small: few large files, and no files that nobody needs any more."""

from collections.abc import Iterator
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from configs.settings import DeltaSettings
from sinks.errors import TableMaintenanceError


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done to a table."""

    table: str
    files_before: int
    files_after: int
    files_removed: int


def maintain(delta: DeltaSettings, retention_hours: int) -> Iterator[Maintained]:
    """Compact the tables that the job writes, then remove files unused for longer than `retention_hours`.

    The job may run meanwhile: whose commit comes second repeats it. The quotas table is left alone, for its old
    versions are the history of the quotas. Raises TableMaintenanceError.
    """
    for path in (delta.decisions, delta.quota_metrics, delta.dead_letters):
        try:
            yield _maintain(DeltaTable(path, storage_options=dict(delta.storage_options)), path, retention_hours)
        except TableNotFoundError:
            continue  # the job hasn't made it yet
        except (DeltaError, OSError) as error:
            raise TableMaintenanceError(
                f"{path} can't be maintained ({' '.join(str(error).split())}); nothing is lost, try again"
            ) from error


def _maintain(table: DeltaTable, path: str, retention_hours: int) -> Maintained:
    before = len(table.file_uris())
    table.optimize.compact()
    # Shorter than the table's own week is what the operator asked for.
    removed = table.vacuum(retention_hours=retention_hours, dry_run=False, enforce_retention_duration=False)
    return Maintained(path, before, len(table.file_uris()), len(removed))
