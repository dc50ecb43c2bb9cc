"""Made-up request events: the same seed makes the same events; the command publishes them at a chosen rate.

./scripts/load --bootstrap-servers 127.0.0.1:9092 --rate 1000 --seconds 10
"""

import argparse
import math
import re
import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from threading import Event
from types import FrameType, MappingProxyType
from typing import Final

from kafka import KafkaProducer
from kafka.errors import KafkaError

from configs.errors import InvalidSettingsError
from configs.settings import load_settings, with_bootstrap_servers
from sinks.topics import connect, ensure_topics
from state.entity import sanitize
from state.errors import SluiceError

DEFAULT_MIX: Final[Mapping[str, float]] = MappingProxyType(
    {"Produce": 50, "Fetch": 30, "CreateTopics": 5, "Metadata": 15}
)
"""Kafka API -> its share of the events, in any unit."""

# The names that configs/quotas.yaml has quotas for come first, so they are the busiest.
USERS = ("alice", "bob", "carol")
CLIENTS = ("reporting", "batch-import", "web")
TOPICS = ("orders", "payments", "clicks")
GATEWAYS = 4
PARTITIONS = 8

TICK_S = 0.01
"""How often a paced run publishes what has become due."""

BATCH_EVENTS = 20_000
"""How many events a run that is behind hands to the producer before it waits for the broker."""

PRODUCER_OPTIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "linger_ms": 10,
        "batch_size": 131_072,
        "delivery_timeout_ms": 35_000,  # an event that no broker takes for so long counts as failed
        "enable_idempotence": False,  # kafka-python's idempotent producer never gives up when its broker is gone
        "max_in_flight_requests_per_connection": 1,  # keeps the order without it
    }
)

_API_VERSIONS = {"Produce": 9, "Fetch": 13, "CreateTopics": 7, "DeleteTopics": 6, "CreatePartitions": 3}
_BYTES_APIS = ("Produce", "Fetch")
_MUTATION_APIS = ("CreateTopics", "DeleteTopics", "CreatePartitions")

_BYTES = [int(512 * 2 ** (i * 12 / 1023)) for i in range(1024)]  # 512 bytes to 2 MiB, as many small as large
_TIMES_NS = [int(50_000 * 400 ** (i / 1023)) for i in range(1024)]  # 50 us to 20 ms

_MASK_32 = 2**32 - 1
_MASK_64 = 2**64 - 1
_UNIT_32 = 2.0**-32


def _hash64(number: int) -> int:
    """SplitMix64's output function: 64 even bits for any number, at a fraction of the cost of seeding a generator."""
    number = (number * 0x9E3779B97F4A7C15) & _MASK_64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return number ^ (number >> 31)


class LoadGenerator:
    """Request events as gateways publish them. Event `n` depends on the arguments and `n` alone.

    users, clients, topics: how many names there are of each. zipf_skew: the k-th busiest user (and client-id) has a
    share in proportion to 1 / k**zipf_skew; 0 makes them equal. api_mix: Kafka API -> weight. bad_share: share of
    events, 0 to 1, that break the contract in one of the ways of BAD_EVENTS. in_turn: every user comes once before any
    comes again.
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
        user_names = _names(USERS, "user", users)
        client_names = _names(CLIENTS, "client", clients)
        self._topics = _names(TOPICS, "topic", topics)
        self._user_keys = [sanitize(name) for name in user_names]
        self._client_keys = [sanitize(name) for name in client_names]
        self._users = [f'"user":"{name}"' for name in user_names]
        self._clients = [f'"client_id":"{name}"' for name in client_names]
        self._user_shares = _cumulative(1 / rank**zipf_skew for rank in range(1, users + 1))
        self._client_shares = _cumulative(1 / rank**zipf_skew for rank in range(1, clients + 1))
        self._apis = list(api_mix)
        self._api_shares = _cumulative(api_mix.values())
        self._api_texts = [f'"api":"{api}","api_version":{_API_VERSIONS.get(api, 1)}' for api in api_mix]

    def key(self, sequence: int) -> bytes:
        """The record's key, `user|client_id` URL-encoded: an entity's events stay in order in one partition."""
        user, client = self._entity(sequence)
        return f"{self._user_keys[user]}|{self._client_keys[client]}".encode()

    def event(self, sequence: int, timestamp_ms: int) -> bytes | None:
        """The event's JSON, or something else for a bad one; None is a record without a value, bad too."""
        share, amount = self._draws(sequence)
        if share < self._bad_share:
            return bad_event(BAD_KINDS[amount % len(BAD_KINDS)], timestamp_ms)
        api = bisect_right(self._api_shares, (share - self._bad_share) / (1 - self._bad_share))
        user, client = self._entity(sequence)
        return (
            f'{{"request_id":"{self._seed}-{sequence}","timestamp_ms":{timestamp_ms},'
            f"{self._users[user]},{self._clients[client]},{self._api_texts[api]},"
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
            user = sequence % len(self._users)
        else:
            user = bisect_right(self._user_shares, (bits & _MASK_32) * _UNIT_32)
        client = bisect_right(self._client_shares, (bits >> 32) * _UNIT_32)
        return user, client

    def _draws(self, sequence: int) -> tuple[float, int]:
        """A share from 0 to 1, which tells a bad event and the API, and 32 bits for the amounts."""
        bits = _hash64(self._offset + 2 * sequence + 1)
        return (bits & _MASK_32) * _UNIT_32, bits >> 32

    def _work(self, api: str, sequence: int, amount: int) -> str:
        """The fields that tell what the request did, for the APIs that move bytes or change topics."""
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
    """Upper ends of the weights' parts of 0 to 1, but for the last one, which takes the rest."""
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
"""What is wrong -> the event that has it; TIMESTAMP stands for the time. None is a record without a value."""

BAD_KINDS: Final = tuple(BAD_EVENTS)


def bad_event(kind: str, timestamp_ms: int) -> bytes | None:
    """The event of BAD_EVENTS at a time."""
    event = BAD_EVENTS[kind]
    return None if event is None else event.replace(b"TIMESTAMP", str(timestamp_ms).encode())


@dataclass(slots=True)
class Sent:
    """What one run has published; the producer's thread adds failures."""

    events: int = 0
    bad: int = 0
    failed: int = 0
    failure: str = ""
    seconds: float = 0.0

    def note_failure(self, error: Exception) -> None:
        """Called by the producer for each event that it gives up."""
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
    """Publishes the events from 0 on until `count`, `seconds` or `stop`, and waits until the broker has them all.

    A `rate_per_s` of 0 is as fast as it goes; so is one that this machine can't reach. `sent` lets the caller look on.
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
            producer.flush()  # bounds the memory: nothing else holds back a loop that is behind
        else:
            stop.wait(TICK_S)
    producer.flush()
    sent.seconds = time.monotonic() - start
    return sent


def _publish_until(due: int, producer: KafkaProducer, topic: str, generator: LoadGenerator, sent: Sent) -> None:
    """Hands the events up to number `due` to the producer, all with the present time."""
    timestamp_ms = time.time_ns() // 1_000_000
    for sequence in range(sent.events, due):
        value = generator.event(sequence, timestamp_ms)
        future = producer.send(topic, value, generator.key(sequence), timestamp_ms=timestamp_ms)
        future.add_errback(sent.note_failure)
        sent.bad += generator.is_bad(sequence)
    sent.events = due


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `load`: 0 if every event was published, 1 if some or all could not be, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    try:
        settings = with_bootstrap_servers(load_settings(options.config), options.bootstrap_servers)
        ensure_topics(settings)
        with connect(KafkaProducer, settings.kafka, **PRODUCER_OPTIONS) as producer:
            sent = publish(
                producer,
                settings.topics.requests,
                generator_of(options),
                _stop_on_signals(),
                options.rate,
                options.count,
                options.seconds,
            )
    except InvalidSettingsError as error:
        print(f"load: {error}", file=sys.stderr)
        return 2
    except (SluiceError, KafkaError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the first event
        return 130
    print(sent.summary())
    return 1 if sent.failed else 0


def _stop_on_signals() -> Event:
    """An event that Ctrl-C or a SIGTERM sets; a second one ends the process at once."""
    stop = Event()

    def set_stop(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, set_stop)
    return stop


def generator_of(options: argparse.Namespace) -> LoadGenerator:
    """The generator that the options of a command line ask for."""
    return LoadGenerator(
        seed=options.seed,
        users=options.users,
        clients=options.clients,
        zipf_skew=options.skew,
        api_mix=options.mix,
        bad_share=options.bad,
        topics=options.topics,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="load", description="Publishes made-up request events until Ctrl-C.")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="default: as the settings say")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (kafka and topics are used)")
    parser.add_argument("--rate", type=number_from(0), default=1000.0, help="events/s; 0: as fast as it goes (1000)")
    parser.add_argument("--seconds", type=number_from(0), default=math.inf, help="stop after so many seconds")
    parser.add_argument("--count", type=whole_from(0), default=sys.maxsize, help="stop after so many events")
    parser.add_argument("--users", type=whole_from(1), default=100, help="number of users (100)")
    parser.add_argument("--clients", type=whole_from(1), default=10, help="number of client-ids (10)")
    parser.add_argument("--topics", type=whole_from(1), default=20, help="number of topics in the events (20)")
    parser.add_argument("--skew", type=number_from(0, 10), default=1.1, help="Zipf exponent of users and clients (1.1)")
    parser.add_argument("--mix", type=api_mix, default=DEFAULT_MIX, help="such as Produce=50,Fetch=30,Metadata=20")
    parser.add_argument("--bad", type=number_from(0, 1), default=0.0, help="share of bad events, 0 to 1 (0)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same events (1)")
    return parser


def number_from(least: float, most: float = 1e9) -> Callable[[str], float]:
    """An argparse type: a number in a range."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text} is not right; expected a number from {least:g} to {most:g}")
        return number

    return parse


def whole_from(least: int, most: int = 10**9) -> Callable[[str], int]:
    """An argparse type: a whole number in a range."""

    def parse(text: str) -> int:
        number = number_from(least, most)(text)
        if not number.is_integer():
            raise argparse.ArgumentTypeError(f"{text} is not right; expected a whole number")
        return int(number)

    return parse


def api_mix(text: str) -> dict[str, float]:
    """The mix of `Produce=50,Fetch=30`: API -> weight. Raises argparse.ArgumentTypeError."""
    mix: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z]+)=([0-9]+(?:\.[0-9]+)?)\s*", part)
        if not match or match[1] in mix:
            raise argparse.ArgumentTypeError(f"{part!r} is not right; expected each API once, such as Produce=50")
        mix[match[1]] = float(match[2])
    if not any(mix.values()):
        raise argparse.ArgumentTypeError("every weight is 0; expected at least one above 0")
    return mix


if __name__ == "__main__":
    sys.exit(main())
