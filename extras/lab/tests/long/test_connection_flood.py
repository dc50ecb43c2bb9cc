"""A flood of connections against a proxy: `./scripts/closed-loop connections`, short."""

from pathlib import Path

import pytest

from sluice_lab.scenarios.closed_loop.connections import CONNECTIONS_PER_S, run_connection_flood
from sluice_lab.scenarios.closed_loop.situation import ConnectionFlood

pytestmark = [pytest.mark.kafka, pytest.mark.alone, pytest.mark.long]


@pytest.mark.parametrize("addresses", [1, 50])
def test_a_flood_of_connections_is_bounded_and_another_client_gets_in_at_once(tmp_path: Path, addresses: int) -> None:
    found = run_connection_flood(tmp_path, ConnectionFlood(addresses=addresses, connections_per_s=1_000, seconds=10))

    assert found.attempts_per_s > 10 * CONNECTIONS_PER_S  # thousands on a machine that has nothing else to do
    assert found.taken_per_s <= 1_100, "a second may begin before the ten, and end after them"
    assert found.median_resets == 0
