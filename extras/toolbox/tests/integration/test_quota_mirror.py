"""`quotas.source: kafka` on a real broker: from an alteration in the cluster to the limits that gateways read."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from sluice.kafka_io import client as kafka_client
from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_lab.testbed.quotas_without_job import AlteringAdmin
from sluice_proxy.processes import free_ports
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_toolbox.cluster import client_quotas
from sluice_toolbox.cluster_quotas import ClusterQuotasReader
from tests.builders import quota
from tests.deciding_side import read_limits
from tests.integration.job_process import JobProcess, wait_until
from tests.web import answer_of

pytestmark = [pytest.mark.kafka, pytest.mark.group("broker_quotas")]
"""A broker has one set of quotas: tests that change those of the shared one take turns."""

KIND = QuotaKind.PRODUCER_BYTE_RATE
ORDERS = quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1e6, topic="orders")


@contextmanager
def altering(servers: str) -> Iterator[Callable[..., None]]:
    """Sets quotas of one entity, and removes what is still set when the block ends: the broker is every test's."""
    with connect(AlteringAdmin, {"bootstrap.servers": servers}) as admin:

        def alter(entity: dict[str, str | None], key: str, value: float | None) -> None:
            admin.alter(entity, {key: value or 0.0}, remove=value is None)

        try:
            yield alter
        finally:
            for entity, values in admin.describe_client_quotas():
                admin.alter(entity, values, remove=True)


def entry(value: float, user: str = "mirror-alice") -> QuotaEntry:
    return quota(KIND, value, user=user)


@pytest.mark.spark
def test_what_kafka_configs_sets_is_a_version_of_the_table_and_in_the_limits_topic(
    kafka_broker: str, tmp_path: Path
) -> None:
    """From the first version that a gateway sees. The table's own client quotas give way, its topic quotas stay."""
    (port,) = free_ports(1)
    seed = [
        {"entity": {"topic": "orders"}, "quotas": {"producer.byte.rate": 1_000_000}},
        {"entity": {"user": "mirror-bob"}, "quotas": {"producer_byte_rate": 1}},
    ]
    job = JobProcess(tmp_path / uuid4().hex[:8], kafka_broker, seed, quotas={"source": "kafka"}, health={"port": port})

    def published() -> set[QuotaEntry]:
        try:
            return set(read_limits(job.settings.topics, kafka_broker).entries.values())
        except Exception:
            return set()

    with altering(kafka_broker) as alter:
        alter({"user": "mirror-alice"}, KIND, 1024.0)
        job.start()
        try:
            assert job.settings.quotas.source == "kafka"
            wait_until(lambda: published() == {entry(1024.0), ORDERS}, 120)
            assert QuotasAdmin(job.settings.delta.quotas).version() == 1
            alter({"user": "mirror-alice"}, KIND, 2048.5e3)
            alter({"user": None, "client-id": "app"}, KIND, 7.0)
            default = quota(KIND, 7.0, user=DEFAULT, client_id="app")
            wait_until(lambda: published() == {entry(2048.5e3), default, ORDERS}, 120)
            alter({"user": "mirror-alice"}, KIND, None)
            wait_until(lambda: published() == {default, ORDERS}, 120)
            _, answer = answer_of(port, "/readyz")  # with any status: a busy machine's job may not be ready yet
            assert json.loads(answer)["quota_mirror"] == {"ok": True, "reason": None, "left_out": 0}
        finally:
            job.stop()

    history = list(QuotasAdmin(job.settings.delta.quotas).history())
    assert {change.changed_by for change in history if change.version > 0} == {"kafka"}
    first = next(line["message"] for line in job.log() if "has the cluster's quotas" in line["message"])
    assert first.endswith("version 1 has the cluster's quotas of users and client-ids: 1 added, 0 changed, 1 removed")


def test_a_broker_that_is_away_for_a_time_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same reader, whose connection was lost."""
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 2_000)
    with Broker(tmp_path) as broker, ClusterQuotasReader({"bootstrap.servers": broker.bootstrap_servers}) as reader:
        with connect(AlteringAdmin, {"bootstrap.servers": broker.bootstrap_servers}) as admin:
            admin.alter({"user": "mirror-alice"}, {KIND: 1024.0}, remove=False)
        wait_until(lambda: client_quotas(reader.read()).entries == [entry(1024.0)], 120)

        broker.stop()
        with pytest.raises(KafkaUnavailableError, match=f"no Kafka broker answers at {broker.bootstrap_servers}"):
            reader.read()
        broker.start()
        assert client_quotas(reader.read()).entries == [entry(1024.0)]

        broker.kill()
        broker.start()
        assert client_quotas(reader.read()).entries == [entry(1024.0)]
