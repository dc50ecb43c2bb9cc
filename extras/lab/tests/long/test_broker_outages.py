"""Three brokers with the plugin, of which one is killed and comes back, and a job that is killed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from sluice.kafka_io.client import connect
from sluice.process.clock import now_ms
from sluice_demo.broker_plugin import Heartbeats, new_exempt_client_id, plugin_cluster, wait_for_gateways
from sluice_demo.cluster import Cluster, create_topic
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_demo.job import Sections
from sluice_lab.testbed.rig import Rig
from tests.kafka_bound import LARGEST_REQUEST, came, check_bound
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

BROKERS = 3
QUOTA = 1_000_000.0
CLIENTS = ("first", "second")
HUNGRY = CLIENTS[0]
"""The client that is watched."""
TOPIC, PARTITIONS = "orders", 12
OUTAGE_S = 30.0
"""Seconds of its quota that the watched client gets while the job is away."""

PATIENCE_S = 120.0


@contextmanager
def brokers_and_job(folder: Path) -> Iterator[tuple[Cluster, Rig]]:
    """The first broker leads none of the topics that shares depend on, and a third of the clients' topic."""
    client_id = new_exempt_client_id()
    quota = {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": QUOTA}}
    sections: Sections = {
        "kafka": {"client.id": client_id},
        "topics": {"replication_factor": BROKERS},
        "audit": {"trigger_s": 0},
    }
    with plugin_cluster(folder / "brokers", BROKERS, client_id) as cluster:
        with admin_of(cluster) as admin:
            for name in ("quota-requests", "quota-sums"):
                create_topic(admin, name, [0, 1, 1])
            create_topic(admin, TOPIC, [PARTITIONS // BROKERS] * BROKERS)
        with Rig(folder, cluster.bootstrap_servers, sections, [quota]) as job:
            job.start()
            wait_for_gateways(job.settings, BROKERS)
            yield cluster, job


def admin_of(cluster: Cluster) -> KafkaAdminClient:
    return connect(KafkaAdminClient, {"bootstrap.servers": cluster.bootstrap_servers})


class Watch:
    """A watch on brokers and clients from outside."""

    def __init__(self, cluster: Cluster, heartbeats: Heartbeats, clients: list[FullSpeedClient]) -> None:
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        self._heartbeats = heartbeats
        self._clients = clients

    def shares(self, client: str) -> dict[str, float]:
        """Gateway -> its share of the client's quota, over the quota."""
        return {
            gateway: share.share / QUOTA
            for gateway, shares in self._heartbeats.shares().items()
            for share in shares
            if share.entity.client_id == client
        }

    def wait_for(self, is_so: Callable[[dict[str, float]], bool]) -> None:
        """Wait until it has been so once for the shares of the client that is always hungry."""
        try:
            eventually(lambda: is_so(self.shares(HUNGRY)), PATIENCE_S)
        except AssertionError:
            pytest.fail(f"never {is_so.__name__}: {self.shares(HUNGRY)}")

    def samples(self) -> list[tuple[int, float]]:
        """The samples of the client that is always hungry."""
        (client,) = (client for client in self._clients if client.name == HUNGRY)
        return client.samples

    def alive(self) -> int:
        """The number of brokers that Kafka takes for alive."""
        return len(self._admin.list_topics(timeout=10).brokers)

    def all_lead(self) -> bool:
        """Elect the first leaders of the clients' topic again; whether each broker leads its partitions."""
        numbers = range(PARTITIONS)
        partitions = [confluent_kafka.TopicPartition(TOPIC, number) for number in numbers]
        self._admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, partitions).result(30)
        found = self._admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        return {found[number].leader for number in numbers} == set(range(1, BROKERS + 1))


def is_shared_by_all(shares: dict[str, float]) -> bool:
    """True if each broker has a share, and one of those that stay has less than half."""
    return len(shares) == BROKERS and min(shares["broker 2"], shares["broker 3"]) < 0.45


def is_shared_by_two(shares: dict[str, float]) -> bool:
    """True if the first broker is left out, and the others have all of the quota."""
    return "broker 1" not in shares and sum(shares.values()) > 0.9


def test_shares_follow_a_broker_that_is_killed_and_comes_back_and_hold_without_the_job(tmp_path: Path) -> None:
    with brokers_and_job(tmp_path) as (cluster, job):
        heartbeats = Heartbeats(job.settings)
        servers = cluster.bootstrap_servers
        clients = [FullSpeedClient(name, Role.PRODUCE, servers, TOPIC) for name in CLIENTS]
        watch = Watch(cluster, heartbeats, clients)
        watch.wait_for(is_shared_by_all)

        killed = cluster.brokers[0]
        killed.kill()
        eventually(lambda: watch.alive() == BROKERS - 1, PATIENCE_S)
        watch.wait_for(is_shared_by_two)

        killed.start()
        eventually(watch.all_lead, PATIENCE_S)
        watch.wait_for(is_shared_by_all)

        job.kill()
        without_job_ms = now_ms()
        eventually(lambda: came(watch.samples(), without_job_ms) > OUTAGE_S * QUOTA)
        errors = [error for client in clients for error in client.errors]
        for client in clients:
            client.stop()
        heartbeats.close()

    check_bound(watch.samples(), QUOTA, without_job_ms, BROKERS * LARGEST_REQUEST)
    address = servers.split(",")[0]
    assert [error for error in errors if address not in error] == []
