"""Recorded requests charged at the times at which they came, many at once.

Nobody waits here. `sluice_insight.whatif.replay` decides the requests of clients that would wait, one after another.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sluice.state.arithmetic.counter import Charge, EntityCounters
from sluice.state.contract.records import Request
from sluice.state.decisions.charge_plan import points
from sluice.state.decisions.plan_key import PlanKey, request_like
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import CLIENT_KINDS, Family, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice_insight.arrays import Columns, Flags, Floats, Integers, columns_of, concatenate
from sluice_insight.reports.recorded_waits import WaitEvents
from sluice_insight.reports.span import Span
from sluice_insight.whatif.overrides import STRICT, RecordedOverrides
from sluice_insight.whatif.rate_arrays import RateArrays
from sluice_insight.whatif.whose import tried_charges


class Lane(NamedTuple):
    """A client's requests by one API through one gateway: a wait ends at the next of them."""

    user: str
    client_id: str
    instance: str
    api: str


class NamedKey(NamedTuple):
    """The key of a plan, and whether their events had a user and a client-id, though empty."""

    key: PlanKey
    has_user: bool
    has_client_id: bool

    def request(self) -> Request:
        """A request with this key."""
        request = request_like(self.key)
        request.user = request.user if self.has_user else None
        request.client_id = request.client_id if self.has_client_id else None
        return request


class Batch(NamedTuple):
    """n recorded requests by column, (n,) each, in the order in which they were decided. Times are epoch ms.

    `lanes_of` and `keys_of` are places in `lanes` and `keys`. A `refused` request was refused when it was recorded.
    """

    times_ms: Integers
    waits_ms: Integers
    refused: Flags
    requests: Integers
    lanes: Sequence[Lane]
    lanes_of: Integers
    keys: Sequence[NamedKey]
    keys_of: Integers
    bytes: Integers
    handler_ns: Integers
    network_ns: Integers
    partitions: Integers


class Metered(NamedTuple):
    """m charges of one kind, (m,) each: the places of their requests, their counters, and the rates that they found.

    `counters` are places in `tags`, and those of one follow one another. `limits` are per second. Mutations have the
    rate over the window of their bucket, which doesn't run empty at a limit of that rate.
    """

    kind: QuotaKind
    tags: Sequence[Tags]
    rows: Integers
    counters: Integers
    rates: Floats
    limits: Floats


class Meters:
    """The counters with a limit of all requests so far."""

    def __init__(self, quotas: Quotas, settings: QuotaSettings, overrides: RecordedOverrides = STRICT) -> None:
        self._quotas = quotas
        self._overrides = overrides
        self._settings = settings
        self._plans: dict[NamedKey, dict[QuotaKind, tuple[int, Charge]]] = {}
        self._numbers: dict[QuotaKind, dict[Tags, int]] = {kind: {} for kind in CLIENT_KINDS}
        self._columns: dict[QuotaKind, Columns] = {kind: columns_of([]) for kind in CLIENT_KINDS}

    def charge(self, batch: Batch) -> Iterator[Metered]:
        """Charge the next requests."""
        plans = [self._plan(key) for key in batch.keys]
        for kind in CLIENT_KINDS:
            planned = [plan.get(kind) for plan in plans]
            numbers = np.array([-1 if one is None else one[0] for one in planned], np.int64)[batch.keys_of]
            rows = np.flatnonzero(numbers >= 0)
            if not len(rows):
                continue
            rows = rows[np.argsort(numbers[rows], kind="stable")]
            limits = np.array([np.nan if one is None else one[1].limit for one in planned])
            of_rows = limits[batch.keys_of[rows]]
            if self._overrides and kind.family.gives_way:
                tags = list(self._numbers[kind])
                of_rows = self._overrides.limits(
                    [None if one is None else self._quotas.resolve_counter(kind, tags[one[0]]) for one in planned],
                    batch.keys_of[rows],
                    of_rows,
                    [lane.instance for lane in batch.lanes],
                    batch.lanes_of[rows],
                    batch.times_ms[rows],
                )
            withheld = np.array([one is not None and one[1].withheld for one in planned])
            amounts, network = self._amounts(kind, batch)
            taken_back = kind.family is not Family.REQUEST_TIME and withheld[batch.keys_of[rows]]
            later = np.where(taken_back, -amounts[rows], network[rows])
            rates = self._rates(kind, numbers[rows], batch.times_ms[rows], amounts[rows], later)
            yield Metered(kind, list(self._numbers[kind]), rows, numbers[rows], rates, of_rows)

    def _plan(self, key: NamedKey) -> dict[QuotaKind, tuple[int, Charge]]:
        """The number of the counter, and the charge without its amount, by kind."""
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = {
                charge.kind: (self._numbers[charge.kind].setdefault(tags, len(self._numbers[charge.kind])), charge)
                for tags, charge in tried_charges(key.request(), self._quotas, self._settings)
            }
        return plan

    def _amounts(self, kind: QuotaKind, batch: Batch) -> tuple[Floats, Floats]:
        """The amount of a charge of each request, and its network time in points."""
        if kind.family is Family.REQUEST_TIME:
            handler, network = points(batch.handler_ns, batch.network_ns, self._settings)
            return handler, network
        columns = {Family.MUTATIONS: batch.partitions, Family.REQUESTS: batch.requests}
        amounts = columns.get(kind.family, batch.bytes)
        return amounts.astype(np.float64), np.zeros(len(amounts))

    def _rates(self, kind: QuotaKind, counters: Integers, now_ms: Integers, amounts: Floats, later: Floats) -> Floats:
        is_mutations, settings = kind.family is Family.MUTATIONS, self._settings
        known = self._columns[kind]
        new = columns_of([EntityCounters()] * (len(self._numbers[kind]) - len(known.last_event_ms)))
        columns = concatenate([known, new])
        arrays = RateArrays(columns, kind, settings.controller_window if is_mutations else settings.client_window)
        rates = arrays.charge(counters, now_ms, amounts, later)
        np.maximum.at(columns.last_event_ms, counters, now_ms)
        self._columns[kind] = arrays.columns(columns)
        return rates


class WaitSums:
    """The time waited by each of some owners of requests, such as clients or counters: the union of their waits."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, int] = {}
        self._events = WaitEvents()

    def add(self, owners: Integers, batch: Batch, rows: Integers) -> None:
        """Note some requests of a batch, each with its owner, the same one for all of a lane: (m,) each."""
        numbers = np.array([self._lanes.setdefault(lane, len(self._lanes)) for lane in batch.lanes], np.int64)
        self._events.add(owners, numbers[batch.lanes_of[rows]], batch.times_ms[rows], batch.waits_ms[rows])

    def waited_ms(self, owners: int, span: Span) -> Integers:
        """The time waited in a span by each owner, of whom there are so many: (owners,)."""
        waits = self._events.union(span.end_ms)
        begin_ms = np.minimum(np.maximum(waits.begin_ms, span.start_ms), waits.end_ms)
        return np.bincount(waits.clients, waits.end_ms - begin_ms, owners).astype(np.int64)
