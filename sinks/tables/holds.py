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
from sluice.sinks.tables.trouble import missing_rights, warn_of_owner
from sluice.state.contract.records import MAX_TIMESTAMP_MS
from sluice.state.overrides.operator_holds import MAX_LASTING_MS, OperatorHold
from sluice.state.quotas.entity import MAX_TAG_LENGTH, Tags

log = logging.getLogger("sluice.holds")

_MAX_SHOWN = 300
"""Longest author and reason together: all holds are in one record."""

_NUMBERS = ("number", "at_ms", "lasting_ms")
_COLUMNS = ("user", "client_id", "tenant", *_NUMBERS, "reason", "changed_by", *ChangedFrom._fields)

_MAX_ATTEMPTS = 100
"""Most operators whose rows may come between the reading of the table and a new row."""


class HoldChange(NamedTuple):
    """A hold or release, and who said it."""

    hold: OperatorHold
    changed_by: str
    changed_from: ChangedFrom


class HoldsTable:
    """The table beside the quotas table at `quotas`, a folder or a URI; the first hold makes it.

    `holds` are the commands that the last poll read, whose reason begins with the author; None before it could be read.
    Raises QuotasTableError.
    """

    def __init__(self, quotas: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = quotas.rstrip("/") + "-holds"
        self._quotas = quotas
        self.holds: list[OperatorHold] | None = None
        self._storage_options = dict(storage_options or {})
        self._newest = NewestCommit(self.path, self._storage_options)

    def append(self, change: HoldChange) -> int:
        """Add a row after all others, and return its number, which is greater than theirs whatever clocks say.

        It is the time where that is greater: a table that comes back from a backup goes on with numbers that no other
        row had.
        """
        for _ in range(_MAX_ATTEMPTS):
            table = self._made(_rows(change).schema)
            last = max((each.hold.number for each in self._changes(table)[0]), default=0)
            number = max(last + 1, change.hold.at_ms)
            if last >= MAX_TIMESTAMP_MS:
                raise self._error(
                    "written", OSError(f"a row has the last number, {last}: no command wrote it; delete it")
                )
            numbered = change._replace(hold=change.hold._replace(number=number))
            with suppress(CommitFailedError):  # another operator's row is the next one
                self._write(table, _rows(numbered))
                return number
        raise self._error("written", OSError(f"{_MAX_ATTEMPTS} other rows came first"))

    def _write(self, table: DeltaTable, rows: Table) -> None:
        """Append to this very version. Raises CommitFailedError if there is a later one."""
        try:
            write_deltalake(table, rows, mode="append", commit_properties=CommitProperties(max_commit_retries=0))
            warn_of_owner(self.path, beside=self._quotas)
        except CommitFailedError:
            raise
        except (DeltaError, OSError, ValueError) as error:
            raise self._error("written", error) from error

    def changes(self) -> list[HoldChange]:
        """All rows that commands wrote, the last one first."""
        return self._changes(self._open())[0]

    def _changes(self, table: DeltaTable | None) -> tuple[list[HoldChange], int]:
        """The changes of a table, the last one first, and the number of rows that no command has written."""
        if table is None:
            return [], 0
        try:
            scanned = table.scan(columns=list(_COLUMNS)).read_all()  # as the quotas table is read
        except Exception as error:  # arro3 raises no narrower class
            raise self._error("read", error) from error
        rows = list(zip(*(scanned[name].to_pylist() for name in _COLUMNS), strict=True))
        found = [change for row in rows if (change := _change(*row)) is not None]
        return sorted(found, key=lambda change: -change.hold.number), len(rows) - len(found)

    def poll(self) -> bool:
        """Read the rows if there are others; False if nobody was stopped yet, so there is no table.

        One that was there before is missed. Its newest commit has to be whole, or a hold would be passed over.
        """
        try:
            if self._newest.is_still_newest():
                return True
            table = self._open()
            if table is None:
                if self._newest.known is not None:
                    raise FileNotFoundError("it is gone; restore it, or hold again who is to be stopped")
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
        try:
            with suppress(CommitFailedError):  # another operator has made it meanwhile
                once = CommitProperties(max_commit_retries=0)
                DeltaTable.create(
                    self.path, schema, mode="ignore", name="holds", storage_options=options, commit_properties=once
                )
            return DeltaTable(self.path, storage_options=options)
        except (DeltaError, OSError, ValueError) as error:
            raise self._error("written", error) from error

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.path, storage_options=self._storage_options)
        except TableNotFoundError:
            if reason := missing_rights(self.path):
                raise QuotasTableError(f"the table of holds {self.path} can't be read: {reason}") from None
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise self._error("read", error) from error

    def _error(self, done: str, error: Exception) -> QuotasTableError:
        if reason := missing_rights(self.path):
            return QuotasTableError(f"the table of holds {self.path} can't be {done}: {reason}")
        return QuotasTableError(
            f"the table of holds {self.path} can't be {done} ({storage_reason(error)}); check its permissions,"
            " delta.quotas and delta.storage_options"
        )


def _rows(change: HoldChange) -> Table:
    hold, client = change.hold, change.hold.client
    numbers, whose = (hold.number, hold.at_ms, hold.lasting_ms), (change.changed_by, *change.changed_from)
    row = (client.user, client.client_id, client.tenant, *numbers, hold.reason, *whose)
    types = [DataType.int64() if name in _NUMBERS else DataType.utf8() for name in _COLUMNS]
    values = [Array([value], kind) for value, kind in zip(row, types, strict=True)]
    return Table.from_batches([RecordBatch.from_arrays(values, names=_COLUMNS)])


def _change(user: Any, client_id: Any, tenant: Any, *others: Any) -> HoldChange | None:
    """A row as a change; None for one that no command writes."""
    names, (number, at_ms, lasting_ms, reason, author, os_user, host, principal) = (user, client_id, tenant), others
    has_texts = all(isinstance(text, str) for text in (*names, reason, author, os_user, host))
    numbers = (number, at_ms, lasting_ms)
    has_numbers = all(isinstance(each, int) and 0 <= each <= MAX_TIMESTAMP_MS for each in numbers)
    if (
        not has_texts
        or not has_numbers
        or max(map(len, names)) > MAX_TAG_LENGTH
        or lasting_ms > MAX_LASTING_MS
        or bool(tenant) == bool(user + client_id)
    ):
        return None
    hold = OperatorHold(Tags(user, client_id, tenant=tenant), at_ms, lasting_ms, reason, number)
    return HoldChange(hold, author, ChangedFrom(os_user, host, principal))
