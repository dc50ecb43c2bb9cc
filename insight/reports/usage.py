"""Usage in each hour or day, from the amounts that decisions repeat of their events.

Amounts, not charges: a client that no quota counts has them too.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.insight.reports.recorded_waits import WAIT_COLUMNS, NamesOf, RecordedWaits, wait_ends
from sluice.insight.reports.span import By, Per, Span
from sluice.insight.reports.tenants import tenant_name
from sluice.insight.sql import Tables
from sluice.state.quotas.tenants import Tenants

PERIODS_MS = {Per.HOUR: 3_600_000, Per.DAY: 86_400_000}

AMOUNTS = {
    "requests": ("requests",),
    "bytes": ("bytes_in", "bytes_out"),
    "bytes_in": ("bytes_in",),
    "bytes_out": ("bytes_out",),
    "request_time": ("request_time_ms",),
    "mutations": ("mutations",),
    "throttled_requests": ("throttled_requests",),
    "throttled": ("throttled_ms",),
}
"""The columns that each amount to rank by is the sum of."""

NAMES = {By.USER: ("user",), By.CLIENT: ("user", "client_id"), By.TENANT: ("tenant",), By.TOPIC: ("topic",)}
"""The columns that name the user, client, tenant or topic of a row."""

# The lists are added up here: SQL would make a row of each of their items, which takes twice as long as all else.
_EVENTS = """
SELECT {start} AS start, {waits}
  coalesce(amounts['requests'], 1) AS requests, coalesce(amounts['bytes'], 0) AS bytes,
  coalesce(amounts['request_time_ns'], 0) + coalesce(amounts['network_time_ns'], 0) AS time_ns,
  coalesce(amounts['mutations_charged'], 0) AS mutations_charged,
  amounts['topic_partitions'] AS partitions, amounts['mutations'] AS mutations,
  CAST(coalesce(api = 'Produce', false) AS BIGINT) AS produced,
  CAST(coalesce(api = 'Fetch', false) AND NOT coalesce(amounts['withheld'], false)
    AND NOT coalesce(amounts['cluster_action'], false) AS BIGINT) AS fetched,
  CAST(coalesce(verdict <> 'REJECT', false) AND NOT coalesce(amounts['validate_only'], false) AS BIGINT) AS mutates,
  CAST(coalesce(throttle_time_ms > 0, false) OR coalesce(verdict <> 'ALLOW', false) OR throttled_by[1] IS NOT NULL
    AS BIGINT) AS throttled
FROM decisions WHERE {condition}
"""

_EVENTS_AT_ONCE = 500_000
_MOST_SUMS = 1_000_000
"""Sums that are added up again: memory grows with the clients (or topics) times the periods, not with the events."""

_Numbers = npt.NDArray[Any]


def usage(tables: Tables, span: Span, by: By, per: Per, tenants: Tenants) -> pa.Table:
    """The usage in a span, by period and then by name. Raises QueryError.

    Columns: `start` of the period, the names as NAMES says, and the amounts: requests, bytes, milliseconds of request
    time and of waits, partitions created, added or deleted. A topic has bytes and mutations; the others are of a whole
    request.
    """
    names = NAMES[By.CLIENT if by is By.TENANT else by]
    sums: list[pa.Table] = []
    start = f"{span.start_ms}" if per is Per.SPAN else f"timestamp_ms - timestamp_ms % {PERIODS_MS[per]}"
    names_of: dict[By, NamesOf] = {
        By.USER: lambda user, _: (user,),
        By.TENANT: lambda *who: (tenant_name(tenants, *who),),
    }
    waits = RecordedWaits(wait_ends(tables, span), names_of.get(by, lambda *client: client))
    of_clients = "" if by is By.TOPIC else f"{WAIT_COLUMNS},"
    query = _EVENTS.format(start=start, waits=of_clients, condition=span.condition())
    for events in tables.rows(query).tables(_EVENTS_AT_ONCE):
        if by is By.TOPIC:
            sums.append(_add_up(_of_topics(events), names))
        else:
            sums.append(_of_clients(events, names, *waits.take(events)))
        if sum(map(len, sums)) > _MOST_SUMS:
            sums = [_add_up(pa.concat_tables(sums), names)]
    total = pa.concat_tables(sums)
    if by is By.TENANT:
        clients = zip(*(total[name].to_pylist() for name in names), strict=True)
        its_tenants = [tenant_name(tenants, user or "", client_id or "") for user, client_id in clients]
        total = total.append_column("tenant", pa.array(its_tenants, pa.string()))
    total = _add_up(total, NAMES[by])
    if by is not By.TOPIC:
        total = _add_up(pa.concat_tables([total, _waited(waits, span, per, by, total.schema)]), NAMES[by])
    return _finished(total)


def _waited(waits: RecordedWaits, span: Span, per: Per, by: By, schema: pa.Schema) -> pa.Table:
    """The time waited in each period, and 0 in the other columns."""
    names, union = waits.union(span.end_ms)
    union = union if per is Per.SPAN else union.by_period(PERIODS_MS[per])
    columns: dict[str, pa.Array] = {name: _column(np.zeros(len(union.clients), np.int64)) for name in schema.names}
    of_span = np.full(len(union.clients), span.start_ms)
    columns["start"] = _column(of_span if per is Per.SPAN else union.begin_ms - union.begin_ms % PERIODS_MS[per])
    columns["throttled_ms"] = _column(union.end_ms - union.begin_ms)
    for place, name in enumerate(NAMES[by]):
        columns[name] = _texts([each[place].encode() for each in names]).take(_column(union.clients))
    return pa.table(columns, schema)


def ranked(found: pa.Table, amount: str, most: int | None = None) -> pa.Table:
    """The usage with the highest amount of each period first, and its `share` of the period's total, from 0 to 1.

    `amount` is one of AMOUNTS that the usage has columns of. Of each period as many rows as `most`.
    """
    columns = [_numbers(found[name]).astype(float) for name in AMOUNTS[amount]]
    values: _Numbers = np.add.reduce(columns)
    starts, period = np.unique(_numbers(found["start"].cast(pa.int64())), return_inverse=True)
    total = np.bincount(period, values, len(starts))[period]
    share = np.divide(values, total, out=np.zeros(len(values)), where=total > 0)
    order = np.lexsort((-values, period))  # equal ones stay in the order of their names
    if most is not None:
        first = np.searchsorted(period[order], np.arange(len(starts)))
        order = order[np.arange(len(order)) - first[period[order]] < most]
    return found.append_column("share", _column(share)).take(_column(order))


def _of_clients(
    events: pa.Table, names: tuple[str, ...], texts: Sequence[tuple[str, ...]], text_of: _Numbers
) -> pa.Table:
    """The amounts of each of the texts, which begin with user and client-id, in each period, by these names.

    They are without the time waited: it isn't that of one event.
    """
    starts, period_of = np.unique(_numbers(events["start"]), return_inverse=True)
    group = text_of * len(starts) + period_of
    counts = np.bincount(group, minlength=len(texts) * len(starts))
    sizes, mutations = (_numbers(events[name]) for name in ("bytes", "mutations_charged"))
    np.add.at(sizes, *_items(events["partitions"], "bytes"))
    np.add.at(mutations, *_items(events["mutations"], "partitions"))
    requests = _numbers(events["requests"])
    amounts = {
        "requests": requests,
        "bytes_in": _numbers(events["produced"]) * sizes,
        "bytes_out": _numbers(events["fetched"]) * sizes,
        "request_time_ms": _numbers(events["time_ns"]),
        "mutations": _numbers(events["mutates"]) * mutations,
        "throttled_requests": _numbers(events["throttled"]) * requests,
        "throttled_ms": np.zeros_like(sizes),
    }
    there = np.flatnonzero(counts)
    text, period = np.divmod(there, len(starts) or 1)
    columns = {"start": _column(starts[period])}
    for place, name in enumerate(names):
        columns[name] = _texts([each[place].encode() for each in texts]).take(_column(text))
    for name, values in amounts.items():
        total = np.zeros(len(counts), np.int64)
        np.add.at(total, group, values)
        columns[name] = _column(total[there])
    return pa.table(columns)


def _of_topics(events: pa.Table) -> pa.Table:
    """The amounts of each topic-partition, and of each topic of a mutation."""
    parts = []
    for lists, field, counted in (
        ("partitions", "bytes", {"bytes_in": "produced", "bytes_out": "fetched"}),
        ("mutations", "partitions", {"mutations": "mutates"}),
    ):
        event, amounts = _items(events[lists], field)
        flags = {name: _numbers(events[flag])[event] for name, flag in counted.items()}
        items = pc.list_flatten(events[lists])
        columns = {
            "start": _column(_numbers(events["start"])[event]),
            "topic": pc.struct_field(items, "topic").cast(pa.string()).filter(pc.struct_field(items, field).is_valid()),
            **{name: _column(amounts * flags.get(name, 0)) for name in ("bytes_in", "bytes_out", "mutations")},
        }
        parts.append(pa.table(columns).filter(_column(sum(flags.values(), np.zeros_like(amounts))).cast(pa.bool_())))
    return pa.concat_tables(parts)


def _items(lists: pa.ChunkedArray, field: str) -> tuple[_Numbers, _Numbers]:
    """The place of the list of each item, and a number that the item has, unless it is null."""
    numbers = pc.struct_field(pc.list_flatten(lists), field)
    return _numbers(pc.list_parent_indices(lists).filter(numbers.is_valid())), _numbers(numbers.drop_null())


# To numpy and back by memory, and no constants in Arrow: each of its ways with Python's numbers imports pandas.
def _numbers(column: pa.ChunkedArray) -> _Numbers:
    return np.concatenate([np.zeros(0, np.int64), *map(np.from_dlpack, column.chunks)])


def _column(numbers: _Numbers) -> pa.Array:
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def _texts(texts: list[bytes]) -> pa.StringArray:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts)))


def _add_up(amounts: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Sums by `start` and names, as `group_by` makes them in twice the time, once it has imported pandas."""
    keys = {name: amounts[name].dictionary_encode() for name in ("start", *names)}
    values = {name: key.chunk(0).dictionary if len(key) else amounts[name] for name, key in keys.items()}
    code = np.zeros(len(amounts), np.int64)
    for name, key in keys.items():
        code = code * len(values[name]) + _numbers(pa.chunked_array([part.indices for part in key.chunks], pa.int32()))
    groups = _column(code).dictionary_encode()
    group, rest = _numbers(pa.chunked_array([groups.indices])), _numbers(pa.chunked_array([groups.dictionary]))
    columns: dict[str, pa.Array] = {}
    for name in reversed(keys):
        rest, place = np.divmod(rest, len(values[name]) or 1)
        columns = {name: values[name].take(_column(place))} | columns
    for name in amounts.column_names:
        if name not in ("start", "user", "client_id", "tenant", "topic"):
            total = np.zeros(len(rest), np.int64)
            np.add.at(total, group, _numbers(amounts[name]))
            columns[name] = _column(total)
    return pa.table(columns)


def _finished(sums: pa.Table) -> pa.Table:
    """The sums in order, with times as such."""
    columns = dict(zip(sums.column_names, sums.columns, strict=True))
    columns["start"] = columns["start"].cast(pa.timestamp("ms", "UTC"))
    if "request_time_ms" in columns:
        columns["request_time_ms"] = _column(_numbers(columns["request_time_ms"]) / 1e6)
    return pa.table(columns).sort_by([(name, "ascending") for name in columns])
