"""The common part of the tables of quotas and holds: operators' commands write them, and the job polls them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from sluice.sinks.errors import QuotasTableError, storage_reason
from sluice.sinks.tables.newest import NewestCommit
from sluice.sinks.tables.trouble import missing_rights


class OperatorsTable:
    """The table at `path`, a folder or a URI; errors name it by its `name`. `storage_options` are delta-rs's."""

    name: str

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._storage_options = dict(storage_options or {})
        self._newest = NewestCommit(path, self._storage_options)

    def _opened(self) -> DeltaTable | None:
        """The table as it is now, None if there is none. Raises QuotasTableError if it can't be read."""
        with self._told("read"):
            try:
                return DeltaTable(self.path, storage_options=self._storage_options)  # `is_deltatable` stops all threads
            except TableNotFoundError as error:
                if missing_rights(self.path):
                    raise self._error("read", error) from None
                return None

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        """Raise QuotasTableError for a table that can't be `done`, and CommitFailedError as it is."""
        try:
            yield
        except CommitFailedError:
            raise
        except (DeltaError, OSError, ValueError) as error:
            raise self._error(done, error) from error

    def _error(self, done: str, error: Exception) -> QuotasTableError:
        if reason := missing_rights(self.path):
            return QuotasTableError(f"the {self.name} {self.path} can't be {done}: {reason}")
        return QuotasTableError(
            f"the {self.name} {self.path} can't be {done} ({storage_reason(error)}); check delta.quotas, its"
            " permissions and delta.storage_options"
        )
