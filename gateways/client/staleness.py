"""The age of a gateway's knowledge of the decisions."""

from collections import deque
from collections.abc import Callable
from threading import Lock

RECENT_AGES = 1_024
"""Number of recent decisions that the age percentiles cover."""


class Staleness:
    """The time since when an event may be without a decision, and the ages of the last decisions on arrival.

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

    def note_decided(self, timestamp_ms: int, now_ms: int) -> None:
        """Note that a request of this time is decided: those before it are, too."""
        self._ages_ms.append(now_ms - timestamp_ms)
        since_ms = self._unanswered_since_ms
        if since_ms is None or timestamp_ms <= since_ms < self._last_published_ms:
            return  # nothing new: the lock would take longer than all the rest
        with self._lock:
            all_answered = timestamp_ms >= self._last_published_ms
            self._unanswered_since_ms = None if all_answered else max(since_ms, min(timestamp_ms, now_ms))

    def age_percentiles_ms(self, *shares: float) -> list[int]:
        """Percentiles of the age of the last RECENT_AGES decisions when they arrived; 0 before the first one."""
        ages_ms = sorted(max(0, age_ms) for age_ms in self._ages_ms.copy()) or [0]
        return [ages_ms[min(len(ages_ms) - 1, int(share * len(ages_ms)))] for share in shares]
