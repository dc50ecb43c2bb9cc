"""The Delta table `elastic`: one row for each change of how far limits give way, with the loads behind it."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import write_deltalake

from sluice.sinks.tables.delta import AuditTable, columns, create_table
from sluice.state.contract.records import ElasticState
from sluice.state.quotas.elastic import MeasuredLoad


def _of_gateways(figure: str) -> pa.DataType:
    """The type of a list of gateways, each with a figure and its reason."""
    fields = columns(f"instance STRING, {figure} DOUBLE, reason STRING")
    return pa.list_(pa.field("element", pa.struct(list(fields))))


_COLUMNS = pa.schema(
    [
        *columns("number BIGINT, at_ms BIGINT, lend DOUBLE, reason STRING"),
        pa.field("brokers", _of_gateways("factor")),
        pa.field("loads", _of_gateways("load")),
        *columns("date DATE"),
    ]
)


class ElasticTable:
    """The table at `path`, a folder or a URI; `storage_options` are delta-rs's. The driver alone writes it."""

    def __init__(self, path: str, storage_options: Mapping[str, str]) -> None:
        self._path = path
        self._storage_options = dict(storage_options)
        self._is_created = False

    def append(self, changes: Iterable[tuple[ElasticState, Mapping[str, MeasuredLoad]]]) -> None:
        """Add a row for each change, with the loads by instance that it was decided from. Raises delta-rs's errors."""
        if not self._is_created:
            create_table(AuditTable(self._path, _COLUMNS), self._storage_options)
            self._is_created = True
        rows = [
            {
                "number": state.number,
                "at_ms": state.at_ms,
                "lend": state.lend,
                "brokers": [
                    {"instance": each.instance, "factor": each.factor, "reason": each.reason} for each in state.brokers
                ],
                "reason": state.reason,
                "loads": [{"instance": name, "load": each.load, "reason": each.reason} for name, each in loads.items()],
                "date": datetime.fromtimestamp(state.at_ms / 1000, UTC).date(),
            }
            for state, loads in changes
        ]
        table = pa.Table.from_pylist(rows, _COLUMNS)
        write_deltalake(self._path, table, mode="append", storage_options=self._storage_options)
