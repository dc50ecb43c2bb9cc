"""The counters of one entity, and charging them."""

from collections.abc import Sequence

import msgspec

from state.charge import Charge
from state.quota import MAX_THROTTLE_MS, UNLIMITED, Coexistence, QuotaKind, QuotaSettings, Window
from state.sampled_rate import SampledRate, wait_for_rate_ms
from state.token_bucket import TokenBucket, wait_for_tokens_ms

MUTATION_RATE_WINDOW = Window(samples=2, window_ms=30_000)
"""`mutation-rate` is for viewing only: Kafka keeps it in the broker's default metric window."""

BYTE_KINDS = frozenset(
    {
        QuotaKind.PRODUCER_BYTE_RATE,
        QuotaKind.CONSUMER_BYTE_RATE,
        QuotaKind.TOPIC_PRODUCER_BYTE_RATE,
        QuotaKind.TOPIC_CONSUMER_BYTE_RATE,
    }
)
CONSUMER_KINDS = frozenset({QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.TOPIC_CONSUMER_BYTE_RATE})


class Outcome(msgspec.Struct, gc=False):
    """What charging one quota gave.

    `wait_ms` is the wait this quota asks for, at least 0, not yet clamped to an int32; a shadow quota's is what it
    would have asked for. `refused` has one flag for each topic of a mutation request. `samples` is a copy of the
    request-time samples, for checking the quota again after the byte-rate delay (sequential coexistence only).
    """

    charge: Charge
    value: float
    violated: bool
    wait_ms: int
    rate: float
    tokens: float | None = None
    refused: Sequence[bool] = ()
    samples: SampledRate | None = None


class Meters:
    """All counters of one entity (one set of tags); each comes into being at its first charge."""

    __slots__ = ("bucket", "last_event_ms", "mutation_limit", "mutation_rate", "rates")

    def __init__(self) -> None:
        self.bucket: TokenBucket | None = None
        self.mutation_rate: SampledRate | None = None
        self.mutation_limit = UNLIMITED
        self.rates: dict[QuotaKind, SampledRate] = {}
        self.last_event_ms = 0

    def charge_request(self, charges: Sequence[Charge], now_ms: int, settings: QuotaSettings) -> list[Outcome]:
        """Make all charges of one request on this entity.

        If one of them throttles a Fetch, its bytes are taken back, for the response goes out empty (KIP-219).
        """
        outcomes = [self.charge(charge, now_ms, settings) for charge in charges]
        if throttles(outcomes):
            for outcome in outcomes:
                if outcome.charge.kind in CONSUMER_KINDS:
                    self.unrecord(outcome.charge.kind, outcome.value, now_ms, settings)
        return outcomes

    def charge(self, charge: Charge, now_ms: int, settings: QuotaSettings) -> Outcome:
        """Charge one quota at `now_ms`, as the manager of its kind does in Kafka."""
        if now_ms > self.last_event_ms:
            self.last_event_ms = now_ms
        if charge.kind is QuotaKind.CONTROLLER_MUTATION_RATE:
            return self._charge_mutations(charge, now_ms, settings.controller_window)
        if charge.kind is QuotaKind.REQUEST_PERCENTAGE:
            return self._charge_request_time(charge, now_ms, settings)
        return self._charge_bytes(charge, now_ms, settings.client_window)

    def rate(self, kind: QuotaKind) -> SampledRate:
        """The sampled rate of a byte or request-time quota, made at its first use."""
        rate = self.rates.get(kind)
        if rate is None:
            rate = self.rates[kind] = SampledRate()
        return rate

    def unrecord(self, kind: QuotaKind, value: float, now_ms: int, settings: QuotaSettings) -> None:
        """Take back what was charged: the bytes of a throttled Fetch, which is answered empty (KIP-219)."""
        self.rate(kind).record(-value, settings.client_window, now_ms)

    def _charge_mutations(self, charge: Charge, now_ms: int, window: Window) -> Outcome:
        """KIP-599: strict checks, then charges; permissive charges, then checks. Topic by topic, in order."""
        limit = UNLIMITED if charge.limit is None else charge.limit
        bucket = self.bucket = self.bucket or TokenBucket()
        mutation_rate = self.mutation_rate = self.mutation_rate or SampledRate()
        self.mutation_limit = limit
        refused = []
        charged, wait_ms, violated = 0.0, 0, False
        for partitions in charge.amounts:
            refuse = charge.strict and bucket.measure(limit, window, now_ms) < 0
            refused.append(refuse)
            if not refuse:
                mutation_rate.record(partitions, MUTATION_RATE_WINDOW, now_ms)
                bucket.record(partitions, limit, window, now_ms)
                charged += partitions
            if refuse or (not charge.strict and bucket.tokens < 0):
                violated = True
                wait_ms = wait_for_tokens_ms(bucket.tokens, limit)
        return Outcome(
            charge,
            charged,
            violated,
            wait_ms,
            rate=mutation_rate.peek(MUTATION_RATE_WINDOW, now_ms),
            tokens=None if charge.limit is None else bucket.tokens,
            refused=refused,
        )

    def _charge_bytes(self, charge: Charge, now_ms: int, window: Window) -> Outcome:
        """Record, then check (KIP-219); the wait is not capped."""
        rate, limit, amount = self.rate(charge.kind), charge.limit, charge.amounts[0]
        rate.record(amount, window, now_ms)
        observed = rate.measure(window, now_ms)
        if limit is None or observed <= limit:
            return Outcome(charge, amount, False, 0, observed)
        return Outcome(charge, amount, True, wait_over_limit_ms(rate, observed, limit, window, now_ms), observed)

    def _charge_request_time(self, charge: Charge, now_ms: int, settings: QuotaSettings) -> Outcome:
        """KIP-124: handler time is recorded and checked, then network time recorded without a check."""
        window = settings.client_window
        handler, network = charge.amounts
        rate = self.rate(charge.kind)
        rate.record(handler, window, now_ms)
        observed = rate.measure(window, now_ms)
        wait_ms = request_wait_ms(rate, observed, charge.limit, window, now_ms)
        samples = rate.copy() if settings.coexistence is Coexistence.SEQUENTIAL else None
        outcome = Outcome(
            charge, handler + network, exceeds(observed, charge.limit), wait_ms, observed, samples=samples
        )
        if network:
            rate.record(network, window, now_ms)
        return outcome


def throttles(outcomes: Sequence[Outcome]) -> bool:
    """Whether one of the quotas asks for a wait; a shadow quota has no say."""
    return any(outcome.wait_ms > 0 and not outcome.charge.shadow for outcome in outcomes)


def exceeds(rate: float, limit: float | None) -> bool:
    """A rate violates its quota only above it; equal is fine."""
    return limit is not None and rate > limit


def wait_over_limit_ms(rate: SampledRate, observed: float, limit: float | None, window: Window, now_ms: int) -> int:
    """The wait of a byte rate: 0 within the limit, else (O - Q) / Q * window.

    27 500 bytes in a fresh window of 10 s are 2750 a second; with Q = 2000 the wait is 3750 ms.

    >>> rate, window = SampledRate(), Window()
    >>> rate.record(27_500.0, window, now_ms=0)
    >>> wait_over_limit_ms(rate, rate.measure(window, 0), 2000.0, window, now_ms=0)
    3750
    """
    if limit is None or observed <= limit:
        return 0
    return wait_for_rate_ms(observed, limit, rate.window_ms(window, now_ms))


def request_wait_ms(rate: SampledRate, observed: float, limit: float | None, window: Window, now_ms: int) -> int:
    """The wait of request time: as for bytes, but at most one window W (KIP-124, "Request quotas").

    >>> rate, window = SampledRate(), Window(samples=11, window_ms=2000)
    >>> rate.record(1000.0, window, now_ms=0)
    >>> request_wait_ms(rate, rate.measure(window, 0), 1.0, window, now_ms=0)
    2000
    """
    return min(wait_over_limit_ms(rate, observed, limit, window, now_ms), window.window_ms)


def clamp_throttle_ms(wait_ms: int) -> int:
    """The wait as a response can carry it: an int32, clamped where shipped Kafka's controller quota wraps."""
    return min(max(wait_ms, 0), MAX_THROTTLE_MS)
