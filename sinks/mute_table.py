"""Who is muted, and until when: what a gateway keeps of the decisions it reads."""

import heapq
import time
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

HEAP_SLACK = 1024
"""Outdated heap entries that are tolerated before the heap is built anew."""


def now_ms() -> int:
    """The wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Mute(NamedTuple):
    """One muted client: the end in epoch milliseconds, the quota that asked for it and that quota's limit."""

    until_ms: int
    quota: str | None = None
    limit: float | None = None


Client = tuple[str, str]
"""User and client-id; "" where a request has none."""


class MuteTable:
    """Muted clients, at most `max_muted` of them: when there are more, the mutes that end soonest go first.

    One lock guards the writers. `remaining_ms` takes none: it is one look-up in a dict, which the interpreter keeps
    whole. `clock_ms` is the time in epoch milliseconds.
    """

    def __init__(self, max_muted: int = 100_000, clock_ms: Callable[[], int] = now_ms) -> None:
        self.evicted = 0
        self._max_muted = max_muted
        self._clock_ms = clock_ms
        self._mutes: dict[Client, Mute] = {}
        self._ends: list[tuple[int, Client]] = []  # a heap; an entry whose end is not the client's any more is outdated
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._mutes)

    def remaining_ms(self, user: str | None, client_id: str | None) -> int:
        """How long the client is still muted, in milliseconds; 0 when it is not."""
        mute = self._mutes.get((user or "", client_id or ""))
        if mute is None:
            return 0
        return max(0, mute.until_ms - self._clock_ms())

    def find(self, user: str | None, client_id: str | None) -> Mute | None:
        """The client's mute, unless it has ended."""
        mute = self._mutes.get((user or "", client_id or ""))
        return mute if mute is not None and mute.until_ms > self._clock_ms() else None

    def mute(self, user: str | None, client_id: str | None, mute: Mute) -> None:
        """Mutes the client; a mute that ends later than the new one stays."""
        client = (user or "", client_id or "")
        with self._lock:
            self._expire()
            known = self._mutes.get(client)
            if mute.until_ms <= max(self._clock_ms(), known.until_ms if known else 0):
                return
            self._mutes[client] = mute
            heapq.heappush(self._ends, (mute.until_ms, client))
            if len(self._mutes) > self._max_muted:
                self._drop_soonest()
            if len(self._ends) > 2 * len(self._mutes) + HEAP_SLACK:  # one client, muted ever longer
                self._ends = [(kept.until_ms, muted) for muted, kept in self._mutes.items()]
                heapq.heapify(self._ends)

    def expire(self) -> None:
        """Forgets the mutes that have ended."""
        with self._lock:
            self._expire()

    def _expire(self) -> None:
        now = self._clock_ms()
        while self._ends and self._ends[0][0] <= now:
            self._pop()

    def _drop_soonest(self) -> None:
        while not self._pop():
            pass
        self.evicted += 1

    def _pop(self) -> bool:
        """Takes the first end off the heap, and its mute with it; False for an outdated end."""
        until_ms, client = heapq.heappop(self._ends)
        mute = self._mutes.get(client)
        if mute is None or mute.until_ms != until_ms:
            return False
        del self._mutes[client]
        return True
