"""Gateways of a job, and greedy clients: each sends its next request as soon as its wait and its demand allow."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sluice.configs.settings import Settings
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.options import GatewayOptions
from sluice.process.background import BackgroundService
from sluice.state.contract.records import Mutation, Request, TopicPartition
from sluice.state.quotas.kinds import TOPIC_KINDS, Family, QuotaKind
from sluice_proxy.gateway import KafkaGateway

SIZE_S = 0.1
"""Size of a request, in seconds of the quota."""


def gateway_options(settings: Settings, **more: Any) -> GatewayOptions:
    """The options of a gateway that works with this job; `more` are further ones."""
    topics = settings.topics
    return GatewayOptions(
        requests_topic=topics.requests,
        sums_topic=topics.sums,
        limits_topic=topics.limits,
        waits_topic=topics.waits,
        quota=settings.quota,
        **more,
    )


def proxies_of(folder: Path, settings: Settings, count: int) -> Iterator[KafkaGateway]:
    """So many proxies in front of the brokers of a job with these settings, to be started."""
    for name in [f"proxy-{number}" for number in range(1, count + 1)]:
        properties = {"sluice.gateway.name": name, "sluice.expected.gateways": count}
        yield KafkaGateway(folder / name, settings, properties=properties)


class GreedyClient(NamedTuple):
    """A client, its quota, and the limit. `size_s` is the size of its requests, in seconds of the quota."""

    user: str
    quota: QuotaKind
    limit: float
    size_s: float = SIZE_S

    @property
    def entity(self) -> dict[str, str]:
        """Entity of the quota: the user, or the topic that carries the user's name."""
        return {"topic" if self.quota in TOPIC_KINDS else "user": self.user}

    def request(self) -> Request:
        """A request of the client's size."""
        size = self.limit * self.size_s
        request = Request("Metadata", user=self.user, client_id="app")
        if self.quota.family is Family.MUTATIONS:
            request.api, request.mutations = "CreatePartitions", [Mutation("orders", int(size))]
        elif self.quota.family is Family.REQUEST_TIME:
            request.request_time_ns = int(size * 10_000_000)
        else:
            request.api = "Fetch" if self.quota.consumer else "Produce"
            request.topic_partitions = [TopicPartition(self.user, 0, int(size))]
        return request


@dataclass
class Connection:
    """A connection of a client to a gateway: a closed loop with `demand`, in quotas."""

    gateway: Gateway
    client: GreedyClient
    demand: float

    def run(self) -> Iterator[float]:
        """Send requests; yields the seconds until the next one."""
        gap_s = self.client.size_s / self.demand
        next_s = time.monotonic()
        while True:
            answer = self.gateway.admit_mutations(self.client.request())  # inline charging, but for mutations
            waited_s = time.monotonic() + answer.throttle_ms / 1000
            next_s = waited_s if answer.withhold or any(answer.refused) else max(waited_s, next_s + gap_s)
            yield max(0.0, next_s - time.monotonic())


@contextmanager
def sending(connections: Iterable[Connection]) -> Iterator[None]:
    """Let all connections send while this block runs."""
    with ExitStack() as stack:
        for connection in connections:
            stack.enter_context(BackgroundService("connection", connection.run, 0.0))
        yield
