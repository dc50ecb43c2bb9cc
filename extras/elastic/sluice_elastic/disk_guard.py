"""Guard of disks: while a broker has too few free bytes, all producers of the cluster are throttled. Pure.

Kafka takes one quota callback, so no other plugin that guards disks, such as Strimzi's, can stand beside Sluice's.
"""

from collections import OrderedDict
from collections.abc import Callable

from sluice.state.contract.gateway_topics import DecidedHeartbeat, Override
from sluice.state.overrides.decider import DecidedOverrides, Decider
from sluice_elastic.log_dirs import Disks

HEARTBEAT_FRESH_MS = 10_000
"""Time for which a broker that said its disk is low is believed. A broker that runs says so each second."""

_MAX_BROKERS = 1_000


class DiskGuard(Decider):
    """Holds all producers while a disk is low: by the heartbeats of brokers, and by what all brokers were asked for."""

    name = "disk_guard"

    def __init__(self, disks: Callable[[], Disks], *, reads_heartbeats: bool = True) -> None:
        self.reads_heartbeats = reads_heartbeats
        self._disks = disks
        self._low: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def on_heartbeat(self, heartbeat: DecidedHeartbeat, arrived_ms: int) -> None:
        """Note whether the broker's disk is low."""
        self._low.pop(heartbeat.instance, None)
        if heartbeat.low_disk is None:
            return
        self._low[heartbeat.instance] = heartbeat.low_disk, arrived_ms
        while len(self._low) > _MAX_BROKERS:
            self._low.popitem(last=False)

    def decide(self, now_ms: int) -> DecidedOverrides:
        """Hold all while any disk is low.

        >>> guard = DiskGuard(Disks)
        >>> guard.on_heartbeat(DecidedHeartbeat("b-1", "", 0, low_disk="broker 1: /data is low"), 1_000)
        >>> [[each.reason for each in guard.decide(now_ms).overrides] for now_ms in (2_000, 11_001)]
        [['broker 1: /data is low'], []]
        """
        disks = self._disks().now(now_ms)
        low = self._heard(now_ms) or (None if disks is None else disks.low)
        return DecidedOverrides([] if low is None else [Override("hold", reason=low)])

    def _heard(self, now_ms: int) -> str | None:
        """The disk that is low by heartbeats; None if none is."""
        while self._low:
            instance, (low_disk, heard_ms) = next(iter(self._low.items()))
            if abs(now_ms - heard_ms) <= HEARTBEAT_FRESH_MS:
                return low_disk
            del self._low[instance]
        return None
