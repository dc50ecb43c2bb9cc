"""Minutes in which clients waited although what they waited for was below its limit, by the table of decisions.

A counter is at its limit in a minute if it was charged NEAR_LIMIT of what the limit allows in that minute, or more, or
still had to make up for charges above the limit in earlier ones. A minute of a client counts if it waited, and none of
the counters that it waited for was at its limit. Waits that no limit asked for, because of a low disk or of a storage
budget, don't count.
"""

from collections.abc import Sequence

from sluice.insight.live import NEAR_LIMIT
from sluice.insight.reports.recorded_waits import COUNTER_WAITS
from sluice.insight.reports.span import Span
from sluice.insight.sql import Tables
from sluice.state.contract.records import MAX_APPLIED_MS
from sluice.state.quotas.kinds import QuotaKind, StorageKey
from sluice.state.shares.disk_guard import DISK_GUARD

Names = tuple[str, ...]


def below_quota(tables: Tables, span: Span) -> dict[Names, set[int]]:
    """The minutes since 1970 by client (user and client-id). Raises QueryError.

    A wait counts from the event that reports it to its end, as the event says it.
    """
    parts = {"waits": COUNTER_WAITS.format(condition=span.condition()), "condition": span.condition()}
    waited = _WAITED.format(most_ms=MAX_APPLIED_MS, guards=_GUARDS, **parts)
    used: dict[Names, list[tuple[int, float, float]]] = {}
    for minute, value, limit, *counter in tables.rows(_USED.format(consumer=_CONSUMER, **parts)):
        used.setdefault(tuple(counter), []).append((minute, value, limit))
    end = -(-span.end_ms // 60_000)
    full = {counter: full_minutes(minutes, end) for counter, minutes in used.items()}
    below: dict[Names, set[int]] = {}
    at_limit: dict[Names, set[int]] = {}
    for user, client_id, first, last, *counter in tables.rows(waited):
        minutes = set(range(first, min(last + 1, end)))
        of_counter = full.get(tuple(counter), set())
        below.setdefault((user, client_id), set()).update(minutes - of_counter)
        at_limit.setdefault((user, client_id), set()).update(minutes & of_counter)
    return {client: minutes - at_limit[client] for client, minutes in below.items()}


def full_minutes(used: Sequence[tuple[int, float, float]], end: int) -> set[int]:
    """The minutes before `end` in which a counter is at its limit.

    `used` are the minutes in which it was charged, in their order: the minute, the charges, and its limit per second.

    Of 150 charged in a minute in which 60 are allowed, 90 are made up for in the two minutes after it:

    >>> sorted(full_minutes([(10, 150.0, 1.0), (14, 54.0, 1.0), (15, 53.0, 1.0)], end=20))
    [10, 11, 12, 14]
    """
    full: set[int] = set()
    excess, allowed, after = 0.0, 0.0, 0
    for minute, value, limit in [*used, (end, 0.0, 0.0)]:
        while excess > 0.0 and after < minute:  # minutes without charges
            full.add(after)
            excess, after = excess - allowed, after + 1
        excess, allowed, after = max(0.0, excess), 60.0 * limit, minute + 1
        if minute < end and (excess > 0.0 or value >= NEAR_LIMIT * allowed):
            full.add(minute)
        excess += value - allowed
    return full


_CONSUMER = ", ".join(f"'{kind.value}'" for kind in QuotaKind if kind.consumer)

_GUARDS = f"'{DISK_GUARD}', '{StorageKey.STORED_BYTES.value}'"

_WAITED = """
SELECT DISTINCT coalesce(of_user, ''), coalesce(of_client_id, ''), timestamp_ms / 60000 AS first,
  (timestamp_ms + least(wait_ms, {most_ms}) - 1) / 60000 AS last, quota, user, client_id, topic, partition, tenant
FROM ({waits}) WHERE quota NOT IN ({guards})
"""

_USED = """
SELECT c.minute, sum(c.value), min(c.quota_limit), c.quota, c.user, c.client_id, c.topic, c.partition, c.tenant
FROM (
  SELECT timestamp_ms / 60000 AS minute, c['quota'] AS quota, c['limit'] AS quota_limit,
    CASE WHEN withheld AND c['quota'] IN ({consumer}) THEN 0.0 ELSE c['value'] END AS value,
    coalesce(c['entity']['user'], '') AS user, coalesce(c['entity']['client_id'], '') AS client_id,
    coalesce(c['entity']['topic'], '') AS topic,
    coalesce(CAST(c['entity']['partition'] AS VARCHAR), '-1') AS partition,
    coalesce(c['entity']['tenant'], '') AS tenant
  FROM (SELECT timestamp_ms, coalesce(amounts['withheld'], false) AS withheld, unnest(charges) AS c
        FROM decisions WHERE {condition})
  WHERE c['mode'] IS NULL AND c['limit'] IS NOT NULL
) c JOIN (SELECT DISTINCT quota, user, client_id, topic, partition, tenant FROM ({waits})) w
ON c.quota = w.quota AND c.user = w.user AND c.client_id = w.client_id AND c.topic = w.topic
  AND c.partition = w.partition AND c.tenant = w.tenant
GROUP BY c.minute, c.quota, c.user, c.client_id, c.topic, c.partition, c.tenant
ORDER BY c.minute
"""
