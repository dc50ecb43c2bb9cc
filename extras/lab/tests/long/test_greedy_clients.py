"""Gateway processes that charge in line, the job, and clients that send as fast as they may: a short `--real`."""

from pathlib import Path

import pytest

from sluice_lab.scenarios.closed_loop.gateways import CLIENTS, run_gateways
from tests.kafka_bound import BURST_S

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

SECONDS = 30


def test_greedy_clients_are_held_to_their_quotas_through_four_gateways(tmp_path: Path) -> None:
    """By the decisions table, at 50 times the quota, but for the burst of a fresh counter, whenever it comes."""
    found = run_gateways(tmp_path, gateways=4, seconds=SECONDS, demand=50.0)

    assert found.keys() == {client.user for client in CLIENTS}
    for measures in found.values():
        assert measures.mean_after > 0.5  # a busy machine serves less
        assert measures.mean < 1.1 * (1 + BURST_S / SECONDS)
        assert measures.worst_5s < 1.1 * (1 + BURST_S / 5)
