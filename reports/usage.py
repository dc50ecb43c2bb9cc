"""What clients used in each hour or day, from the amounts that decisions repeat of their events.

Amounts, not charges: a client that no quota counts has them too.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from reports.grouping import By, Per
from reports.span import Span
from reports.tables import Tables
from reports.tenants import Tenants

PERIODS = {Per.HOUR: timedelta(hours=1), Per.DAY: timedelta(days=1)}

NAMES = {By.USER: ("user",), By.CLIENT: ("user", "client_id"), By.TENANT: ("tenant",), By.TOPIC: ("topic",)}
"""The columns that name whose usage a row has."""


class Amounts(NamedTuple):
    """What was used: bytes, milliseconds of request time and of waits, partitions created, added or deleted."""

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
    """The usage of one period, which begins at `start_ms`: whose it is, as NAMES says, and the amounts."""

    start_ms: int
    names: tuple[str, ...]
    amounts: tuple[float, ...]
    """As `Amounts`, or for topics as TOPIC_AMOUNTS."""


def usage(tables: Tables, span: Span, by: By, per: Per, tenants: Tenants) -> Iterator[Used]:
    """The usage in a span, by period and then by name. Raises QueryError.

    Memory grows with the clients (or topics) times the periods, not with the decisions.
    """
    if by is By.TENANT:
        yield from _by_tenant(tables, span, per, tenants)
        return
    names = len(NAMES[by])
    query = _TOPICS if by is By.TOPIC else _CLIENTS
    keys = ", ".join(f"coalesce({name}, '') AS {name}" for name in NAMES[by])
    for row in tables.rows(_filled(query, span, per, NAMES[by], keys)):
        yield Used(row[0], row[1 : 1 + names], row[1 + names :])


def _by_tenant(tables: Tables, span: Span, per: Per, tenants: Tenants) -> Iterator[Used]:
    sums: dict[tuple[int, str], list[float]] = {}
    for used in usage(tables, span, By.CLIENT, per, tenants):
        total = sums.setdefault((used.start_ms, tenants.of(*used.names)), [0.0] * len(used.amounts))
        total[:] = [before + more for before, more in zip(total, used.amounts, strict=True)]
    for (start_ms, tenant), total in sorted(sums.items()):
        amounts = Amounts._make(total)
        whole = {name: int(value) for name, value in amounts._asdict().items() if name != "request_time_ms"}
        yield Used(start_ms, (tenant,), amounts._replace(**whole))


def _filled(query: str, span: Span, per: Per, names: tuple[str, ...], keys: str) -> str:
    period_ms = PERIODS[per] // timedelta(milliseconds=1)
    return query.format(
        start=f"timestamp_ms - timestamp_ms % {period_ms}",
        condition=f"{span.condition()} AND coalesce(api, '') NOT IN ('GatewayHeartbeat', 'Unmute')",
        keys=keys,
        names=", ".join(names),
        **{side: " AND ".join(f"{side}.{name} = a.{name}" for name in ("start_ms", *names)) for side in "btm"},
        shown=", ".join(f"a.{name}" for name in names),
    )


# Most requests touch one topic-partition; lists of several are unpacked apart, which costs more than all the rest.
# The lists of a request are summed on their own, not request by request: nothing has to remember ten million ids. Only
# waits do, because an event may have several, of which the longest counts.
_CLIENTS = """
WITH d AS (
  SELECT {start} AS start_ms, {keys}, decision_id, api, verdict, throttle_time_ms, throttled_by,
    coalesce(amounts['requests'], 1) AS requests,
    amounts['topic_partitions'] AS partitions, amounts['mutations'] AS mutations,
    CASE coalesce(cardinality(amounts['topic_partitions']), 0) WHEN 0 THEN amounts['bytes']
      WHEN 1 THEN amounts['topic_partitions'][1]['bytes'] END AS bytes,
    coalesce(amounts['request_time_ns'], 0) + coalesce(amounts['network_time_ns'], 0) AS time_ns,
    CASE WHEN verdict <> 'REJECT' AND NOT coalesce(amounts['validate_only'], false)
         THEN coalesce(amounts['mutations_charged'], 0) ELSE 0 END AS executed,
    verdict <> 'REJECT' AND NOT coalesce(amounts['validate_only'], false) AS mutates,
    api = 'Produce' AS produced,
    api = 'Fetch' AND NOT coalesce(amounts['withheld'], false) AND NOT coalesce(amounts['cluster_action'], false)
      AS fetched
  FROM decisions WHERE {condition}
),
a AS (
  SELECT start_ms, {names}, sum(requests) AS requests, sum(time_ns) AS time_ns, sum(executed) AS executed,
    sum(bytes) FILTER (WHERE produced) AS bytes_in,
    sum(bytes) FILTER (WHERE fetched) AS bytes_out
  FROM d GROUP BY start_ms, {names}
),
b AS (
  SELECT start_ms, {names}, sum(p['bytes']) FILTER (WHERE produced) AS bytes_in,
    sum(p['bytes']) FILTER (WHERE fetched) AS bytes_out
  FROM (SELECT start_ms, {names}, produced, fetched, unnest(partitions) AS p
    FROM d WHERE (produced OR fetched) AND cardinality(partitions) > 1)
  GROUP BY start_ms, {names}
),
m AS (
  SELECT start_ms, {names}, sum(p['partitions']) AS mutations
  FROM (SELECT start_ms, {names}, unnest(mutations) AS p FROM d WHERE mutates AND cardinality(mutations) > 0)
  GROUP BY start_ms, {names}
),
t AS (
  SELECT start_ms, {names}, sum(requests) AS requests, sum(wait_ms) AS wait_ms
  FROM (
    SELECT start_ms, {names}, decision_id, max(requests) AS requests, max(wait_ms) AS wait_ms
    FROM (
      SELECT start_ms, {names}, decision_id, requests, throttle_time_ms AS wait_ms
      FROM d WHERE throttle_time_ms > 0 OR verdict <> 'ALLOW'
      UNION ALL
      SELECT start_ms, {names}, decision_id, requests, w['ms'] AS wait_ms
      FROM (SELECT start_ms, {names}, decision_id, requests, unnest(throttled_by) AS w
        FROM d WHERE cardinality(throttled_by) > 0)
    )
    GROUP BY start_ms, {names}, decision_id
  )
  GROUP BY start_ms, {names}
)
SELECT a.start_ms, {shown}, a.requests,
  coalesce(a.bytes_in, 0) + coalesce(b.bytes_in, 0) AS bytes_in,
  coalesce(a.bytes_out, 0) + coalesce(b.bytes_out, 0) AS bytes_out,
  a.time_ns / 1000000.0 AS request_time_ms,
  a.executed + coalesce(m.mutations, 0) AS mutations,
  coalesce(t.requests, 0) AS throttled_requests, coalesce(t.wait_ms, 0) AS throttled_ms
FROM a LEFT JOIN b ON {b} LEFT JOIN m ON {m} LEFT JOIN t ON {t}
ORDER BY a.start_ms, {shown}
"""

_TOPICS = """
SELECT start_ms, topic, coalesce(sum(bytes_in), 0) AS bytes_in, coalesce(sum(bytes_out), 0) AS bytes_out,
  coalesce(sum(mutations), 0) AS mutations
FROM (
  SELECT start_ms, p['topic'] AS topic, CASE WHEN api = 'Produce' THEN p['bytes'] END AS bytes_in,
    CASE WHEN api = 'Fetch' THEN p['bytes'] END AS bytes_out, CAST(NULL AS BIGINT) AS mutations
  FROM (
    SELECT {start} AS start_ms, api, unnest(amounts['topic_partitions']) AS p FROM decisions
    WHERE {condition} AND (api = 'Produce' OR api = 'Fetch' AND NOT coalesce(amounts['withheld'], false)
      AND NOT coalesce(amounts['cluster_action'], false))
  )
  UNION ALL
  SELECT start_ms, p['topic'] AS topic, NULL AS bytes_in, NULL AS bytes_out, p['partitions'] AS mutations
  FROM (
    SELECT {start} AS start_ms, unnest(amounts['mutations']) AS p FROM decisions
    WHERE {condition} AND verdict <> 'REJECT' AND NOT coalesce(amounts['validate_only'], false)
  )
)
WHERE topic IS NOT NULL
GROUP BY start_ms, topic ORDER BY start_ms, topic
"""
