"""Real brokers that lend and tighten: a librdkafka producer at full speed, the plugin and the job."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from scripts.scenarios.closed_loop.brokers import run_brokers
from scripts.scenarios.closed_loop.situation import BrokersSituation
from sluice.insight.sql import run_query

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

LIMIT = 1_000_000.0


def test_idle_brokers_lend_up_to_the_ceiling_and_decisions_say_so(tmp_path: Path) -> None:
    """A busy machine may count as load now and then, so that the quota holds for some seconds."""
    found = run_brokers(tmp_path, BrokersSituation(limit=LIMIT, brokers=2, seconds=60, ceiling=3 * LIMIT))

    assert 1.5 <= found.mean_after <= 3.1
    changes = DeltaTable(str(tmp_path / "delta" / "overrides")).to_pyarrow_table().to_pylist()
    assert max(each["factor"] for row in changes for each in row["overrides"]) == 3.0
    noted = "SELECT max(elastic['lend']) FROM decisions WHERE elastic IS NOT NULL"
    assert [row[0] for row in run_query(noted, {"decisions": str(tmp_path / "delta" / "decisions")}, {})] == [3.0]


def test_a_broker_above_its_capacity_tightens_but_leaves_half_of_the_quota(tmp_path: Path) -> None:
    """Its capacity is 0.8 of the quota: 0.88 of that is 0.7 of the quota, its reservation 0.5."""
    found = run_brokers(tmp_path, BrokersSituation(limit=LIMIT, brokers=1, seconds=60, capacity=0.8 * LIMIT))

    assert 0.45 <= found.mean_after <= 0.8
