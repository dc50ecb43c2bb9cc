"""Damaged input for the two parsers of untrusted bytes: request events and stored state.

    python -m scripts.reliability.fuzz --examples 1000000 --seed 1

An event is parsed or refused with InvalidRequestError; state is read or refused with StateError. Anything else ends
the run with the input that caused it.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from scripts.command import run_command
from sluice.state.arithmetic.charge import Charge
from sluice.state.decisions.request import MAX_TIMESTAMP_MS
from sluice.state.errors import InvalidRequestError, StateError
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.store.codec import decode
from sluice.state.store.pages import Pages
from sluice.streaming.enforce.parsing import EventLimits, parse_event
from sluice.streaming.enforce.source import Source
from sluice.streaming.enforce.wire import dead_letter_record

_PAGES = 4
_SETTINGS = QuotaSettings()
_SOURCE = Source("requests", 0, 0, MAX_TIMESTAMP_MS)
_LIMITS = EventLimits(max_event_bytes=4096, max_future_ms=0)
_EVENTS = (
    b'{"api":"CreateTopics","api_version":7,"user":"alice","client_id":"app","timestamp_ms":1700000000000,'
    b'"mutations":[{"topic":"orders","partitions":6}],"validate_only":false,"gateway":"g"}',
    b'{"api":"Produce","user":"\\ud83e\\udd8a","request_time_ns":1500,"network_time_ns":20,"purgatory_ms":3,'
    b'"topic_partitions":[{"topic":"orders","partition":0,"bytes":1024}],"request_id":"r","authenticating":true}',
    b'{"api":"Fetch","client_id":"app","bytes":70,"withheld":true,"requests":2,"mutations_charged":1,"instance":"g-1",'
    b'"throttled_by":[{"quota":"consumer_byte_rate","entity":{"topic":"orders","partition":0},"ms":5}]}',
    b'{"api":"GatewayHeartbeat","gateway":"g","heartbeat":{"staleness_ms":9,"counters":1,"shares":[{"quota":"q",'
    b'"entity":{"user":"alice"},"limit":2.5,"share":1.5,"charged":0.5,"throttle_ms":3}]}}',
)
_PIECES = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"1e999", b"-1", b"NaN", b"\xff",
    b"\xed\xa0\x80", b"\\ud800", b"\x00", b"9" * 30, b'"user":', b'"timestamp_ms":', b"[" * 300, b'{"a":' * 200,
    b"0.1", b"\xff" * 8,
)  # fmt: skip


@dataclass(frozen=True)
class FuzzOptions:
    """Feed damaged input to the parsers of request events and of stored state."""

    examples: Annotated[int, typer.Option(min=0, help="Number of inputs.")] = 1_000_000
    seed: Annotated[int, typer.Option(help="The same seed makes the same inputs.")] = 1


def fuzz(examples: int, seed: int) -> Counter[str]:
    """Counts the inputs that were read and refused, by parser.

    Raises RuntimeError with the input when a parser raises anything but its own error.
    """
    draw = random.Random(seed)
    states = _states()
    outcomes: Counter[str] = Counter()
    for number in range(examples):
        kind, seeds, parse = ("event", _EVENTS, _event) if number % 2 else ("state", states, _state)
        value = _mutated(draw, seeds)
        try:
            outcomes[f"{kind} {'read' if parse(value) else 'refused'}"] += 1
        except Exception as error:
            raise RuntimeError(f"example {number} of seed {seed}: {value.hex()}") from error
    return outcomes


def _event(value: bytes) -> bool:
    try:
        msgspec.json.encode(parse_event(value, _SOURCE, _LIMITS))
    except InvalidRequestError as error:
        msgspec.json.decode(dead_letter_record("dead", value, _SOURCE, error).value)
        return False
    return True


def _state(value: bytes) -> bool:
    try:
        keys, columns = decode([value], _PAGES)
        page = Pages(keys, columns)
        for key in keys:
            page.counters(key)
        page.to_bytes(range(_PAGES), _PAGES, 0, _SETTINGS)
    except StateError:
        return False
    return True


def _mutated(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A good input, damaged at one to four positions."""
    value = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 4)):
        draw.choice(_DAMAGES)(draw, value)
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


_DAMAGES: tuple[Callable[[random.Random, bytearray], None], ...] = (_flip, _cut, _insert, _overwrite)


def _states() -> list[bytes]:
    """Stored pages: empty, with a bucket, and with rates of several kinds."""
    page = Pages()
    states = page.to_bytes([0], _PAGES, 1000, _SETTINGS)
    for number, kind in enumerate((QuotaKind.CONTROLLER_MUTATION_RATE, QuotaKind.PRODUCER_BYTE_RATE)):
        for step in range(3):
            charge = Charge(kind, "user", 5.0, False, [1.5 + step])
            page.counters(Tags(f"user{number}", "app").key()).charge(charge, 1_700_000_000_000 + 700 * step, _SETTINGS)
        states += page.to_bytes(range(_PAGES), _PAGES, 2**40, _SETTINGS)
    return states


def run_fuzz(options: FuzzOptions) -> int:
    """Run it and print the counts. A wrong reaction of a parser is a bug, so it ends the run with a traceback."""
    for outcome, count in sorted(fuzz(options.examples, options.seed).items()):
        print(f"{count:>9} {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command("fuzz", FuzzOptions, run_fuzz))
