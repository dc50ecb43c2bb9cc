"""Gateways and the job's arithmetic as one loop without Kafka: the test moves events and sets the time."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any, cast
from unittest.mock import patch

from kafka import KafkaProducer

from sluice.configs.settings import load_settings
from sluice.gateways.client import client
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.options import GatewayOptions
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.kafka_io.topic_follower import Reading, TopicFollower
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import VERSION_KEY, limit_key, limit_value, overrides_key, overrides_value, version_end
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.counter_share import CounterShare
from sluice.streaming.enforce.simulation import Simulation
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


class PublishedEvent:
    """An event that a producer has, as the future that the gateway gets of it. The test ends it, perhaps twice."""

    def __init__(self, value: bytes, timestamp_ms: int, taken: "Callable[[PublishedEvent], object]") -> None:
        self.value = value
        self.timestamp_ms = timestamp_ms
        self.is_ended = False
        self._taken = taken
        self._calls: list[Callable[[Any], object]] = []

    def add_callback(self, call: Callable[[Any], object]) -> None:
        self._calls.append(call)

    def add_errback(self, call: Callable[[Any], object]) -> None:
        self._calls.append(call)
        self._taken(self)  # the gateway adds this one last

    def end(self, error: BaseException | None = None) -> None:
        """The broker has the event, or it is lost."""
        self.is_ended = True
        on_sent, on_failed = self._calls
        on_sent(None) if error is None else on_failed(error)


class HeldProducer:
    """A producer that hands each event to `taken`: by default it is kept. First it raises the `refusals`."""

    def __init__(self) -> None:
        self.refusals: list[Exception] = []
        self.events: SimpleQueue[PublishedEvent] = SimpleQueue()
        self.taken: Callable[[PublishedEvent], object] = self.events.put

    def send(self, _topic: str, value: bytes, _key: bytes, timestamp_ms: int) -> PublishedEvent:
        if self.refusals:
            raise self.refusals.pop()
        return PublishedEvent(value, timestamp_ms, self.taken)

    def close(self, _timeout_s: float) -> None:
        pass


class GivenTopic(TopicFollower):
    """A topic whose records come from the test, all of partition 0."""

    def __init__(self, kafka: Mapping[str, str], reading: Reading) -> None:
        super().__init__(kafka, reading)
        self._offsets = itertools.count()

    def start(self) -> None:
        """There is nothing to read in the background."""

    def give(self, key: bytes | None, value: bytes | None, headers: bytes = b"") -> None:
        """Hand over a record, as the follower's thread does."""
        for partition, record in self.reader.passing(0, [FetchedRecord(next(self._offsets), key, value, headers)]):
            self.hand_over(partition, record)

    def be_read(self) -> None:
        """All that was there in the beginning is read."""
        self.caught_up.set()
        self.reading.on_caught_up()


class OfflineGateway(Gateway):
    """A gateway without Kafka: it reads what a test gives, and the test takes what it publishes."""

    def __init__(self, options: GatewayOptions, clock_ms: Callable[[], int] = now_ms) -> None:
        self.producer = HeldProducer()
        self._topics: dict[str, GivenTopic] = {}
        super().__init__(NOBODY, options, clock_ms, self._given, lambda _: cast(KafkaProducer, self.producer))
        topics = options.sums_topic, options.waits_topic, options.limits_topic
        self.sums, self.waits, self.limits = (self._topics[topic] for topic in topics)

    def _given(self, kafka: Mapping[str, str], reading: Reading) -> GivenTopic:
        return self._topics.setdefault(reading.topic, GivenTopic(kafka, reading))

    def take(self, number: int) -> list[PublishedEvent]:
        """The next events at the producer, which are unsent until the test ends them."""
        return [self.producer.events.get(timeout=60) for _ in range(number)]

    def published(self) -> Iterator[bytes]:
        """The events that the gateway has published since the last call. They are sent."""
        for event in self.take(self.stats().unsent):
            event.end()
            yield event.value

    def be_current(self) -> None:
        """Both topics with waits are read."""
        self.waits.be_read()
        self.sums.be_read()

    def idle(self) -> None:
        """Let the gateway do what it does several times a second."""
        self.sums.reading.on_idle()

    def override(self, decider: str, said: Overrides) -> None:
        """Give it what a decider says, as a record of the limits topic."""
        self.limits.give(overrides_key(decider), overrides_value(said))


class GatewayLoop:
    """Gateways whose events are decided when `decide` is called. `decisions` are those made so far, as JSON."""

    def __init__(self, gateways: Sequence[OfflineGateway], entries: Sequence[QuotaEntry], clock: Clock) -> None:
        self.gateways, self.clock = gateways, clock
        self.decisions: list[dict[str, Any]] = []
        self.others: list[bytes] = []
        """Events that no gateway here has published, to be decided with theirs."""
        self._simulation = Simulation(Quotas(entries, version=1), load_settings())
        for gateway in gateways:
            set_limits(gateway, 1, entries)
            gateway.be_current()

    def events(self) -> list[dict[str, Any]]:
        """The published events without a decision, apart from heartbeats. Removes them."""
        return [event for event in map(json.loads, self.published()) if event["api"] != HEARTBEAT_API]

    def decide(self) -> None:
        """Decide what was published, and let every gateway know."""
        self.decide_events([*self.published()])

    def decide_events(self, events: Iterable[bytes]) -> None:
        """Decide these events, and let every gateway know."""
        for record in self._simulation.records(events):
            assert record.topic in ("quota-decisions", "quota-sums"), record.value
            if record.topic == "quota-decisions":
                self.decisions.append(json.loads(record.value))
            else:
                for gateway in self.gateways:
                    gateway.sums.give(record.key, record.value)

    def beat(self, rounds: int = 1) -> None:
        """Let seconds pass in which every gateway publishes a heartbeat, and let all gateways know at once."""
        for _ in range(rounds):
            self.clock.ms += 1_000
            for gateway in self.gateways:
                gateway.idle()
            self.decide()

    def published(self) -> Iterator[bytes]:
        """The events without a decision, heartbeats among them. Removes them."""
        others, self.others = self.others, []
        yield from others
        for gateway in self.gateways:
            yield from gateway.published()


@contextmanager
def gateway_loop(entries: Sequence[QuotaEntry], count: int = 1, **options: Any) -> Iterator[GatewayLoop]:
    """A loop of `count` gateways under these quotas, whose instances are i-0 and so on."""
    clock = Clock()
    with ExitStack() as stack:
        stack.enter_context(patch.object(client, "instance_name", lambda name: name.replace("gateway", "i")))
        gateways = []
        for number in range(count):
            named = GatewayOptions(name=f"gateway-{number}", close_timeout_s=0, **options)
            gateways.append(stack.enter_context(OfflineGateway(named, clock)))
        yield GatewayLoop(gateways, entries, clock)


def limit_records(entries: Sequence[QuotaEntry], version: int) -> list[tuple[bytes, bytes]]:
    """Records of the limits topic with these quotas as one version."""
    records = [(limit_key(entry), limit_value(entry, version)) for entry in entries]
    return [*records, (VERSION_KEY, version_end(version, len(entries)))]


def set_limits(gateway: OfflineGateway, version: int, entries: Sequence[QuotaEntry]) -> None:
    """Make these quotas the version in force, as records of the limits topic would."""
    gateway.limits.reading.on_restart()
    for key, value in limit_records(entries, version):
        gateway.limits.give(key, value)


def wait_ms(gateway: Gateway, *request: Any) -> int:
    """The wait that is left to a client before its next request, in milliseconds."""
    return gateway.throttle_of(*request).throttle_ms


def touched(gateway: Gateway, kind: QuotaKind, **tags: Any) -> CounterShare | None:
    """The share of a counter; None if the gateway's clients haven't touched it."""
    return gateway._inline.shares.touched.get((kind, Tags(**tags)))


def counter(gateway: Gateway, kind: QuotaKind, **tags: Any) -> CounterShare:
    """The share of a counter, which the gateway must have."""
    known = touched(gateway, kind, **tags)
    assert known is not None
    return known


def tell(gateway: OfflineGateway, *decisions: Mapping[str, Any], **batch: Any) -> None:
    """Let a gateway know of these decisions of one micro-batch."""
    for record in sums_of(decisions, **batch):
        gateway.sums.give(None, record)
