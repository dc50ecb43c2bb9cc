"""Elastic quotas simulated: many tenants on brokers of a capacity, under the rule that the job runs.

Traffic is a flow: in each step a tenant gets what it asks for and what the bucket of its bound on the broker has, which
its share there fills; gateways know of traffic `delay_s` after it. Loads are those of the last second, a heartbeat
brings them once a second, and `delay_s` later the job decides; gateways apply it `delay_s` after that.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations

import numpy as np

from sluice.state.contract.gateway_topics import Override
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.quotas.overrides import DEFAULT_RESERVATION, TIGHT_BURST_S, are_alike, factor_of
from sluice.state.shares.counter_share import CORRECTION_S, GROWTH, MAX_CREDIT_S, MAX_DEBT_S, RAMP_S, SILENT_S, Metering
from sluice_elastic.tighten import ElasticRule, MeasuredLoad
from sluice_insight.arrays import Flags, Floats
from sluice_insight.live import NEAR_LIMIT
from sluice_lab.scenarios.closed_loop.situation import SKEW, STAY_S, Spread

SPAN_S = Metering.of(QuotaSettings()).span_ms / 1000.0
"""Shortest time that a meter covers."""

REQUEST_S = 0.1
"""Time in which a client's limit lets one of its requests through."""

_NEVER_S = -1e6


class FlowShares:
    """The shares of n counters on g gateways. Arrays are (n, g), limits (n, 1); times are seconds that only grow."""

    def __init__(self, counters: int, gateways: int, delay_s: float, step_s: float) -> None:
        shape = (counters, gateways)
        self._delay_s = delay_s
        self._step_s = step_s
        self._share = np.zeros(shape)
        self._share_s = np.full(shape, _NEVER_S)  # of the last charge
        self._throttled_s = np.full(shape, _NEVER_S)  # until when a client waited
        self._active_s = np.full(shape, _NEVER_S)  # of the first charge after an idle time
        self._charged = np.zeros(shape)  # as decided; fades, and divided by SPAN_S it is a rate
        self._charged_s = np.full(shape, _NEVER_S)
        self._decided_s = np.full((counters, 1), _NEVER_S)
        self._hungry_s = np.full(shape, _NEVER_S)  # until when a gateway wants more
        self._left = np.full((counters, 1), np.inf)
        self._undecided: deque[tuple[float, Floats, Flags]] = deque()

    def shares(self, limits: Floats, uses: Flags, now_s: float) -> Floats:
        """The shares now, where traffic `uses` them; elsewhere they stay as they were."""
        while self._undecided and self._undecided[0][0] <= now_s - self._delay_s + 1e-9:
            self._decide(*self._undecided.popleft(), limits, now_s)
        first = limits / self._share.shape[1]
        is_idle = now_s > np.maximum(self._share_s, self._throttled_s) + SPAN_S
        grown = self._share + limits * (now_s - self._share_s) / RAMP_S
        most = np.where(self._charged_s < self._active_s, np.maximum(first, self._share), grown)
        shares = np.minimum(self._targets(limits, now_s), np.where(is_idle, first, most))
        self._share = np.where(uses, shares, self._share)
        self._active_s[uses & is_idle] = now_s
        self._share_s[uses] = now_s
        return self._share

    def record(self, served: Floats, waited: Flags, now_s: float) -> None:
        """Charge what was served in a step, and where clients waited. At its end, they wait for a request more."""
        self._undecided.append((now_s, served, waited))
        self._throttled_s[waited] = now_s + self._step_s + REQUEST_S

    def _decide(self, at_s: float, served: Floats, waited: Flags, limits: Floats, now_s: float) -> None:
        is_charged = served > 0
        faded = self._charged * np.exp((self._charged_s - at_s) / SPAN_S) + served
        self._charged = np.where(is_charged, faded, self._charged)
        self._charged_s[is_charged] = at_s
        self._decided_s[is_charged.any(axis=1)] = at_s
        self._hungry_s[waited] = now_s + SPAN_S
        left = self._left + limits * self._step_s - served.sum(axis=1, keepdims=True)
        self._left = np.clip(left, -MAX_DEBT_S * limits, MAX_CREDIT_S * limits)

    def _targets(self, limits: Floats, now_s: float) -> Floats:
        """The shares that max-min fairness gives the gateways."""
        gateways = self._share.shape[1]
        if gateways == 1:
            return limits
        floor = limits / (2 * gateways)
        ages_s = self._decided_s - self._charged_s
        rates = self._charged / SPAN_S * np.exp(-ages_s * (1 / SPAN_S + 1 / SILENT_S))
        is_hungry = self._hungry_s > now_s
        content = _of_others(np.where(is_hungry, 0.0, rates))
        wanted = _of_others(np.where(is_hungry, np.maximum(floor, GROWTH * rates), 0.0))
        free = limits + np.minimum(self._left, MAX_CREDIT_S * limits) / CORRECTION_S - sum(content)
        return np.maximum(floor, equal_parts(free, wanted))


def _of_others(amounts: Floats) -> list[Floats]:
    """For each gateway the amount of the next one, of the one after that, and so on."""
    return [np.roll(amounts, -step, axis=1) for step in range(1, amounts.shape[1])]


def equal_parts(free: Floats, wanted: Sequence[Floats]) -> Floats:
    """An equal part of what is free for one more than want these amounts; those that want less get what they want.

    To serve any of them whole, and the rest alike, leaves at most as much as to serve the right ones does.

    >>> equal_parts(np.array([1000.0]), [np.array([600.0]), np.array([100.0])])
    array([450.])
    """
    parts = free / (1 + len(wanted))
    for count in range(1, len(wanted) + 1):
        for whole in combinations(wanted, count):
            parts = np.maximum(parts, (free - sum(whole)) / (1 + len(wanted) - count))
    return parts


BURST_S = 3.0
"""Burst of a broker's bucket, in seconds of its share."""

Demand = Callable[[float], Floats]
"""Demand of each tenant on each broker at a second, (tenants, brokers), in bytes/s."""


@dataclass(frozen=True)
class Tenants:
    """Quotas of n tenants in bytes/s, with reservations, (n,) each; without any, those by default."""

    quotas: Floats
    reservations: Floats | None = None

    def parts(self, factors: Sequence[float]) -> Floats:
        """The parts of their shares that brokers with these factors let through (n, brokers), as `bound_of_share` says.

        >>> Tenants(np.array([100.0]), reservations=np.array([40.0])).parts([1.0, 0.7, 0.3]).tolist()
        [[1.0, 0.7, 0.4]]
        """
        least = DEFAULT_RESERVATION if self.reservations is None else (self.reservations / self.quotas)[:, None]
        parts: Floats = np.maximum(np.array([factors]), least)
        return parts


@dataclass
class Flow:
    """Traffic of a simulation: of each step that was run, by broker, and by tenant since `begin`."""

    by_broker: list[Floats] = field(default_factory=list)
    overrides: list[list[Override]] = field(default_factory=list)
    served: Floats = field(default_factory=lambda: np.zeros(0))
    waited: Flags = field(default_factory=lambda: np.zeros(0, bool))


class ElasticCluster:
    """Brokers with capacities in bytes/s, their tenants, and the job. `run` goes on from where the last one ended."""

    def __init__(
        self,
        tenants: Tenants,
        capacities: Sequence[float],
        delay_s: float = 0.7,
        step_s: float = 0.1,
        burst_s: float = BURST_S,
    ) -> None:
        self._tenants = tenants
        self._burst_s = burst_s
        self._capacities = np.array(capacities, float)
        self._step_s = step_s
        self._delay = round(delay_s / step_s)
        self._steps = 0
        self._rule = ElasticRule()
        self._shares = FlowShares(len(tenants.quotas), len(capacities), delay_s, step_s)
        self._limits: Floats = tenants.quotas[:, None]
        self._tokens = np.full((len(tenants.quotas), len(capacities)), np.inf)
        self._last_second: deque[Floats] = deque(maxlen=max(1, round(1 / step_s)))
        self._measured: deque[tuple[int, dict[str, MeasuredLoad]]] = deque()
        self._decided: deque[tuple[int, list[Override]]] = deque()
        self._overrides: list[Override] = []
        self._parts, self._bursts = self._applied(self._overrides)

    def run(self, seconds: float, demand: Demand) -> Flow:
        """The traffic of some seconds. `served` and `waited` are sums over them."""
        flow = Flow(served=np.zeros(len(self._tenants.quotas)), waited=np.zeros(len(self._tenants.quotas), bool))
        for _ in range(round(seconds / self._step_s)):
            served, waited = self._step(demand(self._steps * self._step_s) * self._step_s)
            flow.by_broker.append(served.sum(axis=0) / self._step_s)
            flow.served += served.sum(axis=1)
            flow.waited |= waited
            self._control()
            self._steps += 1
            flow.overrides.append(self._overrides)
        return flow

    def _step(self, wanted: Floats) -> tuple[Floats, Flags]:
        now_s, uses = self._steps * self._step_s, wanted > 0
        bounds = self._shares.shares(self._limits, uses, now_s) * self._parts
        kept = np.where(uses, np.minimum(self._tokens, bounds * self._bursts), self._tokens)
        self._tokens = kept + bounds * self._step_s
        served = np.minimum(wanted, self._tokens)
        self._tokens -= served
        waited = served < wanted * (1 - 1e-9)
        self._shares.record(served, waited, now_s)
        self._last_second.append(served.sum(axis=0))
        return served, waited.any(axis=1)

    def _control(self) -> None:
        """Heartbeats once a second, the job's decision on those that have arrived, and its arrival at the gateways."""
        steps_per_s = self._last_second.maxlen or 1
        if self._steps % steps_per_s == steps_per_s - 1:
            loads = sum(self._last_second) / (len(self._last_second) * self._step_s) / self._capacities
            at_ms = self._now_ms()
            measured = {
                f"b-{number}": MeasuredLoad(float(load), f"b-{number}: in {load:.2f} of capacity", at_ms)
                for number, load in enumerate(np.atleast_1d(loads))
            }
            self._measured.append((self._steps + self._delay, measured))
        while self._measured and self._measured[0][0] <= self._steps:
            _, measured = self._measured.popleft()
            overrides = self._rule.decide(measured, self._now_ms())
            self._decided.append((self._steps + self._delay, overrides))
        while self._decided and self._decided[0][0] <= self._steps:
            _, overrides = self._decided.popleft()
            if not are_alike(overrides, self._overrides):
                self._parts, self._bursts = self._applied(overrides)
            self._overrides = overrides

    def _applied(self, overrides: list[Override]) -> tuple[Floats, Floats]:
        """Parts of the shares by tenant and broker, and bursts by broker in seconds."""
        of_brokers = [factor_of(overrides, f"b-{number}") for number in range(len(self._capacities))]
        bursts = np.array([self._burst_s if factor == 1.0 else TIGHT_BURST_S for factor in of_brokers])
        return self._tenants.parts(of_brokers), bursts

    def _now_ms(self) -> int:
        return 1_000 + round(self._steps * self._step_s * 1_000)


def settled(traffic: Sequence[Floats], step_s: float, after_s: float) -> float:
    """The largest deviation of a broker's traffic in any second after `after_s` from its mean then, as a part of that.

    >>> settled([np.array([9.0])] * 10 + [np.array([1.0])] * 10 + [np.array([1.1])] * 10, step_s=0.1, after_s=1.0)
    0.0476
    """
    per_s = round(1 / step_s)
    rows = np.array(traffic)[round(after_s / step_s) :]
    seconds = rows[: len(rows) // per_s * per_s].reshape(-1, per_s, rows.shape[1]).mean(axis=1)
    mean = seconds.mean(axis=0)
    used = mean > 0
    return round(float(np.max(np.abs(seconds[:, used] - mean[used]) / mean[used], initial=0.0)), 4)


@dataclass(frozen=True)
class Week:
    """Figures of a simulated week.

    `within` is the part of the tenants with at most 5 minutes a week in which they waited below their quota: of all,
    and by the spread of their traffic. For `within_by_shares` only the minutes without a tightened broker count.
    `worst_minutes` are the most of one tenant. `mean_load` is the traffic over the capacity, `tight` the part of the
    minutes in which a broker was tightened.
    """

    within: dict[str, float]
    within_by_shares: dict[str, float]
    worst_minutes: float
    mean_load: float
    tight: float


@dataclass(frozen=True)
class Figures:
    """Figures of the simulation: overload, random loads, and a week of many tenants.

    `traffic_after_5s` is the traffic of a broker that is asked for 1.3 times its capacity, over the capacity: the most
    in any second after 5 s. `least_of_reservation` is the least of any tenant over min(demand, reservation), and
    `off_proportion` the largest deviation of a tenant's traffic from its part by quota.
    `unsettled` counts the random loads that aren't within 5 % of their mean from the 15th second on; `worst_deviation`
    is that of the worst.
    """

    traffic_after_5s: float
    least_of_reservation: float
    off_proportion: float
    unsettled: int
    worst_deviation: float
    week: Week


def overloaded(tenants: int = 20, seed: int = 1) -> tuple[float, float, float]:
    """A broker that is asked for 1.3 times its capacity of 100 MB/s, by tenants who ask for their quotas and more."""
    random = np.random.default_rng(seed)
    quotas = random.uniform(1.0, 10.0, tenants)
    quotas *= 120e6 / quotas.sum()
    asked = quotas * 1.3 * 100e6 / quotas.sum()
    cluster = ElasticCluster(Tenants(quotas), [100e6])
    cluster.run(10, lambda _: (asked * 0.5)[:, None])
    cluster.run(5, lambda _: asked[:, None])
    later = cluster.run(55, lambda _: asked[:, None])
    per_s = np.array(later.by_broker)[:, 0].reshape(-1, 10).mean(axis=1)
    rates = later.served / 55
    reserved = np.minimum(asked, 0.5 * quotas)
    of_quota = rates / quotas
    proportion = float(np.max(np.abs(of_quota / of_quota.mean() - 1)))
    return float(per_s.max() / 100e6), float((rates / reserved).min()), proportion


def random_load(seed: int, tenants: int = 30, brokers: int = 3) -> float:
    """Deviation of the traffic of a random constant load after 15 s, for a minute.

    The quotas together are 0.2 to 2 times the capacity, reservations a third to all of them, demands 0 to 4 times.
    """
    random = np.random.default_rng(seed)
    capacities = random.uniform(50e6, 150e6, brokers)
    quotas = random.pareto(1.5, tenants) + 0.1
    quotas *= random.uniform(0.2, 2.0) * capacities.sum() / quotas.sum()
    reservations = quotas / random.uniform(1.0, 3.0, tenants)
    wanted = quotas[:, None] * random.uniform(0.0, 4.0, tenants)[:, None] * random.dirichlet([2.0] * brokers, tenants)
    flow = ElasticCluster(Tenants(quotas, reservations), capacities.tolist()).run(75, lambda _: wanted)
    return settled(flow.by_broker, 0.1, 15)


_WEEK = 7 * 24 * 60
"""Minutes of a week."""

_MEAN_LEVEL = 0.05 * 2.25 + 0.95 * 0.1
"""Mean demand of a tenant of the week, over its quota."""

_MOVE_MINUTES = 10
"""Mean stay at a broker of a tenant that moves."""

_SPREADS = (Spread.EVEN, Spread.SKEW, Spread.MOVE, Spread.HOP)


def week(tenants: int, minutes: int, mean_demand: float, seed: int = 1) -> Week:
    """A week of tenants on three brokers, in so many minutes. They ask for `mean_demand` of the capacity on average.

    They ask for 0.4 times more or less by the time of day, and most of the time for a tenth of their quotas: one in 20
    asks for 0.5 to 4 times its quota, for 3 minutes on average. A quarter
    each spread their traffic at random, skew it, move between brokers, and hop.
    """
    random = np.random.default_rng(seed)
    quotas = np.minimum(random.pareto(1.5, tenants) + 0.1, 10.0)
    quotas *= mean_demand / _MEAN_LEVEL * 300e6 / quotas.sum()
    numbers, home, one = np.arange(tenants), random.integers(3, size=tenants), np.eye(3)
    is_of = {spread: numbers % len(_SPREADS) == number for number, spread in enumerate(_SPREADS)}
    moves, hops = is_of[Spread.MOVE], is_of[Spread.HOP]
    spreads = np.repeat(random.dirichlet([5.0] * 3, tenants)[None], 3, axis=0)  # at three stays of those that hop
    spreads[:, is_of[Spread.SKEW]] = np.where(one > 0, SKEW, (1 - SKEW) / 2)[home[is_of[Spread.SKEW]]]
    spreads[:, hops] = [one[(home[hops] + stay) % 3] for stay in range(3)]
    cluster = ElasticCluster(Tenants(quotas), [100e6] * 3, delay_s=1.0, step_s=1.0)
    level, until = np.zeros(tenants), np.zeros(tenants)
    used, waits = np.zeros((minutes, tenants)), np.zeros((minutes, tenants), bool)
    loads, tight = np.zeros(minutes), np.zeros(minutes, bool)
    for minute in range(minutes):
        bursts = np.where(random.uniform(size=tenants) < 0.05, random.uniform(0.5, 4.0, tenants), 0.0)
        level = np.where(until <= minute, np.where(bursts > 0, bursts, random.exponential(0.1, tenants)), level)
        until = np.where(until <= minute, minute + np.ceil(random.exponential(3.0, tenants)), until)
        home = np.where(random.uniform(size=tenants) < 1 / _MOVE_MINUTES, random.integers(3, size=tenants), home)
        spreads[:, moves] = one[home[moves]]
        rhythm = 1.0 + 0.4 * np.sin(2 * np.pi * minute / (24 * 60))
        flow = cluster.run(60, partial(_hopping, (quotas * level * rhythm)[:, None] * spreads))
        used[minute], waits[minute] = flow.served, flow.waited
        loads[minute] = np.mean(flow.by_broker) / 100e6
        tight[minute] = any(each.kind == "tighten" for overrides in flow.overrides for each in overrides)
    below = _minutes_below(used, waits, quotas)
    groups = {"all": numbers >= 0} | is_of
    return Week(
        _within(below, groups),
        _within(below & ~tight[:, None], groups),
        float(below.sum(axis=0).max()) * _WEEK / minutes,
        round(float(loads.mean()), 3),
        round(float(tight.mean()), 4),
    )


def _hopping(wanted: Floats, time_s: float) -> Floats:
    """The demand at a time, of those at the stays of clients that hop."""
    stay: Floats = wanted[int(time_s // STAY_S) % len(wanted)]
    return stay


def _minutes_below(used: Floats, waits: Flags, quotas: Floats) -> Flags:
    """The minutes in which a tenant waited below its quota."""
    below = waits.copy()
    for tenant, quota in enumerate(quotas.tolist()):
        of_tenant = [(minute, value, quota) for minute, value in enumerate(used[:, tenant].tolist())]
        below[list(_full_minutes(of_tenant, len(used))), tenant] = False
    return below


def _full_minutes(used: Sequence[tuple[int, float, float]], end: int) -> set[int]:
    """The minutes before `end` in which a counter is at its limit.

    `used` are the minutes in which it was charged, in their order: the minute, the charges, and its limit per second.

    Of 150 charged in a minute in which 60 are allowed, 90 are made up for in the two minutes after it:

    >>> sorted(_full_minutes([(10, 150.0, 1.0), (14, 54.0, 1.0), (15, 53.0, 1.0)], end=20))
    [10, 11, 12, 14]
    """
    full: set[int] = set()
    excess, allowed, after = 0.0, 0.0, 0
    for minute, value, limit in [*used, (end, 0.0, 0.0)]:
        while excess > 0.0 and after < minute:  # minutes without charges
            full.add(after)
            excess, after = excess - allowed, after + 1
        excess, allowed, after = max(0.0, excess), 60.0 * limit, minute + 1
        if minute < end and (excess > 0.0 or value >= NEAR_LIMIT * allowed):
            full.add(minute)
        excess += value - allowed
    return full


def _within(below: Flags, groups: Mapping[str, Flags]) -> dict[str, float]:
    """The part of the tenants of each group with at most 5 minutes a week."""
    is_within = below.sum(axis=0) * _WEEK / len(below) <= 5
    return {str(name): round(float(is_within[of].mean()), 4) for name, of in groups.items()}


def figures(tenants: int, minutes: int, loads: int, mean_demand: float) -> Figures:
    """All of them: of a week of so many minutes and tenants, and of so many random loads."""
    deviations = [random_load(seed) for seed in range(loads)]
    unsettled = sum(deviation > 0.05 for deviation in deviations)
    found = week(tenants, minutes, mean_demand)
    return Figures(*overloaded(), unsettled, max(deviations), found)
