"""Holds and tightening in the row of a counter."""

from typing import Any

import pytest

from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import VERSION_KEY, LimitsView, limit_key, limit_value, version_end
from sluice_insight.live import CounterId
from sluice_insight.row_marks import RowMark, RowMarks
from tests.builders import quota

BATCH = CounterId(QuotaKind.PRODUCER_BYTE_RATE, False, "", "batch", None, -1)
FETCH = BATCH._replace(kind=QuotaKind.CONSUMER_BYTE_RATE)
UNTIL: dict[str, Any] = {"reason": "eve: it floods", "until_ms": 5_000}
HELD = "held until 00:00:05 UTC (eve: it floods)"
OF_BATCH, OF_APP, OF_SHOP = (
    CountedEntity(client_id="batch"),
    CountedEntity(client_id="app"),
    CountedEntity(tenant="shop"),
)


def mark(key: CounterId, *overrides: Override, now_ms: int = 1_000) -> RowMark:
    limits = LimitsView()
    for entry in (entries := (quota(QuotaKind.PRODUCER_BYTE_RATE, 1e6, client_id=DEFAULT),)):
        limits.take(limit_key(entry), limit_value(entry, 1))
    limits.take(VERSION_KEY, version_end(1, len(entries)))
    limits.overrides["x"] = Overrides(1, 0, 60_000, list(overrides))
    return RowMarks.of_limits(limits, ["b-1", "b-2"], now_ms).of(key, 1e6)


@pytest.mark.parametrize(
    ("hold", "key", "held"),
    [
        ({"entity": OF_BATCH, "consumers": True}, BATCH, HELD),
        ({"entity": OF_BATCH, "consumers": True}, FETCH, HELD),
        ({"entity": OF_BATCH}, FETCH, ""),
        ({"entity": OF_APP}, BATCH, ""),
        ({}, BATCH, HELD),
        ({"entity": OF_BATCH}, BATCH._replace(shadow=True), ""),
        ({"entity": OF_BATCH}, BATCH._replace(user="alice"), HELD),
        ({"entity": OF_BATCH}, BATCH._replace(user="alice", client_id=""), ""),
        ({"entity": OF_SHOP}, BATCH._replace(client_id="", tenant="shop"), HELD),
        ({"entity": OF_BATCH}, BATCH._replace(kind=QuotaKind.CONTROLLER_MUTATION_RATE), ""),
    ],
)
def test_a_row_says_until_when_all_its_clients_are_stopped(hold: dict[str, Any], key: CounterId, held: str) -> None:
    """One whose clients are stopped in part says nothing: the others go on."""
    assert mark(key, Override("hold", **UNTIL, **hold)).held == held
    assert mark(key, Override("hold", **UNTIL, **hold), now_ms=5_000).held == ""


def test_the_limit_in_force_is_that_of_all_brokers_together() -> None:
    """One of two brokers with equal shares lets a half through, its reservation by default, and the other all."""
    assert mark(BATCH, Override("tighten", 0.1, gateway="b-1")).limit == "about 750 kB/s in force, tightened"
    assert mark(BATCH).limit == ""
