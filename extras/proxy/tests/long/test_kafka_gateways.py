"""Two proxies in front of a broker, and the job: clients at both share one quota, with the job and without it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from kafka import KafkaAdminClient

from sluice.kafka_io.client import connect
from sluice.process.clock import now_ms
from sluice_demo.cluster import Cluster, create_topic
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_lab.scenarios.closed_loop.brokers import proxied_brokers
from sluice_lab.testbed.rig import Rig
from sluice_proxy.gateway import KafkaGateway
from tests.kafka_bound import LARGEST_REQUEST, check_bound
from tests.waiting import eventually
from topic_storm import BURST, PER_S, STORM_S, storm

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

LIMIT = 1_000_000.0
QUOTAS = [
    {"entity": {"client_id": "app"}, "quotas": {"producer_byte_rate": LIMIT}},
    {"entity": {"client_id": "storm"}, "quotas": {"controller_mutation_rate": PER_S}},
]


class Proxied(NamedTuple):
    """A broker, the job and two proxies."""

    cluster: Cluster
    rig: Rig
    gateways: Sequence[KafkaGateway]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with proxied_brokers(tmp_path_factory.mktemp("proxied"), 1, 2, QUOTAS) as found:
        with connect(KafkaAdminClient, {"bootstrap.servers": found[0].bootstrap_servers}) as admin:
            create_topic(admin, "orders", [4])
        yield Proxied(*found)


def rate(clients: Sequence[FullSpeedClient], since_ms: float, seconds: float) -> float:
    """Bytes per second of all clients from a time on; waits until it is over."""
    eventually(lambda: now_ms() > since_ms + seconds * 1000, seconds + 60)
    samples = [sample for client in clients for sample in client.samples]
    return sum(amount for at_ms, amount in samples if 0 <= at_ms - since_ms < seconds * 1000) / seconds


def test_producers_at_both_proxies_get_one_quota_and_no_more_while_the_job_is_away(proxied: Proxied) -> None:
    clients = [
        FullSpeedClient("app", Role.PRODUCE, gateway.bootstrap_servers, "orders") for gateway in proxied.gateways
    ]
    begun_ms = now_ms()
    with_job = rate(clients, begun_ms + 10_000, 50)
    proxied.rig.kill()
    away_ms = now_ms()
    without_job = rate(clients, away_ms, 40)
    proxied.rig.launch()
    for client in clients:
        client.stop()

    samples = [sample for client in clients for sample in client.samples]
    for since_ms in (begun_ms, away_ms):
        check_bound(samples, LIMIT, since_ms, len(clients) * LARGEST_REQUEST)
    assert with_job / LIMIT > 0.8  # a busy machine serves less
    assert without_job / LIMIT > 0.6
    assert [client.errors for client in clients] == [[], []]


def test_a_storm_of_create_topics_ends_at_the_quotas_rate_after_the_buckets_burst(proxied: Proxied) -> None:
    """Kafka's Java admin client sends all at once by one proxy, and again what is refused."""
    there = storm(proxied.gateways[0].bootstrap_servers, proxied.cluster.bootstrap_servers, 4 * STORM_S)

    for seconds, count in there:
        assert count <= BURST + PER_S * seconds + 6  # a proxy that asks overdraws by what is on its way to the job
    assert there[-1][0] >= STORM_S - 2
