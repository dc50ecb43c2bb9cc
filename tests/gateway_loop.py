"""Gateways and the job's arithmetic as one loop without Kafka: the test moves events and sets the time."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sluice.configs.settings import load_settings
from sluice.gateways.client import client
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.options import GatewayOptions
from sluice.gateways.client.publisher import EventPublisher
from sluice.gateways.client.wait_table import Wait
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_follower import TopicFollower
from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import VERSION_KEY, limit_key, limit_value, version_end
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.counter_share import CounterShare
from sluice.streaming.enforce.pipeline import Simulation
from tests.decided_sums import sums_of

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
"""An address where no broker answers."""

NOW_MS = 1_760_000_000_000


class Clock:
    """A time in epoch milliseconds that a test moves."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


def give(follower: TopicFollower, *records: FetchedRecord) -> None:
    """Hand records of partition 0 to a follower, as its thread does."""
    follower.reader._positions.pop(0, None)
    for partition, record in follower.reader.passing(0, records):
        follower.hand_over(partition, record)


def take_published(gateway: Gateway) -> Iterator[bytes]:
    """The events that a gateway has published since the last call."""
    queue = gateway._publisher._queue
    while not queue.empty():
        record = queue.get()
        if record is not None:
            gateway._publisher._on_sent(record, None)
            yield record.value


class GatewayLoop:
    """Gateways whose events are decided when `decide` is called. `decisions` are those made so far, as JSON."""

    def __init__(self, gateways: Sequence[Gateway], entries: Sequence[QuotaEntry], clock: Clock) -> None:
        self.gateways = gateways
        self.clock = clock
        self.decisions: list[dict[str, Any]] = []
        self._simulation = Simulation(Quotas(entries, version=1), load_settings())
        for gateway in gateways:
            set_limits(gateway, 1, entries)
            gateway._policy.current.set()

    def events(self) -> list[dict[str, Any]]:
        """The published events without a decision, apart from heartbeats. Removes them."""
        return [event for event in map(json.loads, self._published()) if event["api"] != HEARTBEAT_API]

    def decide(self) -> None:
        """Decide what was published, and let every gateway know."""
        self.decide_events(list(self._published()))

    def decide_events(self, events: Iterable[bytes]) -> None:
        """Decide these events, and let every gateway know."""
        for record in self._simulation.records(events):
            assert record.topic in ("quota-decisions", "quota-sums"), record.value
            if record.topic == "quota-decisions":
                self.decisions.append(json.loads(record.value))
                continue
            for gateway in self.gateways:
                gateway._on_sums(None, record.value)

    def beat(self, rounds: int = 1) -> None:
        """Let seconds pass in which every gateway publishes a heartbeat, and let all gateways know at once."""
        for _ in range(rounds):
            self.clock.ms += 1_000
            for gateway in self.gateways:
                gateway._on_idle()
            self.decide()

    def _published(self) -> Iterator[bytes]:
        for gateway in self.gateways:
            yield from take_published(gateway)


@contextmanager
def no_connections() -> Iterator[None]:
    """Let gateways that start here not even search for a broker: it takes them seconds to give that up."""
    with patch.object(TopicFollower, "start", lambda _: None), patch.object(EventPublisher, "_connect", lambda _: None):
        yield


@contextmanager
def gateway_loop(entries: Sequence[QuotaEntry], count: int = 1, **options: Any) -> Iterator[GatewayLoop]:
    """A loop of `count` gateways under these quotas, whose instances are i-0 and so on."""
    clock = Clock()
    with ExitStack() as stack:
        stack.enter_context(patch.object(client, "instance_name", lambda name: name.replace("gateway", "i")))
        stack.enter_context(no_connections())
        gateways = [
            stack.enter_context(
                Gateway(
                    NOBODY,
                    GatewayOptions(name=f"gateway-{number}", close_timeout_s=0, **options),
                    clock_ms=clock,
                )
            )
            for number in range(count)
        ]
        yield GatewayLoop(gateways, entries, clock)


def limit_records(entries: Sequence[QuotaEntry], version: int) -> list[tuple[bytes, bytes]]:
    """Records of the limits topic with these quotas as one version."""
    records = [(limit_key(entry), limit_value(entry, version)) for entry in entries]
    return [*records, (VERSION_KEY, version_end(version, len(entries)))]


def set_limits(gateway: Gateway, version: int, entries: Sequence[QuotaEntry]) -> None:
    """Make these quotas the version in force, as records of the limits topic would."""
    gateway._in_force.restart_limits()
    for key, value in limit_records(entries, version):
        gateway._in_force.on_limit(key, value)


def wait_ms(gateway: Gateway, *request: Any) -> int:
    """The wait that is left to a client before its next request, in milliseconds."""
    return gateway.throttle_of(*request).throttle_ms


def counter(gateway: Gateway, kind: QuotaKind, **tags: Any) -> CounterShare:
    """The share of a counter, which the gateway must have."""
    known = gateway._inline._shares._touched.get((kind, Tags(**tags)))
    assert known is not None
    return known


def tell(gateway: Gateway, *decisions: Mapping[str, Any], **batch: Any) -> None:
    """Let a gateway know of these decisions of one micro-batch."""
    for record in sums_of(decisions, **batch):
        gateway._on_sums(None, record)


def apply_inline(gateway: Gateway, kind: QuotaKind, wait: Wait, **tags: Any) -> None:
    """Make a counter wait as if inline charging had asked for it."""
    gateway._in_force.inline_waits.note_wait((kind, Tags(**tags)), wait)
