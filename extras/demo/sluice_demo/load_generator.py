"""Generated request events: the same seed makes the same events."""

import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Final

import typer

from sluice.state.quotas.entity import client_key

DEFAULT_MIX: Final[Mapping[str, float]] = {"Produce": 50, "Fetch": 30, "CreateTopics": 5, "Metadata": 15}
"""Kafka API -> weight."""

# The names that configs/quotas.yaml has quotas for come first, so they are the busiest.
USERS = ("alice", "bob", "carol")
CLIENTS = ("reporting", "batch-import", "web")
TOPICS = ("orders", "payments", "clicks")
GATEWAYS = 4
PARTITIONS = 8

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


def read_mix(text: str) -> dict[str, float]:
    """The mix of `Produce=50,Fetch=30`: API -> weight. Raises typer.BadParameter.

    It can't have the name of the option's field, whose default takes its place when the field's type is evaluated.
    """
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
BadShare = Annotated[float, typer.Option("--bad", min=0, max=1, help="Share of events that break the contract.")]
_MIX = ", ".join(f"{api}={weight:g}" for api, weight in DEFAULT_MIX.items())


@dataclass(frozen=True)
class LoadGenerator:
    """Request events as gateways publish them. Event `n` depends only on the fields, which are options, and `n`.

    The share of the k-th busiest user (and client-id) is proportional to 1 / k**zipf_skew; 0 makes them equal. With
    `in_turn` every user occurs once before any occurs again.
    """

    seed: Annotated[int, typer.Option(help="The same seed generates the same events.")] = 1
    users: Users = 100
    clients: Clients = 10
    zipf_skew: Annotated[float, typer.Option("--skew", min=0, max=10, help="Zipf exponent of users and clients.")] = 1.1
    api_mix: Annotated[
        Mapping[str, float] | None,
        typer.Option(
            "--mix",
            parser=read_mix,
            metavar="API=WEIGHT,...",
            help=f"Kafka APIs and their weights.  [default: {_MIX}]",
        ),
    ] = None
    bad_share: BadShare = 0.0
    topics: Annotated[int, typer.Option(min=1, help="Number of topics in the requests.")] = 20
    in_turn: Annotated[bool, typer.Option("--in-turn", hidden=True)] = False

    @cached_property
    def _names(self) -> list[list[str]]:
        wanted = ((USERS, "user", self.users), (CLIENTS, "client", self.clients), (TOPICS, "topic", self.topics))
        return [[*names[:n], *(f"{stem}-{m}" for m in range(len(names), n))] for names, stem, n in wanted]

    @cached_property
    def _shares(self) -> list[list[float]]:
        """Cumulative shares of users, clients and APIs, without the last one, which is 1."""
        ranks = ([1 / rank**self.zipf_skew for rank in range(1, n + 1)] for n in (self.users, self.clients))
        sums = [list(accumulate(weights)) for weights in (*ranks, (self.api_mix or DEFAULT_MIX).values())]
        return [[part / each[-1] for part in each[:-1]] for each in sums]

    @cached_property
    def _apis(self) -> list[str]:
        return list(self.api_mix or DEFAULT_MIX)

    @cached_property
    def _offset(self) -> int:
        return _hash64(self.seed)

    def key(self, sequence: int) -> bytes:
        """The record's key; the events of one client stay in order in one partition."""
        user, client = self._entity(sequence)
        return client_key(self._names[0][user], self._names[1][client]).encode()

    def event(self, sequence: int, timestamp_ms: int) -> bytes | None:
        """The event's JSON, or the value of a bad event; None is a record without a value, which is bad too."""
        share, amount = self._draws(sequence)
        if share < self.bad_share:
            return bad_event(BAD_KINDS[amount % len(BAD_KINDS)], timestamp_ms)
        api = self._apis[bisect_right(self._shares[2], (share - self.bad_share) / (1 - self.bad_share))]
        user, client = self._entity(sequence)
        return (
            f'{{"request_id":"{self.seed}-{sequence}","timestamp_ms":{timestamp_ms},'
            f'"user":"{self._names[0][user]}","client_id":"{self._names[1][client]}",'
            f'"api":"{api}","api_version":{_API_VERSIONS.get(api, 1)},'
            f'"request_time_ns":{_TIMES_NS[amount & 1023]},"network_time_ns":{_TIMES_NS[amount & 511]},'
            f'"gateway":"gateway-{amount % GATEWAYS}"{self._work(api, sequence, amount)}}}'
        ).encode()

    def is_bad(self, sequence: int) -> bool:
        """True if the event breaks the contract on purpose."""
        return self._draws(sequence)[0] < self.bad_share

    def _entity(self, sequence: int) -> tuple[int, int]:
        bits = _hash64(self._offset + 2 * sequence)
        user = sequence % self.users if self.in_turn else bisect_right(self._shares[0], (bits & _MASK_32) * _UNIT_32)
        client = bisect_right(self._shares[1], (bits >> 32) * _UNIT_32)
        return user, client

    def _draws(self, sequence: int) -> tuple[float, int]:
        """A number from 0 to 1, which selects bad events and the API, and 32 bits for the amounts."""
        bits = _hash64(self._offset + 2 * sequence + 1)
        return (bits & _MASK_32) * _UNIT_32, bits >> 32

    def _work(self, api: str, sequence: int, amount: int) -> str:
        """The JSON fields with the work of the request, for the APIs that move bytes or change topics."""
        if api in _BYTES_APIS:
            topic = self._names[2][(amount >> 20) % self.topics]
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


BAD_EVENTS: Final[Mapping[str, bytes | None]] = {
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
"""Fault -> event with this fault; TIMESTAMP stands for the time. None is a record without a value."""

BAD_KINDS: Final = tuple(BAD_EVENTS)


def bad_event(kind: str, timestamp_ms: int) -> bytes | None:
    """The event of BAD_EVENTS with this fault and time."""
    event = BAD_EVENTS[kind]
    return None if event is None else event.replace(b"TIMESTAMP", str(timestamp_ms).encode())


@dataclass(frozen=True)
class TrafficOptions(LoadGenerator):
    """The options of every command that generates requests for some time."""

    rate: Rate = 1000.0
    seconds: Seconds = math.inf
