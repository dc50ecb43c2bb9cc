"""The token bucket of KIP-599, as shipped Kafka computes it."""

import math

import msgspec

from sluice.state.arithmetic.rounding import divide, round_half_up
from sluice.state.quotas.kinds import Window, burst


class TokenBucket(msgspec.Struct, gc=False):
    """Tokens that refill at Q per second up to a burst of S * W * Q, and may be spent below zero.

    Source: KIP-599, "Throttling Algorithm". Q and the window are arguments of every call, because Kafka reads them from
    its configuration each time: a changed limit keeps the tokens, clips them to the new burst and credits the time
    since the last call at the new rate. An unlimited bucket has the limit `UNLIMITED`.

    A bucket starts full: infinitely many tokens are clipped to the burst by the first refill. Kafka's starts with 0
    tokens at 0 ms and is full at its first use only because the wall clock is large.
    """

    tokens: float = math.inf
    last_ms: int = 0

    def refill(self, limit: float, window: Window, now_ms: int) -> None:
        """K = min(B, K + Q * dt). A clock that steps back takes away the tokens of that time.

        >>> bucket = TokenBucket(tokens=40.0, last_ms=0)
        >>> bucket.refill(5.0, Window(samples=10, window_ms=2000), now_ms=2000)
        >>> bucket.tokens
        50.0
        """
        self.tokens = min(burst(window, limit), self.uncapped(limit, now_ms))
        self.last_ms = now_ms

    def uncapped(self, limit: float, now_ms: int) -> float:
        """K + Q * dt: the tokens at `now_ms`, perhaps more than the burst."""
        return self.tokens + limit * ((now_ms - self.last_ms) / 1000.0)

    def measure(self, limit: float, window: Window, now_ms: int) -> float:
        """The tokens at `now_ms`, after a refill."""
        self.refill(limit, window, now_ms)
        return self.tokens

    def record(self, value: float, limit: float, window: Window, now_ms: int) -> None:
        """Take `value` tokens, even if fewer are left. A negative value gives tokens back, up to the burst.

        KIP-599's example: with Q=5, S=100, W=1 s the burst is 500 tokens; taking 560 leaves -60, a wait of 12 000 ms.

        >>> bucket, window = TokenBucket(), Window(samples=100, window_ms=1000)
        >>> bucket.record(560.0, 5.0, window, now_ms=0)
        >>> bucket.tokens, wait_for_tokens_ms(bucket.tokens, 5.0)
        (-60.0, 12000)
        """
        self.refill(limit, window, now_ms)
        self.tokens = min(burst(window, limit), self.tokens - value)


def wait_for_tokens_ms(tokens: float, limit: float) -> int:
    """Milliseconds until the tokens are back at 0: round(-tokens / Q * 1000), half up.

    The prose of KIP-599 writes -K * R; its example and shipped Kafka divide. Unbounded: negative while tokens are left,
    and possibly longer than an int32.

    >>> wait_for_tokens_ms(-60.0, 5.0)
    12000
    """
    return round_half_up(divide(-tokens, limit) * 1000.0)
