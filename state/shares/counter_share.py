"""A gateway's share of one counter: the rate it may let through before the decisions on its requests arrive.

Each gateway charges its own traffic at once, against its share of the limit. All gateways read the same sums of what is
decided (`sluice.state.shares.sums`), so each computes its own share (max-min fairness): the limit, less the rates of
gateways that want nothing more, is divided equally among those that do. Use above or below the limit is made up for
later.
"""

from collections.abc import Sequence
from math import exp, inf

import msgspec

from sluice.state.arithmetic.counter import (
    Charge,
    EntityCounters,
    Outcome,
    bounded_wait_ms,
    charge_mutations,
    wait_over_limit_ms,
)
from sluice.state.arithmetic.rounding import divide, round_half_up
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.contract.gateway_topics import CounterSum, FetchSizes, SummedGateway
from sluice.state.contract.records import MAX_APPLIED_MS
from sluice.state.quotas.kinds import Family, QuotaSettings, Window
from sluice.state.shares.alive import AliveGateways
from sluice.state.shares.read_sums import ReadSums

CORRECTION_S = 30.0
"""Seconds over which the gateways together make up for use above or below the limit."""

MAX_DEBT_S = 10.0
"""Largest use above the limit that is made up for, in seconds of the limit."""

MAX_CREDIT_S = 5.0
"""Largest unused amount that is made up for, in seconds of the limit: the burst of a fresh bucket."""

MAX_PACE_DEBT_S = 3_600.0
"""Most that a gateway's own bucket may be below zero, in seconds of its share: the default of its `max_wait_ms`."""

GROWTH = 4.0
"""Rate that a throttled gateway is taken to want, as a multiple of the rate it uses."""

RAMP_S = 5.0
"""Seconds in which a share may grow by the whole limit. It shrinks at once."""

SILENT_S = 2.5
"""Seconds in which the rate of a silent gateway fades to 1/e: nothing was charged there since, and the wait that it had
applied is over. So who moves on leaves its part to the others; what they take too much is made up for."""

TARGET_MS = 100
"""Longest time until a share is computed again; a decision on its counter and a change of gateways are others."""

REPEATED_BATCHES = 100
"""Most micro-batches from the newest one back to a repeated one. A lower number is that of a job that goes on from a
backup of its checkpoint, whatever its time: clocks may be wrong."""

_SIZE_WEIGHT = 0.02
"""Weight of the newest fetch in the mean size of the counter's fetches."""

_MUTATIONS = Family.MUTATIONS
_REQUEST_TIME = Family.REQUEST_TIME
"""Looked up for every charge, which is slow on an Enum."""

_NONE_REFUSED: Sequence[bool] = ()

ANONYMOUS = ""
"""Stands for all gateways that give no `instance`: they don't charge inline, and it isn't known if they are alive."""


class Metering(msgspec.Struct, frozen=True, gc=False):
    """Constants of all meters of a gateway, computed from the settings once instead of at each charge.

    `span_ms` is the shortest time that a meter covers: S-1 windows. `burst_s` is the burst of a bucket in seconds of
    the share: half of what a meter lets through at once. A meter lets nothing more through then until its windows are
    over; a bucket goes on with the share.
    """

    settings: QuotaSettings
    window: Window
    span_ms: int
    burst_s: float

    @classmethod
    def of(cls, settings: QuotaSettings) -> "Metering":
        """The constants of these settings.

        >>> metering = Metering.of(QuotaSettings())
        >>> metering.span_ms, metering.burst_s
        (10000, 5.0)
        """
        window = settings.client_window
        span_ms = max(1, window.samples - 1) * window.window_ms
        return cls(settings, window, span_ms, span_ms // 2 / 1000.0)


class InlineCharge(msgspec.Struct, gc=False):
    """Result of a charge inline.

    `limit` and `share` are in units of the quota per second, `wait_ms` is not clamped; `refused` has one flag for each
    topic of a mutation request.
    """

    limit: float
    share: float
    wait_ms: int
    refused: Sequence[bool]


class GatewayUse(msgspec.Struct, gc=False):
    """A gateway's use of one counter, as decided."""

    charged: float = 0.0  # decays with the window: divided by its length it is a rate
    charged_ms: int = 0
    waiting_until_ms: int = 0
    hungry_until_ms: int = 0

    def record(self, faded: float, event_ms: int, span_s: float, applied_ms: int = 0) -> None:
        """Add decided charges, faded to the time of the newest of them, and the wait that the gateway had applied then.

        >>> use = GatewayUse()
        >>> use.record(1_000.0, event_ms=0, span_s=10.0)
        >>> use.record(1_000.0, event_ms=10_000, span_s=10.0)
        >>> round(use.charged)
        1368
        """
        self.waiting_until_ms = max(self.waiting_until_ms, event_ms + applied_ms)
        age_ms = event_ms - self.charged_ms
        if age_ms > 0:
            self.charged *= exp(-age_ms / 1000.0 / span_s)
            self.charged_ms = event_ms
        elif age_ms < 0:
            faded *= exp(age_ms / 1000.0 / span_s)
        self.charged += faded

    def rate(self, decided_ms: int, span_s: float) -> float:
        """The rate at a time until which the counter is decided. It fades to 1/e in `span_s`, silent in SILENT_S.

        >>> use = GatewayUse(charged=1_000.0, charged_ms=10_000, waiting_until_ms=15_000)
        >>> [round(use.rate(decided_ms, span_s=10.0)) for decided_ms in (10_000, 15_000, 17_000)]
        [100, 61, 22]
        """
        age_s = max(0, decided_ms - self.charged_ms) / 1000.0
        silent_s = max(0, decided_ms - self.waiting_until_ms) / 1000.0
        return self.charged / span_s * exp(-age_s / span_s - silent_s / SILENT_S)


_NOBODY: dict[str, GatewayUse] = {}
"""The others of a counter that only this gateway charges: one for all of them, which stays empty."""


class CounterShare(msgspec.Struct, gc=False):
    """One counter on one gateway: its own meter, the use of the others, its share and its waits. Reads no clock.

    A single gateway meters as Kafka does, on the whole limit. With others it paces its traffic with a bucket
    of the same burst, (S-1) * W * share: requests that are large for a share would leave the windows of a meter
    unused, or fill them twice.

    `own_charged` and `others_decided` are sums since the object exists, in units of the quota: once all is decided, any
    two gateways agree on their sum. `throttled_until_ms` is the end of the last wait that was applied inline. `limit`
    is the one of the last charge.
    """

    own_charged: float = 0.0
    others_decided: float = 0.0
    throttled_until_ms: int = 0
    limit: float = 0.0
    _meter: SampledRate | None = None  # of one's own traffic, from the first charge on
    _mutations: EntityCounters | None = None  # the same and a bucket, for a counter of mutations
    _pace_tokens: float = inf
    _pace_ms: int = 0
    others: dict[str, GatewayUse] = msgspec.field(default_factory=lambda: _NOBODY)
    _left_tokens: float = inf  # of all gateways, by the decisions
    _left_ms: int = 0
    _decided_ms: int = 0  # newest time of a decided request
    own_decided_ms: int = -1  # the same of one's own requests
    _own: GatewayUse | None = None  # one's own use, as decided
    fetch_size: float = 0.0
    _active_since_ms: int = 0
    _last_charge_ms: int | None = None
    _share: float = 0.0
    _share_ms: int = 0
    _target_share: float = 0.0
    _target_limit: float = 0.0
    _target_count: int = 0
    _target_until_ms: int = 0
    _job_id: str | None = None  # of the newest sum that was applied
    _batch: int = -1
    _batch_ms: int = 0

    def is_new(self, job_id: str | None, batch: int, decided_at_ms: int = 0) -> bool:
        """Note a sum of this job's micro-batch. Returns False if it was applied before: the micro-batch was repeated.

        A repeated one is decided at the time at which it was begun first. One with a lower number and a later time is
        of a job that goes on from a backup of its checkpoint, and is another one.

        >>> counter = CounterShare()
        >>> counter.is_new("3f", 7), counter.is_new("3f", 7), counter.is_new("3f", 8), counter.is_new("4a", 0)
        (True, False, True, True)
        >>> counter.is_new("4a", 5_000), counter.is_new("4a", 4_901), counter.is_new("4a", 4_900)
        (True, False, True)
        >>> [counter.is_new("5b", *each) for each in ((30, 9_000), (30, 9_000), (12, 9_700), (12, 9_700), (13, 9_800))]
        [True, False, True, False, True]
        """
        is_known = self._batch - REPEATED_BATCHES < batch <= self._batch and job_id == self._job_id
        if is_known and decided_at_ms <= self._batch_ms:
            return False
        self._job_id, self._batch, self._batch_ms = job_id, batch, decided_at_ms
        return True

    def reset(self) -> None:
        """Forget all charges; the sums that were applied stay known."""
        fresh = CounterShare(_job_id=self._job_id, _batch=self._batch, _batch_ms=self._batch_ms)
        for field in self.__struct_fields__:
            setattr(self, field, getattr(fresh, field))

    def share(self, limit: float, gateways: AliveGateways, metering: Metering, now_ms: int) -> float:
        """This gateway's share of the limit now, in units of the quota per second.

        It begins with limit / N, for as long as the gateway's own first charge isn't decided, and grows to what the
        others leave within RAMP_S.
        """
        return self._share_now(limit, gateways, metering, now_ms, self._is_idle(metering.span_ms, now_ms))

    def _share_now(self, limit: float, gateways: AliveGateways, metering: Metering, now_ms: int, idle: bool) -> float:
        count = gateways.count
        if count == 1 and not self.others:
            target = limit
        elif now_ms < self._target_until_ms and limit == self._target_limit and count == self._target_count:
            target = self._target_share
        else:
            target = self._target_share = self._target(limit, gateways, metering, now_ms)
            self._target_limit, self._target_count = limit, count
            self._target_until_ms = now_ms + TARGET_MS
        first = limit / count
        if idle:
            self._share = min(target, first)
        elif self.own_decided_ms < self._active_since_ms:
            self._share = min(target, max(first, self._share))
        else:
            known_ms = gateways.known_until_ms(now_ms)
            self._share = min(target, self._share + limit * max(0, known_ms - self._share_ms) / 1000.0 / RAMP_S)
        self._share_ms = now_ms
        return self._share

    def _limited(self, limit: float, now_ms: int) -> float:
        """The limit, noted: a wait was shortened when it was raised, and doesn't come back."""
        if limit > self.limit:
            self.throttled_until_ms = min(self.throttled_until_ms, now_ms)
        self.limit = limit
        return limit

    def charge(
        self,
        charge: Charge,
        gateways: AliveGateways,
        metering: Metering,
        now_ms: int,
        fraction: float | None = None,
        charged: Outcome | None = None,
    ) -> InlineCharge:
        """Charge a request that was served here. `charge.limit` is the whole limit, which must be one.

        `fraction` is that of its share which this gateway lets through while it is tightened: then the counter is paced
        on a single gateway too.
        `charged` is the outcome of mutations that were charged already, together with another counter (`mutations`).
        """
        limit = self._limited(charge.limit or 0.0, now_ms)
        last_ms, is_alone = self._last_charge_ms, gateways.count == 1
        if last_ms is not None and now_ms < last_ms:  # as for the job, time never goes back
            now_ms = last_ms
        idle = last_ms is None or (now_ms > last_ms + metering.span_ms and self._is_idle(metering.span_ms, now_ms))
        if is_alone and self._share == limit and not self.others:  # it can't grow, and nothing makes it smaller
            share, self._share_ms = limit, now_ms
        else:
            share = self._share_now(limit, gateways, metering, now_ms, idle)
        if fraction is not None:
            share, is_alone = share * fraction, False
        if idle:
            self._active_since_ms = now_ms
        self._last_charge_ms = now_ms
        family, refused = charge.kind.family, _NONE_REFUSED
        if family is _MUTATIONS:
            if charged is None:
                asked = [self.mutations(charge, share)]
                (charged,) = charge_mutations(asked, now_ms, metering.settings.controller_window)
            value, wait_ms, refused = charged.value, charged.wait_ms, charged.refused
        else:
            value = sum(charge.amounts)
            before = self._take_pace(charge, value, share, metering, now_ms)  # of one gateway too: others may come
            meter = self._meter
            if meter is None:
                meter = self._meter = SampledRate()
            if is_alone:
                wait_ms = _metered_ms(charge, meter, share, metering.window, now_ms)
            else:
                meter.record(value, metering.window, now_ms)
                wait_ms = _paced_ms(charge, value, before, share, metering)
        self.own_charged += value
        if wait_ms > 0:
            self.throttled_until_ms = max(self.throttled_until_ms, now_ms + wait_ms)
        return InlineCharge(limit, share, wait_ms, refused)

    def mutations(self, charge: Charge, share: float) -> tuple[EntityCounters, Charge]:
        """The bucket of mutations, and the charge on it at a broker with this share as its limit."""
        if self._mutations is None:
            self._mutations = EntityCounters()
        return self._mutations, Charge(charge.kind, charge.level, share, False, charge.amounts, charge.strict)

    def take_back(self, charge: Charge, metering: Metering, now_ms: int) -> None:
        """Take back the bytes of a Fetch that was charged just now, because its response goes out empty (KIP-219)."""
        value = charge.amounts[0]
        self.own_charged -= value
        if self._meter is not None:
            self._meter.record(-value, metering.window, max(now_ms, self._last_charge_ms or 0))
        self._pace_tokens += value

    def on_sum(
        self,
        decided: CounterSum,
        of: ReadSums,
        gateways: AliveGateways,
        metering: Metering,
        now_ms: int,
        max_wait_ms: int = MAX_APPLIED_MS,
    ) -> None:
        """Apply the sum of the charges that a micro-batch decided on this counter, of a record that arrived now.

        A time that is later than now counts as that, so that no record reaches into the future.
        """
        self._target_until_ms = 0
        last_ms = of.base_ms + decided.until_ms
        until_ms = min(last_ms, now_ms)
        if decided.limit is not None:
            if decided.fetches is not None:
                self._note_sizes(decided.fetches, decided.limit * _meter_s(metering.window))
            value = 0.0
            for charged in decided.by_gateway:
                value += charged.value
            self._settle(decided.limit, value, min(of.base_ms + decided.from_ms, until_ms), until_ms, metering)
        for charged in decided.by_gateway:
            gateway = of.gateways[charged.gateway]
            charged_ms = min(last_ms - charged.age_ms, now_ms)
            faded = charged.value if charged.faded is None else charged.faded
            applied_ms = min(charged.applied_ms, max_wait_ms)
            if gateways.is_own(gateway.instance):
                self.own_decided_ms = max(self.own_decided_ms, charged_ms)
                if self._own is None:
                    self._own = GatewayUse()
                self._own.record(faded, charged_ms, metering.span_ms / 1000.0, applied_ms)
                continue
            self.others_decided += charged.value
            other = self._other(gateway, gateways)
            if other is not None:
                other.record(faded, charged_ms, metering.span_ms / 1000.0, applied_ms)
                if applied_ms:
                    other.hungry_until_ms = max(other.hungry_until_ms, now_ms + max(applied_ms, metering.span_ms))

    def _other(self, gateway: SummedGateway, gateways: AliveGateways) -> GatewayUse | None:
        """The use of another gateway as far as it is known; None for one that isn't alive."""
        instance = gateway.instance
        if instance is None or not gateway.charges_inline:
            instance = ANONYMOUS  # it shares nothing, and no heartbeat says if it is alive
        elif not gateways.is_alive(instance):
            return None
        others = self.others
        if others is _NOBODY:
            others = self.others = {}
        other = others.get(instance)
        if other is None:
            if len(others) > gateways.count:
                self._forget_gone(gateways)
            other = others[instance] = GatewayUse()
        return other

    def rate(self, metering: Metering, now_ms: int) -> float:
        """The rate of this gateway's own traffic, in units of the quota per second."""
        if self._mutations is not None:
            return next((rate.peek(metering.window, now_ms) for rate in self._mutations.rates.values()), 0.0)
        return 0.0 if self._meter is None else self._meter.peek(metering.window, now_ms)

    def _is_idle(self, span_ms: int, now_ms: int) -> bool:
        """True if no request was charged during the last full window. A throttled client is not idle."""
        last_ms = self._last_charge_ms
        return last_ms is None or (now_ms > last_ms + span_ms and now_ms > self.throttled_until_ms + span_ms)

    def _target(self, limit: float, gateways: AliveGateways, metering: Metering, now_ms: int) -> float:
        """The share that max-min fairness gives this gateway, by the present use of the others.

        A contented gateway keeps its rate. A hungry one, which was throttled not long ago, gets an equal part, but at
        most GROWTH times its rate: clients that send a large request now and then are throttled too, and want nothing
        more.

        Without decisions each gateway would give its clients all that was left unused at the last, N times the limit in
        the end. So none has more than its own last rate and an equal part of the rest then: together that is the limit.
        """
        known_ms, span_s = gateways.known_until_ms(now_ms), metering.span_ms / 1000.0
        floor = limit / (2 * gateways.count)
        free, wanted, used = limit, [], 0.0
        if self.others:
            self._forget_gone(gateways)
        for other in self.others.values():
            rate = other.rate(self._decided_ms, span_s)
            used += rate
            if other.hungry_until_ms > known_ms:
                wanted.append(max(floor, GROWTH * rate))
            else:
                free -= rate
        if gateways.count > 1:
            left = self._left(limit, gateways.decided_ms)
            free += (left if known_ms == now_ms else min(0.0, left)) / CORRECTION_S
        part = equal_part(free, wanted) if wanted else free
        if known_ms < now_ms:
            own = 0.0 if self._own is None else self._own.rate(self._decided_ms, span_s)
            part = min(part, own + (limit - used - own) / gateways.count)
        return max(floor, part)

    def _forget_gone(self, gateways: AliveGateways) -> None:
        """Forget the gateways that are no longer alive."""
        for instance in [each for each in self.others if each is not ANONYMOUS and not gateways.is_alive(each)]:
            del self.others[instance]

    def _left(self, limit: float, decided_ms: int) -> float:
        """The rest for all gateways together at a time up to which all is decided; below zero it is a debt."""
        since_s = max(0, decided_ms - self._left_ms) / 1000.0
        return min(self._left_tokens + limit * since_s, limit * MAX_CREDIT_S)

    def _settle(self, limit: float, value: float, from_ms: int, until_ms: int, metering: Metering) -> None:
        """Take charges that were made between two times from the bucket that all gateways share."""
        left = self._left_tokens
        if not self._decided_ms:  # the bursts of the gateways' buckets
            left, self._left_ms = limit * metering.burst_s, from_ms
        usable = limit
        if self.fetch_size:
            usable -= self.fetch_size / _meter_s(metering.window)
        most = usable * MAX_CREDIT_S
        from_ms = max(from_ms, self._left_ms)
        until_ms = self._decided_ms = max(until_ms, from_ms, self._decided_ms)
        left = min(most, left + usable * ((from_ms - self._left_ms) / 1000.0))
        left = min(most, left - value + usable * ((until_ms - from_ms) / 1000.0))
        self._left_tokens, self._left_ms = max(left, -limit * MAX_DEBT_S), until_ms

    def _note_sizes(self, fetches: FetchSizes, most: float) -> None:
        """Note the mean size of fetches: a broker refuses the one in each window that would exceed the quota.

        None counts as larger than a broker makes one: a forged one would take the share for minutes.
        """
        size = min(fetches.bytes / fetches.count, most)
        kept = (1.0 - _SIZE_WEIGHT) ** fetches.count if self.fetch_size else 0.0
        self.fetch_size = size + (self.fetch_size - size) * kept

    def _take_pace(self, charge: Charge, value: float, share: float, metering: Metering, now_ms: int) -> float:
        """Take a charge from the bucket that refills with the share. Returns the tokens before."""
        since_ms = now_ms - self._pace_ms
        before, burst = self._pace_tokens, metering.burst_s * share
        if since_ms > 0:
            before += share * (since_ms / 1000.0)
        if before > burst:
            before = burst
        after = before - value
        if after < 0.0:
            most = share * MAX_PACE_DEBT_S
            if charge.kind.family is _REQUEST_TIME:  # Kafka forgets a long hang within a window
                most = min(most, self.limit * MAX_DEBT_S)
            after = max(after, -most)
        self._pace_tokens, self._pace_ms = after, now_ms
        return before


def _meter_s(window: Window) -> float:
    return window.samples * window.window_ms / 1000.0


def _metered_ms(charge: Charge, meter: SampledRate, share: float, window: Window, now_ms: int) -> int:
    """Record a charge of bytes or request time. Returns the wait of a broker with this share as its limit."""
    amounts = charge.amounts
    meter.record(amounts[0], window, now_ms)
    observed, window_ms = meter.observe(window, now_ms)
    if charge.kind.family is not _REQUEST_TIME:
        return wait_over_limit_ms(observed, share, window_ms) if observed > share else 0
    if amounts[1]:  # network time is recorded without a check
        meter.record(amounts[1], window, now_ms)
    return bounded_wait_ms(observed, share, window_ms, window) if observed > share else 0


def _paced_ms(charge: Charge, value: float, before: float, share: float, metering: Metering) -> int:
    """The wait until the bucket, which had `before` tokens, is back at 0, or for a Fetch until it can be served.

    A fetch that is larger than the bucket is served from a full one. Request time waits for a window at most, as in
    Kafka, but a window of the whole quota: a share refills more slowly.
    """
    missing = (min(value, metering.burst_s * share) if charge.kind.consumer else value) - before
    if missing <= 0.0:
        return 0
    wait_ms = round_half_up(divide(missing, share) * 1000.0)
    if charge.kind.family is _REQUEST_TIME and charge.limit:
        wait_ms = min(wait_ms, round_half_up(divide(metering.window.window_ms * charge.limit, share)))
    return wait_ms


def equal_part(free: float, wanted: list[float]) -> float:
    """An equal part for this gateway and each other that wants as much; the rest get the rate they want.

    >>> equal_part(1000.0, [600.0, 100.0])
    450.0
    """
    wanted.sort()
    for number, amount in enumerate(wanted):
        if amount >= free / (1 + len(wanted) - number):
            return free / (1 + len(wanted) - number)
        free -= amount
    return free
