"""A gateway process with greedy clients: each sends its next request as soon as it may.

python -m scripts.closed_loop.greedy_gateway SETTINGS GATEWAYS SECONDS DEMAND is started by `real`.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from configs.settings import Settings, load_settings
from gateways.client.client import Gateway
from gateways.client.options import GatewayOptions
from scripts.testbed.job import wait_until
from state.decisions.request import Request, TopicPartition
from state.quotas.kinds import Family, QuotaKind

READY = "ready"
READY_S = 180.0
SIZE_S = 0.1
"""Size of a request, in seconds of the quota."""


class GreedyClient(NamedTuple):
    """A client, its quota, and the limit."""

    user: str
    quota: QuotaKind
    limit: float


CLIENTS = (
    GreedyClient("producer", QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0),
    GreedyClient("consumer", QuotaKind.CONSUMER_BYTE_RATE, 1_000_000.0),
    GreedyClient("worker", QuotaKind.REQUEST_PERCENTAGE, 10.0),
)


@dataclass
class Connection:
    """The connection of a client to this gateway: a closed loop with its part of the demand."""

    gateway: Gateway
    client: GreedyClient
    per_s: float

    def run(self, until_s: float) -> None:
        """Send requests until then, on the monotonic clock."""
        next_s = time.monotonic()
        while next_s < until_s:
            time.sleep(max(0.0, next_s - time.monotonic()))
            answer = self.gateway.admit(self.request())
            waited_s = time.monotonic() + answer.throttle_ms / 1000
            next_s = waited_s if answer.withhold else max(waited_s, next_s + 1 / self.per_s)

    def request(self) -> Request:
        """A request of SIZE_S seconds of the quota."""
        user, quota, limit = self.client
        size = limit * SIZE_S
        if quota.family is Family.REQUEST_TIME:
            return Request("Metadata", user=user, client_id="app", request_time_ns=int(size * 10_000_000))
        partitions = [TopicPartition("orders", 0, int(size))]
        return Request(
            "Fetch" if quota.consumer else "Produce", user=user, client_id="app", topic_partitions=partitions
        )


def serve(settings: Settings, gateways: int, seconds: float, demand: float) -> None:
    """Serve every client for so long, with a demand of so many times its quota, once so many gateways are alive."""
    topics = settings.topics
    options = GatewayOptions(
        requests_topic=topics.requests,
        decisions_topic=topics.decisions,
        limits_topic=topics.limits,
        waits_topic=topics.waits,
        quota=settings.quota,
    )
    with Gateway(settings.kafka, options) as gateway:
        wait_until(lambda: gateway.stats().gateways == gateways, READY_S)
        print(READY, flush=True)
        until_s = time.monotonic() + seconds
        connections = [Connection(gateway, client, demand / SIZE_S) for client in CLIENTS]
        threads = [Thread(target=connection.run, args=(until_s,)) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(gateway.stats(), flush=True)


if __name__ == "__main__":
    serve(load_settings(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
