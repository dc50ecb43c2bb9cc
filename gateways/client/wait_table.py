"""Waits by counter, as a gateway keeps them."""

import heapq
from collections.abc import Callable, Collection, Iterable
from itertools import count
from threading import Lock

import msgspec

from sluice.state.decisions.waits import CounterKey, wait_under_limit_ms

Order = tuple[int, int]
"""Timestamp in epoch milliseconds, then source offset: a decision with a greater order is a later one."""


# Structs without garbage collection: many are kept, each collection would look at all of them, and none holds a circle.


class Wait(msgspec.Struct, frozen=True, gc=False):
    """The wait that the latest decision on a counter asked for: `wait_ms` from its timestamp; 0 and 0 is no wait."""

    until_ms: int
    order: Order
    wait_ms: int = 0
    quota: str | None = None
    limit: float | None = None
    rate: float | None = None

    def left_ms(self, now_ms: int) -> int:
        """The rest of the wait, in milliseconds."""
        return max(0, self.until_ms - now_ms)


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """A wait, and the time until which it is kept: a wait that was shortened is kept to its first end.

    Otherwise an earlier decision that arrives late would bring the longer wait back.
    """

    wait: Wait
    until_ms: int


class WaitTable:
    """Waits by counter, at most `max_waits` of them: when there are more, the waits that end soonest go first.

    A later decision of the same counter replaces the wait, so it may shorten or end it. No wait is longer than
    `max_wait_ms` from now; `capped` counts those that asked for more. One lock guards the writers; readers take none,
    because a single dict lookup is atomic in CPython. `clock_ms` is the time in epoch milliseconds.
    """

    def __init__(self, max_waits: int, max_wait_ms: int, clock_ms: Callable[[], int]) -> None:
        self.evicted = 0
        self.capped = 0
        self._max_waits = max_waits
        self._max_wait_ms = max_wait_ms
        self.clock_ms = clock_ms
        self._kept: dict[CounterKey, _Kept] = {}
        self._ends: list[tuple[int, int, CounterKey]] = []  # a heap, one for each counter, which may end later by now
        self._numbers = count()  # tells ends of the same millisecond apart: tags have no order
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def view(self) -> Collection[CounterKey]:
        """A view of the counters whose waits are kept."""
        return self._kept.keys()

    def counters(self) -> list[CounterKey]:
        """The counters whose waits are kept now."""
        with self._lock:
            return list(self._kept)

    def longest(self, counters: Iterable[CounterKey]) -> Wait | None:
        """The wait of these counters that ends last; None if no counter waits now."""
        if not self._kept:
            return None  # before the counters are found, which takes longer than all the rest
        longest, until_ms = None, self.clock_ms()
        for counter in counters:
            kept = self._kept.get(counter)
            if kept is not None and kept.wait.until_ms > until_ms:
                longest, until_ms = kept.wait, kept.wait.until_ms
        return longest

    def note_wait(self, counter: CounterKey, wait: Wait) -> None:
        """Apply the wait that a decision asks for, unless a later decision was applied before."""
        with self._lock:
            now_ms = self.clock_ms()
            known = self._kept.get(counter)
            if known is not None and wait.order < known.wait.order:
                return
            if wait.until_ms > now_ms + self._max_wait_ms:
                wait = msgspec.structs.replace(wait, until_ms=now_ms + self._max_wait_ms)
                self.capped += 1
            self._put(counter, wait, max(wait.until_ms, known.until_ms if known else 0), now_ms)

    def shorten(self, counter: CounterKey, wait: Wait) -> None:
        """Shorten the wait of a counter to that of a later decision, which may not make it longer."""
        with self._lock:
            kept = self._kept.get(counter)
            if kept is not None and wait.order >= kept.wait.order:
                until_ms = min(wait.until_ms, kept.wait.until_ms)
                self._put(counter, msgspec.structs.replace(wait, until_ms=until_ms), kept.until_ms, self.clock_ms())

    def relax(self, counters: Iterable[CounterKey], limit_of: Callable[[CounterKey], float | None]) -> None:
        """Shorten or end the waits of those counters whose limit was raised or removed; `limit_of` gives it now.

        Requests apply waits meanwhile: the lock is taken for a wait that changes, and not while limits are found.
        """
        for counter in counters:
            while not self._relax(counter, limit_of(counter)):
                pass  # another wait was applied since the limit was found

    def _relax(self, counter: CounterKey, limit: float | None) -> bool:
        kept = self._kept.get(counter)
        if kept is None:
            return True
        wait = kept.wait
        left_ms = wait_under_limit_ms(wait.wait_ms, wait.rate, wait.limit, limit)
        if left_ms >= wait.wait_ms:
            return True
        until_ms = min(wait.until_ms, wait.order[0] + left_ms) if left_ms else 0
        with self._lock:
            if self._kept.get(counter) is not kept:
                return False
            self._put(counter, msgspec.structs.replace(wait, until_ms=until_ms), kept.until_ms, self.clock_ms())
        return True

    def expire(self) -> None:
        """Forget the waits that have ended."""
        with self._lock:
            self._expire(self.clock_ms())

    def clear(self) -> None:
        """Forget all waits."""
        with self._lock:
            self._kept.clear()
            self._ends.clear()

    def _put(self, counter: CounterKey, wait: Wait, kept_until_ms: int, now_ms: int) -> None:
        if kept_until_ms <= now_ms:
            return
        known = self._kept.get(counter)
        self._kept[counter] = _Kept(wait, kept_until_ms)
        if known is None:  # else it ends no earlier than before
            heapq.heappush(self._ends, (kept_until_ms, next(self._numbers), counter))
        if len(self._kept) > self._max_waits:
            self._expire(now_ms)
        if len(self._kept) > self._max_waits:
            self._evict_soonest()

    def _expire(self, now_ms: int) -> None:
        while self._ends and self._ends[0][0] <= now_ms:
            self._pop()

    def _evict_soonest(self) -> None:
        while not self._pop():
            pass
        self.evicted += 1

    def _pop(self) -> bool:
        """Remove the wait whose end is first in the heap; False if it ends later by now, and gets its place by that."""
        until_ms, _, counter = self._ends[0]
        kept_until_ms = self._kept[counter].until_ms
        if kept_until_ms > until_ms:
            heapq.heapreplace(self._ends, (kept_until_ms, next(self._numbers), counter))
            return False
        heapq.heappop(self._ends)
        del self._kept[counter]
        return True
