"""Membership of gateways: those whose heartbeats the job decides are alive."""

from collections import deque

import msgspec

from sluice.state.contract.gateway_topics import DecidedHeartbeat
from sluice.state.errors import UNREADABLE

HEARTBEAT_MS = 1_000
"""Interval of a gateway's heartbeats."""

MISSED_MS = 3_000
"""Time without heartbeats of a gateway, while our own are decided, after which it is gone: two are missed."""

SETTLE_MS = 1_000
"""Grace period after our own heartbeat is read. By then, those of other gateways in the same batch are read too."""

FRESH_MS = 5_000
"""Time without one of our own heartbeats after which decisions have stopped."""

MAX_GATEWAYS = 1_000
"""Most other gateways that are remembered. A new one replaces one that is gone; if none is gone, it isn't counted:
forged heartbeats evict no gateway that is known already."""

SET_BACK_MS = 60_000
"""Lag behind its gateway's newest heartbeat that means a clock that was set back; less is the order of decisions."""

_TOGETHER_MS = 100
"""Interval in which our own heartbeats are settled together: a few times are kept, however many arrive."""

_HEARTBEAT = b'{"heartbeat":'
"""Beginning of the records of the sums topic that are heartbeats; those with sums are many, and aren't decoded."""


class _Heartbeat(msgspec.Struct):
    """The part of such a record that is read."""

    heartbeat: DecidedHeartbeat | None = None


_HEARTBEATS = msgspec.json.Decoder(_Heartbeat)


def heartbeat_in(value: bytes | None) -> DecidedHeartbeat | None:
    """The decided heartbeat in a record of the sums topic; None without one, and where it can't be read."""
    if value is None or not value.startswith(_HEARTBEAT):
        return None
    try:
        return _HEARTBEATS.decode(value).heartbeat
    except UNREADABLE:
        return None


def is_late(heartbeat_ms: int, newest_ms: int) -> bool:
    """True if a heartbeat was only decided late: two tasks of a micro-batch write at the same time, in any order.

    One that is SET_BACK_MS or more behind the newest isn't late: the gateway's clock was set back.

    >>> is_late(9_000, newest_ms=10_000), is_late(10_000, newest_ms=10_000), is_late(1_000, newest_ms=70_000)
    (True, False, False)
    """
    return newest_ms - SET_BACK_MS < heartbeat_ms < newest_ms


class _Heard:
    """Another gateway: the time of its newest decided heartbeat, and of our own newest at the last."""

    __slots__ = ("heartbeat_ms", "own_ms")

    def __init__(self, heartbeat_ms: int, own_ms: int) -> None:
        self.heartbeat_ms = heartbeat_ms
        self.own_ms = own_ms


class AliveGateways:
    """The gateways that are alive, ours included. Fed with decided heartbeats; reads no clock.

    A gateway is alive while its heartbeats are at most MISSED_MS behind our own newest settled one, by the time of
    its newest or by the order in which both were decided: the first holds when a micro-batch brings many heartbeats in
    any order, the second when clocks differ. Our own is settled SETTLE_MS after it arrived: a slow job decides many
    seconds at once, and those of a gateway that is alive may arrive last. While no heartbeat of our own is decided,
    no gateway becomes alive or gone. Before the first one is settled, `expected` gateways are alive: a gateway that
    starts while the job is down would otherwise take the whole limit.

    `count` is the number of gateways that are alive, ours included.

    >>> starting = AliveGateways("a", expected=4)
    >>> starting.on_heartbeat("a", 1_000, now_ms=1_300)
    >>> starting.count
    4
    >>> starting.on_heartbeat("a", 2_000, now_ms=2_300)
    >>> starting.count
    1
    """

    def __init__(self, instance: str, expected: int = 1) -> None:
        self._instance = instance
        self._expected = expected
        self._own_ms = 0
        self._own_heard_ms = 0
        self._arrived: deque[tuple[int, int]] = (
            deque()
        )  # time of arrival and our newest heartbeat then; not yet settled
        self._settled_ms = 0  # our own newest that is settled
        self._heard: dict[str, _Heard] = {}  # the one heard of longest ago comes first
        self._recent = 0
        self.count = expected

    def instances(self) -> list[str]:
        """The other gateways that are alive."""
        return [instance for instance in self._heard if self.is_alive(instance)]

    @property
    def decided_ms(self) -> int:
        """Time, by our own clock, up to which everything is decided: that of our own newest heartbeat."""
        return self._own_ms

    def is_own(self, instance: str | None) -> bool:
        """True for our own gateway."""
        return instance == self._instance

    def known_until_ms(self, now_ms: int) -> int:
        """Time up to which decisions describe the present: now, unless none has arrived for FRESH_MS."""
        return min(now_ms, self._own_heard_ms + FRESH_MS)

    def is_alive(self, instance: str) -> bool:
        """True if another gateway is alive.

        >>> alive = AliveGateways("a")
        >>> alive.on_heartbeat("b", 1_000, now_ms=1_300)
        >>> for heartbeat_ms in (1_000, 2_000, 4_000, 5_000):
        ...     alive.on_heartbeat("a", heartbeat_ms, heartbeat_ms + 300)
        >>> alive.is_alive("b")
        True
        >>> alive.on_heartbeat("a", 6_000, now_ms=6_300)
        >>> alive.is_alive("b"), alive.count
        (False, 1)
        """
        heard = self._heard.get(instance)
        return heard is not None and self._is_recent(heard)

    def on_heartbeat(self, instance: str, heartbeat_ms: int, now_ms: int) -> None:
        """Apply a decided heartbeat that a gateway, perhaps ours, sent at `heartbeat_ms` by its own clock."""
        self.settle(now_ms)
        if instance == self._instance:
            self._own_ms = max(self._own_ms, min(heartbeat_ms, now_ms))
            self._own_heard_ms = now_ms
            self._note_arrival(now_ms)
        else:
            self._hear(instance, heartbeat_ms)
        self._count()

    def settle(self, now_ms: int) -> None:
        """Settle our own heartbeats that arrived long enough ago."""
        settled_ms = self._settled_ms
        while self._arrived and now_ms - self._arrived[0][0] >= SETTLE_MS:
            _, self._settled_ms = self._arrived.popleft()
        if self._settled_ms != settled_ms:
            self._recent = sum(map(self._is_recent, self._heard.values()))
            self._count()

    def step_back(self, now_ms: int) -> None:
        """Forget later times, because our own clock was set back to now.

        >>> alive = AliveGateways("a")
        >>> alive.on_heartbeat("a", 9_000, now_ms=9_300)
        >>> alive.step_back(1_000)
        >>> alive.decided_ms
        1000
        """
        self._own_ms = min(self._own_ms, now_ms)
        self._own_heard_ms = min(self._own_heard_ms, now_ms)
        self._settled_ms = min(self._settled_ms, now_ms)
        self._arrived.clear()
        for heard in self._heard.values():
            heard.own_ms = min(heard.own_ms, now_ms)
        self._recent = sum(map(self._is_recent, self._heard.values()))
        self._count()

    def _note_arrival(self, now_ms: int) -> None:
        arrived_ms = now_ms
        if self._arrived and now_ms - self._arrived[-1][0] < _TOGETHER_MS:
            arrived_ms, _ = self._arrived.pop()
        self._arrived.append((arrived_ms, self._own_ms))

    def _count(self) -> None:
        alive = 1 + self._recent
        self.count = alive if self._settled_ms else max(alive, self._expected)

    def _hear(self, instance: str, heartbeat_ms: int) -> None:
        """Remember another gateway, which is recent now. Others change when our own heartbeats are settled."""
        known = self._heard.pop(instance, None)
        if known is None and len(self._heard) >= MAX_GATEWAYS and not self._make_room():
            return
        if known is not None and is_late(heartbeat_ms, known.heartbeat_ms):
            heartbeat_ms = known.heartbeat_ms
        self._heard[instance] = _Heard(heartbeat_ms, self._own_ms)
        if known is None or not self._is_recent(known):
            self._recent += 1

    def _make_room(self) -> bool:
        """Forget the gateway heard of longest ago, unless it is alive. Returns False if it is."""
        longest_ago = next(iter(self._heard))
        if self._is_recent(self._heard[longest_ago]):
            return False
        del self._heard[longest_ago]
        return True

    def _is_recent(self, heard: _Heard) -> bool:
        return self._settled_ms - heard.own_ms <= MISSED_MS or abs(self._settled_ms - heard.heartbeat_ms) <= MISSED_MS
