"""The behaviour of a gateway while decisions are stale, or while limits or earlier waits aren't known yet."""

from threading import Event, Lock

from sluice.gateways.client.in_force import InForce
from sluice.gateways.client.options import BeforeKnown, GatewayOptions, StalePolicy
from sluice.gateways.client.staleness import Staleness


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
