"""Producers with requests of seconds of their quota: `./scripts/closed-loop holds`, short."""

from pathlib import Path

import pytest

from scripts.scenarios.closed_loop.holds import run_holds
from scripts.scenarios.closed_loop.situation import Holds, HoldsGateway

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.mark.parametrize("gateway", [HoldsGateway.PROXY, HoldsGateway.PLUGIN])
def test_a_producer_whose_requests_are_seconds_of_its_quota_sees_nothing_but_waits(
    tmp_path: Path, gateway: HoldsGateway
) -> None:
    found = run_holds(tmp_path, Holds(gateway, limit=5_000, seconds=45))

    assert {name: held for name, held in found.items() if not held.undisturbed} == {}
