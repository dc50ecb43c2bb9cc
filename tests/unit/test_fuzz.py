"""Foreign bytes never crash a parser of request events or of stored state.

An event is parsed or refused with InvalidRequestError; state is read or refused with StateError. The environment
variables FUZZ_EXAMPLES and FUZZ_SEED ask for more damaged inputs than usual, or for others.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.counter import Charge
from sluice.state.contract.records import MAX_TIMESTAMP_MS
from sluice.state.decisions.checks import EventLimits
from sluice.state.errors import InvalidRequestError, StateError
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import KINDS_BY_CODE, QuotaKind, QuotaSettings
from sluice.state.store.codec import decode
from sluice.state.store.pages import Page, page_of_entity
from sluice.streaming.enforce.parsing import parse_event
from sluice.streaming.enforce.wire import Source, dead_letter_record
from tests.stored_pages import GOLDEN

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))

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


def fuzz(examples: int, seed: int) -> Counter[str]:
    """Count the inputs that were read and refused, by parser. Raises RuntimeError for any other reaction."""
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
        msgspec.json.decode(dead_letter_record("dead", value, _SOURCE, error, 8_388_608).value)
        return False
    return True


def _state(value: bytes) -> bool:
    try:
        Page(0, _PAGES, value).to_bytes(0, _SETTINGS)
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
    states = [Page(0, _PAGES).to_bytes(1000, _SETTINGS)]
    for number, kind in enumerate((QuotaKind.CONTROLLER_MUTATION_RATE, QuotaKind.PRODUCER_BYTE_RATE)):
        key = Tags(f"user{number}", "app").key()
        page = Page(page_of_entity(key, _PAGES), _PAGES)
        for step in range(3):
            charge = Charge(kind, "user", 5.0, False, [1.5 + step])
            page.counters(key).charge(charge, 1_700_000_000_000 + 700 * step, _SETTINGS)
            states.append(page.to_bytes(2**40, _SETTINGS))
    return states


def test_harmed_events_and_state_are_read_or_refused() -> None:
    """A good input with one to four places harmed: each way out is taken often."""
    outcomes = fuzz(EXAMPLES, SEED)

    assert min(outcomes[name] for name in ("event read", "event refused", "state read", "state refused")) > 100


@given(st.binary(max_size=400))
def test_any_bytes_are_state_or_refused(value: bytes) -> None:
    try:
        decode(value, 4)
    except StateError:
        return


def test_damaged_counts_take_no_memory() -> None:
    """A flipped length would otherwise make the reader ask for gigabytes."""
    stored = bytearray(Page(0, 4).to_bytes(1000, QuotaSettings()))
    stored[9:13] = b"null"
    with pytest.raises(StateError, match="damaged"):
        decode(bytes(stored), 4)


def test_a_rate_of_no_known_kind_is_damage() -> None:
    """Else it would be found in the middle of a micro-batch."""
    stored = bytearray((GOLDEN / "state-v1.bin").read_bytes())
    decode(bytes(stored), 4)
    kinds = stored.index(b"\x00\x05\x03")
    stored[kinds + 1] = max(KINDS_BY_CODE) + 1
    with pytest.raises(StateError, match="damaged"):
        decode(bytes(stored), 4)
