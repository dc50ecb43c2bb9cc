"""The Delta table of holds, beside that of the quotas: a row for each client that an operator stopped or released."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from arro3.core import Array, DataType, RecordBatch, Schema, Table
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from sluice.configs.settings import holds_path
from sluice.sinks.tables.operators import OperatorsTable
from sluice.state.contract.records import MAX_TIMESTAMP_MS
from sluice_reading.operator_holds import OperatorHold
from sluice_reading.owner import warn_of_owner

log = logging.getLogger("sluice.holds")


_COLUMNS = OperatorHold.__struct_fields__


_MAX_ATTEMPTS = 100
"""Most operators whose rows may come between the reading of the table and a new row."""


class HoldsTable(OperatorsTable):
    """The table beside the quotas table at `quotas`, a folder or a URI; the first hold makes it.

    Raises QuotasTableError.
    """

    name = "table of holds"

    def __init__(self, quotas: str, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__(holds_path(quotas), storage_options)
        self._quotas = quotas

    def append(self, command: OperatorHold) -> int:
        """Add a row after all others, and return its number, which is greater than theirs whatever clocks say.

        It is the time where that is greater: a table that comes back from a backup goes on with numbers that no other
        row had.
        """
        for _ in range(_MAX_ATTEMPTS):
            table = self._made(_row(command).schema)
            last = max((each.number for each in self._commands(table)[0]), default=0)
            number = max(last + 1, command.at_ms)
            if last >= MAX_TIMESTAMP_MS:
                raise self._error(
                    "written", OSError(f"a row has the last number, {last}: no command wrote it; delete it")
                )
            with suppress(CommitFailedError):  # another operator's row is the next one
                self._write(table, _row(msgspec.structs.replace(command, number=number)))
                return number
        raise self._error("written", OSError(f"{_MAX_ATTEMPTS} other rows came first"))

    def _write(self, table: DeltaTable, row: Table) -> None:
        """Append to this very version. Raises CommitFailedError if there is a later one."""
        with self._told("written"):
            write_deltalake(table, row, mode="append", commit_properties=CommitProperties(max_commit_retries=0))
            warn_of_owner(self.path, beside=self._quotas)

    def commands(self) -> list[OperatorHold]:
        """All rows that commands wrote, the last one first; none if nobody was stopped yet, so there is no table."""
        table = self._opened()
        return [] if table is None else self._commands(table)[0]

    def poll(self) -> list[OperatorHold] | None:
        """The same if there are others than at the last poll, None if not.

        A table that was there before is missed. Its newest commit has to be whole, or a hold would be passed over.
        """
        with self._told("read"):
            if self._newest.is_still_newest():
                return None
            table = self._opened()
            if table is None:
                if self._newest.known is not None:
                    raise FileNotFoundError("it is gone; restore it, or hold again who is to be stopped")
                return []
            commit = self._newest.whole(table.version())
        commands, left_out = self._commands(table)
        self._newest.known = commit
        if left_out:
            told = "%d rows of %s stop nobody: no command has written them; check who may write to the table"
            log.warning(told, left_out, self.path)
        return commands

    def _commands(self, table: DeltaTable) -> tuple[list[OperatorHold], int]:
        """The commands of a table, the last one first, and the number of rows that no command has written."""
        try:
            scanned = table.scan(columns=list(_COLUMNS)).read_all()  # as the quotas table is read
        except Exception as error:  # arro3 raises no narrower class
            raise self._error("read", error) from error
        rows = list(zip(*(scanned[name].to_pylist() for name in _COLUMNS), strict=True))
        found = [command for row in rows if (command := _command(row)) is not None]
        return sorted(found, key=lambda command: -command.number), len(rows) - len(found)

    def _made(self, schema: Schema) -> DeltaTable:
        """The table, made if there is none, and once: a second time would change its metadata under others' rows."""
        options = self._storage_options
        with self._told("written"):
            with suppress(CommitFailedError):  # another operator has made it meanwhile
                once = CommitProperties(max_commit_retries=0)
                DeltaTable.create(
                    self.path, schema, mode="ignore", name="holds", storage_options=options, commit_properties=once
                )
            return DeltaTable(self.path, storage_options=options)


def _row(command: OperatorHold) -> Table:
    values = msgspec.structs.astuple(command)
    arrays = [Array([value], DataType.int64() if isinstance(value, int) else DataType.utf8()) for value in values]
    return Table.from_batches([RecordBatch.from_arrays(arrays, names=_COLUMNS)])


def _command(row: tuple[Any, ...]) -> OperatorHold | None:
    """A row as a command; None for one that no command writes."""
    with suppress(msgspec.ValidationError):
        command = msgspec.convert(row, OperatorHold)
        if bool(command.tenant) != bool(command.user + command.client_id):
            return command
    return None
