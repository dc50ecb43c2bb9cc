"""A greedy client of `./scripts/run`, behind two gateways that charge it in line."""

import time
from collections import deque
from dataclasses import replace
from threading import Event, Lock, Thread

from scripts.demo.view import amount
from sluice.configs.settings import Settings
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.options import GatewayOptions
from sluice.state.decisions.request import Request, TopicPartition
from sluice.state.quotas.kinds import QuotaKind

USER, CLIENT_ID = "greedy", "app"
ASKED_BYTES_PER_S = 20_000_000.0

_GATEWAYS = 2
_REQUEST_BYTES = 100_000
_SPAN_S = 10.0
_CLOSE_S = 10.0


class Served:
    """What a client got, and its rate over the last 10 s. Thread-safe; times are seconds of one clock.

    >>> served = Served()
    >>> served.add(1.0, 500), served.add(9.0, 700), served.add(14.0, 800)
    (None, None, None)
    >>> served.bytes_per_s(15.0), served.total
    (150.0, 2000)
    """

    def __init__(self) -> None:
        self.total = 0
        self._lock = Lock()
        self._latest: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, served_bytes: int) -> None:
        """Note a request that was served."""
        with self._lock:
            self.total += served_bytes
            self._latest.append((now_s, served_bytes))
            self._forget(now_s)

    def bytes_per_s(self, now_s: float) -> float:
        """Mean of the last 10 s."""
        with self._lock:
            self._forget(now_s)
            return sum(served_bytes for _, served_bytes in self._latest) / _SPAN_S

    def _forget(self, now_s: float) -> None:
        while self._latest and self._latest[0][0] <= now_s - _SPAN_S:
            self._latest.popleft()


class HeldClient:
    """A client with a connection to each of two gateways, on which it sends as soon as it may, until `stop`."""

    def __init__(self, settings: Settings) -> None:
        topics = settings.topics
        options = GatewayOptions(
            requests_topic=topics.requests,
            decisions_topic=topics.decisions,
            limits_topic=topics.limits,
            waits_topic=topics.waits,
            expected_gateways=_GATEWAYS,
            quota=settings.quota,
            close_timeout_s=_CLOSE_S,
        )
        self._stopped = Event()
        self._served = Served()
        self._limit: float | None = None
        self._gateways = [
            Gateway(settings.kafka, replace(options, name=f"run-{number}")) for number in range(1, _GATEWAYS + 1)
        ]
        self._threads = [Thread(target=self._send, args=(gateway,), daemon=True) for gateway in self._gateways]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the client, and publish what the gateways have charged."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for gateway in self._gateways:
            gateway.close()

    def line(self) -> str:
        """What it gets, in one line."""
        got = amount(QuotaKind.PRODUCER_BYTE_RATE, self._served.bytes_per_s(time.monotonic()))
        asked = amount(QuotaKind.PRODUCER_BYTE_RATE, ASKED_BYTES_PER_S)
        limit = "no quota" if self._limit is None else amount(QuotaKind.PRODUCER_BYTE_RATE, self._limit)
        return (
            f"{USER} | {CLIENT_ID} asks two gateways for {asked} and gets {got} of {limit} in the last {_SPAN_S:.0f} s"
        )

    def _send(self, gateway: Gateway) -> None:
        request = Request(
            "Produce", user=USER, client_id=CLIENT_ID, topic_partitions=[TopicPartition("held", 0, _REQUEST_BYTES)]
        )
        pause_s = _GATEWAYS * _REQUEST_BYTES / ASKED_BYTES_PER_S
        while not self._stopped.is_set():
            answer = gateway.admit(request)
            self._limit = answer.limit or self._limit
            self._served.add(time.monotonic(), _REQUEST_BYTES)
            self._stopped.wait(max(pause_s, answer.throttle_ms / 1000))
