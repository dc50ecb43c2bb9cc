"""The reasons of a decision: every charge, and the quota change behind each limit."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from sluice.process.format import moment
from sluice.process.texts import counter_text
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.decisions import decisions_table
from sluice.state.contract.decision_id import DecisionId
from sluice.state.contract.records import Decision
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import Mode
from sluice.state.quotas.kinds import KINDS_BY_NAME, QuotaKind
from sluice.state.quotas.limits import OPERATOR
from sluice.state.quotas.resolution import entity_at
from sluice_insight.waits import deciding
from sluice_reading.holds_table import HoldsTable
from sluice_reading.last_decisions import newest, of_client
from sluice_reading.operator_holds import holds_at
from sluice_reading.query import Tables, literal
from sluice_reading.quotas_admin import QuotaRow, QuotasAdmin
from sluice_reading.times import to_ms

_COLUMNS = ", ".join(f'"{name}"' for name in decisions_table("").columns.names)

_NAMES = "decision_id, source_topic_id"
"""Columns that name one decision."""

_TENANT_WAITS = """(
  SELECT decision_id, source_topic_id, timestamp_ms, source_offset FROM (
    SELECT decision_id, source_topic_id, timestamp_ms, source_offset, unnest(throttled_by) AS w FROM decisions
    WHERE {span} AND array_length(throttled_by) > 0
  ) WHERE w['entity']['tenant'] = {tenant}
  UNION
  SELECT decision_id, source_topic_id, timestamp_ms, source_offset FROM (
    SELECT decision_id, source_topic_id, timestamp_ms, source_offset, unnest(charges) AS c FROM decisions
    WHERE {span} AND throttle_time_ms > 0 AND throttled_by IS NULL
  ) WHERE c['entity']['tenant'] = {tenant} AND c['throttle_ms'] > 0 AND c['mode'] IS NULL
)"""
"""The decisions whose clients waited for a tenant's limit: inline, or else because the decision asked for it."""

_CLOCKS_APART_MS = 60_000
"""By how much the clock of whoever set a quota may be ahead of the job's."""


Json = dict[str, Any]


def decisions_by_id(tables: Tables, decision_id: str) -> list[Json]:
    """The rows of the decision with an id, the newest first: one for each topic that there was with the name.

    The id names the record of the request, by which the files of the table can be skipped. Raises QueryError.
    """
    source = DecisionId.of(decision_id)
    if source is None:
        return []
    return tables.mappings(
        f"SELECT {_COLUMNS} FROM decisions WHERE source_topic = {literal(source.topic)}"  # noqa: S608 - names of columns, numbers and a quoted text
        f" AND source_partition = {source.partition} AND source_offset = {source.offset} ORDER BY decided_at_ms DESC"
    )


def decision_of(row: Json) -> Decision:
    """The record of a row of the table, or of JSON. Raises msgspec.ValidationError."""
    return msgspec.convert(_without_nulls(row), Decision)


def _without_nulls(value: Any) -> Any:
    """The value without the nulls that a row of the table has where the record has nothing."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def last_throttled(tables: Tables, user: str | None, client_id: str | None, at: datetime, count: int) -> list[Json]:
    """The rows of a client's last decisions before `at` that throttled it, newest first. Raises QueryError.

    A decision throttles if it asks for a wait or refuses, or if its gateway applied a wait inline. None for the user
    or the client-id means any.
    """
    waited = "(verdict <> 'ALLOW' OR throttle_time_ms > 0 OR cardinality(throttled_by) > 0)"
    return _rows(tables, newest(tables, _NAMES, [*of_client(user, client_id), waited], at, count))


def last_throttled_of_tenant(tables: Tables, tenant: str, at: datetime, count: int) -> list[Json]:
    """The rows of the last decisions before `at` whose clients waited for a limit of a tenant, newest first.

    Raises QueryError.
    """
    waits = _TENANT_WAITS.replace("{tenant}", literal(tenant))
    return _rows(tables, newest(tables, _NAMES, [], at, count, waits))


def _rows(tables: Tables, found: Iterable[tuple[Any, ...]]) -> list[Json]:
    return [
        next(row for row in decisions_by_id(tables, decision_id) if row["source_topic_id"] == topic_id)
        for decision_id, topic_id in found
    ]


def explain(tables: Tables, decision: Json) -> Json:
    """The decision with the limits of its charges, from the version of the quotas table that was in force.

    Of its charges `decides` is True if the wait is the decision's, and `quota_set` the change that set the limit, None
    where there is none. `quotas_trouble` is the reason if the quotas can't be read. `holds` are those of operators.
    """
    charges = decision["charges"] or []
    asked = [("" if charge.get("mode") else charge["quota"], charge["throttle_ms"] or 0) for charge in charges]
    trouble, changes, holds = None, list[Json | None]([None] * len(charges)), list[str]()
    try:
        holds = list(_holds(HoldsTable(tables.quotas, tables.storage_options), decision))
        changes = _changes(QuotasAdmin(tables.quotas, tables.storage_options), decision, charges)
    except QuotasTableError as error:
        trouble = str(error)
    told = zip(charges, deciding(decision["decided_by"], asked), changes, strict=True)
    explained = [{**charge, "decides": decides, "quota_set": change} for charge, decides, change in told]
    return {**decision, "charges": explained, "quotas_trouble": trouble, "holds": holds}


def _holds(table: HoldsTable, decision: Json) -> Iterator[str]:
    """The holds of operators that stopped the client, each with its end, author and reason."""
    waits = [wait["entity"] for wait in decision["throttled_by"] or () if wait["quota"] == OPERATOR]
    if not waits:
        return
    at_ms = decision["timestamp_ms"]
    for hold in holds_at((each for each in table.commands() if each.at_ms <= at_ms), at_ms):
        if any(hold.client.to_mapping().items() <= entity.items() for entity in waits):
            yield f"{counter_text(hold.client)} until {moment(hold.until_ms)}, by {hold.why}"


def _changes(table: QuotasAdmin, decision: Json, charges: Iterable[Json]) -> list[Json | None]:
    version = decision["quota_version"]
    if version is None:
        return [None for _ in charges]
    rows = {(row.entry.entity, row.entry.kind, row.entry.mode): row for row in table.rows(version)}
    found = [rows.get(key) if (key := _quota_key(decision, charge)) else None for charge in charges]
    decided_at_ms = decision["decided_at_ms"]
    if any(row and to_ms(row.changed_at) > decided_at_ms + _CLOCKS_APART_MS for row in found):
        raise QuotasTableError(
            f"version {version} was made after the decision, so {table.path} is another table than at that time"
        )
    changes = {id(row): _change(table, row, version) for row in found if row is not None}
    return [None if row is None else changes[id(row)] for row in found]


def _quota_key(decision: Json, charge: Json) -> tuple[QuotaEntity, QuotaKind, Mode] | None:
    """The entity, kind and mode of the quota that gave the charge its limit; None without a limit."""
    kind, counted = KINDS_BY_NAME.get(charge["quota"]), charge["entity"] or {}
    names = decision["user"] or "", decision["client_id"] or "", counted.get("topic"), counted.get("tenant") or ""
    entity = entity_at(charge["matched"], *names)
    return None if kind is None else (entity, kind, Mode(charge.get("mode") or Mode.ENFORCE))


def _change(table: QuotasAdmin, row: QuotaRow, in_force: int) -> Json:
    """The change that set the quota: the newest one in the table's log at the time that the row has.

    `version` is the version of the table that it made, None if the log doesn't say, `old` the value before, if any.
    """
    entry, version, old = row.entry, table.version_at(row.changed_at, in_force), None
    if version:
        same = (each for each in table.entries(version - 1) if each.entity == entry.entity and each.kind == entry.kind)
        old = next((each.value for each in same if each.mode is entry.mode), None)
    return {
        "entity": entry.entity.to_mapping(),
        "version": version,
        "changed_by": row.changed_by,
        "changed_at": row.changed_at.isoformat(),
        "old": old,
        "new": entry.value,
    }
