"""The tables that have the audit query's rows, by their ids: what its checkpoint has passed is written nowhere else.

A table whose folder was moved away, or that was made again, lacks rows that the query never writes again.
"""

from collections.abc import Mapping, Sequence

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sluice.sinks.errors import TableReadError
from sluice.sinks.tables.delta import AuditTable, create_table
from sluice.streaming.checkpoint.folder import Checkpoint

_FILE = "tables.json"


def known_ids(checkpoint: Checkpoint) -> dict[str, str]:
    """Path -> id of the tables that the query of this checkpoint writes; empty before its start.

    Raises CheckpointError.
    """
    return checkpoint.sluice.read_json(_FILE, dict[str, str]) or {}


def check_is_own(path: str, found: str | None, known: Mapping[str, str], checkpoint: Checkpoint) -> None:
    """Raise TableReadError if another table, or none, is where the query has its own. `found` is the id of this one."""
    if known.get(path, found) == found:
        return
    there = "isn't there any more" if found is None else "is another table than the one that has the rows until now"
    move = "move it back" if found is None else "move that one away and the former one back"
    raise TableReadError(
        f"{path} {there}: somebody has moved or removed its folder; {move}, and all rows since then are written; to"
        f" begin with a new table, stop the job and remove {checkpoint.location} too: rows come again from the topics"
    )


class OwnTables:
    """The tables of an audit query."""

    def __init__(
        self, checkpoint: Checkpoint, tables: Sequence[AuditTable], storage_options: Mapping[str, str]
    ) -> None:
        self._checkpoint = checkpoint
        self._tables = tables
        self._options = dict(storage_options)
        self._known: dict[str, str] = {}

    def begin(self) -> None:
        """Create those that the query of this checkpoint has never had. Raises TableReadError, and CheckpointError."""
        self._known = known_ids(self._checkpoint)
        self.opened()
        for table in self._tables:
            create_table(table, self._options)
        self._known |= {path: str(table.metadata().id) for path, table in self.opened().items()}
        self._checkpoint.sluice.write(_FILE, msgspec.json.encode(self._known))

    def opened(self) -> dict[str, DeltaTable]:
        """Path -> table as it is now, of those that are known. Raises TableReadError if one isn't the query's own."""
        found = {table.path: self._open(table.path) for table in self._tables}
        return {path: table for path, table in found.items() if table is not None}

    def _open(self, path: str) -> DeltaTable | None:
        try:
            table = DeltaTable(path, storage_options=self._options)
        except TableNotFoundError:
            table = None
        check_is_own(path, None if table is None else str(table.metadata().id), self._known, self._checkpoint)
        return table
