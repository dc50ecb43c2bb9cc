"""The Delta table `dead_letters`: one row per event that couldn't be decided."""

import binascii
from base64 import b64decode
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sinks.tables.delta import SOURCE_COLUMNS, SOURCE_ID, AuditTable, columns
from sluice.sinks.tables.faults import Faults, RequestsTopic, TimeBounds, as_mask
from sluice.sinks.tables.json_records import JsonRecords, row_struct
from sluice.state.contract.records import DeadLetter

_COLUMNS = columns("""
    source_topic STRING, source_partition INT, source_offset BIGINT, field STRING, problem STRING, expected
    STRING, value BINARY, value_bytes BIGINT, recorded_at TIMESTAMP, source_topic_id STRING, date DATE
""")
"""The source record, what was wrong, the event's own bytes, and when the dead letter was written."""

_SOURCE = ("topic", "partition", "offset", "topic_id")

_CONTENT = ("field", "problem", "expected", "value", "value_bytes")


_LETTERS = JsonRecords(row_struct(DeadLetter), "a dead letter")


def dead_letters_table(path: str) -> AuditTable:
    """The table at `path`, for rows of `letter_rows`."""
    return AuditTable(path, _COLUMNS, (*SOURCE_COLUMNS, SOURCE_ID, "field"))


def letter_rows(
    records: pa.Table, faults: Faults, requests: RequestsTopic, bounds: TimeBounds, read_at_ms: int
) -> tuple[pa.Table, list[bytes]]:
    """A row of the table for each record, and what it says; that of a record with a fault is no row.

    The records have a `value` and a `timestamp`, and answer events of `requests`.
    """
    letters, _ = _LETTERS.read(records["value"].to_pylist(), faults)
    topic, partition, offset, topic_id = (pc.struct_field(letters["source"], part) for part in _SOURCE)
    named = pc.and_(pc.not_equal(topic, ""), pc.and_(pc.greater_equal(partition, 0), pc.greater_equal(offset, 0)))
    faults.add(~as_mask(named), "source", "is not topic, partition and offset of a request event")
    problem = pc.struct_field(letters["error"], "problem")
    faults.add(~as_mask(pc.is_valid(problem)), "error", "says no problem")
    texts = letters["value"].to_pylist()
    events = [_event(text) for text in texts]
    no_base64 = [text is not None and event is None for text, event in zip(texts, events, strict=True)]
    faults.add(np.array(no_base64, np.bool_), "value", "is no base64")
    # The day of the record's time becomes a folder.
    faults.add(bounds.broken_by(records["timestamp_ms"], read_at_ms), "timestamp", "is too far from the present")
    faults.add(
        requests.lacks(topic, requests.ids(topic_id), partition, offset),
        "source",
        f"names no event of topic {requests.name}",
    )
    rows = pa.table(
        {
            "source_topic": topic,
            "source_partition": partition,
            "source_offset": offset,
            **{name: pc.struct_field(letters["error"], name) for name in ("field", "problem", "expected")},
            "value": pa.array(events, pa.binary()),
            "value_bytes": letters["value_bytes"],
            "recorded_at": records["timestamp"],
            "source_topic_id": topic_id,
            "date": records["timestamp"].cast(pa.date32()),
        },
        _COLUMNS,
    )
    return rows, [letter_content(row) for row in rows.select(_CONTENT).to_pylist()]


def letter_content(row: dict[str, Any]) -> bytes:
    """The content of a row of the table, as `letter_rows` has it."""
    return msgspec.json.encode([row[name] for name in _CONTENT])


def _event(text: str | None) -> bytes | None:
    try:
        return None if text is None else b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
