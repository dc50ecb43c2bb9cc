"""The events of one gateway on their way to Kafka, heartbeats among them."""

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count

import msgspec

from sluice.gateways.client.event_sender import EventRecord, EventSender
from sluice.gateways.client.events import as_request
from sluice.gateways.client.inline import InlineCharges
from sluice.gateways.client.policy import Staleness
from sluice.gateways.errors import GatewayClosedError
from sluice.state.contract.records import HEARTBEAT_API, NO_LOGIN, DecidedHeartbeat, Heartbeat, Request
from sluice.state.quotas.entity import client_key
from sluice.state.shares.alive import HEARTBEAT_MS

_JSON = msgspec.json.Encoder()


class EventPublisher:
    """Completes events with id, time, gateway name and instance, and hands them to the sender.

    The ids that it makes begin with `id_stem`, which no other gateway has.
    """

    def __init__(
        self, sender: EventSender, staleness: Staleness, name: str, instance: str, clock_ms: Callable[[], int]
    ) -> None:
        self.id_stem = f"{name}-{uuid.uuid4().hex[:12]}"
        self._sender = sender
        self._staleness = staleness
        self._name = name
        self._instance = instance
        self._clock_ms = clock_ms
        self._numbers = count()

    def complete(self, request: Request | Mapping[str, object]) -> Request:
        """The event with all that was missing: without a user it is of a client that has not logged in.

        The instance is always the gateway's own.
        """
        event = as_request(request)
        return msgspec.structs.replace(
            event,
            user=event.user or (NO_LOGIN if event.heartbeat is None else None),
            request_id=event.request_id or f"{self.id_stem}-{next(self._numbers)}",
            timestamp_ms=self._clock_ms() if event.timestamp_ms is None else event.timestamp_ms,
            gateway=event.gateway or self._name,
            instance=self._instance,
        )

    def publish(self, parts: Sequence[Request]) -> str | None:
        """Queue the events of one request. Returns the id of the last one; None if any was dropped."""
        is_queued = True
        for part in parts:
            is_queued = self._send(part) and is_queued
        return parts[-1].request_id if is_queued else None

    def publish_own(self, event: Request) -> None:
        """Queue an event that the gateway itself makes. Drops it if the buffer is full or the gateway is closed."""
        with suppress(GatewayClosedError):
            self._send(self.complete(event), may_block=False)

    def _send(self, event: Request, may_block: bool = True) -> bool:
        key = client_key(event.user or "", event.client_id or "").encode()
        # An event from the future must not set the record's time: the broker refuses it with the whole batch it is in.
        timestamp_ms = min(int(event.timestamp_ms or 0), self._clock_ms())
        self._staleness.note_published(timestamp_ms)  # before its decision can arrive
        return self._sender.send(EventRecord(key, _JSON.encode(event), timestamp_ms), may_block)


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
        heartbeat = Heartbeat(self._staleness.stale_ms(), counters, self._inline.busiest(), load=self._inline.load())
        self._publisher.publish_own(Request(HEARTBEAT_API, heartbeat=heartbeat))

    def sender_of(self, decided: DecidedHeartbeat) -> str:
        """The instance whose heartbeat was decided; another one if a gateway published it under this one's instance.

        Two gateways that took each other's charges for their own would let a client use its quota twice.
        """
        if decided.instance != self._instance or decided.request_id.startswith(self._publisher.id_stem):
            return decided.instance
        if decided.timestamp_ms >= self._started_ms and not self._said_namesake:
            self._said_namesake = True
            log.error(
                "another gateway has the instance %s as well; expected a name that no other process has: its charges"
                " are taken for those of this one",
                self._instance[:100],
            )
        return decided.request_id.rpartition("-")[0] or "namesake"
