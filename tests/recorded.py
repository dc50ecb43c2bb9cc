"""Tables of decisions for tests: what the audit query would have written, without Spark."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from sluice.configs.settings import Settings, load_settings
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.pipeline import Simulation

SETTINGS = load_settings(environment={})
START_MS = 1_800_000_000_000

_ENTITY = pa.struct(
    [("user", pa.string()), ("client_id", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]
)
_TOPIC_PARTITION = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("bytes", pa.int64())])
_AMOUNTS = pa.struct(
    [
        ("bytes", pa.int64()),
        ("request_time_ns", pa.int64()),
        ("network_time_ns", pa.int64()),
        ("topic_partitions", pa.list_(_TOPIC_PARTITION)),
        ("mutations", pa.list_(pa.struct([("topic", pa.string()), ("partitions", pa.int32())]))),
        ("mutations_charged", pa.int32()),
        ("api_version", pa.int32()),
        ("validate_only", pa.bool_()),
        ("cluster_action", pa.bool_()),
        ("authenticating", pa.bool_()),
        ("purgatory_ms", pa.int64()),
        ("withheld", pa.bool_()),
        ("requests", pa.int32()),
    ]
)
SCHEMA = pa.schema(
    [
        ("decision_id", pa.string()),
        ("source_topic", pa.string()),
        ("source_partition", pa.int32()),
        ("source_offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("decided_at_ms", pa.int64()),
        ("user", pa.string()),
        ("client_id", pa.string()),
        ("api", pa.string()),
        ("verdict", pa.string()),
        ("throttle_time_ms", pa.int64()),
        ("throttled_by", pa.list_(pa.struct([("quota", pa.string()), ("entity", _ENTITY), ("ms", pa.int64())]))),
        ("amounts", _AMOUNTS),
        ("date", pa.date32()),
    ]
)
"""The columns of the table `decisions` that a replay reads, as Spark writes them."""

Json = dict[str, Any]


def event(at_ms: int, user: str = "alice", client_id: str = "app", **said: Any) -> bytes:
    """A request event at so many milliseconds after START_MS; a Produce unless it says otherwise."""
    return json.dumps(
        {"api": "Produce", "timestamp_ms": START_MS + at_ms, "user": user, "client_id": client_id} | said
    ).encode()


def simulated(events: Iterable[bytes], quotas: Iterable[QuotaEntry], settings: Settings = SETTINGS) -> list[Json]:
    """What `sluice simulate` decides, without dead letters."""
    records = Simulation(Quotas(quotas), settings).decide(events)
    return [json.loads(record.value) for record in records if record.topic == settings.topics.decisions]


def write_decisions(path: Path, decisions: Iterable[Json], mode: str = "append") -> None:
    """Append decisions to the table at `path`, one file for each day."""
    rows = []
    for decision in decisions:
        topic, partition, offset = decision["decision_id"].rsplit("-", 2)
        source = {"source_topic": topic, "source_partition": int(partition), "source_offset": int(offset)}
        date = datetime.fromtimestamp(decision["decided_at_ms"] / 1000, UTC).date()
        rows.append({name: (decision | source).get(name) for name in SCHEMA.names} | {"date": date})
    write_deltalake(str(path), pa.Table.from_pylist(rows, schema=SCHEMA), mode=mode, partition_by=["date"])  # type: ignore[call-overload] # mode is one of its literals
