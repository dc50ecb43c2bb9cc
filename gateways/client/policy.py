"""The behaviour of a gateway while decisions are stale, or while limits or earlier waits aren't known yet."""

from collections import deque
from collections.abc import Callable
from threading import Event, Lock

from sluice.gateways.client.in_force import InForce
from sluice.gateways.client.options import BeforeKnown, GatewayOptions, StalePolicy

RECENT_AGES = 1_024
"""Number of recent heartbeats that the age percentiles cover."""


class Staleness:
    """The time since when an event may be without a decision, and the ages of decisions on arrival.

    Ages are those of the heartbeats of all gateways: they are decided as requests are, and published evenly in time.

    Thread-safe. Times are epoch milliseconds; `clock_ms` returns the present one.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._unanswered_since_ms: int | None = None
        self._last_published_ms = 0
        self._ages_ms: deque[int] = deque(maxlen=RECENT_AGES)

    def stale_ms(self) -> int:
        """Age of the oldest event that may be without a decision; 0 if there is none."""
        since_ms = self._unanswered_since_ms
        return 0 if since_ms is None else max(0, self._clock_ms() - since_ms)

    def note_published(self, timestamp_ms: int) -> None:
        """Note that an event of this time is on its way."""
        if timestamp_ms <= self._last_published_ms and self._unanswered_since_ms is not None:
            return
        with self._lock:
            self._last_published_ms = max(self._last_published_ms, timestamp_ms)
            if self._unanswered_since_ms is None:
                self._unanswered_since_ms = timestamp_ms

    def note_age(self, age_ms: int) -> None:
        """Note the age that the decision on a heartbeat had on arrival."""
        self._ages_ms.append(age_ms)

    def note_decided(self, timestamp_ms: int, now_ms: int) -> None:
        """Note that a request of this gateway and of this time is decided: those before it are, too."""
        since_ms = self._unanswered_since_ms
        if since_ms is None or timestamp_ms <= since_ms < self._last_published_ms:
            return  # nothing new: the lock would take longer than all the rest
        with self._lock:
            all_answered = timestamp_ms >= self._last_published_ms
            self._unanswered_since_ms = None if all_answered else max(since_ms, min(timestamp_ms, now_ms))

    def age_percentiles_ms(self, *shares: float) -> list[int]:
        """Percentiles of the last RECENT_AGES ages; 0 before the first one."""
        ages_ms = sorted(max(0, age_ms) for age_ms in self._ages_ms.copy()) or [0]
        return [ages_ms[min(len(ages_ms) - 1, int(share * len(ages_ms)))] for share in shares]


class AdmissionPolicy:
    """The options `policy`, `stale_after_s`, `before_limits` and `before_current` at work. Thread-safe.

    `current` is set when all waits that were decided before the start are known. The two counts are those of requests
    that were let through before limits, and before waits, were known.
    """

    def __init__(self, options: GatewayOptions, in_force: InForce, staleness: Staleness) -> None:
        self.current = Event()
        self.allowed_before_limits = 0
        self.allowed_before_current = 0
        self.closes_when_stale = options.policy is StalePolicy.FAIL_CLOSED
        self._opens_when_stale = options.policy is StalePolicy.FAIL_OPEN
        self._holds_before_limits = options.before_limits is BeforeKnown.HOLD
        self._holds_before_current = options.before_current is BeforeKnown.HOLD
        self._stale_after_ms = options.stale_after_s * 1000
        self._in_force = in_force
        self._staleness = staleness
        self._lock = Lock()  # guards the counts

    def is_stale(self) -> bool:
        """True if an event published more than `stale_after_s` ago may still be without a decision."""
        return self._staleness.stale_ms() > self._stale_after_ms

    def refuses_all(self) -> bool:
        """True if every client is refused."""
        if self._holds_before_limits and self._in_force.limits is None:
            return True
        if self._holds_before_current and not self.current.is_set():
            return True
        return self.closes_when_stale and self.is_stale()

    def charges_inline(self) -> bool:
        """False while FAIL_OPEN lets every client go on because decisions are stale."""
        return not (self._opens_when_stale and self.is_stale())

    def note_allowed(self) -> None:
        """Count a request that is let through while not everything is known that could throttle it."""
        before_limits, before_current = self._in_force.limits is None, not self.current.is_set()
        if (before_limits or before_current) and not self.refuses_all():
            with self._lock:
                self.allowed_before_limits += before_limits
                self.allowed_before_current += before_current
