"""Elastic quotas: overloaded brokers tighten, idle ones lend. Pure: loads and times are arguments.

The job decides twice a second (`ElasticRule`) and publishes the `ElasticState`, which gateways apply:

    limit  = min(ceiling, lend * quota)               the same on all gateways
    bound  = share * max(factor, reservation / quota)  of a gateway that is tightened

`share` is the gateway's part of the limit. What is above the quota goes first, then what is above the reservation; the
reservation stays. Sources of the numbers: DAGOR's 20 ms of queue wait and 0.9 of capacity are in the load (1 is all of
the capacity), 5 % a second and a tenth of the quota a second are the project's own.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from sluice.state.contract.records import BrokerFactor, ElasticState

FULL_LOAD = 0.9
"""Load of a broker that is at its capacity: above it the broker tightens, and nothing is lent."""

TIGHT_LOAD = 0.88
"""Load that tightening brings a broker to."""

RECOVERY_LOAD = 0.85
"""Load below which a tightened broker recovers. From this to FULL_LOAD its factor stays, so that it comes to rest."""

IDLE_LOAD = 0.7
"""Load of the busiest broker below which more is lent. Between this and FULL_LOAD the limits stay as they are."""

LENT_LOAD = 0.8
"""Load of the busiest broker that growing limits are expected to lead to at most: a load is known late, and limits that
went on growing meanwhile would pass FULL_LOAD, fall back to the quotas and grow again, for ever."""

RECOVERY_PER_S = 0.05
"""Growth of a factor in a second, until it is 1 again."""

GROWTH_PER_S = 0.1
"""Growth of `lend` in a second: a tenth of each quota."""

LEAST_LOAD = 0.001
"""Load that less counts as: it is a divisor."""

LEAST_FACTOR = 0.05
"""Least factor. Below it no more would be taken from most quotas, and recovery would only take longer."""

LEAST_STEP = 0.5
"""Least ratio of two factors in a row: a queue's wait grows far faster than what has to go."""

SOONEST_MS, LATEST_MS = 1_000, 3_500
"""Shortest and longest time from a decision to the end of the second whose load it has caused: publishing, the second
itself. The heartbeat and its decision come on top. Which decision of this span it was isn't known."""

FRESH_MS = 5_000
"""Time for which a load counts, and at a gateway the state that it has heard last. Without a newer one the limits are
the quotas again."""

DEFAULT_RESERVATION = 0.5
"""Reservation of a quota that has none of its own, as a part of the quota."""

TIGHT_BURST_S = 0.5
"""Burst of a counter on a gateway that is tightened, in seconds of its bound. With the usual one, a client a little
above its bound would go on for 10 s and more."""


class MeasuredLoad(NamedTuple):
    """The load of a broker at a time, as a part of what it can take; `reason` is the broker and its highest signal."""

    load: float
    reason: str
    at_ms: int


def lent_limit(limit: float, ceiling: float | None, lend: float) -> float:
    """The limit of a quota while `lend` times the quotas are lent. Without a ceiling it stays the quota.

    >>> lent_limit(100.0, 250.0, 1.5), lent_limit(100.0, 250.0, 3.0), lent_limit(100.0, None, 3.0)
    (150.0, 250.0, 100.0)
    """
    return limit if ceiling is None else min(ceiling, lend * limit)


def bound_of_share(factor: float, limit: float, reservation: float | None) -> float:
    """The part of its share that a gateway with this factor lets through.

    >>> bound_of_share(0.7, 100.0, None), bound_of_share(0.3, 100.0, None), bound_of_share(0.3, 100.0, 40.0)
    (0.7, 0.5, 0.4)
    """
    return max(factor, DEFAULT_RESERVATION if reservation is None else reservation / limit)


def holds_until_ms(at_ms: int, heard_ms: int, fresh_ms: int = FRESH_MS) -> int:
    """The time until which a gateway holds a state of `at_ms` that it has heard now. One that was there before is old.

    >>> holds_until_ms(10_000, heard_ms=10_200), holds_until_ms(10_000, heard_ms=900_000)
    (15200, 20000)
    """
    return min(heard_ms, at_ms + fresh_ms) + fresh_ms


def factor_of(state: ElasticState, instance: str) -> float:
    """The factor of a gateway; 1 if it isn't tightened."""
    return next((each.factor for each in state.brokers if each.instance == instance), 1.0)


class _Past(NamedTuple):
    """The multiple and the factors that were decided at a time."""

    at_ms: int
    lend: float
    factors: Mapping[str, float]


class ElasticRule:
    """Decides from the loads of all brokers how far limits give way. The same inputs in the same order decide the same.

    A load was caused by what was decided some seconds before. What fits is computed from that, not from what is in
    force now: else one overload would be answered three times before the first answer shows. Which decision it was
    isn't known: tightening takes the largest factor of those that it may have been, growing the median.
    """

    def __init__(self, number: int = 0) -> None:
        """`number` is that of the last state that was published before."""
        self._number = number
        self._past: deque[_Past] = deque([_Past(0, 1.0, {})])

    def decide(self, loads: Mapping[str, MeasuredLoad], most_lend: float, now_ms: int) -> ElasticState:
        """The state from now on. `most_lend` is the largest ceiling over its quota, 1 without any.

        A broker at 1.1 of its capacity gets 0.8 of its shares, which is 0.88 of the capacity. An idle cluster lends a
        tenth more each second:

        >>> rule = ElasticRule()
        >>> rule.decide({"b-1": MeasuredLoad(1.1, "b-1: bytes in 110% of capacity", 9_000)}, 1.0, now_ms=10_000).brokers
        [BrokerFactor(instance='b-1', factor=0.8, reason='b-1: bytes in 110% of capacity')]
        >>> idle = ElasticRule()
        >>> times_ms = (10_000, 11_000, 12_000)
        >>> [idle.decide({"b-1": MeasuredLoad(0.1, "", at_ms)}, 3.0, at_ms).lend for at_ms in times_ms]
        [1.0, 1.1, 1.2]
        """
        before = self._past[-1]
        since_s = min(max(0, now_ms - before.at_ms), 1_000) / 1_000.0 if before.at_ms else 0.0
        fresh = {name: each for name, each in loads.items() if now_ms - each.at_ms <= FRESH_MS}
        factors = {}
        for name in sorted(fresh):
            factor = self._factor(name, fresh[name], since_s)
            if factor < 1.0:
                factors[name] = factor
        lend = self._lend(fresh, bool(factors), most_lend, since_s)
        self._number += lend != before.lend or factors != before.factors
        self._past.append(_Past(now_ms, lend, factors))
        while len(self._past) > 1 and self._past[1].at_ms <= now_ms - LATEST_MS - FRESH_MS:
            self._past.popleft()
        brokers = [BrokerFactor(name, factor, fresh[name].reason) for name, factor in factors.items()]
        busiest = max((each.load for each in fresh.values()), default=0.0)
        reason = f"load {busiest:.2f}: {lend:.2f} times the quotas lent" if lend > 1.0 else ""
        return ElasticState(self._number, now_ms, lend, brokers, reason)

    def _factor(self, name: str, measured: MeasuredLoad, since_s: float) -> float:
        """The factor that fits the load, as far as it may grow. What was lent goes before any of the quota does."""
        present, causes = self._past[-1].factors.get(name, 1.0), self._causes(measured.at_ms)
        before = [past.factors.get(name, 1.0) for past in causes]
        if measured.load > FULL_LOAD:
            ratio = TIGHT_LOAD / measured.load * max(past.lend for past in causes)
            return max(LEAST_FACTOR, min(present, round(max(before) * max(ratio, LEAST_STEP), 3)))
        if measured.load < RECOVERY_LOAD:
            fits = median(before) * TIGHT_LOAD / max(measured.load, LEAST_LOAD)
            return min(1.0, max(present, round(min(present + RECOVERY_PER_S * since_s, fits), 3)))
        return present

    def _lend(self, loads: Mapping[str, MeasuredLoad], is_tight: bool, most: float, since_s: float) -> float:
        """The lent multiple. Nobody gets more than the quota while anybody gets less."""
        if not loads or is_tight:
            return 1.0
        lend, busiest = self._past[-1].lend, max(loads.values())
        if busiest.load > FULL_LOAD:
            return 1.0
        if busiest.load < IDLE_LOAD:
            caused_by = median(past.lend for past in self._causes(busiest.at_ms))
            fits = caused_by * LENT_LOAD / max(busiest.load, LEAST_LOAD)
            lend = max(lend, round(min(lend + GROWTH_PER_S * since_s, fits), 3))
        return min(lend, max(1.0, most))

    def _causes(self, measured_ms: int) -> list[_Past]:
        """The decisions that may have caused a load."""
        ended = [past for past in self._past if past.at_ms <= measured_ms - LATEST_MS]
        later = [past for past in self._past if measured_ms - LATEST_MS < past.at_ms <= measured_ms - SOONEST_MS]
        return [*(ended[-1:] or [self._past[0]]), *later]
