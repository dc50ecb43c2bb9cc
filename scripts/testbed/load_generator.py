"""Generated request events: the same seed makes the same events. The command publishes them at a given rate.

./scripts/load --bootstrap-servers 127.0.0.1:9092 --rate 1000 --seconds 10
"""

import math
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Annotated, Final

import typer
from kafka import KafkaProducer
from kafka.producer.future import RecordMetadata

from scripts.command import EXIT_FAILED, run_command, stop_on_signals
from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.kafka_io.client import connect
from sluice.kafka_io.clock import now_ms
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.entity import client_key

DEFAULT_MIX: Final[Mapping[str, float]] = MappingProxyType(
    {"Produce": 50, "Fetch": 30, "CreateTopics": 5, "Metadata": 15}
)
"""Kafka API -> weight."""

# The names that configs/quotas.yaml has quotas for come first, so they are the busiest.
USERS = ("alice", "bob", "carol")
CLIENTS = ("reporting", "batch-import", "web")
TOPICS = ("orders", "payments", "clicks")
GATEWAYS = 4
PARTITIONS = 8

TICK_S = 0.01
"""Interval at which a run with a rate publishes the events that are due."""

BATCH_EVENTS = 20_000
"""Number of events that a run which is behind gives to the producer before it waits for the broker."""

PRODUCER_OPTIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "linger_ms": 10,
        "batch_size": 131_072,
        "delivery_timeout_ms": 35_000,  # an event that no broker accepts within this time counts as failed
        "enable_idempotence": False,  # kafka-python's idempotent producer never gives up on an unreachable broker
        "max_in_flight_requests_per_connection": 1,  # keeps the order without idempotence
    }
)

_API_VERSIONS = {"Produce": 9, "Fetch": 13, "CreateTopics": 7, "DeleteTopics": 6, "CreatePartitions": 3}
_BYTES_APIS = ("Produce", "Fetch")
_MUTATION_APIS = ("CreateTopics", "DeleteTopics", "CreatePartitions")

_BYTES = [int(512 * 2 ** (i * 12 / 1023)) for i in range(1024)]  # 512 bytes to 2 MiB, evenly on a logarithmic scale
_TIMES_NS = [int(50_000 * 400 ** (i / 1023)) for i in range(1024)]  # 50 us to 20 ms

_MASK_32 = 2**32 - 1
_MASK_64 = 2**64 - 1
_UNIT_32 = 2.0**-32


def _hash64(number: int) -> int:
    """SplitMix64's output function: 64 uniform bits for any number, much faster than seeding a generator."""
    number = (number * 0x9E3779B97F4A7C15) & _MASK_64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return number ^ (number >> 31)


class LoadGenerator:
    """Request events as gateways publish them. Event `n` depends on the arguments and `n` alone.

    users, clients, topics: number of names of each. zipf_skew: the share of the k-th busiest user (and client-id) is
    proportional to 1 / k**zipf_skew; 0 makes them equal. api_mix: Kafka API -> weight. bad_share: share of events,
    0 to 1, that break the contract in one of the ways of BAD_EVENTS. in_turn: every user occurs once before any
    occurs again.
    """

    def __init__(
        self,
        seed: int = 1,
        users: int = 100,
        clients: int = 10,
        zipf_skew: float = 1.1,
        api_mix: Mapping[str, float] = DEFAULT_MIX,
        bad_share: float = 0.0,
        topics: int = 20,
        in_turn: bool = False,
    ) -> None:
        self._seed = seed
        self._offset = _hash64(seed)
        self._bad_share = bad_share
        self._in_turn = in_turn
        self._user_names = _names(USERS, "user", users)
        self._client_names = _names(CLIENTS, "client", clients)
        self._topics = _names(TOPICS, "topic", topics)
        self._user_shares = _cumulative(1 / rank**zipf_skew for rank in range(1, users + 1))
        self._client_shares = _cumulative(1 / rank**zipf_skew for rank in range(1, clients + 1))
        self._apis = list(api_mix)
        self._api_shares = _cumulative(api_mix.values())
        self._api_texts = [f'"api":"{api}","api_version":{_API_VERSIONS.get(api, 1)}' for api in api_mix]

    def key(self, sequence: int) -> bytes:
        """The record's key; the events of one client stay in order in one partition."""
        user, client = self._entity(sequence)
        return client_key(self._user_names[user], self._client_names[client]).encode()

    def event(self, sequence: int, timestamp_ms: int) -> bytes | None:
        """The event's JSON, or the value of a bad event; None is a record without a value, which is bad too."""
        share, amount = self._draws(sequence)
        if share < self._bad_share:
            return bad_event(BAD_KINDS[amount % len(BAD_KINDS)], timestamp_ms)
        api = bisect_right(self._api_shares, (share - self._bad_share) / (1 - self._bad_share))
        user, client = self._entity(sequence)
        return (
            f'{{"request_id":"{self._seed}-{sequence}","timestamp_ms":{timestamp_ms},'
            f'"user":"{self._user_names[user]}","client_id":"{self._client_names[client]}",{self._api_texts[api]},'
            f'"request_time_ns":{_TIMES_NS[amount & 1023]},"network_time_ns":{_TIMES_NS[amount & 511]},'
            f'"gateway":"gateway-{amount % GATEWAYS}"{self._work(self._apis[api], sequence, amount)}}}'
        ).encode()

    def is_bad(self, sequence: int) -> bool:
        """Whether the event breaks the contract on purpose."""
        return self._draws(sequence)[0] < self._bad_share

    def _entity(self, sequence: int) -> tuple[int, int]:
        """The indexes of the event's user and client-id."""
        bits = _hash64(self._offset + 2 * sequence)
        if self._in_turn:
            user = sequence % len(self._user_names)
        else:
            user = bisect_right(self._user_shares, (bits & _MASK_32) * _UNIT_32)
        client = bisect_right(self._client_shares, (bits >> 32) * _UNIT_32)
        return user, client

    def _draws(self, sequence: int) -> tuple[float, int]:
        """A number from 0 to 1, which selects bad events and the API, and 32 bits for the amounts."""
        bits = _hash64(self._offset + 2 * sequence + 1)
        return (bits & _MASK_32) * _UNIT_32, bits >> 32

    def _work(self, api: str, sequence: int, amount: int) -> str:
        """The JSON fields with the work of the request, for the APIs that move bytes or change topics."""
        if api in _BYTES_APIS:
            topic = self._topics[(amount >> 20) % len(self._topics)]
            size = _BYTES[(amount >> 10) & 1023]
            partition = sequence % PARTITIONS
            return f',"topic_partitions":[{{"topic":"{topic}","partition":{partition},"bytes":{size}}}]'
        if api in _MUTATION_APIS:
            mutations = ",".join(
                f'{{"topic":"new-{sequence}-{number}","partitions":{1 + (amount >> 3) % 6}}}'
                for number in range(1 + amount % 3)
            )
            validate_only = ',"validate_only":true' if amount % 32 == 0 else ""
            return f',"mutations":[{mutations}]{validate_only}'
        return ""


def _names(first: Sequence[str], stem: str, count: int) -> list[str]:
    return [*first[:count], *(f"{stem}-{number}" for number in range(len(first), count))]


def _cumulative(weights: Iterable[float]) -> list[float]:
    """The cumulative shares of the weights, without the last one, which is 1."""
    ends = list(accumulate(weights))
    return [end / ends[-1] for end in ends[:-1]]


BAD_EVENTS: Final[Mapping[str, bytes | None]] = MappingProxyType(
    {
        "no value": None,
        "empty value": b"",
        "not JSON": b'{"timestamp_ms":TIMESTAMP,"api":"Produce"',
        "not UTF-8": b'{"timestamp_ms":TIMESTAMP,"api":"Produce","user":"\xff\xfe"}',
        "not an object": b'["Produce",TIMESTAMP]',
        "no API": b'{"timestamp_ms":TIMESTAMP,"user":"alice"}',
        "empty API": b'{"timestamp_ms":TIMESTAMP,"api":""}',
        "user is a number": b'{"timestamp_ms":TIMESTAMP,"api":"Produce","user":7}',
        "timestamp is a text": b'{"timestamp_ms":"TIMESTAMP","api":"Fetch"}',
        "partitions are a text": b'{"timestamp_ms":TIMESTAMP,"api":"Fetch","topic_partitions":"orders-0"}',
        "flag is a text": b'{"timestamp_ms":TIMESTAMP,"api":"CreateTopics","validate_only":"yes"}',
        "NaN": b'{"timestamp_ms":TIMESTAMP,"api":"Produce","request_time_ns":NaN}',
        "negative bytes": b'{"timestamp_ms":TIMESTAMP,"api":"Fetch",'
        b'"topic_partitions":[{"topic":"orders","partition":0,"bytes":-1}]}',
        "negative time": b'{"timestamp_ms":TIMESTAMP,"api":"Metadata","network_time_ns":-5}',
        "beyond int64": b'{"timestamp_ms":TIMESTAMP,"api":"Produce","request_time_ns":1000000000000000000000000}',
        "beyond a double": b'{"timestamp_ms":TIMESTAMP,"api":"Produce","request_time_ns":1e400}',
        "far in the future": b'{"timestamp_ms":TIMESTAMP0,"api":"Metadata","user":"alice"}',
    }
)
"""Fault -> event with this fault; TIMESTAMP stands for the time. None is a record without a value."""

BAD_KINDS: Final = tuple(BAD_EVENTS)


def bad_event(kind: str, timestamp_ms: int) -> bytes | None:
    """The event of BAD_EVENTS with this fault and time."""
    event = BAD_EVENTS[kind]
    return None if event is None else event.replace(b"TIMESTAMP", str(timestamp_ms).encode())


@dataclass(slots=True)
class Sent:
    """Counts of one run; the producer's thread adds failures."""

    events: int = 0
    bad: int = 0
    failed: int = 0
    failure: str = ""
    seconds: float = 0.0
    stored: Callable[[RecordMetadata], None] | None = None
    """Called by the producer for each event that the broker has stored, if anybody wants to know."""

    def note_failure(self, error: Exception) -> None:
        """Called by the producer for each event that it gives up on."""
        self.failed += 1
        self.failure = " ".join(str(error).split())

    def summary(self) -> str:
        """The run in one line."""
        rate_per_s = (self.events - self.failed) / self.seconds if self.seconds else 0.0
        failed = f"; {self.failed} failed, the last with: {self.failure}" if self.failed else ""
        return f"{self.events} events ({self.bad} bad) in {self.seconds:.1f} s, {rate_per_s:.0f} events/s{failed}"


def publish(
    producer: KafkaProducer,
    topic: str,
    generator: LoadGenerator,
    stop: Event,
    rate_per_s: float = 0.0,
    count: int = sys.maxsize,
    seconds: float = math.inf,
    sent: Sent | None = None,
) -> Sent:
    """Publish events from number 0 until `count`, `seconds` or `stop`, and wait until the broker has them all.

    A `rate_per_s` of 0 is as fast as possible, as is a rate that this machine can't reach. `sent` is updated meanwhile.
    """
    sent = sent or Sent()
    start = time.monotonic()
    while True:
        elapsed_s = min(time.monotonic() - start, seconds)
        due = min(count, int(elapsed_s * rate_per_s)) if rate_per_s else count
        _publish_until(min(due, sent.events + BATCH_EVENTS), producer, topic, generator, sent)
        if stop.is_set() or sent.events >= count or elapsed_s >= seconds:
            break
        if sent.events < due:
            producer.flush()  # bounds the memory, because nothing else slows down a loop that is behind
        else:
            stop.wait(TICK_S)
    producer.flush()
    sent.seconds = time.monotonic() - start
    return sent


def _publish_until(due: int, producer: KafkaProducer, topic: str, generator: LoadGenerator, sent: Sent) -> None:
    """Send the events up to number `due`, all with the current time."""
    timestamp_ms = now_ms()
    for sequence in range(sent.events, due):
        value = generator.event(sequence, timestamp_ms)
        future = producer.send(topic, value, generator.key(sequence), timestamp_ms=timestamp_ms)
        future.add_errback(sent.note_failure)
        if sent.stored is not None:
            future.add_callback(sent.stored)
        sent.bad += generator.is_bad(sequence)
    sent.events = due


def api_mix(text: str) -> dict[str, float]:
    """The mix of `Produce=50,Fetch=30`: API -> weight. Raises typer.BadParameter."""
    mix: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z]+)=([0-9]+(?:\.[0-9]+)?)\s*", part)
        if not match or match[1] in mix:
            raise typer.BadParameter(f"{part!r} is not right; expected each API once, such as Produce=50")
        mix[match[1]] = float(match[2])
    if not any(mix.values()):
        raise typer.BadParameter("every weight is 0; expected at least one above 0")
    return mix


Rate = Annotated[float, typer.Option(min=0, max=1e9, help="Requests/s; 0 is as fast as possible.")]
Seconds = Annotated[float, typer.Option(min=0, show_default="no limit", help="Stop after this many seconds.")]
BootstrapServers = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Kafka's address; overrides kafka.bootstrap.servers.")
]
Users = Annotated[int, typer.Option(min=1, help="Number of users.")]
Clients = Annotated[int, typer.Option(min=1, help="Number of client-ids.")]
BadShare = Annotated[float, typer.Option(min=0, max=1, help="Share of events that break the contract.")]


@dataclass(frozen=True)
class TrafficOptions:
    """The options of every command that generates requests."""

    rate: Rate = 1000.0
    seconds: Seconds = math.inf
    users: Users = 100
    clients: Clients = 10
    topics: Annotated[int, typer.Option(min=1, help="Number of topics in the requests.")] = 20
    skew: Annotated[float, typer.Option(min=0, max=10, help="Zipf exponent of users and client-ids.")] = 1.1
    mix: Annotated[
        Mapping[str, float] | None,
        typer.Option(
            parser=api_mix,
            metavar="API=WEIGHT,...",
            help="Kafka APIs and their weights.  [default: Produce=50, Fetch=30, CreateTopics=5, Metadata=15]",
        ),
    ] = None
    bad: BadShare = 0.0
    seed: Annotated[int, typer.Option(help="The same seed generates the same events.")] = 1

    def generator(self) -> LoadGenerator:
        """The generator with these options."""
        return LoadGenerator(
            seed=self.seed,
            users=self.users,
            clients=self.clients,
            zipf_skew=self.skew,
            api_mix=self.mix or DEFAULT_MIX,
            bad_share=self.bad,
            topics=self.topics,
        )


@dataclass(frozen=True)
class LoadOptions(TrafficOptions):
    """Publish generated request events at a steady rate until Ctrl-C."""

    bootstrap_servers: BootstrapServers = None
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings YAML; its sections kafka and topics are used.")
    ] = None
    count: Annotated[int, typer.Option(min=0, show_default="no limit", help="Stop after this many events.")] = (
        sys.maxsize
    )


def run_load(options: LoadOptions) -> int:
    """Publish the load; 0 if every event was published, 1 if some or all could not be."""
    settings = with_bootstrap_servers(load_settings(options.config), options.bootstrap_servers)
    ensure_topics(settings.topics, settings.kafka)
    with connect(KafkaProducer, settings.kafka, **PRODUCER_OPTIONS) as producer:
        sent = publish(
            producer,
            settings.topics.requests,
            options.generator(),
            stop_on_signals(),
            options.rate,
            options.count,
            options.seconds,
        )
    print(sent.summary())
    return EXIT_FAILED if sent.failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `load`."""
    return run_command("load", LoadOptions, run_load, arguments)


if __name__ == "__main__":
    sys.exit(main())
