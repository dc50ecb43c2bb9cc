"""Embedded brokers as one cluster: they can be killed and started again."""

from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaConnectionError

from sluice_demo.cluster import Cluster, create_topic
from sluice_demo.job import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.long]


def _replicas_and_leaders(admin: KafkaAdminClient, topic: str) -> tuple[set[int], list[int]]:
    partitions = admin.describe_topics([topic])[0]["partitions"]
    return {len(partition["replica_nodes"]) for partition in partitions}, sorted(
        partition["leader_id"] for partition in partitions
    )


def _is_spread(admin: KafkaAdminClient) -> bool:
    """False until the broker that is asked has heard of the topic from the controller."""
    return _replicas_and_leaders(admin, "spread") == ({3}, [1, 1, 2, 3])


def _is_created(address: str) -> bool:
    """False if the client has asked the broker that was killed, which the others name for some seconds."""
    try:
        with KafkaAdminClient(bootstrap_servers=address) as admin:
            create_topic(admin, "led-by-others", [0, 1, 1])
    except KafkaConnectionError:
        return False
    return True


def test_three_brokers_are_one_cluster_that_outlives_one_of_them(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        with KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
            create_topic(admin, "spread", [2, 1, 1])
            wait_until(partial(_is_spread, admin), 120)

        address = cluster.bootstrap_servers
        cluster.brokers[0].kill()
        assert len(cluster.alive) == 2
        wait_until(partial(_is_created, address), 120)
        cluster.brokers[0].start()

        assert cluster.bootstrap_servers == address
        assert len(cluster.alive) == 3


def test_a_cluster_can_have_a_dedicated_controller(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path, 2, controllers=1) as cluster,
        KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        admin.create_topics({"spread": {"assignments": {0: [2], 1: [3]}}}, wait_for_metadata=True)
        assert _replicas_and_leaders(admin, "spread") == ({1}, [2, 3])
