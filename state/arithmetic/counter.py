"""The counters of one entity, charged one request at a time: the rule, which native code follows to the last bit."""

from collections.abc import Sequence

import msgspec

from sluice.state.arithmetic.sampled_rate import SampledRate, is_exceeded, wait_for_rate_ms
from sluice.state.arithmetic.token_bucket import TokenBucket, wait_for_tokens_ms
from sluice.state.quotas.kinds import UNLIMITED, Coexistence, Family, QuotaKind, QuotaSettings, Window, burst


class Charge(msgspec.Struct, array_like=True, gc=False):
    """A charge that is still to be made. Without any amount it resets the quota's counter.

    `amounts` depends on the kind's family: [bytes]; [requests]; [handler, network] points of request time; or the
    partitions of each mutated topic. `limit` is in units per second, None if there is none. `withheld` bytes were not
    delivered: they are recorded, checked and taken back.
    """

    kind: QuotaKind
    level: str
    limit: float | None
    shadow: bool
    amounts: list[float]
    strict: bool = False
    withheld: bool = False


class Outcome(msgspec.Struct, gc=False):
    """The result of charging one quota.

    `value` was charged, in the unit of the quota; `rate` is per second. `wait_ms` is the wait this quota asks for, or
    as a shadow quota would ask for: at least 0, not yet clamped to an int32. `refused` has one flag per topic of a
    mutation request. `samples` is a copy of the request-time samples, for checking that quota again after the byte-rate
    delay (sequential coexistence only).
    """

    charge: Charge
    value: float
    violated: bool
    wait_ms: int
    rate: float
    tokens: float | None = None
    refused: Sequence[bool] = ()
    samples: SampledRate | None = None


MUTATION_RATE_WINDOW = Window(samples=2, window_ms=30_000)
"""Window of `mutation-rate`, which limits nothing and is only reported: Kafka's default for broker metrics."""


class EntityCounters(msgspec.Struct, gc=False):
    """All counters of one entity (one set of tags). Each is created by its first charge.

    The events come from many gateways, whose clocks differ, but the time of a counter never goes back: an event that
    is late for it is charged at the time of the newest one. Kafka's counters know one clock; one that goes back takes
    tokens from a bucket, and ages the current sample. `last_event_ms` is the newest event of any of the
    counters, by which they expire; `mutation_limit` is that of the last charge, in partitions per second.
    """

    bucket: TokenBucket | None = None
    mutation_limit: float = UNLIMITED
    rates: dict[QuotaKind, SampledRate] = {}
    last_event_ms: int = 0

    def charge_request(self, charges: Sequence[Charge], now_ms: int, settings: QuotaSettings) -> list[Outcome]:
        """Make all charges of one request on this entity."""
        return [self.charge(charge, now_ms, settings) for charge in charges]

    def charge(self, charge: Charge, now_ms: int, settings: QuotaSettings) -> Outcome:
        """Charge one quota at `now_ms`, as Kafka's quota manager of that family does."""
        family = charge.kind.family
        if now_ms >= self.last_event_ms:
            self.last_event_ms = now_ms
        elif family is not Family.MUTATIONS:  # whose bucket has a time of its own
            now_ms = max(now_ms, self.rate(charge.kind).newest_ms)
        if not charge.amounts:
            return self._reset(charge, settings)
        if family is Family.MUTATIONS:
            return charge_mutations([(self, charge)], now_ms, settings.controller_window)[0]
        if family is Family.REQUEST_TIME:
            return self._charge_request_time(charge, now_ms, settings)
        return self._charge_rate(charge, now_ms, settings.client_window)

    def rate(self, kind: QuotaKind) -> SampledRate:
        """The sampled rate of a kind, created by its first use."""
        rate = self.rates.get(kind)
        if rate is None:
            rate = self.rates[kind] = SampledRate()
        return rate

    def _reset(self, charge: Charge, settings: QuotaSettings) -> Outcome:
        """Forget what was charged: no samples, and a full bucket."""
        self.rates.pop(charge.kind, None)
        tokens = None
        if charge.kind.family is Family.MUTATIONS:
            self.bucket, self.mutation_limit = None, UNLIMITED
            tokens = None if charge.limit is None else burst(settings.controller_window, charge.limit)
        return Outcome(charge, 0.0, violated=False, wait_ms=0, rate=0.0, tokens=tokens)

    def _charge_rate(self, charge: Charge, now_ms: int, window: Window) -> Outcome:
        """Record, then check (KIP-219). The wait has no upper bound.

        The bytes of a Fetch that was answered empty are taken back after the check, as Kafka's
        `unrecordQuotaSensor` does: the outcome is that of the bytes, and the counter is left without them.
        """
        rate, limit, amount = self.rate(charge.kind), charge.limit, charge.amounts[0]
        rate.record(amount, window, now_ms)
        observed, window_ms = rate.observe(window, now_ms)
        wait_ms = wait_over_limit_ms(observed, limit, window_ms)
        if charge.withheld:
            rate.record(-amount, window, now_ms)
        return Outcome(charge, amount, is_exceeded(limit, observed), wait_ms, observed)

    def _charge_request_time(self, charge: Charge, now_ms: int, settings: QuotaSettings) -> Outcome:
        """KIP-124: handler time is recorded and checked, then network time is recorded without a check."""
        window = settings.client_window
        handler, network = charge.amounts
        rate = self.rate(charge.kind)
        rate.record(handler, window, now_ms)
        observed, window_ms = rate.observe(window, now_ms)
        wait_ms = bounded_wait_ms(observed, charge.limit, window_ms, window)
        samples = rate.copy() if settings.coexistence is Coexistence.SEQUENTIAL else None
        violated = is_exceeded(charge.limit, observed)
        if network:
            rate.record(network, window, now_ms)
        return Outcome(charge, handler + network, violated, wait_ms, observed, samples=samples)


def charge_mutations(charged: Sequence[tuple[EntityCounters, Charge]], now_ms: int, window: Window) -> list[Outcome]:
    """Charge the mutations of a request: its client's counter, and its tenant's. Each has an outcome.

    KIP-599: strict checks, then charges; permissive charges, then checks. Topic by topic, in order: one that a counter
    refuses is charged to none.
    """
    mutations = [_Mutations(counters, charge, window, now_ms) for counters, charge in charged]
    for partitions in charged[0][1].amounts:
        refusing = [each for each in mutations if each.refuses()]  # all are asked, each notes its wait
        if not refusing:
            for each in mutations:
                each.take(partitions)
    return [each.outcome() for each in mutations]


class _Mutations:
    """The charge of a request's mutations on one counter."""

    def __init__(self, counters: EntityCounters, charge: Charge, window: Window, now_ms: int) -> None:
        bucket = counters.bucket = counters.bucket or TokenBucket()
        limit = counters.mutation_limit = UNLIMITED if charge.limit is None else charge.limit
        counters.last_event_ms = max(counters.last_event_ms, now_ms)
        self._charge, self._bucket, self._limit, self._window = charge, bucket, limit, window
        self._rate = counters.rate(charge.kind)
        self._now_ms = max(now_ms, bucket.last_ms)
        self._refused: list[bool] = []
        self._charged, self._wait_ms, self._violated = 0.0, 0, False

    def refuses(self) -> bool:
        """Ask for the next topic: True if the counter refuses it."""
        refuse = self._charge.strict and self._bucket.measure(self._limit, self._window, self._now_ms) < 0
        self._refused.append(refuse)
        if refuse:
            self._note_wait()
        return refuse

    def take(self, partitions: float) -> None:
        """Charge the topic that was asked for."""
        self._rate.record(partitions, MUTATION_RATE_WINDOW, self._now_ms)
        self._bucket.record(partitions, self._limit, self._window, self._now_ms)
        self._charged += partitions
        if not self._charge.strict and self._bucket.tokens < 0:
            self._note_wait()

    def outcome(self) -> Outcome:
        """The outcome after all topics."""
        return Outcome(
            self._charge,
            self._charged,
            self._violated,
            self._wait_ms,
            rate=self._rate.peek(MUTATION_RATE_WINDOW, self._now_ms),
            tokens=None if self._charge.limit is None else self._bucket.tokens,
            refused=self._refused,
        )

    def _note_wait(self) -> None:
        self._violated, self._wait_ms = True, wait_for_tokens_ms(self._bucket.tokens, self._limit)


def wait_over_limit_ms(observed: float, limit: float | None, window_ms: int) -> int:
    """The wait of bytes, whose rate was observed over so long: `wait_for_rate_ms` above the limit, else 0.

    >>> [wait_over_limit_ms(observed, 2000.0, 10_000) for observed in (2750.0, 2000.0)]
    [3750, 0]
    """
    return wait_for_rate_ms(observed, limit, window_ms) if is_exceeded(limit, observed) else 0


def bounded_wait_ms(observed: float, limit: float | None, window_ms: int, window: Window) -> int:
    """The wait of request time: `wait_over_limit_ms`, but at most one window W (KIP-124, "Request quotas").

    >>> bounded_wait_ms(50.0, 1.0, 20_000, Window(samples=11, window_ms=2000))
    2000
    """
    return min(wait_over_limit_ms(observed, limit, window_ms), window.window_ms)
