"""Producers with requests of seconds of their quota, alone and many at once: `./scripts/closed-loop holds`, short."""

from pathlib import Path

import pytest

from sluice_lab.scenarios.closed_loop.holds import run_crowd, run_holds
from sluice_lab.scenarios.closed_loop.situation import Holds, HoldsGateway

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.mark.parametrize("gateway", [HoldsGateway.PROXY, HoldsGateway.PLUGIN])
def test_a_producer_whose_requests_are_seconds_of_its_quota_sees_nothing_but_waits(
    tmp_path: Path, gateway: HoldsGateway
) -> None:
    found = run_holds(tmp_path, Holds(gateway, limit=5_000, seconds=45))

    assert {name: held for name, held in found.items() if not held.undisturbed} == {}


@pytest.mark.parametrize("connections", [1, 10, 50])
def test_no_number_of_producers_gets_more_than_the_quota_that_they_share(tmp_path: Path, connections: int) -> None:
    """By the broker's log; and all that it acknowledged is there, once."""
    found = run_crowd(tmp_path, Holds(limit=20_000, seconds=150, connections=connections))

    assert {name: crowd for name, crowd in found.items() if not crowd.is_held} == {}
