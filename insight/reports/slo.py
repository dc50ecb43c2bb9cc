"""Throttled minutes a week by client. Kora published an objective of 5 minutes.

Source: Povzner et al., "Kora: A Cloud-Native Event Streaming Platform for Kafka", VLDB 2023.
"""

import re
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from sluice.insight.reports.span import Span
from sluice.insight.sql import Tables

KAFKAS_OWN = r"[0-9]+|raft-client-[0-9]+|broker-[0-9]+-fetcher-[0-9]+"
"""Client-ids of Kafka's brokers and controllers: the node's number, and those of KRaft and of replication."""

WEEK_MS = 7 * 24 * 3_600_000


class ClientMinutes(NamedTuple):
    """A client and the minutes in which it waited."""

    user: str
    client_id: str
    minutes: int
    minutes_a_week: float


class Slo(NamedTuple):
    """The clients of a span, how many of them were within the objective, and those that waited, the worst first.

    `first_ms` and `last_ms` are the times of the first and last event, None without any: the span that was asked for
    may be longer than what is recorded. `left_out` clients are brokers and controllers.
    """

    clients: int
    within: int
    worst: list[ClientMinutes]
    first_ms: int | None
    last_ms: int | None
    left_out: int

    @property
    def share(self) -> float | None:
        """The share of clients within the objective; None if there were no clients."""
        return self.within / self.clients if self.clients else None

    @property
    def recorded_minutes(self) -> int:
        """The minutes from the first event to the last, both included."""
        if self.first_ms is None or self.last_ms is None:
            return 0
        return self.last_ms // 60_000 - self.first_ms // 60_000 + 1


def slo(tables: Tables, span: Span, objective_minutes: float, most: int) -> Slo:
    """Minutes throttled by client, and of the worst clients as many as `most`. Raises QueryError.

    A span of another length than a week is scaled to one. The clients are those with any event in the span, without
    those that have a client-id of Kafka's own brokers and controllers and never waited.
    """
    a_week = WEEK_MS / span.length_ms
    throttled = [
        ClientMinutes(user, client_id, minutes, minutes * a_week)
        for (user, client_id), rows in groupby(
            tables.rows(_WAITS.format(condition=span.condition())), key=itemgetter(0, 1)
        )
        if (minutes := touched_minutes(((first, last) for *_, first, last in rows), *_minutes(span)))
    ]
    ((every, kafkas, first_ms, last_ms),) = tables.rows(_COUNT.format(condition=span.condition(), own=KAFKAS_OWN))
    left_out = kafkas - sum(re.fullmatch(KAFKAS_OWN, client.client_id) is not None for client in throttled)
    clients = every - left_out
    beyond = sum(client.minutes_a_week > objective_minutes for client in throttled)
    worst = sorted(throttled, key=lambda client: (-client.minutes, client.user, client.client_id))
    return Slo(clients, clients - beyond, worst[:most], first_ms, last_ms, left_out)


def touched_minutes(waits: Iterable[tuple[int, int]], start: int, end: int) -> int:
    """Count the minutes from `start` to `end`, both included, that some wait touches.

    Waits are their first and last minute, in the order of the first. They may overlap, and each minute counts once.

    >>> touched_minutes([(0, 2), (1, 1), (2, 3), (7, 99)], 0, 9)
    7
    """
    touched, counted = 0, start - 1
    for first, last in waits:
        new = min(last, end) - max(first - 1, counted)
        if new > 0:
            touched += new
            counted = min(last, end)
    return touched


def _minutes(span: Span) -> tuple[int, int]:
    return span.start_ms // 60_000, (span.end_ms - 1) // 60_000


_WAITS = """
SELECT u, c, first, max(last) AS last
FROM (
  SELECT u, c, timestamp_ms / 60000 AS first, (timestamp_ms + wait_ms - 1) / 60000 AS last
  FROM (
    SELECT coalesce(user, '') AS u, coalesce(client_id, '') AS c, timestamp_ms, throttle_time_ms AS wait_ms
    FROM decisions WHERE {condition} AND throttle_time_ms > 0
    UNION ALL
    SELECT u, c, timestamp_ms, w['ms'] AS wait_ms
    FROM (
      SELECT coalesce(user, '') AS u, coalesce(client_id, '') AS c, timestamp_ms, unnest(throttled_by) AS w
      FROM decisions WHERE {condition} AND cardinality(throttled_by) > 0
    )
  )
  WHERE wait_ms > 0
)
GROUP BY u, c, first ORDER BY u, c, first
"""

_COUNT = """
SELECT count(*), count(*) FILTER (WHERE c ~ '^({own})$'), min(first), max(last) FROM (
  SELECT coalesce(user, '') AS u, coalesce(client_id, '') AS c, min(timestamp_ms) AS first, max(timestamp_ms) AS last
  FROM decisions WHERE {condition} GROUP BY 1, 2
)
"""
