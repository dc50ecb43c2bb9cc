"""Foreign bytes never crash a parser; the long form is `python -m scripts.fuzz --examples 1000000`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.fuzz import fuzz
from state.codec import decode
from state.errors import InvalidRequestError, StateError
from state.quota import QuotaSettings
from state.shard import Shard
from streaming.events import EventLimits, Source, parse_request

SOURCE = Source("requests", 0, 0, 1_700_000_000_000)


def test_harmed_events_and_state_are_read_or_refused() -> None:
    """A good input with one to four places harmed: each way out is taken often."""
    outcomes = fuzz(10_000, seed=1)

    assert min(outcomes[name] for name in ("event read", "event refused", "state read", "state refused")) > 100


@given(st.binary(max_size=400))
def test_any_bytes_are_an_event_or_refused(value: bytes) -> None:
    try:
        parse_request(value, SOURCE, EventLimits(300, 0))
    except InvalidRequestError:
        return


@given(st.binary(max_size=400))
def test_any_bytes_are_state_or_refused(value: bytes) -> None:
    try:
        decode(value, 4)
    except StateError:
        return


def test_damaged_counts_take_no_memory() -> None:
    """A flipped length would otherwise make the reader ask for gigabytes."""
    stored = bytearray(Shard().to_bytes(4, 1000, QuotaSettings()))
    stored[9:13] = b"null"
    with pytest.raises(StateError, match="damaged"):
        decode(bytes(stored), 4)


def test_a_ring_of_no_known_kind_is_damage() -> None:
    """Else it would be found in the middle of a micro-batch."""
    stored = bytearray(
        bytes.fromhex(
            "010400000002000000030000000300000017000000616c6963657c6170700a746f7069633a6f253230727c33326468e5cf8b"
            "010000000084036600000000000000000000000000907fc0000000000000f87f3800000000000000000068e5cf8b01000000"
            "000000000000006600000000000000000000000000001440000000000000e043310100000000000000010031000000000000"
            "0000000503300000000000000000300100000000000000310000000000000000006400300000000000000000660000000000"
            "000000000000000000e03f00000000008081400000000000002840"
        )
    )
    decode(bytes(stored), 4)
    kinds = stored.index(b"\x00\x05\x03")
    stored[kinds + 1] = 6
    with pytest.raises(StateError, match="damaged"):
        decode(bytes(stored), 4)
