"""The windowed rate of Kafka's byte-rate and request-time quotas (KIP-124, "Request quotas")."""

from functools import reduce
from operator import add

from state.quota import Window
from state.rounding import divide, round_half_up


class SampledRate:
    """A ring of at most S+1 samples, each of them (start, last event, value), not aligned to any grid.

    Source: Kafka's Rate over WindowedSum over SampledStat. One sample is spare, for the one that overlaps the start
    of the window. Reading a rate purges what is outdated, so `measure` changes the state as Kafka's does; `peek`
    reads without a trace.
    """

    __slots__ = ("current", "last_events_ms", "starts_ms", "values")

    def __init__(
        self,
        starts_ms: list[int] | None = None,
        last_events_ms: list[int] | None = None,
        values: list[float] | None = None,
        current: int = 0,
    ) -> None:
        self.starts_ms = starts_ms if starts_ms is not None else []
        self.last_events_ms = last_events_ms if last_events_ms is not None else []
        self.values = values if values is not None else []
        self.current = current

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

    def measure(self, window: Window, now_ms: int) -> float:
        """The rate per second at `now_ms`; outdated samples are emptied on the way, as in Kafka.

        >>> rate, window = SampledRate(), Window(samples=11, window_ms=1000)
        >>> rate.record(50.0, window, now_ms=0)
        >>> rate.measure(window, now_ms=999)
        4.545867806164196
        """
        window_ms = self.window_ms(window, now_ms)
        # Plain additions as in Java: from Python 3.12 on, sum() compensates rounding errors.
        return reduce(add, self.values, 0.0) / (window_ms / 1000.0)

    def peek(self, window: Window, now_ms: int) -> float:
        """The rate `measure` would give, leaving the samples as they are: for display."""
        oldest_ms = now_ms - window.samples * window.window_ms
        total, start_ms = 0.0, None
        for slot, last_event_ms in enumerate(self.last_events_ms):
            live = last_event_ms > oldest_ms
            slot_start_ms = self.starts_ms[slot] if live else now_ms
            total += self.values[slot] if live else 0.0
            start_ms = slot_start_ms if start_ms is None else min(start_ms, slot_start_ms)
        return total / (padded_window_ms(now_ms - (now_ms if start_ms is None else start_ms), window) / 1000.0)

    def window_ms(self, window: Window, now_ms: int) -> int:
        """Milliseconds the rate is taken over: since the oldest sample, padded to S-1 full windows, at least 1.

        >>> rate = SampledRate([0], [0], [50.0])
        >>> [rate.window_ms(Window(11, 1000), now_ms) for now_ms in (0, 900, 1000)]
        [10000, 10900, 10000]
        """
        self._purge(window, now_ms)
        if not self.starts_ms:
            self._open(0, now_ms)
        return padded_window_ms(now_ms - min(self.starts_ms), window)

    def _open(self, slot: int, now_ms: int) -> None:
        """Start an empty sample in `slot`, overwriting what the ring had there."""
        if slot >= len(self.starts_ms):
            self.starts_ms.append(now_ms)
            self.last_events_ms.append(now_ms)
            self.values.append(0.0)
        else:
            self.starts_ms[slot] = now_ms
            self.last_events_ms[slot] = now_ms
            self.values[slot] = 0.0

    def _purge(self, window: Window, now_ms: int) -> None:
        """Empty every sample whose last event is S * W milliseconds old: a sample dies by its last event."""
        oldest_ms = now_ms - window.samples * window.window_ms
        for slot, last_event_ms in enumerate(self.last_events_ms):
            if last_event_ms <= oldest_ms:
                self.starts_ms[slot] = now_ms
                self.last_events_ms[slot] = now_ms
                self.values[slot] = 0.0


def padded_window_ms(elapsed_ms: int, window: Window) -> int:
    """Time since the oldest sample, as if S-1 full windows had passed at least; at least 1 ms.

    >>> padded_window_ms(999, Window(samples=11, window_ms=1000))
    10999
    """
    # Java's division truncates towards zero; only a clock that steps back makes elapsed_ms negative.
    full_windows = int(elapsed_ms / window.window_ms)
    missing_windows = window.samples - 1 - full_windows
    if missing_windows > 0:
        elapsed_ms += missing_windows * window.window_ms
    return elapsed_ms if elapsed_ms > 1 else 1


def wait_for_rate_ms(rate: float, limit: float, window_ms: int) -> int:
    """Milliseconds X that bring an observed rate O down to Q: X = (O - Q) / Q * window, rounded half up.

    Source: KIP-124, "Request quotas". Not bounded: negative below the limit, saturated at 2^63-1 for Q = 0.

    >>> wait_for_rate_ms(100.0, 50.0, window_ms=2000)
    2000
    """
    return round_half_up(divide(rate - limit, limit) * window_ms)
