"""A proxy in front of three brokers, of which some are away when it starts, or join later."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError

from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice_demo.cluster import Cluster, create_topic
from sluice_proxy.gateway import KafkaGateway
from tests.integration.plugin_broker import proxy_settings
from tests.waiting import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Brokers 1, 2 and 3, which lead the partitions 0, 1 and 2, each without another replica."""
    with Cluster(tmp_path_factory.mktemp("brokers"), 3) as cluster:
        with connect(KafkaAdminClient, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            create_topic(admin, "orders", [1, 2, 3])
        yield cluster


def produces(servers: str, *partitions: int) -> bool:
    """True if a new client gets in and writes to each of the partitions."""
    try:
        with closing(connect(KafkaProducer, {"bootstrap.servers": servers}, max_block_ms=10_000)) as producer:
            for partition in partitions:
                producer.send("orders", b"x", partition=partition).get(timeout=30)
    except (KafkaError, KafkaUnavailableError):
        return False
    return True


def test_the_first_of_the_brokers_is_away_when_the_proxy_starts_and_comes_later(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.kafka_io.broker_search.PATIENCE_S", 0.0)  # as on a machine without time
    cluster.brokers[0].stop()
    with KafkaGateway(tmp_path, proxy_settings(cluster.bootstrap_servers)) as gateway:
        for _ in range(4):  # each of the servers has its turn
            assert produces(gateway.bootstrap_servers, 1, 2)
        assert gateway.news() == []
        cluster.brokers[0].start()
        eventually(lambda: produces(gateway.bootstrap_servers, 0, 1, 2), 120)


def test_a_broker_that_the_proxy_did_not_know_costs_the_others_nothing_and_gets_the_port_of_its_number(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_proxy.gateway._node_ids", lambda _: [1, 2])
    with KafkaGateway(tmp_path, proxy_settings(cluster.bootstrap_servers)) as gateway:
        assert produces(gateway.bootstrap_servers, 0, 1, 2)
        with connect(KafkaAdminClient, {"bootstrap.servers": gateway.bootstrap_servers}) as admin:
            nodes = {node["broker_id"]: node["port"] for node in admin.describe_cluster()["brokers"]}

    port = int(gateway.bootstrap_servers.rpartition(":")[2])
    assert nodes == {1: port + 2, 2: port + 3, 3: port + 4}


def test_whoever_runs_a_proxy_is_told_that_no_client_gets_in_and_when_that_is_over(
    cluster: Cluster, tmp_path: Path
) -> None:
    with KafkaGateway(tmp_path, proxy_settings(cluster.bootstrap_servers)) as gateway:
        assert produces(gateway.bootstrap_servers, 0)
        for broker in cluster.brokers:
            broker.kill()
        news: list[str] = []

        def shut() -> bool:
            assert not produces(gateway.bootstrap_servers, 0)
            news.extend(gateway.news())
            return bool(news)

        eventually(shut, 120)
        assert len(news) == 3
        assert all(line.startswith("no new client gets in: 127.0.0.1:") for line in news)
        assert all("refused" in line for line in news)

        cluster.start()
        eventually(lambda: produces(gateway.bootstrap_servers, 0), 120)
        eventually(lambda: gateway.news() == ["new clients get in again"], 120)
