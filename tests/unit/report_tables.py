"""Tables of decisions for tests of reports: every column, from events that the simulation decides."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from sluice.configs.settings import load_settings
from sluice.insight.sql import Tables
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.pipeline import Simulation

SETTINGS = load_settings(environment={})

TEXT, LONG, INT, DOUBLE, BOOL = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_()


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


ENTITY = _struct(user=TEXT, client_id=TEXT, topic=TEXT, partition=INT)
CHARGE = _struct(
    quota=TEXT, entity=ENTITY, matched=TEXT, limit=DOUBLE, value=DOUBLE, rate=DOUBLE, tokens=DOUBLE,
    throttle_ms=LONG, violated=BOOL, mode=TEXT,
)  # fmt: skip
AMOUNTS = _struct(
    bytes=LONG, request_time_ns=LONG, network_time_ns=LONG,
    topic_partitions=pa.list_(_struct(topic=TEXT, partition=INT, bytes=LONG)),
    mutations=pa.list_(_struct(topic=TEXT, partitions=INT)), mutations_charged=INT, api_version=INT,
    validate_only=BOOL, cluster_action=BOOL, authenticating=BOOL, purgatory_ms=LONG, withheld=BOOL, requests=INT,
)  # fmt: skip
SCHEMA = pa.schema(
    {
        "source_topic": TEXT, "source_partition": INT, "source_offset": LONG,
        "decision_id": TEXT, "request_id": TEXT, "timestamp_ms": LONG, "user": TEXT, "client_id": TEXT, "api": TEXT,
        "gateway": TEXT, "verdict": TEXT, "throttle_time_ms": LONG, "mute_until_ms": LONG, "error_code": INT,
        "topic_results": pa.list_(_struct(topic=TEXT, error_code=INT, error_message=TEXT)),
        "decided_by": TEXT, "charges": pa.list_(CHARGE), "quota_version": LONG, "decided_at_ms": LONG,
        "job_id": TEXT, "instance": TEXT,
        "throttled_by": pa.list_(_struct(quota=TEXT, entity=ENTITY, ms=LONG)),
        "amounts": AMOUNTS, "date": pa.date32(),
    }
)  # fmt: skip


def event(at: datetime, user: str, api: str, client_id: str = "app", **more: Any) -> bytes:
    """A request event."""
    at_ms = int(at.timestamp() * 1000)
    return json.dumps({"user": user, "client_id": client_id, "api": api, "timestamp_ms": at_ms} | more).encode()


def write_decisions(path: str, quotas: Quotas, events: Iterable[bytes]) -> None:
    """Append the decisions on these events to the table at `path`."""
    answers = [json.loads(record.value) for record in Simulation(quotas, SETTINGS).decide(events)]
    rows = [_row(answer) for answer in answers]
    write_deltalake(path, pa.Table.from_pylist(rows, schema=SCHEMA), partition_by=["date"], mode="append")


def _row(answer: dict[str, Any]) -> dict[str, Any]:
    topic, partition, offset = answer["decision_id"].rsplit("-", 2)
    source = {"source_topic": topic, "source_partition": int(partition), "source_offset": int(offset)}
    day = datetime.fromtimestamp(answer["decided_at_ms"] / 1000, UTC).date()
    row = {name: answer.get(name) for name in SCHEMA.names} | source | {"date": day}
    if row["amounts"]:  # what an event doesn't say is absent there, and null in the table
        row["amounts"] = {field.name: row["amounts"].get(field.name) for field in AMOUNTS}
    return row


def report_tables(folder: Path) -> Tables:
    """The tables in a folder, as the default settings name them from there."""
    return Tables(str(folder / SETTINGS.delta.decisions), str(folder / SETTINGS.delta.quotas), {})


def write_tables(folder: Path, quotas: list[QuotaEntry], events: Iterable[bytes], at: datetime) -> Tables:
    """Tables with these quotas, set by "seed" at `at`, and the decisions on these events under them."""
    tables = report_tables(folder)
    QuotasTable(tables.quotas).create(quotas, changed_by="seed", at=at)
    write_decisions(tables.decisions, Quotas(quotas), events)
    return tables
