"""A gateway process with greedy clients: each sends its next request as soon as it may.

python -m scripts.closed_loop.greedy_gateway SETTINGS GATEWAYS SECONDS DEMAND is started by `real`.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from scripts.testbed.job import wait_until
from sluice.configs.settings import Settings, load_settings
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.options import GatewayOptions
from sluice.state.decisions.request import Mutation, Request, TopicPartition
from sluice.state.quotas.kinds import TOPIC_KINDS, Family, QuotaKind

READY = "ready"
READY_S = 180.0
SIZE_S = 0.1
"""Size of a request, in seconds of the quota."""


class GreedyClient(NamedTuple):
    """A client, its quota, and the limit. `size_s` is the size of its requests, in seconds of the quota."""

    user: str
    quota: QuotaKind
    limit: float
    size_s: float = SIZE_S

    @property
    def entity(self) -> dict[str, str]:
        """Whom the quota is set for: the user, or the topic that carries the user's name."""
        return {"topic" if self.quota in TOPIC_KINDS else "user": self.user}


CLIENTS = (
    GreedyClient("producer", QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0),
    GreedyClient("consumer", QuotaKind.CONSUMER_BYTE_RATE, 1_000_000.0),
    GreedyClient("worker", QuotaKind.REQUEST_PERCENTAGE, 10.0),
    GreedyClient("writer", QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1_000_000.0),
    GreedyClient("reader", QuotaKind.TOPIC_CONSUMER_BYTE_RATE, 1_000_000.0),
    # Each request waits for its decision, so it has to be large: small ones would stay below the quota by themselves.
    GreedyClient("admin", QuotaKind.CONTROLLER_MUTATION_RATE, 10.0, size_s=2.0),
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
            answer = self.gateway.admit_mutations(self.request())  # others than mutations are admitted in line
            waited_s = time.monotonic() + answer.throttle_ms / 1000
            next_s = waited_s if answer.withhold or any(answer.refused) else max(waited_s, next_s + 1 / self.per_s)

    def request(self) -> Request:
        """A request of so many seconds of the quota as the client's have."""
        user, quota, limit, size_s = self.client
        size = limit * size_s
        if quota.family is Family.MUTATIONS:
            topics = [Mutation("orders", int(size))]
            return Request("CreatePartitions", user=user, client_id="app", mutations=topics)
        if quota.family is Family.REQUEST_TIME:
            return Request("Metadata", user=user, client_id="app", request_time_ns=int(size * 10_000_000))
        partitions = [TopicPartition(user, 0, int(size))]
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
        connections = [Connection(gateway, client, demand / client.size_s) for client in CLIENTS]
        threads = [Thread(target=connection.run, args=(until_s,)) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(gateway.stats(), flush=True)


if __name__ == "__main__":
    serve(load_settings(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
