"""Holds at a gateway: how long it believes what a record says, however wrong its clock is."""

import msgspec
import pytest

from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import MAX_TIMESTAMP_MS, CountedEntity
from sluice.state.quotas.limits import overrides_value
from sluice.state.quotas.overrides import OverridesInForce, by_another_clock
from sluice.state.quotas.tenants import Tenants

NOW_MS = 1_760_011_200_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

FOREVER = Override("hold", entity=CountedEntity(client_id="app"), until_ms=MAX_TIMESTAMP_MS, consumers=True)


def test_a_record_by_another_clock_is_one_that_gateways_can_read() -> None:
    moved = by_another_clock(Overrides(1, NOW_MS, 1, [FOREVER]), HOUR_MS)
    assert msgspec.json.decode(overrides_value(moved), type=Overrides) == moved


STOP = msgspec.structs.replace(FOREVER, reason="x", until_ms=NOW_MS + 5 * MINUTE_MS)
ENDLESS = Override("hold", entity=STOP.entity, consumers=True)


def held_ms(ahead_ms: int, heard_after_ms: int, *, is_past: bool, stop: Override = STOP) -> int:
    """For how long a gateway stops a client by a record of NOW_MS, from when it hears of it."""
    gateway, heard_ms = OverridesInForce("b-1"), NOW_MS + ahead_ms + heard_after_ms
    gateway.hear({"operator": Overrides(7, NOW_MS, 10 * MINUTE_MS, [stop])}, heard_ms, is_past=is_past)
    hold = gateway.hold("", "app", Tenants([]), heard_ms)
    return 0 if hold is None else hold.until_ms - heard_ms


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS, -HOUR_MS])
def test_a_gateway_stops_a_client_for_what_the_record_says_however_wrong_its_clock_is(ahead_ms: int) -> None:
    assert held_ms(ahead_ms, 200, is_past=False) == 5 * MINUTE_MS
    assert held_ms(ahead_ms, 200, is_past=False, stop=ENDLESS) == 10 * MINUTE_MS


def test_a_gateway_that_starts_late_believes_a_record_no_longer_than_the_others_do() -> None:
    late_ms = 10 * MINUTE_MS - 5_000
    assert held_ms(0, late_ms, is_past=True, stop=ENDLESS) == 5_000
    assert held_ms(0, 4 * MINUTE_MS, is_past=True) == MINUTE_MS
    assert held_ms(0, 11 * MINUTE_MS, is_past=True, stop=ENDLESS) == 0


def test_a_record_that_is_read_again_is_not_believed_anew() -> None:
    """As when the topic has lost records, and a gateway reads it from its beginning."""
    gateway, said = OverridesInForce("b-1"), Overrides(7, NOW_MS, 10 * MINUTE_MS, [STOP])
    gateway.hear({"operator": said}, NOW_MS)
    gateway.hear({"operator": by_another_clock(said, 0)}, NOW_MS + MINUTE_MS)
    hold = gateway.hold("", "app", Tenants([]), NOW_MS + MINUTE_MS)
    assert hold is not None
    assert hold.until_ms == NOW_MS + 5 * MINUTE_MS
