"""Elastic quotas: overloaded brokers tighten. Pure: loads and times are arguments.

Usage above the reservation is cut, and never the reservation. Sources of the numbers: DAGOR's 20 ms of queue wait and
0.9 of capacity are in the load (1 is all of the capacity), 5 % a second is the project's own.
"""

from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from time import gmtime, strftime
from typing import NamedTuple

import msgspec

from sluice.process.texts import no_default_text
from sluice.state.contract.gateway_topics import DecidedHeartbeat, Measured, Override
from sluice.state.contract.instances import server_text
from sluice.state.overrides.decider import DecidedOverrides, Decider
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.load import FULL_LOAD

TIGHT_LOAD = 0.88
"""Load that tightening brings a broker to."""

RECOVERY_LOAD = 0.85
"""Load below which a tightened broker recovers. From this to FULL_LOAD its factor stays, so that it comes to rest."""

RECOVERY_PER_S = 0.05
"""Growth of a factor in a second, until it is 1 again."""

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
"""Time for which a load counts, and gateways believe what was decided. Without news the limits are the quotas again."""

_NEWS_MS = 3_000
"""Time for which a reason is told without its own time."""

_MAX_BROKERS_BYTES = 512 * 1024
"""Most bytes of the brokers in a record, which has to fit into Kafka's whatever heartbeats say."""

_JUDGED_BY = 3
"""Heartbeats by which a load is judged: a pause of Java in one second is no load, nor is one large request.

Bytes above the capacity count as their mean: a second of them alone stops a recovery, and tightens nobody. Their end is
known at once.
"""


class MeasuredLoad(NamedTuple):
    """The load of a broker at a time, as a part of what it can take; `reason` is the broker and its highest signal."""

    load: float
    reason: str
    at_ms: int


class _Past(NamedTuple):
    """The factors that were decided at a time."""

    at_ms: int
    factors: Mapping[str, float]


class ElasticRule:
    """Decides from the loads of all brokers how far limits give way. The same inputs in the same order decide the same.

    A load was caused by what was decided some seconds before. The fitting load is computed from that, not from the
    state now: else one overload would be answered three times before the first answer shows. Which decision it was
    isn't known: tightening takes the largest factor of those that it may have been, recovery the median.
    """

    def __init__(self) -> None:
        self._past: deque[_Past] = deque([_Past(0, {})])
        self._tightened: dict[str, MeasuredLoad] = {}  # what lowered the factor last

    def decide(self, loads: Mapping[str, MeasuredLoad], now_ms: int) -> list[Override]:
        """The overrides from now on.

        A broker at 1.1 of its capacity gets 0.8 of its shares, which is 0.88 of the capacity:

        >>> rule = ElasticRule()
        >>> [tight] = rule.decide({"b-1": MeasuredLoad(1.1, "b-1: queue wait 24 ms", 9_000)}, now_ms=10_000)
        >>> tight.kind, tight.factor, tight.gateway, tight.reason
        ('tighten', 0.8, 'b-1', 'b-1: queue wait 24 ms')
        """
        before = self._past[-1]
        since_s = min(max(0, now_ms - before.at_ms), 1_000) / 1_000.0 if before.at_ms else 0.0
        fresh = {name: each for name, each in loads.items() if now_ms - each.at_ms <= FRESH_MS}
        factors = {}
        for name in sorted(fresh):
            factor = self._factor(name, fresh[name], since_s)
            if factor < 1.0:
                factors[name] = factor
                if factor < before.factors.get(name, 1.0):
                    self._tightened[name] = fresh[name]
        self._tightened = {name: each for name, each in self._tightened.items() if name in factors}
        self._past.append(_Past(now_ms, factors))
        while len(self._past) > 1 and self._past[1].at_ms <= now_ms - LATEST_MS - FRESH_MS:
            self._past.popleft()
        return [
            Override("tighten", each, gateway=name, reason=self._why(name, fresh[name], now_ms))
            for name, each in factors.items()
        ]

    def _why(self, name: str, present: MeasuredLoad, now_ms: int) -> str:
        """The reason that lowered the factor last, until it is 1 again; the present load is what it has left."""
        tightened = self._tightened[name]
        if now_ms - tightened.at_ms <= _NEWS_MS:
            return tightened.reason
        at = strftime("%H:%M:%S", gmtime(tightened.at_ms / 1000))
        return f"{tightened.reason} at {at}" + (", recovering" if present.load < RECOVERY_LOAD else "")

    def _factor(self, name: str, measured: MeasuredLoad, since_s: float) -> float:
        """The factor that fits the load, as far as it may grow."""
        present = self._past[-1].factors.get(name, 1.0)
        before = [past.factors.get(name, 1.0) for past in self._causes(measured.at_ms)]
        if measured.load > FULL_LOAD:
            ratio = max(TIGHT_LOAD / measured.load, LEAST_STEP)
            return max(LEAST_FACTOR, min(present, round(max(before) * ratio, 3)))
        if measured.load < RECOVERY_LOAD:
            fits = median(before) * TIGHT_LOAD / max(measured.load, LEAST_LOAD)
            return min(1.0, max(present, round(min(present + RECOVERY_PER_S * since_s, fits), 3)))
        return present

    def _causes(self, measured_ms: int) -> list[_Past]:
        ended = [past for past in self._past if past.at_ms <= measured_ms - LATEST_MS]
        later = [past for past in self._past if measured_ms - LATEST_MS < past.at_ms <= measured_ms - SOONEST_MS]
        return [*(ended[-1:] or [self._past[0]]), *later]


class ElasticLimits(Decider):
    """Decides from the loads in heartbeats. `quotas` are those in force.

    While some client may have no limit it decides nothing: those with a limit would make way for it.
    """

    name = "elastic"
    fresh_ms = FRESH_MS
    reads_heartbeats = True

    def __init__(self, quotas: Callable[[], Quotas]) -> None:
        self._quotas = quotas
        self._rule = ElasticRule()
        self._heard: dict[str, deque[float]] = {}
        self._loads: dict[str, MeasuredLoad] = {}
        self._brokers_bytes = 0  # in a record that names them all

    def on_heartbeat(self, heartbeat: DecidedHeartbeat, arrived_ms: int) -> None:
        """Note the load of a broker. Clocks may differ by FRESH_MS."""
        if heartbeat.load is None:
            return
        (load, reason), instance = heartbeat.load, heartbeat.instance
        named = f"{server_text(instance)}: {reason}"
        if instance not in self._loads:
            named_bytes = _bytes_of(instance, named)
            if self._brokers_bytes + named_bytes > _MAX_BROKERS_BYTES:
                return
            self._brokers_bytes += named_bytes
        heard = self._heard.setdefault(instance, deque(maxlen=_JUDGED_BY))
        heard.append(load)
        if not heartbeat.load_is_of_bytes:
            load = median(heard)
        elif load > FULL_LOAD:
            load = max(FULL_LOAD, min(load, sum(heard) / _JUDGED_BY))
        self._loads[instance] = MeasuredLoad(load, named, min(heartbeat.timestamp_ms, arrived_ms))

    def decide(self, now_ms: int) -> DecidedOverrides:
        """Decide from the loads so far."""
        self._loads = {name: each for name, each in self._loads.items() if now_ms - each.at_ms <= FRESH_MS}
        self._heard = {name: each for name, each in self._heard.items() if name in self._loads}
        self._brokers_bytes = sum(_bytes_of(name, each.reason) for name, each in self._loads.items())
        quotas = self._quotas()
        lacking = quotas.without_default()
        self.trouble = f"limits are strict: {no_default_text(lacking)}" if lacking else None
        if lacking:
            self._rule, overrides = ElasticRule(), []
        else:
            overrides = self._rule.decide(self._loads, now_ms)
        return DecidedOverrides(
            overrides, [Measured(name, each.load, FULL_LOAD, each.reason) for name, each in self._loads.items()]
        )


def _bytes_of(instance: str, reason: str) -> int:
    return len(msgspec.json.encode(Override("tighten", 0.001, gateway=instance, reason=reason)))
