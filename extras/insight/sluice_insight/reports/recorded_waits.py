"""The waits in a span of the table of decisions, as one union for each client, user, tenant or counter.

`sluice_insight.waits` says what a wait is, and what ends it.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice, takewhile

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sinks.errors import QuotasTableError
from sluice.state.contract.records import MAX_APPLIED_MS, UNMUTE_API
from sluice_insight.arrays import Flags, Integers
from sluice_insight.reports.columns import Texts, coded, column_of, distinct, is_valid, numbers, texts_of
from sluice_insight.reports.events import joined
from sluice_insight.reports.span import Span
from sluice_insight.waits import COUNTER, NEVER_MS, WaitEnd, WaitEnds, raised_limits
from sluice_reading.query import Tables
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_reading.times import from_ms

LANE = ("user", "client_id", "instance", "api")
"""The columns that name the lane of an event: a client's requests by one API through one gateway."""

_OF_CLIENTS = (*LANE, "timestamp_ms", "throttle_time_ms", "throttled_by.ms")

CHARGED_FIELDS = ("charges.quota", "charges.entity", "charges.mode")
"""The fields of events that `enforced_charges` takes."""

COUNTER_FIELDS = (*_OF_CLIENTS, "decided_by", "throttled_by", *CHARGED_FIELDS, "charges.throttle_ms")
"""The fields of events that say what counters waited."""

MOST_CHANGES = 500
"""Newest changes of quotas that are read: each is a version of the table, which takes milliseconds."""

Names = tuple[str, ...]
NamesOf = Callable[..., Names]
"""The names that a row is for, by user and client-id."""

_NEW = -1


class Waits(msgspec.Struct, frozen=True):
    """Disjoint waits of many clients, by client and time: (n,) each. Clients are numbers; times are epoch ms."""

    clients: Integers
    begin_ms: Integers
    end_ms: Integers

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
    first = np.flatnonzero(_begins(lanes[order], at_ms[order]))
    until_ms = np.minimum(np.maximum.reduceat(waits_ms[order], first), MAX_APPLIED_MS)  # of a lane at one time
    order = order[first]
    clients, lanes, at_ms = clients[order], lanes[order], at_ms[order]
    next_ms = np.append(np.where(lanes[1:] == lanes[:-1], at_ms[1:], end_ms), end_ms)
    until_ms = np.minimum(at_ms + until_ms, np.minimum(next_ms, end_ms))
    waiting = until_ms > at_ms
    order = np.flatnonzero(waiting)[np.lexsort((at_ms[waiting], clients[waiting]))]
    clients, at_ms, until_ms = clients[order], at_ms[order], until_ms[order]
    # The running maximum of each client: the clients are lifted above each other, so that one pass finds it in all.
    length_ms = int(until_ms.max(initial=0)) - int(at_ms.min(initial=NEVER_MS))
    lift = np.unique(clients, return_inverse=True)[1] * (length_ms + 1)
    begin_ms = at_ms.copy()
    before_ms = np.maximum.accumulate(until_ms + lift)[:-1] - lift[1:]
    begin_ms[1:] = np.maximum(at_ms[1:], before_ms)
    left = until_ms > begin_ms
    return Waits(clients[left], begin_ms[left], until_ms[left])


def wait_fields(ends: WaitEnds) -> tuple[str, ...]:
    """The fields of events that `client_waits_ms` takes with these ends."""
    return COUNTER_FIELDS if ends else _OF_CLIENTS


def client_waits_ms(events: pa.RecordBatch, ends: WaitEnds) -> Integers:
    """The wait of the client of each of n events, the longest of its counters: (n,).

    `throttled_by` is null where the gateway charges nothing inline: there the decided wait counts.
    """
    longest_ms = np.zeros(len(events), np.int64)
    if ends:
        waits = counter_waits(events, ends)
        np.maximum.at(longest_ms, numbers(waits["row"]), numbers(waits["wait_ms"]))
        return longest_ms
    applied = events["throttled_by"]
    waits_ms = pc.struct_field(applied.flatten(), "ms")
    np.maximum.at(longest_ms, numbers(pc.list_parent_indices(applied)), numbers(waits_ms))
    return np.where(is_valid(applied), longest_ms, numbers(events["throttle_time_ms"]))


def enforced_charges(events: pa.RecordBatch, *fields: str) -> pa.RecordBatch:
    """The enforced charges of events: COUNTER, `row`, the place of the event, and these fields of the charge."""
    charges = events["charges"].flatten()
    found = [pc.struct_field(charges, name) for name in fields]
    rows = pc.list_parent_indices(events["charges"])
    table = pa.record_batch([*_counters(charges), rows, *found], [*COUNTER, "row", *fields])
    return table.filter(column_of(~is_valid(pc.struct_field(charges, "mode"))))


def counter_waits(events: pa.RecordBatch, ends: WaitEnds) -> pa.RecordBatch:
    """The waits that events with COUNTER_FIELDS report: COUNTER, `row`, the place of the event, and `wait_ms`.

    Counters that the event is charged to have one of 0 if they don't wait. It is `waits.reported_waits` for many.
    """
    charges, applied = enforced_charges(events, "throttle_ms"), events["throttled_by"]
    rows, asked_ms = numbers(charges["row"]), numbers(charges["throttle_ms"])
    is_of_quota = pc.equal(charges["quota"], events["decided_by"].take(charges["row"]))
    is_deciding = numbers(is_of_quota).astype(np.bool_)
    most_ms = np.zeros(len(events), np.int64)
    np.maximum.at(most_ms, rows[is_deciding], asked_ms[is_deciding])
    is_deciding &= asked_ms == most_ms[rows]
    longest_ms = np.where(is_valid(applied), 0, numbers(events["throttle_time_ms"]))[rows]
    decided_ms = np.where(is_deciding, longest_ms, np.minimum(asked_ms, longest_ms))
    names = [*COUNTER, "row", "wait_ms"]
    decided = pa.record_batch([*charges.columns[:-1], column_of(decided_ms)], names)
    inline = [*_counters(applied.flatten()), pc.list_parent_indices(applied), pc.struct_field(applied.flatten(), "ms")]
    waits = joined([decided, pa.record_batch(inline, names).cast(decided.schema)])
    return _ended(waits, numbers(events["timestamp_ms"]), ends) if ends else waits


def _counters(items: pa.StructArray) -> list[pa.Array]:
    """The names of the counters of charges or waits, in the order of COUNTER."""
    return [pc.struct_field(items, "quota"), *(pc.struct_field(items, ["entity", name]) for name in COUNTER[1:])]


def _ended(waits: pa.RecordBatch, times_ms: Integers, ends: WaitEnds) -> pa.RecordBatch:
    """The waits of events at these times, none beyond the next end."""
    waits_ms = numbers(waits["wait_ms"]).copy()
    waiting = np.flatnonzero(waits_ms)
    counters, counter_of = distinct(waits.take(column_of(waiting)), COUNTER)
    at_ms = times_ms[numbers(waits["row"])[waiting]]
    for place, counter, at in zip(waiting.tolist(), counter_of.tolist(), at_ms.tolist(), strict=True):
        waits_ms[place] = ends.left_ms(counters[counter], at, int(waits_ms[place]))
    return waits.set_column(len(COUNTER) + 1, "wait_ms", column_of(waits_ms))


class WaitEvents:
    """Events of lanes, each of one client, as many as the union of their waits depends on. Clients are numbers."""

    def __init__(self) -> None:
        self._events: list[tuple[Integers, ...]] = [tuple(np.zeros((4, 0), np.int64))]

    def add(self, clients: Integers, lanes: Integers, at_ms: Integers, waits_ms: Integers) -> None:
        """Note some events: (n,) each. Lanes are numbers, of which there may be more later."""
        kept = _counting(lanes, at_ms, waits_ms)
        columns = clients[kept], lanes[kept], at_ms[kept], np.minimum(waits_ms[kept], MAX_APPLIED_MS)
        self._events.append(columns)

    def union(self, end_ms: int) -> Waits:
        """The waits until a time."""
        clients, lanes, at_ms, waits_ms = (np.concatenate(parts) for parts in zip(*self._events, strict=True))
        return union_of_waits(clients, lanes, at_ms, waits_ms, end_ms)


def _counting(lanes: Integers, at_ms: Integers, waits_ms: Integers) -> Integers:
    """The places of events that begin a wait or end it, and of the first of each lane, which may end an earlier one.

    >>> lanes, at_ms, waits_ms = np.array([[0, 0, 0, 1, 1], [1, 5, 9, 3, 2], [7, 0, 0, 0, 0]])
    >>> _counting(lanes, at_ms, waits_ms).tolist()
    [0, 1, 4]
    """
    waits, least_ms = waits_ms > 0, int(at_ms.min(initial=NEVER_MS))
    length_ms = int(at_ms.max(initial=0)) - least_ms + 1
    # one key of three sorts in half the time of two; of the events of a lane at one time those that wait come last
    order = np.argsort((lanes * length_ms + at_ms - least_ms) * 2 + waits)
    lanes, waits = lanes[order], waits[order]
    counts = np.ones(len(order), np.bool_)
    counts[1:] = waits[1:] | waits[:-1] | (lanes[1:] != lanes[:-1])
    return order[counts]


def _begins(lanes: Integers, at_ms: Integers) -> Flags:
    """True where an event is of another lane or time than the one before: (n,)."""
    begins = np.ones(len(lanes), np.bool_)
    begins[1:] = (lanes[1:] != lanes[:-1]) | (at_ms[1:] != at_ms[:-1])
    return begins


class RecordedWaits:
    """Collects the events of a span, whose waits end at `ends` too."""

    def __init__(self, ends: WaitEnds, names_of: NamesOf = lambda *names: names) -> None:
        self._ends = ends
        self._names_of = names_of
        self._names: dict[Names, int] = {}
        self._lanes: dict[tuple[str, ...], int] = {}
        self._client_of: list[int] = []  # by lane
        self._events = WaitEvents()

    def take(self, events: pa.RecordBatch) -> Integers:
        """Take events with `wait_fields`. Returns the number of the name of each, as `union` has it: (n,)."""
        waits_ms = client_waits_ms(events, self._ends)
        return self._add(distinct(events, LANE), 2, numbers(events["timestamp_ms"]), waits_ms)

    def take_of_counters(self, events: pa.RecordBatch, of_clients: bool = False) -> None:
        """Take what counters waited by events with COUNTER_FIELDS; the names are those of COUNTER.

        If `of_clients`, each client waits for itself, and the names begin with its user and client-id.
        """
        waits = counter_waits(events, self._ends)
        instances, instance_of = coded(events["instance"])
        instance_of = np.where(is_valid(events["throttled_by"]), instance_of, len(instances) - 1)
        lane = pa.DictionaryArray.from_arrays(column_of(instance_of), texts_of(instances))
        clients = {f"of_{name}": events[name] for name in LANE[:2]} if of_clients else {}
        of_event = pa.record_batch({**clients, "lane": lane, "at_ms": events["timestamp_ms"]}).take(waits["row"])
        names = (*clients, *COUNTER)
        table = pa.record_batch([*of_event.columns, *waits.columns], [*of_event.schema.names, *waits.schema.names])
        self._add(distinct(table, (*names, "lane")), len(names), numbers(table["at_ms"]), numbers(table["wait_ms"]))

    def minutes(self, span: Span) -> dict[Names, Integers]:
        """The minutes since 1970 of a span that have a part of a wait, of all who are named in it."""
        names, waits = self.union(span.end_ms)
        parts = waits.by_period(60_000)
        minutes = parts.begin_ms // 60_000
        kept = _begins(parts.clients, minutes) & (minutes >= span.start_ms // 60_000)
        ends = np.cumsum(np.bincount(parts.clients[kept], minlength=len(names)))
        return dict(zip(names, np.split(minutes[kept], ends[:-1]), strict=True)) if names else {}

    def _add(self, lanes: Texts, named: int, at_ms: Integers, waits_ms: Integers) -> Integers:
        """Note events, whose lanes begin with so many names of who waits; returns the number of the name of each."""
        known = [self._lanes.get(text, _NEW) for text in lanes.texts]
        for place, number in enumerate(known):
            if number == _NEW:
                text = lanes.texts[place]
                known[place] = self._lanes[text] = len(self._lanes)
                self._client_of.append(self._names.setdefault(self._names_of(*text[:named]), len(self._names)))
        lane_of = np.array(known, np.int64)[lanes.text_of]
        clients: Integers = np.array(self._client_of, np.int64)[lane_of]
        self._events.add(clients, lane_of, at_ms, waits_ms)
        return clients

    def union(self, end_ms: int) -> tuple[list[Names], Waits]:
        """The waits until a time; their clients are the places of their names."""
        return list(self._names), self._events.union(end_ms)


def wait_ends(tables: Tables, span: Span) -> WaitEnds:
    """The times in a span at which an operator ended waits. Raises QueryError."""
    ends, since = list(_unmutes(tables, span)), from_ms(span.start_ms)
    with suppress(QuotasTableError):  # without a history the other ends count
        history = islice(QuotasAdmin(tables.quotas, tables.storage_options).history(), MOST_CHANGES)
        ends += raised_limits(takewhile(lambda change: change.changed_at >= since, history))
    return WaitEnds(ends)


def _unmutes(tables: Tables, span: Span) -> Iterator[WaitEnd]:
    unmutes = f"FROM decisions WHERE api = '{UNMUTE_API}' AND timestamp_ms"
    ((first_ms, last_ms),) = tables.rows(
        f"SELECT min(timestamp_ms), max(timestamp_ms) {unmutes} BETWEEN {span.start_ms} AND {span.end_ms - 1}"
    )
    if first_ms is None:
        return  # charges of a long span take long to read
    found = tables.rows(f"SELECT timestamp_ms, unnest(charges) {unmutes} BETWEEN {first_ms} AND {last_ms}")
    for at_ms, charge in found:
        names = (charge["quota"], *(charge["entity"][name] for name in COUNTER[1:]))
        yield WaitEnd(at_ms, tuple("" if name is None else str(name) for name in names))
