"""Broken input by the million for the two parsers that read foreign bytes: request events and stored state.

    python -m scripts.fuzz --examples 1000000 --seed 1

An event is decided or refused as InvalidRequestError, state is read or refused as StateError; anything else ends the
run with the input that did it.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from state.charge import Charge
from state.codec import decode
from state.entity import Tags
from state.errors import InvalidRequestError, StateError
from state.quota import QuotaKind, QuotaSettings
from state.request import MAX_TIMESTAMP_MS
from state.shard import Shard
from streaming.events import EventLimits, Source, parse_request
from streaming.records import dead_letter_record

_SHARDS = 4
_SETTINGS = QuotaSettings()
_SOURCE = Source("requests", 0, 0, MAX_TIMESTAMP_MS)
_LIMITS = EventLimits(max_event_bytes=4096, max_future_ms=0)
_EVENTS = (
    b'{"api":"CreateTopics","api_version":7,"user":"alice","client_id":"app","timestamp_ms":1700000000000,'
    b'"mutations":[{"topic":"orders","partitions":6}],"validate_only":false,"gateway":"g"}',
    b'{"api":"Produce","user":"\\ud83e\\udd8a","request_time_ns":1500,"network_time_ns":20,"purgatory_ms":3,'
    b'"topic_partitions":[{"topic":"orders","partition":0,"bytes":1024}],"request_id":"r","authenticating":true}',
)
_PIECES = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"1e999", b"-1", b"NaN", b"\xff",
    b"\xed\xa0\x80", b"\\ud800", b"\x00", b"9" * 30, b'"user":', b'"timestamp_ms":', b"[" * 300, b'{"a":' * 200,
    b"0.1", b"\xff" * 8,
)  # fmt: skip


def fuzz(examples: int, seed: int) -> Counter[str]:
    """How many inputs were read and how many refused, by parser. Raises, with the input noted, what a parser raises."""
    draw = random.Random(seed)
    states = _states()
    outcomes: Counter[str] = Counter()
    for number in range(examples):
        kind, seeds, parse = ("event", _EVENTS, _event) if number % 2 else ("state", states, _state)
        value = _mutated(draw, seeds)
        try:
            outcomes[f"{kind} {'read' if parse(value) else 'refused'}"] += 1
        except BaseException as error:
            error.add_note(f"example {number} of seed {seed}: {value.hex()}")
            raise
    return outcomes


def _event(value: bytes) -> bool:
    try:
        msgspec.json.encode(parse_request(value, _SOURCE, _LIMITS))
    except InvalidRequestError as error:
        msgspec.json.decode(dead_letter_record("dead", value, _SOURCE, error).value)
        return False
    return True


def _state(value: bytes) -> bool:
    try:
        keys, columns = decode(value, _SHARDS)
        shard = Shard(keys, columns)
        for key in keys:
            shard.meters(key)
        shard.to_bytes(_SHARDS, 0, _SETTINGS)
    except StateError:
        return False
    return True


def _mutated(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A good input, harmed in one to four places."""
    value = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 4)):
        draw.choice(_HARMS)(draw, value)
    return bytes(value)


def _flip(draw: random.Random, value: bytearray) -> None:
    if value:
        value[draw.randrange(len(value))] ^= 1 << draw.randrange(8)


def _cut(draw: random.Random, value: bytearray) -> None:
    first = draw.randint(0, len(value))
    del value[first : first + draw.choice((1, 2, 8, len(value)))]


def _insert(draw: random.Random, value: bytearray) -> None:
    first = draw.randint(0, len(value))
    value[first:first] = draw.choice(_PIECES)


def _overwrite(draw: random.Random, value: bytearray) -> None:
    first, piece = draw.randint(0, len(value)), draw.choice(_PIECES)
    value[first : first + len(piece)] = piece


_HARMS: tuple[Callable[[random.Random, bytearray], None], ...] = (_flip, _cut, _insert, _overwrite)


def _states() -> list[bytes]:
    """Stored shards: empty, with a bucket, and with rates of several kinds."""
    shard = Shard()
    states = [shard.to_bytes(_SHARDS, 1000, _SETTINGS)]
    for number, kind in enumerate((QuotaKind.CONTROLLER_MUTATION_RATE, QuotaKind.PRODUCER_BYTE_RATE)):
        for step in range(3):
            charge = Charge(kind, "user", 5.0, False, [1.5 + step])
            shard.meters_of(Tags(f"user{number}", "app")).charge(charge, 1_700_000_000_000 + 700 * step, _SETTINGS)
        states.append(shard.to_bytes(_SHARDS, 2**40, _SETTINGS))
    return states


def main() -> int:
    """Run it and print the counts; a wrong answer of a parser ends it with a traceback, for it is a bug."""
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description="Broken input for both parsers.")
    parser.add_argument("--examples", type=int, default=1_000_000, help="how many inputs (1000000)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same inputs (1)")
    options = parser.parse_args()
    for outcome, count in sorted(fuzz(options.examples, options.seed).items()):
        print(f"{count:>9} {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
