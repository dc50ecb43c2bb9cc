"""The windowed rate of Kafka's quotas on bytes (KIP-13) and request time (KIP-124, "Request quotas")."""

from typing import TypeGuard

import msgspec

from sluice.state.arithmetic.rounding import divide, round_half_up
from sluice.state.quotas.kinds import Window


class SampledRate(msgspec.Struct, array_like=True, gc=False):
    """A circular buffer of at most S+1 samples, each with a start, a last event and a value, aligned to no grid.

    The three lists have one element per sample; `current` is the index of the sample that is being filled. It travels
    as an array when a request-time quota is checked again in the combining step.

    Source: Kafka's Rate over WindowedSum over SampledStat. The additional sample is for the one that overlaps the start
    of the window. Reading a rate empties outdated samples, so `observe` changes the state as Kafka's `measure` does;
    `peek` reads without changing it.
    """

    starts_ms: list[int] = []
    last_events_ms: list[int] = []
    values: list[float] = []
    current: int = 0

    @property
    def newest_ms(self) -> int:
        """The last event of the current sample; 0 before the first one."""
        return self.last_events_ms[self.current] if self.starts_ms else 0

    def copy(self) -> "SampledRate":
        """An independent copy."""
        return SampledRate(self.starts_ms.copy(), self.last_events_ms.copy(), self.values.copy(), self.current)

    def record(self, value: float, window: Window, now_ms: int) -> None:
        """Add `value` to the current sample, opening the next one when W milliseconds have passed since its start."""
        if not self.starts_ms:
            self._open(0, now_ms)
        elif now_ms - self.starts_ms[self.current] >= window.window_ms:
            self.current = (self.current + 1) % (window.samples + 1)
            self._open(self.current, now_ms)
        self.values[self.current] += value
        self.last_events_ms[self.current] = now_ms

    def observe(self, window: Window, now_ms: int) -> tuple[float, int]:
        """The rate per second at `now_ms`, and the length of the interval that it covers. Empties outdated samples.

        >>> rate, window = SampledRate(), Window(samples=11, window_ms=1000)
        >>> rate.record(50.0, window, now_ms=0)
        >>> rate.observe(window, now_ms=999), rate.observe(window, now_ms=1000)
        ((4.545867806164196, 10999), (5.0, 10000))
        """
        if not self.starts_ms:
            self._open(0, now_ms)
        oldest_ms = now_ms - window.samples * window.window_ms
        if min(self.last_events_ms) <= oldest_ms:  # seldom so: most calls needn't look at every sample
            self._purge(oldest_ms, now_ms)
        window_ms = padded_window_ms(now_ms - min(self.starts_ms), window)
        total = 0.0
        for value in self.values:
            total += value  # plain additions as in Java: from Python 3.12 on, sum() compensates rounding errors
        return total / (window_ms / 1000.0), window_ms

    def peek(self, window: Window, now_ms: int) -> float:
        """The rate that `observe` would give, for display: the samples stay as they are."""
        return self.copy().observe(window, now_ms)[0]

    def _open(self, slot: int, now_ms: int) -> None:
        """Start an empty sample in `slot`, overwriting an older one."""
        if slot >= len(self.starts_ms):
            self.starts_ms.append(now_ms)
            self.last_events_ms.append(now_ms)
            self.values.append(0.0)
        else:
            self.starts_ms[slot] = now_ms
            self.last_events_ms[slot] = now_ms
            self.values[slot] = 0.0

    def _purge(self, oldest_ms: int, now_ms: int) -> None:
        """Empty every sample whose last event is S * W ms old or older: a sample expires by its last event."""
        for slot, last_event_ms in enumerate(self.last_events_ms):
            if last_event_ms <= oldest_ms:
                self._open(slot, now_ms)


def is_exceeded(limit: float | None, rate: float) -> TypeGuard[float]:
    """True if the rate violates the limit. A rate equal to the limit doesn't; without a limit (None) none does."""
    return limit is not None and rate > limit


def padded_window_ms(elapsed_ms: int, window: Window) -> int:
    """Time since the oldest sample, counting at least S-1 full windows; at least 1 ms.

    >>> padded_window_ms(999, Window(samples=11, window_ms=1000))
    10999
    """
    # Java's division truncates towards zero; only a clock that steps back makes elapsed_ms negative.
    full_windows = int(elapsed_ms / window.window_ms)
    missing_windows = window.samples - 1 - full_windows
    if missing_windows > 0:
        elapsed_ms += missing_windows * window.window_ms
    return elapsed_ms if elapsed_ms > 1 else 1


def wait_for_rate_ms(rate: float, limit: float, window_ms: float) -> int:
    """Milliseconds X after which an observed rate O is down to Q: X = (O - Q) / Q * window, rounded half up.

    Source: KIP-124, "Request quotas". Unbounded: negative below the limit, saturated at 2^63-1 for Q = 0.

    27 500 bytes in a fresh window of 10 s are 2750 a second; with Q = 2000 the wait is 3750 ms.

    >>> wait_for_rate_ms(2750.0, 2000.0, window_ms=10_000)
    3750
    """
    return round_half_up(divide(rate - limit, limit) * window_ms)
