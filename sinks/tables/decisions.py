"""The Delta table `decisions`: one row per decision."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sinks.tables.delta import SOURCE_COLUMNS, SOURCE_ID, AuditTable, columns, columns_of
from sluice.sinks.tables.faults import Faults, Mask, RequestsTopic, TimeBounds, as_mask
from sluice.sinks.tables.json_records import JsonRecords, row_struct
from sluice.sinks.tables.quota_metrics import METRIC_NAMES
from sluice.state.contract.decision_id import DECISION_ID, DecisionId
from sluice.state.contract.records import (
    MAX_APPLIED_WAITS,
    MAX_ENTRIES,
    MAX_NAME_LENGTH,
    MAX_SHARES,
    MAX_VALUE,
    Decision,
    Verdict,
)
from sluice.state.quotas.entry import Mode

MAX_CHARGES = 4 * MAX_ENTRIES
"""More than any request leads to: each of its entries is charged to one topic quota and its shadow at most."""

_LOOKED_UP_BY = ("decision_id", *SOURCE_COLUMNS, SOURCE_ID, "timestamp_ms", "decided_at_ms", "user", "client_id")
"""The source is what a micro-batch looks up, the others are what queries of the table ask for."""

_DAY_MS = 86_400_000

_Row = row_struct(Decision)

_COLUMNS = pa.schema(
    [
        *columns("source_topic STRING, source_partition INT, source_offset BIGINT"),
        *columns_of(_Row),
        *columns("date DATE"),
    ]
)
"""The source record that the decision's id names, the decision, and the day on which it was decided (UTC)."""

_DECISIONS = JsonRecords(_Row, "a decision")


def decisions_table(path: str) -> AuditTable:
    """The table at `path`, for rows of `decision_rows`."""
    return AuditTable(path, _COLUMNS, _LOOKED_UP_BY)


def decision_rows(
    records: pa.Table, faults: Faults, requests: RequestsTopic, bounds: TimeBounds, read_at_ms: int
) -> tuple[pa.Table, list[bytes]]:
    """A row of the table for each record, and what it says; that of a record with a fault is no row.

    The records have a `value` and answer events of `requests`.
    """
    decisions, contents = _DECISIONS.read(records["value"].to_pylist(), faults)
    source = pc.extract_regex(decisions["decision_id"], f"^{DECISION_ID}$")
    faults.add(~as_mask(pc.is_valid(source)), "decision_id", "is not topic-partition-offset of a request event")
    for field in ("timestamp_ms", "decided_at_ms"):
        broken = bounds.broken_by(decisions[field], read_at_ms)
        faults.add(broken, field, "is missing or too far from the present")
    _find_faults(decisions, faults)
    if (pc.max(pc.binary_length(records["value"])).as_py() or 0) > MAX_NAME_LENGTH:  # no name is longer than its record
        _check_names(decisions["charges"], faults)
    topic, *numbers = (pc.struct_field(source, name) for name in DecisionId._fields)
    ids = requests.ids(decisions["source_topic_id"])
    partition, offset = (pc.fill_null(number, "0").cast(pa.uint64()) for number in numbers)
    faults.add(requests.lacks(topic, ids, partition, offset), "decision_id", f"names no event of topic {requests.name}")
    days = pc.fill_null(decisions["decided_at_ms"], 0).to_numpy() // _DAY_MS
    row = {
        "source_topic": topic,
        "source_partition": partition.to_numpy().astype(np.int32),
        "source_offset": offset.to_numpy().astype(np.int64),
        **dict(zip(decisions.column_names, decisions.columns, strict=True)),
        "date": pa.array(days.astype(np.int32)).cast(pa.date32()),
    }
    return pa.table(row, _COLUMNS), contents


def decision_content(row: dict[str, Any]) -> bytes:
    """The content of a row of the table, as `decision_rows` has it."""
    return _DECISIONS.as_json(row)


def _find_faults(decisions: pa.Table, faults: Faults) -> None:
    """Note what Delta, the metrics or a reader of the tables would fail at."""
    charges, waits = decisions["charges"], decisions["throttled_by"]
    shares = pc.struct_field(decisions["heartbeat"], "shares")
    requests = pc.struct_field(decisions["amounts"], "requests")
    quotas, modes, values = (pc.struct_field(pc.list_flatten(charges), name) for name in ("quota", "mode", "value"))
    faults.add(~_is_in(decisions["verdict"], list(map(str, Verdict))), "verdict", "is no verdict")
    faults.add(_longer(charges, MAX_CHARGES), "charges", f"has more than {MAX_CHARGES} entries")
    faults.add(_any(charges, ~_is_in(quotas, list(METRIC_NAMES))), "charges.quota", "is no quota")
    faults.add(_any(charges, ~_is_in(modes, [None, str(Mode.SHADOW)])), "charges.mode", f"is not null or {Mode.SHADOW}")
    too_large = as_mask(pc.greater(pc.abs(values), MAX_VALUE))
    faults.add(_any(charges, too_large), "charges.value", f"is no number up to {MAX_VALUE:.0e}")
    faults.add(_longer(waits, MAX_APPLIED_WAITS), "throttled_by", f"has more than {MAX_APPLIED_WAITS} entries")
    faults.add(_longer(shares, MAX_SHARES), "heartbeat.shares", f"has more than {MAX_SHARES} entries")
    faults.add(as_mask(pc.less(requests, 1)), "amounts.requests", "is no number of requests")


def _check_names(charges: pa.ChunkedArray, faults: Faults) -> None:
    for name in ("user", "client_id", "topic", "tenant"):
        lengths = pc.utf8_length(pc.struct_field(pc.list_flatten(charges), ["entity", name]))
        too_long = _any(charges, as_mask(pc.greater(lengths, MAX_NAME_LENGTH)))
        faults.add(too_long, "charges.entity", f"has a name of more than {MAX_NAME_LENGTH} characters")


def _is_in(values: pa.ChunkedArray, known: list[str | None]) -> Mask:
    return as_mask(pc.is_in(values, pa.array(known, pa.string())))


def _longer(lists: pa.ChunkedArray, maximum: int) -> Mask:
    return as_mask(pc.greater(pc.list_value_length(lists), maximum))


def _any(lists: pa.ChunkedArray, wrong: Mask) -> Mask:
    """True for each list of which an item is wrong; `wrong` goes over the items of all lists."""
    found = np.zeros(len(lists), np.bool_)
    found[pc.list_parent_indices(lists).to_numpy()[wrong]] = True
    return found
