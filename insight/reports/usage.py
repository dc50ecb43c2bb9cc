"""Usage in each hour or day, from the amounts that decisions repeat of their events.

Amounts, not charges: a client that no quota counts has them too.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from sluice.insight.reports.span import By, Per, Span
from sluice.insight.reports.tenants import Tenants
from sluice.insight.sql import Tables

PERIODS = {Per.HOUR: timedelta(hours=1), Per.DAY: timedelta(days=1)}

NAMES = {By.USER: ("user",), By.CLIENT: ("user", "client_id"), By.TENANT: ("tenant",), By.TOPIC: ("topic",)}
"""The columns that name the user, client, tenant or topic of a row."""


class Amounts(NamedTuple):
    """Usage: bytes, milliseconds of request time and of waits, partitions created, added or deleted."""

    requests: int
    bytes_in: int
    bytes_out: int
    request_time_ms: float
    mutations: int
    throttled_requests: int
    throttled_ms: int


TOPIC_AMOUNTS = ("bytes_in", "bytes_out", "mutations")
"""The amounts that belong to a topic; the others are of a whole request."""


class Used(NamedTuple):
    """The usage of one period, which begins at `start_ms`: the names, as NAMES says, and the amounts."""

    start_ms: int
    names: tuple[str, ...]
    amounts: tuple[float, ...]
    """As `Amounts`, or for topics as TOPIC_AMOUNTS."""


def usage(tables: Tables, span: Span, by: By, per: Per, tenants: Tenants) -> Iterator[Used]:
    """The usage in a span, by period and then by name. Raises QueryError.

    Memory grows with the clients (or topics) times the periods, not with the decisions.
    """
    if by is By.TENANT:
        return _by_tenant(_by_names(tables, span, By.CLIENT, per), tenants)
    return _by_topic(tables, span, per) if by is By.TOPIC else _by_names(tables, span, by, per)


def _by_names(tables: Tables, span: Span, by: By, per: Per) -> Iterator[Used]:
    names = ("u", "c")[: len(NAMES[by])]
    query = _CLIENTS.format(
        events=_filled(_EVENTS, span, per),
        waits=_filled(_WAITS, span, per),
        names=", ".join(names),
        same=" AND ".join(f"t.{name} = a.{name}" for name in ("start_ms", *names)),
        shown=", ".join(f"a.{name}" for name in names),
    )
    for row in tables.rows(query):
        yield Used(row[0], row[1 : 1 + len(names)], row[1 + len(names) :])


def _by_tenant(by_client: Iterator[Used], tenants: Tenants) -> Iterator[Used]:
    sums: dict[tuple[int, str], list[float]] = {}
    for used in by_client:
        _add(sums, (used.start_ms, tenants.of(*used.names)), used.amounts)
    return _used(sums)


def _by_topic(tables: Tables, span: Span, per: Per) -> Iterator[Used]:
    """The query sums by pairs: an event may have topic-partitions and mutations, each with a topic."""
    sums: dict[tuple[int, str], list[float]] = {}
    for start_ms, partition_topic, mutation_topic, bytes_in, bytes_out, mutations in tables.rows(
        _TOPICS.format(events=_filled(_EVENTS, span, per))
    ):
        if partition_topic is not None and (bytes_in is not None or bytes_out is not None):
            _add(sums, (start_ms, partition_topic), (bytes_in or 0, bytes_out or 0, 0))
        if mutation_topic is not None and mutations is not None:
            _add(sums, (start_ms, mutation_topic), (0, 0, mutations))
    return _used(sums)


def _add(sums: dict[tuple[int, str], list[float]], key: tuple[int, str], amounts: Sequence[float]) -> None:
    total = sums.setdefault(key, [0] * len(amounts))
    total[:] = [before + more for before, more in zip(total, amounts, strict=True)]


def _used(sums: dict[tuple[int, str], list[float]]) -> Iterator[Used]:
    for (start_ms, name), total in sorted(sums.items()):
        yield Used(start_ms, (name,), tuple(total))


def _filled(query: str, span: Span, per: Per) -> str:
    period_ms = PERIODS[per] // timedelta(milliseconds=1)
    condition = f"{span.condition()} AND coalesce(api, '') NOT IN ('GatewayHeartbeat', 'Unmute')"
    return query.format(start=f"timestamp_ms - timestamp_ms % {period_ms}", condition=condition)


# DataFusion reads the table again for each place that names it, and the column `amounts` costs more than all others: so
# one query over one scan. The lists of an event are unpacked side by side, one row for each place in them, the shorter
# ones with nulls at the end; a list of one element makes a row of an event without any. `first` marks the event's first
# row, which alone counts what belongs to the whole event. A list without a first element is empty or null; its
# cardinality would take as long as the rest.
_EVENTS = """
  SELECT {start} AS start_ms, coalesce(user, '') AS u, coalesce(client_id, '') AS c,
    unnest(make_array(true)) AS first, unnest(amounts['topic_partitions']) AS p, unnest(amounts['mutations']) AS m,
    coalesce(amounts['requests'], 1) AS requests,
    CASE WHEN amounts['topic_partitions'][1] IS NULL THEN amounts['bytes'] END AS bytes,
    coalesce(amounts['request_time_ns'], 0) + coalesce(amounts['network_time_ns'], 0) AS time_ns,
    amounts['mutations_charged'] AS mutations_charged,
    verdict <> 'REJECT' AND NOT coalesce(amounts['validate_only'], false) AS mutates,
    api = 'Produce' AS produced,
    api = 'Fetch' AND NOT coalesce(amounts['withheld'], false) AND NOT coalesce(amounts['cluster_action'], false)
      AS fetched,
    throttle_time_ms > 0 OR verdict <> 'ALLOW' OR throttled_by[1] IS NOT NULL AS throttled
  FROM decisions WHERE {condition}
"""

# An event may have several waits, of which the longest counts.
_CLIENTS = """
WITH a AS (
  SELECT start_ms, {names}, sum(requests) FILTER (WHERE first) AS requests,
    coalesce(sum(p['bytes']) FILTER (WHERE produced), 0)
      + coalesce(sum(bytes) FILTER (WHERE produced AND first), 0) AS bytes_in,
    coalesce(sum(p['bytes']) FILTER (WHERE fetched), 0)
      + coalesce(sum(bytes) FILTER (WHERE fetched AND first), 0) AS bytes_out,
    sum(time_ns) FILTER (WHERE first) / 1000000.0 AS request_time_ms,
    coalesce(sum(m['partitions']) FILTER (WHERE mutates), 0)
      + coalesce(sum(mutations_charged) FILTER (WHERE mutates AND first), 0) AS mutations,
    coalesce(sum(requests) FILTER (WHERE throttled AND first), 0) AS throttled_requests
  FROM ({events}) GROUP BY start_ms, {names}
),
t AS (
  SELECT start_ms, {names}, sum(wait_ms) AS wait_ms
  FROM (
    SELECT start_ms, {names}, max(greatest(throttle_time_ms, w['ms'])) AS wait_ms
    FROM ({waits})
    GROUP BY start_ms, {names}, source_topic, source_partition, source_offset
  )
  GROUP BY start_ms, {names}
)
SELECT a.start_ms, {shown}, a.requests, a.bytes_in, a.bytes_out, a.request_time_ms, a.mutations, a.throttled_requests,
  coalesce(t.wait_ms, 0) AS throttled_ms
FROM a LEFT JOIN t ON {same}
ORDER BY a.start_ms, {shown}
"""

_WAITS = """
  SELECT {start} AS start_ms, coalesce(user, '') AS u, coalesce(client_id, '') AS c,
    source_topic, source_partition, source_offset, throttle_time_ms,
    unnest(make_array(true)) AS first, unnest(throttled_by) AS w
  FROM decisions WHERE {condition} AND (throttle_time_ms > 0 OR throttled_by[1] IS NOT NULL)
"""

_TOPICS = """
SELECT start_ms, p['topic'] AS partition_topic, m['topic'] AS mutation_topic,
  sum(p['bytes']) FILTER (WHERE produced) AS bytes_in, sum(p['bytes']) FILTER (WHERE fetched) AS bytes_out,
  sum(m['partitions']) FILTER (WHERE mutates) AS mutations
FROM ({events}) GROUP BY start_ms, p['topic'], m['topic']
"""
