"""Usage in each hour or day, from the amounts that decisions repeat of their events.

Amounts, not charges: a client that no quota counts has them too.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sluice.state.contract.records import Verdict
from sluice.state.quotas.tenants import Tenants
from sluice_insight.arrays import Flags, Integers
from sluice_insight.reports.columns import (
    coded,
    column_of,
    distinct,
    distinct_codes,
    field,
    is_valid,
    list_sums,
    numbers,
    texts_of,
)
from sluice_insight.reports.events import EVENTS_AT_ONCE, Events
from sluice_insight.reports.left_out import LeftOut, Sent, left_out
from sluice_insight.reports.recorded_waits import LANE, Names, NamesOf, RecordedWaits, wait_ends, wait_fields
from sluice_insight.reports.span import By, Per, Span
from sluice_insight.texts import tenant_name
from sluice_insight.waits import WaitEnds
from sluice_reading.query import Tables

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

_CLIENT_AMOUNTS = (
    "requests", "bytes_in", "bytes_out", "request_time_ms", "mutations", "throttled_requests", "throttled_ms",
)  # fmt: skip
_TOPIC_AMOUNTS = ("bytes_in", "bytes_out", "mutations")

_FLAGS = ("amounts.withheld", "amounts.cluster_action", "amounts.validate_only")
_PLAIN = (
    "amounts.request_time_ns", "amounts.network_time_ns", "amounts.bytes", "amounts.mutations_charged",
)  # fmt: skip
_OF_CLIENTS = (
    "verdict", "amounts.requests", *_FLAGS, *_PLAIN, "amounts.topic_partitions.bytes",
    "amounts.mutations.partitions",
)  # fmt: skip
_OF_TOPICS = (
    "timestamp_ms", "api", "verdict", *_FLAGS, "amounts.topic_partitions.topic", "amounts.topic_partitions.bytes",
    "amounts.mutations.topic", "amounts.mutations.partitions",
)  # fmt: skip
"""The fields of events that are added up, of clients and of topics."""

_MOST_SUMS = 1_000_000
"""Sums that are added up again: memory grows with the clients (or topics) times the periods, not with the events."""


def usage(
    tables: Tables, span: Span, by: By, per: Per, tenants: Tenants, kafka: Mapping[str, str] | None = None
) -> tuple[pa.Table, LeftOut]:
    """The usage in a span, by period and then by name, and who has no row. Raises QueryError.

    `kafka` has the properties of Sluice's clients; with None nobody is left out, nor is a topic ever.

    Columns: `start` of the period, the names as NAMES says, and the amounts: requests, bytes, milliseconds of request
    time and of waits, partitions created, added or deleted. A topic has bytes and mutations; the others are of a whole
    request.
    """
    ends = WaitEnds() if by is By.TOPIC else wait_ends(tables, span)
    fields = _OF_TOPICS if by is By.TOPIC else (*_OF_CLIENTS, *wait_fields(ends))
    events = Events(tables.decisions, tables.storage_options, span, fields).batches(EVENTS_AT_ONCE)
    sums = _Sums(span, per, _TOPIC_AMOUNTS if by is By.TOPIC else _CLIENT_AMOUNTS)
    if by is By.TOPIC:
        return sums.table(NAMES[by], _add_topics(sums, events)), LeftOut()
    names_of: dict[By, NamesOf] = {
        By.USER: lambda user, _: (user,),
        By.TENANT: lambda *who: (tenant_name(tenants, *who),),
    }
    row_of = names_of.get(by, lambda *client: client)
    waits, clients = RecordedWaits(ends, row_of), _Clients()
    for batch in events:
        clients.add(batch, *_add_events(sums, batch, waits.take(batch)))
    names, union = waits.union(span.end_ms)
    if per is not Per.SPAN:
        union = union.by_period(PERIODS_MS[per])
    sums.add(union.clients, union.begin_ms, throttled_ms=union.end_ms - union.begin_ms)
    without = LeftOut() if kafka is None else left_out(clients.sent, kafka, row_of)
    return sums.table(NAMES[by], names, without), without


class _Clients:
    """Requests and bytes of each client in a span."""

    def __init__(self) -> None:
        self.sent: dict[Names, Sent] = {}

    def add(self, events: pa.RecordBatch, *amounts: Integers) -> None:
        """Add the requests, bytes and throttled requests of n events: (n,) each."""
        clients, client_of = distinct(events, LANE[:2])
        sums = (np.bincount(client_of, each, len(clients)).tolist() for each in amounts)
        for client, requests, moved, throttled in zip(clients, *sums, strict=True):
            known = self.sent.get(client, Sent(0, 0))
            is_waiting = known.waited or throttled > 0
            self.sent[client] = Sent(known.requests + int(requests), known.bytes + int(moved), is_waiting)


class _Sums:
    """Sums of amounts by period and name, of which only the number is known."""

    def __init__(self, span: Span, per: Per, amounts: Sequence[str]) -> None:
        self._period_ms = span.length_ms if per is Per.SPAN else PERIODS_MS[per]
        self._first_ms = span.start_ms if per is Per.SPAN else span.start_ms - span.start_ms % self._period_ms
        self._periods = -(-(span.end_ms - self._first_ms) // self._period_ms)
        self._amounts = amounts
        # codes of name and period (m,), and sums (amounts, m)
        self._parts = [(np.zeros(0, np.int64), np.zeros((len(amounts), 0), np.int64))]

    def add(self, names: Integers, times_ms: Integers, **amounts: Integers) -> None:
        """Add amounts of n events: (n,) each; those that aren't given are 0."""
        codes, group = distinct_codes(names * self._periods + (times_ms - self._first_ms) // self._period_ms)
        sums = np.zeros((len(self._amounts), len(codes)), np.int64)
        for name, values in amounts.items():
            np.add.at(sums[self._amounts.index(name)], group, values)
        self._parts.append((codes, sums))
        if sum(len(codes) for codes, _ in self._parts) > _MOST_SUMS:
            self._parts = [self._added_up()]

    def _added_up(self) -> tuple[Integers, Integers]:
        codes, group = distinct_codes(np.concatenate([codes for codes, _ in self._parts]))
        sums = np.zeros((len(self._amounts), len(codes)), np.int64)
        for row, values in zip(sums, np.concatenate([part for _, part in self._parts], axis=1), strict=True):
            np.add.at(row, group, values)
        return codes, sums

    def table(self, columns: Sequence[str], names: Sequence[Names], without: LeftOut | None = None) -> pa.Table:
        """The sums in order of time and names; `names` are the values of these columns by their number."""
        codes, sums = self._added_up()
        is_kept = np.array([without is None or not without.has(name) for name in names], np.bool_)[
            codes // self._periods
        ]
        codes, sums = codes[is_kept], sums[:, is_kept]
        name_of, period = np.divmod(codes, self._periods)
        found = {"start": column_of(self._first_ms + period * self._period_ms).cast(pa.timestamp("ms", "UTC"))}
        for place, column in enumerate(columns):
            found[column] = texts_of(map(itemgetter(place), names)).take(column_of(name_of))
        found |= {
            amount: column_of(row / 1e6 if amount == "request_time_ms" else row)  # of nanoseconds
            for amount, row in zip(self._amounts, sums, strict=True)
        }
        return pa.table(found).sort_by([(name, "ascending") for name in ("start", *columns)])


def ranked(found: pa.Table, amount: str, most: int | None = None) -> pa.Table:
    """The usage with the highest amount of each period first, and its `share` of the period's total, from 0 to 1.

    `amount` is one of AMOUNTS that the usage has columns of. Of each period as many rows as `most`.
    """
    found = found.combine_chunks()
    columns = [np.from_dlpack(found[name].chunk(0)).astype(float) for name in AMOUNTS[amount]]
    values: NDArray[np.float64] = np.add.reduce(columns)
    starts, period = np.unique(numbers(found["start"].chunk(0)), return_inverse=True)
    total = np.bincount(period, values, len(starts))[period]
    share = np.divide(values, total, out=np.zeros(len(values)), where=total > 0)
    order = np.lexsort((-values, period))  # equal ones stay in the order of their names
    if most is not None:
        first = np.searchsorted(period[order], np.arange(len(starts)))
        order = order[np.arange(len(order)) - first[period[order]] < most]
    return found.append_column("share", column_of(share)).take(column_of(order))


class _Kinds:
    """Flags of n events: the bytes or mutations of which count, and which were throttled: (n,) each."""

    def __init__(self, events: pa.RecordBatch) -> None:
        apis, api_of = coded(events["api"])
        verdicts, verdict_of = coded(events["verdict"])
        withheld, by_broker, validated = (numbers(field(events, name)) != 0 for name in _FLAGS)
        self.produced = _flags(apis, ["Produce"])[api_of]
        self.fetched: Flags = _flags(apis, ["Fetch"])[api_of] & ~withheld & ~by_broker
        self.mutated: Flags = _flags(verdicts, [Verdict.ALLOW, Verdict.THROTTLE])[verdict_of] & ~validated
        self.restrained = _flags(verdicts, [Verdict.REJECT, Verdict.THROTTLE])[verdict_of]


def _flags(texts: Iterable[str], wanted: Sequence[str]) -> Flags:
    return np.array([text in wanted for text in texts], np.bool_)


def _add_events(sums: _Sums, events: pa.RecordBatch, names: Integers) -> tuple[Integers, Integers, Integers]:
    """Add the amounts of n events of clients, but for the time waited: it isn't that of one event.

    Returns the requests, bytes and throttled requests of each: (n,) each.
    """
    kinds = _Kinds(events)
    requests = numbers(field(events, "amounts.requests"), default=1)
    handler_ns, network_ns, own, charged = (numbers(field(events, name)) for name in _PLAIN)
    # with 0 bytes beside topic-partitions another event has the client's (`has_client_bytes`)
    of_partitions = list_sums(field(events, "amounts.topic_partitions"), "bytes")[0]
    sizes: Integers = np.where(is_valid(field(events, "amounts.bytes")), own, of_partitions)
    mutations = charged + list_sums(field(events, "amounts.mutations"), "partitions")[0]
    moved = (kinds.produced | kinds.fetched) * sizes
    held = (numbers(events["throttle_time_ms"]) > 0) | (numbers(pc.list_value_length(events["throttled_by"])) > 0)
    throttled = (held | kinds.restrained) * requests
    sums.add(
        names,
        numbers(events["timestamp_ms"]),
        requests=requests,
        bytes_in=kinds.produced * sizes,
        bytes_out=kinds.fetched * sizes,
        request_time_ms=handler_ns + network_ns,
        mutations=kinds.mutated * mutations,
        throttled_requests=throttled,
    )
    return requests, moved, throttled


def _add_topics(sums: _Sums, events: Iterable[pa.RecordBatch]) -> list[Names]:
    """Add the amounts of each topic-partition, and of each topic of a mutation. Returns the topics."""
    known: dict[str, int] = {}
    for batch in events:
        kinds, times_ms = _Kinds(batch), numbers(batch["timestamp_ms"])
        for lists, name, counted in (
            ("topic_partitions", "bytes", {"bytes_in": kinds.produced, "bytes_out": kinds.fetched}),
            ("mutations", "partitions", {"mutations": kinds.mutated}),
        ):
            column = field(batch, f"amounts.{lists}")
            items, event = column.flatten(), numbers(pc.list_parent_indices(column))
            amounts = pc.struct_field(items, name)
            rows = np.flatnonzero(np.logical_or.reduce(list(counted.values()))[event] & is_valid(amounts))
            event, values = event[rows], numbers(amounts)[rows]
            topics, topic_of = coded(pc.struct_field(items, "topic"))
            places = np.array([known.setdefault(topic, len(known)) for topic in topics], np.int64)
            flags = {amount: flag[event] * values for amount, flag in counted.items()}
            sums.add(places[topic_of[rows]], times_ms[event], **flags)
    return [(topic,) for topic in known]
