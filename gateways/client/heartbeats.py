"""Heartbeats: events by which the gateways know of each other."""

import logging
from collections.abc import Callable

from sluice.gateways.client.decided import Decided
from sluice.gateways.client.inline import InlineCharges
from sluice.gateways.client.publisher import EventPublisher
from sluice.gateways.client.staleness import Staleness
from sluice.state.contract.records import HEARTBEAT_API, Heartbeat, Request
from sluice.state.shares.alive import HEARTBEAT_MS

log = logging.getLogger(__name__)


class Heartbeats:
    """Publishes the heartbeats of one gateway, and recognises those of a gateway that has the same instance."""

    def __init__(
        self,
        instance: str,
        publisher: EventPublisher,
        inline: InlineCharges,
        staleness: Staleness,
        clock_ms: Callable[[], int],
    ) -> None:
        self._instance = instance
        self._publisher = publisher
        self._inline = inline
        self._staleness = staleness
        self._clock_ms = clock_ms
        self._started_ms = clock_ms()
        self._last_ms = 0
        self._said_namesake = False

    def beat(self) -> None:
        """Publish a heartbeat once in HEARTBEAT_MS. Never waits: the reader's thread must go on."""
        now_ms = self._clock_ms()
        if abs(now_ms - self._last_ms) < HEARTBEAT_MS:
            return
        if now_ms < self._last_ms:
            log.warning("the clock was set back by %d ms; shares begin anew", self._last_ms - now_ms)
            self._inline.on_clock_set_back()
        self._last_ms = now_ms
        counters, _ = self._inline.size()
        heartbeat = Heartbeat(self._staleness.stale_ms(), counters, self._inline.busiest())
        self._publisher.publish_own(Request(HEARTBEAT_API, heartbeat=heartbeat))

    def separate_namesake(self, decided: Decided) -> None:
        """Give a decided heartbeat another instance if another gateway published it under this gateway's instance.

        Two gateways that took each other's charges for their own would let a client use its quota twice.
        """
        if decided.instance != self._instance or decided.request_id.startswith(self._publisher.id_stem):
            return
        decided.instance = decided.request_id.rpartition("-")[0] or "namesake"
        if decided.timestamp_ms >= self._started_ms and not self._said_namesake:
            self._said_namesake = True
            log.error(
                "another gateway has the instance %s as well; expected a name that no other process has: its charges"
                " are taken for those of this one",
                self._instance[:100],
            )
