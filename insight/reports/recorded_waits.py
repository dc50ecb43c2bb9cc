"""The waits in a span of the table of decisions, as one union for each client, user, tenant or counter.

`sluice.insight.waits` says what ends a wait.
"""

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, takewhile
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.insight.reports.columns import Texts, distinct, is_valid, numbers
from sluice.insight.reports.span import Span, from_ms, to_ms
from sluice.insight.sql import Tables
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.quotas import QuotaChange, QuotasTable
from sluice.state.arithmetic.columns import Flags, Integers
from sluice.state.contract.records import MAX_APPLIED_MS, UNMUTE_API
from sluice.state.quotas.entity import DEFAULT

LANE = ("user", "client_id", "instance", "api")
"""The columns that name the lane of an event: a client's requests by one API through one gateway."""

WAIT_FIELDS = (*LANE, "timestamp_ms", "throttle_time_ms", "throttled_by.ms")
"""The fields of events that `RecordedWaits.take` takes."""

COUNTER_WAITS = """
SELECT timestamp_ms, wait_ms, instance, of_user, of_client_id, quota, coalesce(user, '') AS user,
  coalesce(client_id, '') AS client_id, coalesce(topic, '') AS topic,
  coalesce(CAST(partition AS VARCHAR), '-1') AS partition, coalesce(tenant, '') AS tenant
FROM (
  SELECT timestamp_ms, of_user, of_client_id, coalesce(instance, '') AS instance, w['ms'] AS wait_ms,
    w['quota'] AS quota, w['entity']['user'] AS user, w['entity']['client_id'] AS client_id,
    w['entity']['topic'] AS topic, w['entity']['partition'] AS partition, w['entity']['tenant'] AS tenant
  FROM (SELECT timestamp_ms, user AS of_user, client_id AS of_client_id, instance, unnest(throttled_by) AS w
        FROM decisions WHERE {condition} AND array_length(throttled_by) > 0)
  UNION ALL
  SELECT timestamp_ms, of_user, of_client_id, '' AS instance,
    CASE WHEN c['quota'] = decided_by THEN longest_ms ELSE least(c['throttle_ms'], longest_ms) END AS wait_ms,
    c['quota'] AS quota, c['entity']['user'] AS user, c['entity']['client_id'] AS client_id,
    c['entity']['topic'] AS topic, c['entity']['partition'] AS partition, c['entity']['tenant'] AS tenant
  FROM (SELECT timestamp_ms, user AS of_user, client_id AS of_client_id, mute_until_ms - timestamp_ms AS longest_ms,
          decided_by, unnest(charges) AS c
        FROM decisions WHERE {condition} AND mute_until_ms > timestamp_ms AND throttled_by IS NULL)
  WHERE c['throttle_ms'] > 0 AND c['mode'] IS NULL
)
WHERE wait_ms > 0 AND quota IS NOT NULL
"""
"""The waits of counters, with the client that waited. Events that report none aren't read: they would say sooner that
a wait is over."""

MOST_CHANGES = 500
"""Newest changes of quotas that are read: each is a version of the table, which takes milliseconds."""

Names = tuple[str, ...]
NamesOf = Callable[..., Names]
"""The names that a row is for, by user and client-id."""

COUNTER_COLUMNS = ("quota", "user", "client_id", "topic", "partition", "tenant")
"""The columns that name a counter, all of them texts."""

_NEVER_MS = 2**62
_NEW = -1


class Waits(msgspec.Struct, frozen=True):
    """Disjoint waits of many clients, by client and time: (n,) each. Clients are numbers; times are epoch ms."""

    clients: Integers
    begin_ms: Integers
    end_ms: Integers

    def touched(self, period_ms: int) -> Integers:
        """The number of periods that each wait touches, and no wait of its client before it: (n,).

        >>> Waits(np.array([7, 7, 8]), np.array([900, 1100, 0]), np.array([1001, 1200, 1])).touched(1000).tolist()
        [2, 0, 1]
        """
        first, last = self.begin_ms // period_ms, (self.end_ms - 1) // period_ms
        same = self.clients[1:] == self.clients[:-1]
        first[1:][same] = np.maximum(first[1:], last[:-1] + 1)[same]
        touched: Integers = last - first + 1
        return touched

    def by_period(self, period_ms: int) -> "Waits":
        """The same, with none in two periods.

        >>> waits = Waits(np.array([7]), np.array([900]), np.array([2100])).by_period(1000)
        >>> waits.begin_ms.tolist(), waits.end_ms.tolist()
        ([900, 1000, 2000], [1000, 2000, 2100])
        """
        first, last = self.begin_ms // period_ms, (self.end_ms - 1) // period_ms
        parts = last - first + 1
        whole = np.repeat(np.arange(len(first)), parts)
        period = first[whole] + np.arange(len(whole)) - np.repeat(np.cumsum(parts) - parts, parts)
        return Waits(
            self.clients[whole],
            np.maximum(self.begin_ms[whole], period * period_ms),
            np.minimum(self.end_ms[whole], (period + 1) * period_ms),
        )


def union_of_waits(clients: Integers, lanes: Integers, at_ms: Integers, waits_ms: Integers, end_ms: int) -> Waits:
    """The union of the waits that events report until `end_ms`, as `Waited` adds them up: (n,) each, in any order.

    A lane is a number that no two clients share.

    >>> one, gateways, at_ms = np.zeros(3, np.int64), np.array([1, 2, 1]), np.array([0, 400, 700])
    >>> waits = union_of_waits(one, gateways, at_ms, np.array([9000, 500, 0]), end_ms=5_000)
    >>> waits.begin_ms.tolist(), waits.end_ms.tolist()
    ([0, 700], [700, 900])
    """
    order = np.lexsort((at_ms, lanes))
    clients, lanes, at_ms = clients[order], lanes[order], at_ms[order]
    until_ms = at_ms + np.minimum(waits_ms[order], MAX_APPLIED_MS)
    until_ms = np.minimum(until_ms, _next_ms(lanes, at_ms, end_ms))
    waiting = until_ms > at_ms
    order = np.flatnonzero(waiting)[np.lexsort((at_ms[waiting], clients[waiting]))]
    clients, at_ms, until_ms = clients[order], at_ms[order], until_ms[order]
    if not len(clients):
        return Waits(clients, at_ms, until_ms)
    # The running maximum of each client: the clients are lifted above each other, so that one pass finds it in all.
    least_ms = int(at_ms.min())
    lift = np.unique(clients, return_inverse=True)[1] * (int(until_ms.max()) - least_ms + 1)
    begin_ms = at_ms.copy()
    before_ms = np.maximum.accumulate(until_ms + lift)[:-1] - lift[1:]
    begin_ms[1:] = np.maximum(at_ms[1:], before_ms)
    left = until_ms > begin_ms
    return Waits(clients[left], begin_ms[left], until_ms[left])


def _next_ms(lanes: Integers, at_ms: Integers, end_ms: int) -> Integers:
    """The time of the next event of each one's lane, or of the end; they are sorted by lane and time."""
    begins = _begins(lanes, at_ms)
    first = np.flatnonzero(begins)
    next_ms = np.full(len(first), end_ms)
    same = lanes[first[1:]] == lanes[first[:-1]]
    next_ms[:-1][same] = np.minimum(at_ms[first[1:]][same], end_ms)
    found: Integers = next_ms[np.cumsum(begins) - 1]
    return found


def longest_waits_ms(events: pa.RecordBatch) -> Integers:
    """The wait of the client of each of n events: the longest applied inline, or the decided one: (n,).

    `throttled_by` is null where the gateway charges nothing inline: there the decided wait counts.
    """
    applied, longest_ms = events["throttled_by"], np.zeros(len(events), np.int64)
    waits_ms = pc.struct_field(applied.flatten(), "ms")
    np.maximum.at(longest_ms, numbers(pc.list_parent_indices(applied)), numbers(waits_ms))
    return np.where(is_valid(applied), longest_ms, numbers(events["throttle_time_ms"]))


class WaitEnd(NamedTuple):
    """A time at which waits ended by an operator's hand: of these clients; None stands for all names."""

    at_ms: int
    user: str | None
    client_id: str | None


class WaitEnds:
    """The ends of waits by unmutes, and by limits that were raised or removed."""

    def __init__(self, ends: Iterable[WaitEnd] = ()) -> None:
        self._ends = sorted(ends, key=attrgetter("at_ms"))
        self._known: dict[tuple[str, str], Integers] = {}

    def __bool__(self) -> bool:
        """True if any wait was ended."""
        return bool(self._ends)

    def any_of(self, user: str, client_id: str) -> bool:
        """True if any wait of this client was ended."""
        return len(self._of(user, client_id)) > 0

    def left_ms(self, user: str, client_id: str, at_ms: Integers, waits_ms: Integers) -> Integers:
        """The waits of events of a client, none beyond the next end: (n,) each -> (n,).

        >>> ends = WaitEnds([WaitEnd(5_000, "alice", None)])
        >>> ends.left_ms("alice", "app", np.array([0, 4_000, 6_000]), np.array([3_000, 3_000, 3_000])).tolist()
        [3000, 1000, 3000]
        """
        times_ms = self._of(user, client_id)
        if not len(times_ms):
            return waits_ms
        next_ms = times_ms[np.searchsorted(times_ms, at_ms, "right")]
        left: Integers = np.minimum(waits_ms, next_ms - at_ms)
        return left

    def left_of_each_ms(
        self, users: Sequence[str], client_ids: Sequence[str], at_ms: Integers, waits_ms: Integers
    ) -> Integers:
        """The same for events of any clients: (n,) each -> (n,)."""
        if not self:
            return waits_ms
        left_ms = waits_ms.copy()
        for row in np.flatnonzero(waits_ms).tolist():
            here = slice(row, row + 1)
            left_ms[here] = self.left_ms(users[row], client_ids[row], at_ms[here], waits_ms[here])
        return left_ms

    def _of(self, user: str, client_id: str) -> Integers:
        """The times for a client, and the end of all; empty if there is none."""
        times_ms = self._known.get((user, client_id))
        if times_ms is None:
            found = [e.at_ms for e in self._ends if e.user in (None, user) and e.client_id in (None, client_id)]
            times_ms = self._known[user, client_id] = np.array([*found, _NEVER_MS] if found else [], np.int64)
        return times_ms


class WaitEvents:
    """Events of lanes, each of one client, as many as the union of their waits depends on. Clients are numbers."""

    def __init__(self) -> None:
        self._events: list[tuple[Integers, ...]] = [tuple(np.zeros((4, 0), np.int64))]

    def add(self, clients: Integers, lanes: Integers, at_ms: Integers, waits_ms: Integers) -> None:
        """Note some events: (n,) each. Lanes are numbers, of which there may be more later."""
        kept = np.flatnonzero(_counts(lanes, at_ms, waits_ms))
        columns = clients[kept], lanes[kept], at_ms[kept], np.minimum(waits_ms[kept], MAX_APPLIED_MS)
        self._events.append(columns)

    def union(self, end_ms: int) -> Waits:
        """The waits until a time."""
        clients, lanes, at_ms, waits_ms = (np.concatenate(parts) for parts in zip(*self._events, strict=True))
        return union_of_waits(clients, lanes, at_ms, waits_ms, end_ms)


def _counts(lanes: Integers, at_ms: Integers, waits_ms: Integers) -> Flags:
    """True for events that begin a wait or end it, and for the first of each lane, which may end an earlier one: (n,).

    >>> lanes, at_ms, waits_ms = np.array([[0, 0, 0, 1, 1], [1, 5, 9, 3, 2], [7, 0, 0, 0, 0]])
    >>> _counts(lanes, at_ms, waits_ms).tolist()
    [True, True, False, False, True]
    """
    if not len(lanes):
        return np.zeros(0, np.bool_)
    first_ms = np.full(int(lanes.max()) + 1, _NEVER_MS)
    np.minimum.at(first_ms, lanes, at_ms)
    counts: Flags = at_ms == first_ms[lanes]
    has_wait = np.zeros(len(first_ms), np.bool_)
    has_wait[lanes[waits_ms > 0]] = True
    rows = np.flatnonzero(has_wait[lanes])
    if not len(rows):
        return counts
    least_ms = int(at_ms.min())
    # one key of both sorts in half the time of two
    rows = rows[np.argsort(lanes[rows] * (int(at_ms.max()) - least_ms + 1) + (at_ms[rows] - least_ms))]
    begins = _begins(lanes[rows], at_ms[rows])  # events of one lane at one time
    waits = np.logical_or.reduceat(waits_ms[rows] > 0, np.flatnonzero(begins))
    after_wait = np.concatenate([[False], waits[:-1]])  # of another lane for its first, which counts anyway
    counts[rows] |= (waits | after_wait)[np.cumsum(begins) - 1]
    return counts


def _begins(lanes: Integers, at_ms: Integers) -> Flags:
    """True where an event is of another lane or time than the one before: (n,)."""
    begins = np.ones(len(lanes), np.bool_)
    begins[1:] = (lanes[1:] != lanes[:-1]) | (at_ms[1:] != at_ms[:-1])
    return begins


class RecordedWaits:
    """Collects the events of a span."""

    def __init__(self, ends: WaitEnds | None = None, names_of: NamesOf = lambda *client: client) -> None:
        self._ends = ends or WaitEnds()
        self._names_of = names_of
        self._names: dict[Names, int] = {}
        self._lanes: dict[tuple[str, ...], int] = {}
        self._client_of: list[int] = []  # by lane
        self._events = WaitEvents()

    def take(self, events: pa.RecordBatch) -> Integers:
        """Take events with WAIT_FIELDS. Returns the number of the name of each, as `union` has it: (n,)."""
        at_ms, lanes = numbers(events["timestamp_ms"]), distinct(events, LANE)
        waits_ms = self._left_ms(lanes, at_ms, longest_waits_ms(events))
        return self._add(self._lanes_of(lanes.texts, 2)[lanes.text_of], at_ms, waits_ms)

    def take_of_counters(self, waits: pa.RecordBatch) -> None:
        """Take single waits: the rows of COUNTER_WAITS."""
        at_ms, clients = numbers(waits["timestamp_ms"]), distinct(waits, ("of_user", "of_client_id"))
        waits_ms = self._left_ms(clients, at_ms, numbers(waits["wait_ms"]).copy())
        texts, text_of = distinct(waits, (*COUNTER_COLUMNS, "instance"))
        self._add(self._lanes_of(texts, len(COUNTER_COLUMNS))[text_of], at_ms, waits_ms)

    def _left_ms(self, clients: Texts, at_ms: Integers, waits_ms: Integers) -> Integers:
        """The waits of n events, none beyond the next end; the texts begin with user and client-id: (n,)."""
        for number, (user, client_id, *_) in enumerate(clients.texts if self._ends else ()):
            if self._ends.any_of(user, client_id):
                rows = np.flatnonzero(clients.text_of == number)
                waits_ms[rows] = self._ends.left_ms(user, client_id, at_ms[rows], waits_ms[rows])
        return waits_ms

    def minutes_below(self, end_ms: int, below: Mapping[Names, Collection[int]]) -> dict[Names, int]:
        """Those of the minutes that are among `below`: minutes since 1970, by name."""
        names, waits = self.union(end_ms)
        parts = waits.by_period(60_000)
        minutes = set(zip(parts.clients.tolist(), (parts.begin_ms // 60_000).tolist(), strict=True))
        counted = Tally(client for client, minute in minutes if minute in below.get(names[client], ()))
        return {name: counted[client] for client, name in enumerate(names)}

    def minutes(self, end_ms: int = _NEVER_MS) -> dict[Names, int]:
        """The minutes that have a part of a wait before a time; 0 without one."""
        names, waits = self.union(end_ms)
        minutes_of = np.zeros(len(names), np.int64)
        np.add.at(minutes_of, waits.clients, waits.touched(60_000))
        return dict(zip(names, minutes_of.tolist(), strict=True))

    def _lanes_of(self, texts: Sequence[tuple[str, ...]], named: int) -> Integers:
        """The number of the lane of each of the texts, of which so many are the names of who waits: (texts,)."""
        known = [self._lanes.get(text, _NEW) for text in texts]
        for place, number in enumerate(known):
            if number == _NEW:
                known[place] = self._lanes[texts[place]] = len(self._lanes)
                names = self._names_of(*texts[place][:named])
                self._client_of.append(self._names.setdefault(names, len(self._names)))
        return np.array(known, np.int64)

    def _add(self, lanes: Integers, at_ms: Integers, waits_ms: Integers) -> Integers:
        clients: Integers = np.array(self._client_of, np.int64)[lanes]
        self._events.add(clients, lanes, at_ms, waits_ms)
        return clients

    def union(self, end_ms: int) -> tuple[list[Names], Waits]:
        """The waits until a time; their clients are the places of their names."""
        return list(self._names), self._events.union(end_ms)


def wait_ends(tables: Tables, span: Span) -> WaitEnds:
    """The times in a span at which an operator ended waits. Raises QueryError."""
    unmutes = tables.rows(_UNMUTES.format(api=UNMUTE_API, start_ms=span.start_ms, end_ms=span.end_ms))
    ends = [WaitEnd(at_ms, user, client_id) for at_ms, user, client_id in unmutes]
    return WaitEnds([*ends, *_relaxed(QuotasTable(tables.quotas, tables.storage_options), from_ms(span.start_ms))])


_UNMUTES = """
SELECT timestamp_ms, user, client_id FROM decisions
WHERE api = '{api}' AND timestamp_ms >= {start_ms} AND timestamp_ms < {end_ms}
"""


def _relaxed(quotas: QuotasTable, since: datetime) -> Iterator[WaitEnd]:
    """The limits that were raised or removed since a time; none if the history can't be read."""
    try:
        for change in takewhile(lambda change: change.changed_at >= since, islice(quotas.history(), MOST_CHANGES)):
            if _is_relaxed(change):
                names = (None if name is DEFAULT else name for name in (change.entity.user, change.entity.client_id))
                yield WaitEnd(to_ms(change.changed_at), *names)
    except QuotasTableError:
        return


def _is_relaxed(change: QuotaChange) -> bool:
    old, new = change.old, change.new
    return old is not None and not old.shadow and (new is None or new.value > old.value)
