"""Real brokers that tighten: a librdkafka producer at full speed, the plugin and the job."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from sluice.process.clock import now_ms
from sluice_demo.cluster import make_topic
from sluice_demo.full_speed_client import Client, FullSpeedClient, Role
from sluice_demo.job import Json, wait_until
from sluice_lab.scenarios.closed_loop.brokers import TOPIC, fill, held_brokers, run_brokers, served_since
from sluice_lab.scenarios.closed_loop.situation import BrokersSituation

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

LIMIT = 1_000_000.0


def test_a_broker_above_its_capacity_tightens_but_leaves_half_of_the_quota(tmp_path: Path) -> None:
    """Its capacity is 0.8 of the quota: 0.88 of that is 0.7 of the quota, its reservation 0.5."""
    found = run_brokers(tmp_path, BrokersSituation(limit=LIMIT, brokers=1, seconds=60, capacity=0.8 * LIMIT))

    assert 0.45 <= found.mean_after <= 0.8


NOISE = 24_000_000.0
CAPACITY = 2_000_000.0


def _least_factor(folder: Path) -> float:
    """The part of its shares that a broker let through, at the least."""
    table = folder / "delta" / "overrides"
    if not table.exists():
        return 1.0
    changes = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return min((each["factor"] for row in changes for each in row["overrides"]), default=1.0)


@pytest.mark.parametrize("reservation", [0.4, 0.8])
def test_a_real_consumer_and_producer_keep_their_reservations_beside_noise_that_does_not_give_way(
    tmp_path: Path, reservation: float
) -> None:
    numbers = {
        key: value
        for kind in ("producer_byte_rate", "consumer_byte_rate")
        for key, value in ((kind, LIMIT), (f"{kind}_reservation", reservation * LIMIT))
    }
    of_noise = {"producer_byte_rate": NOISE, "producer_byte_rate_reservation": NOISE}
    quotas: list[Json] = [
        {"entity": {"client_id": "producer"}, "quotas": numbers},
        {"entity": {"client_id": "consumer"}, "quotas": dict(numbers)},  # YAML would make an alias of one and the same
        {"entity": {"client_id": "noisy"}, "quotas": of_noise},
    ]
    situation = BrokersSituation(limit=LIMIT, brokers=2, capacity=CAPACITY)
    with held_brokers(tmp_path, situation, quotas) as (cluster, _, [servers]):
        for topic in (TOPIC, "noise"):
            make_topic(cluster.bootstrap_servers, topic, situation.leaders())
        fill(servers, TOPIC)
        noise = FullSpeedClient("noisy", Role.PRODUCE, servers, "noise")
        clients: list[Client] = [
            FullSpeedClient("producer", Role.PRODUCE, servers, TOPIC),
            FullSpeedClient("consumer", Role.CONSUME, servers, TOPIC),
        ]
        wait_until(lambda: _least_factor(tmp_path) < reservation, 600)  # a load that is decided late doesn't count
        began_ms = now_ms()
        wait_until(lambda: now_ms() - began_ms >= 80_000, 600)
        for client in (*clients, noise):
            client.stop()

    served = {each.name: served_since(began_ms, 80, each.samples) for each in (*clients, noise)}
    rates = {
        name: sum(amount for at_ms, amount, _ in rows if at_ms >= 20_000) / 60 / LIMIT for name, rows in served.items()
    }
    assert min(rates["producer"], rates["consumer"]) >= 0.95 * reservation, rates
