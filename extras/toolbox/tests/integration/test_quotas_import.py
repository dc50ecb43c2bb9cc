"""`sluice quotas import` and `sluice quotas exposure` of a real cluster."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.kafka_io.client import connect
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import ElasticKey, QuotaKind
from sluice_lab.testbed.quotas_without_job import AlteringAdmin
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_toolbox.cluster_quotas import read_cluster_quotas
from tests.builders import member, quota
from tests.commands import invoke
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.group("broker_quotas")]
"""A broker has one set of quotas: tests that change those of the shared one take turns."""

CLUSTER_QUOTAS: list[tuple[dict[str, str | None], dict[str, float]]] = [
    ({"user": "import-alice"}, {"producer_byte_rate": 1024.0, "request_percentage": 12.5}),
    ({"user": None, "client-id": "import-app"}, {"controller_mutation_rate": 0.5}),
    ({"client-id": None}, {"consumer_byte_rate": 1e7}),
    ({"ip": "127.0.0.9"}, {"connection_creation_rate": 100.0}),
]

ENTRIES = {
    quota(QuotaKind.PRODUCER_BYTE_RATE, 1024.0, user="import-alice"),
    quota(QuotaKind.REQUEST_PERCENTAGE, 12.5, user="import-alice"),
    quota(QuotaKind.CONTROLLER_MUTATION_RATE, 0.5, user=DEFAULT, client_id="import-app"),
    quota(QuotaKind.CONSUMER_BYTE_RATE, 1e7, client_id=DEFAULT),
}

SLUICES_OWN = [
    member(tenant="shop", user="shop-*"),
    quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, tenant="shop"),
    quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 5.0, topic="orders"),
    quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user="old", shadow=True),
    quota(QuotaKind.CONNECTION_RATE, 5.0, user="old"),
    quota(ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 9.0, user="import-alice"),
]
OLD = [
    quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user="old"),
    quota(ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 4.0, user="old"),
]


def alter_all(bootstrap_servers: str, *, remove: bool) -> None:
    with connect(AlteringAdmin, {"bootstrap.servers": bootstrap_servers}) as admin:
        for entity, values in CLUSTER_QUOTAS:
            admin.alter(entity, values, remove=remove)


def is_described(bootstrap_servers: str) -> bool:
    """False while the broker hasn't applied the change, though the controller has answered."""
    return len(read_cluster_quotas({"bootstrap.servers": bootstrap_servers})) == len(CLUSTER_QUOTAS)


def test_the_quotas_of_a_cluster_are_taken_over_but_those_of_connections(kafka_broker: str, tmp_path: Path) -> None:
    """With --prune those of users and client-ids go that the cluster hasn't; what no cluster has stays."""
    table = QuotasAdmin(str(tmp_path / "quotas"))
    table.create([*SLUICES_OWN, *OLD], "seed", datetime.now(UTC))
    arguments = ["quotas", "import", "--bootstrap-servers", kafka_broker, "--table", table.path, "--yes"]
    alter_all(kafka_broker, remove=False)
    try:
        eventually(lambda: is_described(kafka_broker))
        ended = invoke(*arguments)
        merged = set(table.entries())
        invoke(*arguments, "--prune")
    finally:
        alter_all(kafka_broker, remove=True)

    assert merged == ENTRIES | {*SLUICES_OWN, *OLD}
    assert ended.error == "left out ip '127.0.0.9': Sluice has no quotas on ips\n"
    assert set(table.entries()) == ENTRIES | set(SLUICES_OWN)
