"""Proxies whose clients log in: the user is what the broker has accepted, or the name in the client's certificate."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
    UserScramCredentialUpsertion,
)
from kafka.errors import KafkaError

from sluice.configs.settings import Settings, load_settings
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.cluster import create_topic
from sluice_lab.testbed.quotas_without_job import publish_limits
from sluice_proxy.gateway import KafkaGateway, Tls
from tests.builders import quota
from tests.certificates import certificate
from tests.integration.plugin_broker import proxy_settings, published
from tests.integration.secure_broker import SecureBroker
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.long]

SENT = 300_000
CERTIFIED = "CN=dave,O=café"
USERS = ("alice", "bob", "carol", CERTIFIED, "DAVE", "ANONYMOUS")
LIMITS = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0, user=user) for user in USERS]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ADMIN: Mapping[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "admin",
    "sasl_plain_password": "admin",
}
LOGINS: Mapping[str, Mapping[str, Any]] = {
    "alice": {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "alice"},
    "bob": {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "bob", "sasl.password": "bobs"},
    "carol": {
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": "principal=carol",
    },
}


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Broker, Settings]]:
    """A broker with three mechanisms, and the settings of Sluice's own clients."""
    listener = "listener.name.client."
    bearer = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"{listener}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        f"{listener}plain.sasl.jaas.config": (
            f'{PLAIN} username="admin" password="admin" user_admin="admin" user_alice="alice";'
        ),
        f"{listener}plain.connections.max.reauth.ms": "3000",
        f"{listener}scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        f"{listener}oauthbearer.sasl.jaas.config": f'{bearer} unsecuredLoginStringClaim_sub="admin";',
    }
    with Broker(tmp_path / "broker", properties) as broker:
        file = tmp_path / "settings.yaml"
        file.write_text(
            f"kafka:\n  bootstrap.servers: {broker.bootstrap_servers}\n  security.protocol: SASL_PLAINTEXT\n"
            f'  sasl.mechanism: PLAIN\n  sasl.jaas.config: \'{PLAIN} username="admin" password="admin";\'\n'
            "topics: {partitions: 1}\n"
        )
        settings = load_settings(file)
        ensure_topics(settings.topics, settings.kafka)
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, **ADMIN)) as admin:
            create_topic(admin, "orders", [1])
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", "SCRAM-SHA-256", "bobs")])
        publish_limits(broker.bootstrap_servers, LIMITS, 1, ADMIN)
        yield broker, settings


def send(servers: str, login: Mapping[str, Any]) -> None:
    """Produce so many bytes as client-id `app`. Raises KafkaError if they don't arrive."""
    failed: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "client.id": "app", **login})
    for _ in range(SENT // 50_000):
        producer.produce("orders", bytes(50_000), on_delivery=lambda error, _: failed.append(error) if error else None)
    if producer.flush(60) or failed:
        raise KafkaError(f"not delivered: {failed}")


def charged(broker: Broker) -> dict[str, int]:
    """Bytes in the events that were published, by user."""
    bytes_of: dict[str, int] = {}
    for event in published(broker.bootstrap_servers, **ADMIN):
        user = event.get("user", "")
        bytes_of[user] = bytes_of.get(user, 0) + event.get("bytes", 0)
    return bytes_of


def test_the_user_is_whom_the_broker_has_let_in(secure: tuple[Broker, Settings], tmp_path: Path) -> None:
    broker, settings = secure
    with KafkaGateway(tmp_path / "proxy", settings) as gateway:
        for login in LOGINS.values():
            send(gateway.bootstrap_servers, {"security.protocol": "SASL_PLAINTEXT", **login})
        eventually(lambda: all(charged(broker).get(user, 0) >= SENT for user in LOGINS))

        wrong = {"security.protocol": "SASL_PLAINTEXT", **LOGINS["alice"], "sasl.password": "wrong"}
        client = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap_servers, **wrong})
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=3)

    assert all(charged(broker)[user] < SENT + 5_000 for user in LOGINS)


def test_a_client_that_logs_in_again_stays_who_it_is(secure: tuple[Broker, Settings], tmp_path: Path) -> None:
    """On the same connection, which the broker would close after 3 s (KIP-368)."""
    broker, settings = secure
    failed: list[Any] = []
    with KafkaGateway(tmp_path / "proxy", settings) as gateway:
        login = {"security.protocol": "SASL_PLAINTEXT", **LOGINS["alice"], "error_cb": failed.append}
        producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap_servers, **login})
        for _ in range(20):
            producer.produce("orders", bytes(50_000))
            assert producer.flush(60) == 0
            time.sleep(0.5)
        eventually(lambda: charged(broker).get("alice", 0) >= 1_000_000)

    assert not failed
    assert "is closed: " not in (tmp_path / "proxy" / "proxy.log").read_text()


def test_a_proxy_connects_to_brokers_by_the_tls_and_the_login_of_its_settings(tmp_path: Path) -> None:
    """The login of a gateway, with the rights of one alone; its clients log in at the broker themselves."""
    broker = SecureBroker(tmp_path / "broker")
    broker.start()
    try:
        file = tmp_path / "settings.yaml"
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        file.write_text(
            f"kafka:\n  bootstrap.servers: {broker.bootstrap_servers}\n  security.protocol: SASL_SSL\n"
            "  sasl.mechanism: SCRAM-SHA-512\n"
            f'  sasl.jaas.config: \'{login} username="gateway" password="gateways";\'\n'
            f"  ssl.truststore.type: PEM\n  ssl.truststore.location: {broker.certificate}\n"
            "topics: {partitions: 1}\n"
        )
        settings = load_settings(file)
        broker.let_in(settings.topics, {"gateway": "gateways", "alice": "alices"})
        with closing(KafkaAdminClient(bootstrap_servers=broker.admin_servers)) as admin:
            create_topic(admin, "orders", [1])
            topic = ResourcePattern(ResourceType.TOPIC, "orders")
            admin.create_acls([ACL("User:alice", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, topic)])
        publish_limits(broker.admin_servers, LIMITS, 1, {})
        with KafkaGateway(tmp_path / "proxy", settings) as gateway:
            alice = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": "alices"}
            send(gateway.bootstrap_servers, {"security.protocol": "SASL_PLAINTEXT", **alice})

            def bytes_of_alice() -> int:
                events = published(broker.admin_servers)
                return sum(event.get("bytes", 0) for event in events if event.get("user") == "alice")

            eventually(lambda: bytes_of_alice() >= SENT)
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("rules", "user"),
    [("DEFAULT", CERTIFIED), ("RULE:^CN=(.*?),.*$/$1/U", "DAVE"), ("RULE:^OU=(.*)$/$1/", "ANONYMOUS")],
)
def test_without_a_login_the_user_is_in_the_clients_certificate(tmp_path: Path, rules: str, user: str) -> None:
    """Kafka's name of it, under the brokers' mapping rules."""
    server, client = certificate(tmp_path, "proxy", "proxy"), certificate(tmp_path, "dave", "dave", "café")
    with Broker(tmp_path / "broker") as broker:
        settings = proxy_settings(broker.bootstrap_servers)
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
            create_topic(admin, "orders", [1])
        publish_limits(broker.bootstrap_servers, LIMITS, 1, {})
        tls = Tls(server[0], server[1], client[0])
        properties = {"sluice.ssl.principal.mapping.rules": rules}
        with KafkaGateway(tmp_path / "proxy", settings, tls=tls, properties=properties) as gateway:
            own = {"ssl.certificate.location": str(client[0]), "ssl.key.location": str(client[1])}
            send(
                gateway.bootstrap_servers,
                {"security.protocol": "SSL", "ssl.ca.location": str(server[0]), **own},
            )

            def bytes_of_user() -> int:
                events = published(broker.bootstrap_servers)
                return sum(event.get("bytes", 0) for event in events if event.get("user") == user)

            eventually(lambda: bytes_of_user() >= SENT)


def test_a_client_cannot_negotiate_tls_again_on_a_connection(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    with Broker(tmp_path / "broker") as broker:
        settings = proxy_settings(broker.bootstrap_servers)
        tls = Tls(*certificate(tmp_path, "proxy", "proxy"))
        with KafkaGateway(tmp_path / "proxy", settings, tls=tls) as gateway:
            command = [openssl, "s_client", "-connect", gateway.bootstrap_servers, "-tls1_2"]
            client = subprocess.run(command, input=b"R\n", capture_output=True, timeout=60, check=False)

    assert b"RENEGOTIATING" in client.stdout + client.stderr
    assert client.returncode != 0  # it was left with an alert; else it ends well with its input
