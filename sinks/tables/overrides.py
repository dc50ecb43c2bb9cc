"""The Delta table `overrides`: one row for each change of what a decider overrides, with the figures behind it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from msgspec import structs

from sluice.sinks.errors import TableReadError
from sluice.sinks.tables.delta import AuditTable, columns, create_table
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity


def _list_of(text: str) -> pa.DataType:
    return pa.list_(pa.field("element", pa.struct(list(columns(text)))))


_OVERRIDE = "kind STRING, factor DOUBLE, user STRING, client_id STRING, tenant STRING, gateway STRING"

_COLUMNS = pa.schema(
    [
        *columns("decider STRING, number BIGINT, at_ms BIGINT, fresh_ms BIGINT"),
        pa.field("overrides", _list_of(f"{_OVERRIDE}, reason STRING, until_ms BIGINT, consumers BOOLEAN")),
        pa.field("measured", _list_of("name STRING, value DOUBLE, bound DOUBLE, reason STRING")),
        *columns("date DATE"),
    ]
)


class OverridesTable:
    """The table at `path`, a folder or a URI; `storage_options` are delta-rs's. The driver alone writes it."""

    def __init__(self, path: str, storage_options: Mapping[str, str]) -> None:
        self._path = path
        self._storage_options = dict(storage_options)
        self._id: str | None = None

    def append(self, changes: Iterable[tuple[str, Overrides]]) -> None:
        """Add a row for each change, of a decider by its name. Raises TableReadError, and delta-rs's errors."""
        options, found = self._storage_options, None
        with suppress(TableNotFoundError):
            own = AuditTable(self._path, _COLUMNS)
            table = DeltaTable(self._path, storage_options=options) if self._id else create_table(own, options)
            found = str(table.metadata().id)
        if self._id not in (None, found):
            raise TableReadError(
                f"{self._path} is no longer the table that was written until now: somebody has moved or removed its"
                " folder; move it back, or start the job again, which begins with a new one"
            )
        self._id = found
        rows = [
            {
                **structs.asdict(record),
                "decider": decider,
                "overrides": [_flat(each) for each in record.overrides],
                "measured": [structs.asdict(each) for each in record.measured],
                "date": datetime.fromtimestamp(record.at_ms / 1000, UTC).date(),
            }
            for decider, record in changes
        ]
        table = pa.Table.from_pylist(rows, _COLUMNS)
        write_deltalake(self._path, table, mode="append", storage_options=self._storage_options)


def _flat(override: Override) -> dict[str, Any]:
    return structs.asdict(override) | structs.asdict(override.entity or CountedEntity())
