"""The Delta table `unreadable`: records of the answer topics that are no rows of another table, whole, with the reason.

Anyone who may write to the decisions or dead-letter topic can put anything there. A record that Delta or a reader of
the tables would fail at must not stop the audit query, and must not be lost.
"""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from sluice.sinks.tables.delta import AuditTable, Offsets, by_partition, columns, equals, rows_where
from sluice.sinks.tables.faults import Faults, where

_COLUMNS = columns("""
    topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, key BINARY, value BINARY, field STRING,
    reason STRING, read_at TIMESTAMP, date DATE
""")
"""The record with its own time, the field that is wrong and why, and when the audit query read it first.

The record's time is a number: its writer sets it, and not every time is a TIMESTAMP that tools can read.
"""

_IDENTITY = ("topic", "partition", "offset", "timestamp_ms")
"""Offsets begin at 0 again in a topic that was deleted and created again; the time tells such records apart."""


def unreadable_table(path: str) -> AuditTable:
    """The table at `path`, for rows of `unreadable_rows`."""
    return AuditTable(path, _COLUMNS, _IDENTITY)


def unreadable_rows(records: pa.Table, faults: Faults) -> pa.Table:
    """Rows of the table: the records with a fault, which have the columns of Kafka, `timestamp_ms` and `read_at`."""
    field, reason = faults.columns()
    wrong = where(~faults.good, records).append_column("field", field).append_column("reason", reason)
    return wrong.append_column("date", wrong["read_at"].cast(pa.date32())).select(_COLUMNS.names)


def known_records(table: DeltaTable, topic: str, records: pa.Table) -> Offsets:
    """Those of a topic's records (partition, offset, timestamp_ms) that the table has already.

    A query that starts on a new checkpoint reads the whole topics again.
    """
    near = pc.min_max(records["offset"])
    condition = f'{equals("topic", topic)} AND "offset" BETWEEN {near["min"]} AND {near["max"]}'
    identity = records.select(_IDENTITY[1:])
    written = pa.concat_tables([identity.slice(0, 0), *rows_where(table, identity.schema, condition)])
    found = identity.join(written, identity.column_names, join_type="left semi")
    return by_partition(found["partition"].to_numpy(), found["offset"].to_numpy())
