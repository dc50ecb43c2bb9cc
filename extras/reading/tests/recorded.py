"""Tables of decisions for tests: what the audit query would have written, without Spark."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from sluice.configs.settings import Settings, load_settings
from sluice.sinks.tables.decisions import decisions_table
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from sluice_reading.query import Tables
from tests.builders import Json

SETTINGS = load_settings(environment={})
START_MS = 1_800_000_000_000
DECISIONS = decisions_table("unused").columns


def event(at_ms: int, user: str | None = "alice", client_id: str = "app", **said: Any) -> bytes:
    """A request event at so many milliseconds after START_MS; a Produce unless it says otherwise."""
    return json.dumps(
        {"api": "Produce", "timestamp_ms": START_MS + at_ms, "user": user, "client_id": client_id} | said
    ).encode()


def event_at(at: datetime, user: str, api: str, **said: Any) -> bytes:
    """A request event at this time, of the client `app` unless it says otherwise."""
    return event(int(at.timestamp() * 1000) - START_MS, user, api=api, **said)


def decided(events: Iterable[bytes], quotas: Quotas, settings: Settings = SETTINGS) -> list[Json]:
    """The decisions of `sluice simulate`, without dead letters."""
    records = Simulation(quotas, settings).decide(events)
    return [json.loads(record.value) for record in records if record.topic == settings.topics.decisions]


def simulated(events: Iterable[bytes], quotas: Iterable[QuotaEntry], settings: Settings = SETTINGS) -> list[Json]:
    """The decisions of `sluice simulate` under these quotas, without dead letters."""
    return decided(events, Quotas(quotas), settings)


def write_decisions(path: Path | str, decisions: Iterable[Json], columns: pa.Schema = DECISIONS) -> None:
    """Append decisions to the table at `path`, one file for each day, which has these columns."""
    rows = []
    for decision in decisions:
        topic, partition, offset = decision["decision_id"].rsplit("-", 2)
        source = {"source_topic": topic, "source_partition": int(partition), "source_offset": int(offset)}
        date = datetime.fromtimestamp(decision["decided_at_ms"] / 1000, UTC).date()
        rows.append(decision | source | {"date": date})
    write_deltalake(str(path), pa.Table.from_pylist(rows, schema=columns), mode="append", partition_by=["date"])


def without(columns: pa.Schema, lacking: str) -> pa.Schema:
    """The columns without one of them, or without a field of one."""
    name, _, inner = lacking.partition(".")
    place = columns.get_field_index(name)
    if not inner:
        return columns.remove(place)
    fields = [field for field in columns.field(place).type if field.name != inner]
    return columns.set(place, pa.field(name, pa.struct(fields)))


def report_tables(folder: Path) -> Tables:
    """The tables in a folder, as the default settings name them from there."""
    return Tables(str(folder / SETTINGS.delta.decisions), str(folder / SETTINGS.delta.quotas), {})


def write_tables(folder: Path, quotas: list[QuotaEntry], events: Iterable[bytes], at: datetime) -> Tables:
    """Tables with these quotas, set by "seed" at `at`, and the decisions on these events under them."""
    tables = report_tables(folder)
    QuotasTable(tables.quotas).create(quotas, changed_by="seed", at=at)
    write_decisions(tables.decisions, simulated(events, quotas))
    return tables
