"""Guard of disks: while a broker has too few free bytes, all producers of the cluster are held. Pure.

Kafka takes one quota callback, so who installs Sluice's plugin has no other that guards disks, such as Strimzi's.
"""

from collections import OrderedDict
from typing import NamedTuple

from sluice.state.contract.records import Load

DISK_GUARD = "disk_guard"
"""Name in `throttled_by` of a wait that no quota asked for, but the guard."""

HELD_MS = 10_000
"""Wait after each request of a producer that is held: a trickle. It ends no sooner when there is room again."""

FRESH_MS = 10_000
"""Time for which a broker that said its disk is low is believed. A broker that runs says so each second."""

_MAX_BROKERS = 1_000


class DiskFloor(NamedTuple):
    """Free bytes, and percent of all bytes, below which a log directory is low; 0 is no floor."""

    free_bytes: int = 0
    free_percent: int = 0

    def low(self, measured: Load | None) -> str | None:
        """The first log directory that is low, in words; None if none is.

        >>> from sluice.state.contract.records import LogDirectory
        >>> low = Load(broker_id=2, log_dirs=[LogDirectory("/data", 9_000_000_000, 100_000_000_000)])
        >>> DiskFloor(free_bytes=10_000_000_000).low(low)
        'broker 2: /data has 9000000000 of 100000000000 bytes free'
        >>> DiskFloor(free_percent=9).low(low) is None
        True
        """
        for log_dir in measured.log_dirs if measured is not None else ():
            least = max(self.free_bytes, self.free_percent / 100.0 * log_dir.total_bytes)
            if log_dir.free_bytes < least:
                whose = "" if measured is None or measured.broker_id is None else f"broker {measured.broker_id}: "
                return f"{whose}{log_dir.path} has {log_dir.free_bytes} of {log_dir.total_bytes} bytes free"
        return None


class DiskGuard:
    """The brokers whose disks are low, as their decided heartbeats say. Times are epoch milliseconds."""

    def __init__(self) -> None:
        self._low: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def on_heartbeat(self, instance: str, low_disk: str | None, now_ms: int) -> None:
        """Apply a decided heartbeat that arrived now."""
        self._low.pop(instance, None)
        if low_disk is None:
            return
        self._low[instance] = low_disk, now_ms
        while len(self._low) > _MAX_BROKERS:
            self._low.popitem(last=False)

    def low(self, now_ms: int) -> str | None:
        """The disk for which producers are held now; None if they aren't.

        >>> guard = DiskGuard()
        >>> guard.on_heartbeat("b-1", "broker 1: /data has 5 of 100 bytes free", now_ms=1_000)
        >>> guard.low(2_000), guard.low(11_001)
        ('broker 1: /data has 5 of 100 bytes free', None)
        """
        while self._low:
            instance, (low_disk, heard_ms) = next(iter(self._low.items()))
            if abs(now_ms - heard_ms) <= FRESH_MS:
                return low_disk
            del self._low[instance]
        return None
