"""The Delta table `overrides`: one row for each change of what a decider overrides, with the figures behind it."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from msgspec import structs

from sluice.sinks.tables.delta import AuditTable, columns, create_table
from sluice.state.contract.records import CountedEntity, Override, Overrides


def _list_of(text: str) -> pa.DataType:
    """The type of a list of structs with these fields."""
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

    def append(self, changes: Iterable[tuple[str, Overrides]]) -> None:
        """Add a row for each change, of a decider by its name. Raises delta-rs's errors."""
        create_table(AuditTable(self._path, _COLUMNS), self._storage_options)
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
