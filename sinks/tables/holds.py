"""The Delta table of holds, beside that of the quotas: a row for each client that an operator stopped or released."""

from collections.abc import Mapping
from typing import NamedTuple

from arro3.core import Array, DataType, RecordBatch, Table
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from sluice.sinks.errors import QuotasTableError, storage_reason
from sluice.sinks.tables.quotas import ChangedFrom
from sluice.state.overrides.operator_holds import OperatorHold
from sluice.state.quotas.entity import Tags

_TIMES = ("at_ms", "until_ms")
_COLUMNS = ("user", "client_id", "tenant", *_TIMES, "reason", "changed_by", *ChangedFrom._fields)


class HoldChange(NamedTuple):
    """A hold or release, and who said it."""

    hold: OperatorHold
    changed_by: str
    changed_from: ChangedFrom


class HoldsTable:
    """The table beside the quotas table at `quotas`, a folder or a URI; the first hold makes it.

    `holds` are those of the last look, whose reason begins with the author. Raises QuotasTableError.
    """

    def __init__(self, quotas: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = quotas.rstrip("/") + "-holds"
        self.holds: list[OperatorHold] = []
        self._storage_options = dict(storage_options or {})
        self._read_last: list[str] | None = None

    def append(self, change: HoldChange) -> None:
        """Add a row."""
        hold, client = change.hold, change.hold.client
        times, whose = (hold.at_ms, hold.until_ms), (change.changed_by, *change.changed_from)
        row = (client.user, client.client_id, client.tenant, *times, hold.reason, *whose)
        types = [DataType.int64() if name in _TIMES else DataType.utf8() for name in _COLUMNS]
        values = [Array([value], kind) for value, kind in zip(row, types, strict=True)]
        rows = Table.from_batches([RecordBatch.from_arrays(values, names=_COLUMNS)])
        try:
            write_deltalake(self.path, rows, mode="append", name="holds", storage_options=self._storage_options)
        except (DeltaError, OSError, ValueError) as error:
            raise self._error("written", error) from error

    def changes(self) -> list[HoldChange]:
        """All rows, the newest first."""
        table = self._open()
        if table is None:
            return []
        try:
            scanned = table.scan(columns=list(_COLUMNS)).read_all()  # as the quotas table is read
        except Exception as error:  # arro3 raises no narrower class
            raise self._error("read", error) from error
        found = []
        for row in zip(*(scanned[name].to_pylist() for name in _COLUMNS), strict=True):
            user, client_id, tenant, at_ms, until_ms, reason, author, *whose = row
            hold = OperatorHold(Tags(user, client_id, tenant=tenant), at_ms, until_ms, reason)
            found.append(HoldChange(hold, author, ChangedFrom(*whose)))
        return sorted(found, key=lambda change: -change.hold.at_ms)

    def look(self) -> None:
        """Read the rows if there are others. A restored backup has the same versions again, but not the same files."""
        table = self._open()
        files = None if table is None else table.file_uris()
        if files != self._read_last:
            self.holds = [hold._replace(reason=f"{author}: {hold.reason}") for hold, author, _ in self.changes()]
            self._read_last = files

    def _open(self) -> DeltaTable | None:
        try:
            if not DeltaTable.is_deltatable(self.path, self._storage_options):
                return None
            return DeltaTable(self.path, storage_options=self._storage_options)
        except (DeltaError, OSError, ValueError) as error:
            raise self._error("read", error) from error

    def _error(self, done: str, error: Exception) -> QuotasTableError:
        return QuotasTableError(
            f"the table of holds {self.path} can't be {done} ({storage_reason(error)}); check its permissions,"
            " delta.quotas and delta.storage_options"
        )
