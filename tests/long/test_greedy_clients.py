"""Gateway processes that charge in line, the job, and clients that send as fast as they may: a short `--real`."""

from pathlib import Path

import pytest

from scripts.scenarios.closed_loop.gateways import CLIENTS, run_gateways

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

SECONDS = 30


def test_greedy_clients_are_held_to_their_quotas_through_four_gateways(tmp_path: Path) -> None:
    """By the decisions table, at 50 times the quota; the first 10 s left out, in which a fresh counter may burst."""
    found = run_gateways(tmp_path, gateways=4, seconds=SECONDS, demand=50.0)

    assert found.keys() == {client.user for client in CLIENTS}
    for measures in found.values():
        assert 0.5 < measures.mean_after < 1.1  # a busy machine serves less
        assert measures.worst_5s_after < 2.0
