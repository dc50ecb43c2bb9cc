"""Three brokers with the plugin, of which one is killed and comes back, and a job that is killed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from configs.kafka import connect
from scripts.testbed.broker_plugin import Heartbeats, new_exempt_client_id, plugin_cluster, wait_for_gateways
from scripts.testbed.cluster import Cluster, create_topic
from scripts.testbed.full_speed_client import FullSpeedClient, Library, Role
from scripts.testbed.job import Sections
from scripts.testbed.job_under_test import JobOnBrokers
from tests.e2e.plugin_broker import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

BROKERS = 3
QUOTA = 1_000_000.0
CLIENTS = (Library.LIBRDKAFKA, Library.KAFKA_PYTHON)
TOPIC, PARTITIONS = "orders", 12
KNOWN_S = 3.0
"""How soon gateways share without a broker that Kafka takes for dead."""
BUSY_S = 4.0
"""What a busy machine may need beyond it."""


@contextmanager
def brokers_and_job(folder: Path) -> Iterator[tuple[Cluster, JobOnBrokers]]:
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
            for name in ("quota-requests", "quota-decisions"):
                create_topic(admin, name, [0, 1, 1])
            create_topic(admin, TOPIC, [PARTITIONS // BROKERS] * BROKERS)
        with JobOnBrokers(folder, cluster.bootstrap_servers, sections, [quota]) as job:
            job.start()
            wait_for_gateways(job.settings, BROKERS)
            yield cluster, job


def admin_of(cluster: Cluster) -> KafkaAdminClient:
    return connect(KafkaAdminClient, {"bootstrap.servers": cluster.bootstrap_servers})


class Watch:
    """What the brokers and the clients are seen to do."""

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

    def all_shares(self, is_so: Callable[[dict[str, float]], bool]) -> bool:
        """Whether it is so for each client's."""
        return all(is_so(self.shares(client.name)) for client in self._clients)

    def used(self, since_s: float) -> dict[str, float]:
        """Client -> what it got since then, on the clock of `time.time`, over its quota."""
        return {
            client.name: sum(amount for at_ms, amount in client.samples() if at_ms >= since_s * 1000)
            / ((time.time() - since_s) * QUOTA)
            for client in self._clients
        }

    def alive(self) -> int:
        """How many brokers Kafka takes for alive."""
        return len(self._admin.list_topics(timeout=10).brokers)

    def let_all_lead(self) -> None:
        """Let each broker lead the partitions of the clients' topic that it led at first."""
        partitions = [confluent_kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        self._admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, partitions).result(30)


def test_shares_follow_a_broker_that_is_killed_and_comes_back_and_hold_without_the_job(tmp_path: Path) -> None:
    with brokers_and_job(tmp_path) as (cluster, job):
        heartbeats = Heartbeats(job.settings)
        servers = cluster.bootstrap_servers
        clients = [FullSpeedClient(tmp_path, library, library, Role.PRODUCE, servers, TOPIC) for library in CLIENTS]
        watch = Watch(cluster, heartbeats, clients)
        wait_until(lambda: watch.all_shares(lambda shares: len(shares) == BROKERS), 60)
        wait_until(lambda: watch.all_shares(lambda shares: max(shares.values()) < 0.7), 60)

        killed, killed_s = cluster.brokers[0], time.monotonic()
        killed.kill()
        wait_until(lambda: watch.alive() == BROKERS - 1, 60)
        fenced_s = time.monotonic()
        wait_until(lambda: watch.all_shares(lambda shares: "broker-1" not in shares and sum(shares.values()) > 0.9), 60)
        grown_s = time.monotonic() - fenced_s
        print(f"fenced after {fenced_s - killed_s:.1f} s, shares grown {grown_s:.1f} s later")

        killed.start()
        wait_until(lambda: watch.alive() == BROKERS, 60)
        watch.let_all_lead()
        back_s = time.monotonic()
        wait_until(lambda: watch.all_shares(lambda shares: len(shares) == BROKERS and sum(shares.values()) < 1.3), 60)
        print(f"shrunk {time.monotonic() - back_s:.1f} s after it led again", watch.shares("librdkafka"))

        job.kill()
        time.sleep(5)
        without_job_s = time.time()
        time.sleep(25)
        used = watch.used(without_job_s)
        print("without the job", used)
        job.launch()
        errors = {client.name: client.errors() for client in clients}
        print(errors)
        for client in clients:
            client.stop()
        heartbeats.close()

    assert grown_s < KNOWN_S + BUSY_S
    assert all(0.5 < mean < 1.3 for mean in used.values())
