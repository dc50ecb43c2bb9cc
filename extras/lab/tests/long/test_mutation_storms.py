"""Storms of CreateTopics against brokers with the plugin: the active controller alone meters them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.configs.settings import load_settings
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker_plugin import new_exempt_client_id, plugin_cluster
from sluice_demo.cluster import Cluster
from sluice_lab.testbed.quotas_without_job import publish_limits
from tests.builders import quota
from tests.waiting import eventually
from topic_storm import BURST, PER_S, STORM_S, storm

pytestmark = [pytest.mark.kafka, pytest.mark.alone, pytest.mark.long]

LATE = 1.5
"""Greatest delay of the last topic, over the quota's: on a busy machine refused requests come again late."""


@contextmanager
def limited_cluster(folder: Path, brokers: int, controllers: int) -> Iterator[Cluster]:
    """A cluster in which the client `storm` may make so many mutations a second."""
    client_id = new_exempt_client_id()
    limits = [quota(QuotaKind.CONTROLLER_MUTATION_RATE, PER_S, client_id="storm")]
    with plugin_cluster(folder, brokers, client_id, controllers) as cluster:
        kafka = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": client_id}
        ensure_topics(load_settings().topics, kafka)
        publish_limits(cluster.bootstrap_servers, limits, 1, {"client_id": client_id})
        logs = [folder / str(node) / "broker.log" for node in range(1, brokers + controllers + 1)]
        eventually(lambda: all("Sluice knows the limits" in log.read_text() for log in logs))
        yield cluster


@pytest.mark.parametrize(
    ("brokers", "controllers"),
    [
        pytest.param(1, 0, id="one broker that is the controller"),
        pytest.param(3, 0, id="three brokers, of which two forward to the controller"),
        pytest.param(2, 1, id="brokers that forward to a dedicated controller"),
    ],
)
def test_a_storm_of_create_topics_ends_at_the_quotas_rate_after_the_buckets_burst(
    tmp_path: Path, brokers: int, controllers: int
) -> None:
    """Never more than burst and rate allow, one request beyond them left out; the last at most half as late again."""
    with limited_cluster(tmp_path, brokers, controllers) as cluster:
        there = storm(cluster.bootstrap_servers, cluster.bootstrap_servers, 3 * STORM_S)

    for seconds, count in there:
        assert count <= BURST + PER_S * seconds + 1
    assert STORM_S - 1 <= there[-1][0] <= LATE * STORM_S + 2
