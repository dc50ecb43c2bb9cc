"""Limits proposed from the rates that were seen: a percentile of each counter's rate, times a headroom."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np

from sluice.state.quotas.entity import QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import KINDS_BY_NAME, UNLIMITED, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice_insight.arrays import Floats, Integers
from sluice_insight.reports import left_out
from sluice_insight.reports.span import Span
from sluice_insight.waits import Waited
from sluice_insight.whatif.metering import Batch, Metered, Meters, WaitSums
from sluice_insight.whatif.replay import Side
from sluice_insight.whatif.whose import Whose

DIGITS = 3
"""Significant digits of rates and limits; rounded up, so that none is lower than it should be."""

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
_ALWAYS = Span(0, 2**62)

SURE_DAYS = 7
"""Least days with requests that show a week's rhythm."""

SURE_HOURS = 24
"""Least hours with requests that show a day's rhythm."""


class Confidence(StrEnum):
    """Confidence of a proposal."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Seen(msgspec.Struct, gc=False):
    """The rates that one quota kind of one entity had, each counted by its requests, and when it was active.

    `rates` are rounded up to DIGITS. `waits` has those of the requests: a demand that is cut isn't seen.
    """

    rates: dict[float, int]
    hours: set[int]
    waits: Side
    clients: int = 1

    def percentile(self, percent: float) -> float:
        """The lowest rate that at least so many percent of the requests didn't exceed.

        >>> Seen({10.0: 998, 20.0: 1, 30.0: 1}, set(), Side()).percentile(99.9)
        20.0
        """
        wanted = sum(self.rates.values()) * percent / 100
        counted = 0
        for rate in sorted(self.rates):
            counted += self.rates[rate]
            if counted >= wanted - 1e-6:
                return rate
        return 0.0

    @property
    def days(self) -> int:
        """Days (UTC) with requests."""
        return len({hour * HOUR_MS // DAY_MS for hour in self.hours})

    @property
    def active_ms(self) -> int:
        """Milliseconds of the hours (of the clock) with requests."""
        return len(self.hours) * HOUR_MS

    @property
    def confidence(self) -> Confidence:
        """Confidence in the demand that was seen."""
        if self.waits.throttled or len(self.hours) < SURE_HOURS:
            return Confidence.LOW
        return Confidence.HIGH if self.days >= SURE_DAYS else Confidence.MEDIUM


class Proposal(NamedTuple):
    """A limit, the rate it was made from, and what was seen; rates are in the unit of the quota per second."""

    entry: QuotaEntry
    rate: float
    highest: float
    seen: Seen


class Advisor:
    """Meters recorded requests on counters of one shape, as the job would if all of them had a limit of their own.

    `others` are members of tenants, and quotas whose clients are metered apart, such as those that come before.
    """

    def __init__(
        self, whose: Whose, kinds: Collection[QuotaKind], settings: QuotaSettings, others: Sequence[QuotaEntry] = ()
    ) -> None:
        unlimited = [QuotaEntry(whose.default(), kind, UNLIMITED) for kind in kinds]
        self._meters = Meters(Quotas([*others, *unlimited]), settings)
        self._whose = whose
        self._sums = {kind: _Sums() for kind in kinds}

    def read_batch(self, batch: Batch) -> None:
        """Meter the next recorded requests."""
        for metered in self._meters.charge(batch):
            self._sums[metered.kind].add(metered, batch)

    def seen(self) -> dict[tuple[QuotaEntity, QuotaKind], Seen]:
        """The rates of each entity that a quota file can name."""
        return {
            (entity, kind): seen
            for kind, sums in self._sums.items()
            for tags, seen in zip(sums.tags, sums.seen(), strict=True)
            if (entity := self._whose.entity(tags)) is not None
        }


class _Sums:
    """The rates of the counters of one kind."""

    def __init__(self) -> None:
        self.tags: Sequence[Tags] = ()
        self._rates: list[_Rates] = []
        self._hours: list[Integers] = []
        self._throttled: list[_Rates] = []
        self._waits = WaitSums()

    def add(self, metered: Metered, batch: Batch) -> None:
        """Count charges by their rates."""
        self.tags, rows, counters = metered.tags, metered.rows, metered.counters
        requests, waits = batch.requests[rows], batch.waits_ms[rows] > 0
        self._rates.append(_counted(counters, round_up(metered.rates), requests))
        self._throttled.append(_counted(counters[waits], np.zeros(waits.sum()), requests[waits]))
        hours = np.stack([counters, batch.times_ms[rows] // HOUR_MS])
        self._hours.append(np.unique(hours, axis=1))
        self._waits.add(counters, batch, rows)

    def seen(self) -> list[Seen]:
        """The sums of each counter."""
        waited_ms = self._waits.waited_ms(len(self.tags), _ALWAYS).tolist()
        seen = [Seen({}, set(), Side(waited=Waited(total_ms=waited))) for waited in waited_ms]
        for counter, rate, requests in zip(*map(np.ndarray.tolist, _joined(self._rates)), strict=True):
            seen[counter].rates[rate] = requests
            seen[counter].waits.requests += requests
        for counter, _, requests in zip(*map(np.ndarray.tolist, _joined(self._throttled)), strict=True):
            seen[counter].waits.throttled += requests
        for counter, hour in np.concatenate([np.zeros((2, 0), np.int64), *self._hours], axis=1).T.tolist():
            seen[counter].hours.add(hour)
        return seen


_Rates = tuple[Integers, Floats, Integers]
"""Counters, rates, and their requests: (m,) each."""


def _joined(parts: Sequence[_Rates]) -> _Rates:
    nothing = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64)
    counters, rates, requests = (np.concatenate(columns) for columns in zip(nothing, *parts, strict=True))
    return _counted(counters, rates, requests)


def _counted(counters: Integers, rates: Floats, requests: Integers) -> _Rates:
    """The same, each rate of a counter once, with the sum of its requests."""
    order = np.lexsort((rates, counters))
    counters, rates, requests = counters[order], rates[order], requests[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (counters[1:] != counters[:-1]) | (rates[1:] != rates[:-1])
    first = np.flatnonzero(begins)
    return counters[first], rates[first], np.add.reduceat(requests, first) if len(first) else requests


def proposals(
    seen: Iterable[tuple[tuple[QuotaEntity, QuotaKind], Seen]], percent: float, headroom: float
) -> list[Proposal]:
    """A limit for each of these, sorted by kind and entity; none without a rate above 0, or from LEAST_REQUESTS."""
    found = []
    for (entity, kind), of_entity in seen:
        rate = of_entity.percentile(percent)
        limit = float(round_up(np.array([rate * headroom]))[0])
        limit = max(1.0, math.ceil(limit)) if kind.family.whole else limit
        if rate > 0 and of_entity.waits.requests >= left_out.LEAST_REQUESTS:
            found.append(Proposal(QuotaEntry(entity, kind, float(limit)), rate, max(of_entity.rates), of_entity))
    return sorted(found, key=lambda each: (KINDS_BY_NAME[each.entry.kind].code, str(each.entry.entity.to_mapping())))


def pooled(
    seen: Iterable[tuple[tuple[QuotaEntity, QuotaKind], Seen]], whose: Whose
) -> dict[tuple[QuotaEntity, QuotaKind], Seen]:
    """The rates of all entities together, for the default entity: each request counts once."""
    rates: dict[QuotaKind, Counter[float]] = {}
    together: dict[tuple[QuotaEntity, QuotaKind], Seen] = {}
    for (_, kind), of_entity in seen:
        pool = together.setdefault((whose.default(), kind), Seen({}, set(), Side(), clients=0))
        rates.setdefault(kind, Counter()).update(of_entity.rates)
        pool.hours |= of_entity.hours
        pool.clients += 1
        pool.waits.requests += of_entity.waits.requests
        pool.waits.throttled += of_entity.waits.throttled
        pool.waits.waited.total_ms += of_entity.waits.waited_ms
    for (_, kind), pool in together.items():
        pool.rates = dict(rates[kind])
    return together


def round_up(values: Floats) -> Floats:
    """The values (n,), at least 0, rounded up to DIGITS significant digits.

    >>> round_up(np.array([1300.0, 1300.1, 0.012341, 999.5, 0.0, -2.0])).tolist()
    [1300.0, 1310.0, 0.0124, 1000.0, 0.0, 0.0]
    """
    positive = np.where(values > 0, values, 1.0)
    exponents = np.floor(np.log10(positive)).astype(np.int64) + 1 - DIGITS
    powers = 10.0 ** np.abs(exponents)
    is_large = exponents >= 0
    units = np.ceil(np.where(is_large, positive / powers, positive * powers) - 1e-9)
    return np.where(values > 0, np.where(is_large, units * powers, units / powers), 0.0)
