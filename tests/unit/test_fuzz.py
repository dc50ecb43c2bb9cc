"""Foreign bytes never crash a parser; the long form is `python -m scripts.reliability.fuzz --examples 1000000`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.reliability.fuzz import fuzz
from sluice.state.errors import InvalidRequestError, StateError
from sluice.state.quotas.kinds import KINDS_BY_CODE, QuotaSettings
from sluice.state.store.codec import decode
from sluice.state.store.pages import Pages
from sluice.streaming.enforce.parsing import EventLimits, parse_request
from sluice.streaming.enforce.source import Source
from tests.unit.test_pages import GOLDEN

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
        decode([value], 4)
    except StateError:
        return


def test_damaged_counts_take_no_memory() -> None:
    """A flipped length would otherwise make the reader ask for gigabytes."""
    stored = bytearray(Pages().to_bytes([0], 4, 1000, QuotaSettings())[0])
    stored[9:13] = b"null"
    with pytest.raises(StateError, match="damaged"):
        decode([bytes(stored)], 4)


def test_a_rate_of_no_known_kind_is_damage() -> None:
    """Else it would be found in the middle of a micro-batch."""
    stored = bytearray((GOLDEN / "state-v1.bin").read_bytes())
    decode([bytes(stored)], 4)
    kinds = stored.index(b"\x00\x05\x03")
    stored[kinds + 1] = max(KINDS_BY_CODE) + 1
    with pytest.raises(StateError, match="damaged"):
        decode([bytes(stored)], 4)
