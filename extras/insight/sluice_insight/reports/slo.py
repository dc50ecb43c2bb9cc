"""Throttled minutes a week by client. Kora published an objective of 5 minutes.

Source: Povzner et al., "Kora: A Cloud-Native Event Streaming Platform for Kafka", VLDB 2023.
"""

from typing import NamedTuple

from sluice.state.quotas.tenants import Tenants
from sluice_insight.reports.columns import numbers
from sluice_insight.reports.events import EVENTS_AT_ONCE, Events
from sluice_insight.reports.left_out import is_kafkas_own
from sluice_insight.reports.recorded_waits import Names, RecordedWaits, wait_ends, wait_fields
from sluice_insight.reports.span import Span
from sluice_reading.query import Tables

WEEK_MS = 7 * 24 * 3_600_000


class ClientMinutes(NamedTuple):
    """A client, or a tenant, which has neither user nor client-id, and the minutes in which it waited."""

    user: str
    client_id: str
    tenant: str
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


def slo(
    tables: Tables,
    span: Span,
    objective_minutes: float,
    most: int,
    tenants: Tenants | None = None,
) -> Slo:
    """Minutes throttled by client, and of the worst clients as many as `most`. Raises QueryError.

    With `tenants` those stand for their members, and a minute counts in which any of these waited. The recorded part of
    the span, from the first event to its end, is scaled to a week. The clients are those with any event in the span,
    without Kafka's own brokers and controllers, by client-id, and sums of several clients, if these never waited.
    """

    def names_of(user: str, client_id: str) -> Names:
        return (user, client_id, "") if tenants is None else ("", "", tenants.of(user, client_id))

    ends = wait_ends(tables, span)
    waits, times_ms = RecordedWaits(ends, names_of), list[int]()
    for events in Events(tables.decisions, tables.storage_options, span, wait_fields(ends)).batches(EVENTS_AT_ONCE):
        waits.take(events)
        of_batch_ms = numbers(events["timestamp_ms"])
        times_ms += [int(of_batch_ms.min()), int(of_batch_ms.max())]
    minutes_of = {name: len(minutes) for name, minutes in waits.minutes(span).items()}
    first_ms, last_ms = min(times_ms, default=None), max(times_ms, default=None)
    since_ms = span.start_ms if first_ms is None else first_ms // 60_000 * 60_000
    a_week = WEEK_MS / (span.end_ms - max(span.start_ms, since_ms))
    if tenants is not None or not minutes_of.get(("", "", "")):
        minutes_of.pop(("", "", ""), None)  # the clients in no tenant, or sums of several clients that never waited
    throttled = [
        ClientMinutes(user, client_id, tenant, minutes, minutes * a_week)
        for (user, client_id, tenant), minutes in minutes_of.items()
        if minutes
    ]
    left_out = sum(is_kafkas_own(client_id) for (_, client_id, _), minutes in minutes_of.items() if not minutes)
    clients = len(minutes_of) - left_out
    beyond = sum(client.minutes_a_week > objective_minutes for client in throttled)
    worst = sorted(throttled, key=lambda client: (-client.minutes, *client[:3]))
    return Slo(clients, clients - beyond, worst[:most], first_ms, last_ms, left_out)
