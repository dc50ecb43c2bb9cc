"""Limits proposed from the rates that were seen: a percentile of each counter's rate, times a headroom."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from sluice.insight.whatif.replay import Decider, Recorded, Side
from sluice.insight.whatif.whose import Whose
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.entity import QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import UNLIMITED, Family, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas

DIGITS = 3
"""Significant digits of rates and limits; rounded up, so that none is lower than it should be."""

DAY_MS = 86_400_000
HOUR_MS = 3_600_000

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

    def add(self, rate: float, recorded: Recorded) -> None:
        """Count an event that found this rate."""
        rounded = round_up(rate)
        self.rates[rounded] = self.rates.get(rounded, 0) + recorded.request.requests
        self.hours.add(recorded.timestamp_ms // HOUR_MS)
        self.waits.add(
            recorded.request.requests, recorded.timestamp_ms, recorded.wait_ms, recorded.refused, 2**62, recorded.lane
        )

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
    """Meters recorded requests on counters of one shape, as the job would if all of them had a limit of their own."""

    def __init__(
        self, whose: Whose, kinds: Collection[QuotaKind], settings: QuotaSettings, idle_expiry_ms: int
    ) -> None:
        unlimited = [QuotaEntry(whose.default(), kind, UNLIMITED) for kind in kinds]
        self._decider = Decider(Quotas(unlimited), settings, idle_expiry_ms)
        self._whose = whose
        self._window = settings.controller_window
        self._mutations: dict[Tags, SampledRate] = {}
        self.seen: dict[tuple[QuotaEntity, QuotaKind], Seen] = {}

    def apply(self, recorded: Recorded) -> None:
        """Meter the next recorded request."""
        for tags, outcomes in self._decider.charge(recorded.request, recorded.timestamp_ms).items():
            entity = self._whose.entity(tags)
            if entity is None:
                continue
            for outcome in outcomes:
                kind, rate = outcome.charge.kind, outcome.rate
                if kind.family is Family.MUTATIONS:
                    rate = self._mutation_rate(tags, outcome.value, recorded.timestamp_ms)
                seen = self.seen.get((entity, kind))
                if seen is None:
                    seen = self.seen[entity, kind] = Seen({}, set(), Side())
                seen.add(rate, recorded)

    def _mutation_rate(self, tags: Tags, partitions: float, now_ms: int) -> float:
        """Mutations per second over the window of the bucket: with that limit it doesn't run empty."""
        rate = self._mutations.get(tags)
        if rate is None:
            rate = self._mutations[tags] = SampledRate()
        rate.record(partitions, self._window, now_ms)
        return rate.measure(self._window, now_ms)


def proposals(
    seen: Iterable[tuple[tuple[QuotaEntity, QuotaKind], Seen]], percent: float, headroom: float
) -> list[Proposal]:
    """A limit for each of these, sorted by kind and entity; none for an entity without a rate above 0."""
    found = []
    for (entity, kind), of_entity in seen:
        rate = of_entity.percentile(percent)
        limit = round_up(rate * headroom)
        limit = max(1.0, math.ceil(limit)) if kind.family.whole else limit
        if rate > 0:
            found.append(Proposal(QuotaEntry(entity, kind, float(limit)), rate, max(of_entity.rates), of_entity))
    return sorted(found, key=lambda each: (each.entry.kind.code, str(each.entry.entity.to_mapping())))


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


def round_up(value: float) -> float:
    """The value, at least 0, rounded up to DIGITS significant digits.

    >>> [round_up(value) for value in (1300.0, 1300.1, 0.012341, 999.5, 0.0)]
    [1300.0, 1310.0, 0.0124, 1000.0, 0.0]
    """
    if value <= 0:
        return 0.0
    exponent = math.floor(math.log10(value)) + 1 - DIGITS
    if exponent >= 0:
        return float(math.ceil(value / 10**exponent - 1e-9) * 10**exponent)
    digits: float = math.ceil(value * 10.0**-exponent - 1e-9) / 10.0**-exponent
    return digits
