"""Storage budgets on a real broker: the job looks at its disks, and the plugin holds who has used up the budget."""

from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from sluice.kafka_io.client import connect
from sluice.process.clock import now_ms
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_lab.scenarios.closed_loop.brokers import plugin_brokers
from sluice_reading.query import run_query
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

BUDGET = 20_000_000
QUOTAS = [{"tenant": "shop", "client_ids": ["shop-*"], "topics": ["shop.*"], "quotas": {"stored_bytes": BUDGET}}]


_WAITS = "SELECT count(*) FROM (SELECT unnest(throttled_by) AS w FROM decisions) WHERE w['quota'] = 'stored_bytes'"


def test_a_tenant_that_stores_its_whole_budget_is_held_until_topics_are_deleted(tmp_path: Path) -> None:
    with plugin_brokers(tmp_path, 1, QUOTAS) as (cluster, _):
        servers = cluster.bootstrap_servers
        (log,) = (tmp_path / "brokers").rglob("broker.log")
        with connect(KafkaAdminClient, {"bootstrap.servers": servers}) as admin:
            admin.create_topics({"shop.orders": {"num_partitions": 1, "replication_factor": 1}})
            greedy = FullSpeedClient("shop-1", Role.PRODUCE, servers, "shop.orders")
            eventually(lambda: " throttled by the job: tenant shop" in log.read_text())
            begin_ms = now_ms() + 2_000
            eventually(lambda: now_ms() > begin_ms + 10_000)
            held = sum(amount for at_ms, amount in greedy.samples if begin_ms <= at_ms < begin_ms + 10_000)
            greedy.stop()
            admin.delete_topics(["shop.orders"])
        eventually(lambda: " throttled by the job: none" in log.read_text())
        decisions = {"decisions": str(tmp_path / "delta" / "decisions")}
        eventually(lambda: [*run_query(_WAITS, decisions, {})] != [(0,)])

    assert sum(amount for _, amount in greedy.samples) > BUDGET
    assert held <= 2_000_000, "two requests at most in ten seconds"
