"""The Delta table of holds, beside that of the quotas: a row for each client that an operator stopped or released."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from arro3.core import Array, DataType, RecordBatch, Schema, Table
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from sluice.process.format import short
from sluice.sinks.errors import QuotasTableError, storage_reason
from sluice.sinks.tables.newest import NewestCommit
from sluice.sinks.tables.quotas import ChangedFrom
from sluice.state.contract.records import MAX_TIMESTAMP_MS
from sluice.state.overrides.operator_holds import OperatorHold
from sluice.state.quotas.entity import MAX_TAG_LENGTH, Tags

log = logging.getLogger("sluice.holds")

_MAX_SHOWN = 300
"""Longest author and reason together: all holds are in one record."""

_TIMES = ("at_ms", "until_ms")
_COLUMNS = ("user", "client_id", "tenant", *_TIMES, "reason", "changed_by", *ChangedFrom._fields)


class HoldChange(NamedTuple):
    """A hold or release, and who said it."""

    hold: OperatorHold
    changed_by: str
    changed_from: ChangedFrom


class HoldsTable:
    """The table beside the quotas table at `quotas`, a folder or a URI; the first hold makes it.

    `holds` are those of the last look that could read it, whose reason begins with the author. Raises QuotasTableError.
    """

    def __init__(self, quotas: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = quotas.rstrip("/") + "-holds"
        self.holds: list[OperatorHold] = []
        self._storage_options = dict(storage_options or {})
        self._newest = NewestCommit(self.path, self._storage_options)

    def append(self, change: HoldChange) -> None:
        """Add a row."""
        hold, client = change.hold, change.hold.client
        times, whose = (hold.at_ms, hold.until_ms), (change.changed_by, *change.changed_from)
        row = (client.user, client.client_id, client.tenant, *times, hold.reason, *whose)
        types = [DataType.int64() if name in _TIMES else DataType.utf8() for name in _COLUMNS]
        values = [Array([value], kind) for value, kind in zip(row, types, strict=True)]
        rows = Table.from_batches([RecordBatch.from_arrays(values, names=_COLUMNS)])
        try:
            write_deltalake(self._made(rows.schema), rows, mode="append")
        except (DeltaError, OSError, ValueError) as error:
            raise self._error("written", error) from error

    def changes(self) -> list[HoldChange]:
        """All rows that commands wrote, the newest first."""
        return self._changes(self._open())[0]

    def _changes(self, table: DeltaTable | None) -> tuple[list[HoldChange], int]:
        """The changes of a table, the newest first, and the number of rows that no command has written."""
        if table is None:
            return [], 0
        try:
            scanned = table.scan(columns=list(_COLUMNS)).read_all()  # as the quotas table is read
        except Exception as error:  # arro3 raises no narrower class
            raise self._error("read", error) from error
        rows = list(zip(*(scanned[name].to_pylist() for name in _COLUMNS), strict=True))
        found = [change for row in rows if (change := _change(*row)) is not None]
        return sorted(found, key=lambda change: -change.hold.at_ms), len(rows) - len(found)

    def look(self) -> bool:
        """Read the rows if there are others; False if nobody was stopped yet, so there is no table.

        One that was there before is missed. Its newest commit has to be whole, or a hold would be passed over.
        """
        try:
            if self._newest.is_still_newest():
                return True
            table = self._open()
            if table is None:
                if self._newest.known is not None:
                    raise FileNotFoundError("it is gone; restore it")
                return False
            commit = self._newest.whole(table.version())
        except (DeltaError, OSError, ValueError) as error:
            raise self._error("read", error) from error
        changes, left_out = self._changes(table)
        self.holds = [
            hold._replace(reason=short(f"{author}: {hold.reason}", _MAX_SHOWN)) for hold, author, _ in changes
        ]
        self._newest.known = commit
        if left_out:
            told = "%d rows of %s stop nobody: no command has written them; check who may write to the table"
            log.warning(told, left_out, self.path)
        return True

    def _made(self, schema: Schema) -> DeltaTable:
        """The table, made if there is none, and once: a second time would change its metadata under others' rows."""
        options = self._storage_options
        with suppress(CommitFailedError):  # another operator has made it meanwhile
            once = CommitProperties(max_commit_retries=0)
            DeltaTable.create(
                self.path, schema, mode="ignore", name="holds", storage_options=options, commit_properties=once
            )
        return DeltaTable(self.path, storage_options=options)

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.path, storage_options=self._storage_options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise self._error("read", error) from error

    def _error(self, done: str, error: Exception) -> QuotasTableError:
        return QuotasTableError(
            f"the table of holds {self.path} can't be {done} ({storage_reason(error)}); check its permissions,"
            " delta.quotas and delta.storage_options"
        )


def _change(user: Any, client_id: Any, tenant: Any, at_ms: Any, until_ms: Any, *others: Any) -> HoldChange | None:
    """A row as a change; None for one that no command writes."""
    names, (reason, author, os_user, host, principal) = (user, client_id, tenant), others
    has_texts = all(isinstance(text, str) for text in (*names, reason, author, os_user, host))
    has_times = all(isinstance(time, int) and 0 <= time <= MAX_TIMESTAMP_MS for time in (at_ms, until_ms))
    if (
        not has_texts
        or not has_times
        or max(map(len, names)) > MAX_TAG_LENGTH
        or bool(tenant) == bool(user + client_id)
    ):
        return None
    hold = OperatorHold(Tags(user, client_id, tenant=tenant), at_ms, until_ms, reason)
    return HoldChange(hold, author, ChangedFrom(os_user, host, principal))
