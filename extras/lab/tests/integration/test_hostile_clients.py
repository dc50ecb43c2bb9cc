"""Bytes that no Kafka client sends, to each port of Sluice: logs stay short and true, and have no stack trace."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka import KafkaConsumer

from hostile_clients import METADATA, SECRET, request, send, send_all
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice_demo.broker import Broker
from sluice_demo.job import write_settings
from sluice_proxy.gateway import ANY_PORT, KafkaGateway, Tls
from sluice_proxy.processes import free_ports
from tests.certificates import certificate
from tests.integration.plugin_broker import proxy_settings

pytestmark = pytest.mark.kafka

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
MOST_LINES = 20
"""The most of hundreds of bad clients: ten a minute of Kroxylicious, and one a minute of each kind of Sluice."""


class Servers(NamedTuple):
    """A broker with the plugin, a proxy in front of its listener with a login, and one with TLS before the other."""

    broker: Broker
    broker_log: Path
    login: KafkaGateway
    tls: KafkaGateway
    ports: Mapping[str, tuple[str, int]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("hostile")
    client, admin, controller = free_ports(3)
    listeners = f"CLIENT://127.0.0.1:{client},ADMIN://127.0.0.1:{admin}"
    kafka = {
        "bootstrap.servers": f"127.0.0.1:{client}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{_LOGIN}username="sluice" password="s";',
    }
    by_login = write_settings(folder / "settings.yaml", {"kafka": kafka, "topics": {"partitions": 1}})
    properties = {
        **plugin_properties({"bootstrap.servers": f"127.0.0.1:{admin}"}, by_login.topics),
        "sluice.gateway.name": "broker-1",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "ADMIN",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": f'{_LOGIN}user_sluice="s" user_app="a";',
    }
    with Broker(folder / "broker", properties, plugins=[plugin_jar()]) as broker:
        plain = proxy_settings(f"127.0.0.1:{admin}")
        tls_files = Tls(*certificate(folder, "proxy", "proxy"))
        with (
            KafkaGateway(folder / "login", by_login) as login,
            KafkaGateway(folder / "tls", plain, ANY_PORT, tls_files) as tls,
        ):
            places = {
                "a broker": f"127.0.0.1:{client}",
                "a proxy": login.bootstrap_servers,
                "a proxy with TLS": tls.bootstrap_servers,
                "a proxy's metrics": f"127.0.0.1:{login.management_port}",
            }
            ports = {
                name: (host, int(port)) for name, (host, _, port) in ((n, p.rpartition(":")) for n, p in places.items())
            }
            yield Servers(broker, folder / "broker" / "broker.log", login, tls, ports)


def test_a_client_that_speaks_no_kafka_is_no_sign_that_nobody_gets_in(servers: Servers) -> None:
    """The broker ends its connection without an answer, as it ends that of a good client which it can't serve."""
    for _ in range(5):
        assert send(servers.ports["a proxy"], [request(METADATA, 1, b"\0\0\0\0")]) == b""
        assert send(servers.ports["a proxy"], [request(METADATA, -3, b"\0\0\0\0")]) == b""

    assert _topics(servers.login)
    assert servers.login.news() == []


@pytest.mark.parametrize("port", ["a broker", "a proxy", "a proxy with TLS", "a proxy's metrics"])
def test_no_client_makes_a_log_long_or_false(servers: Servers, port: str) -> None:
    """Hundreds at once, of every kind, and good clients go on."""
    logs = {servers.login.log, servers.tls.log}
    before = {log: len(log.read_text(errors="replace")) for log in (*logs, servers.broker_log)}

    send_all(servers.ports[port])

    assert _topics(servers.login)
    written = {log: log.read_text(errors="replace")[begin:] for log, begin in before.items()}
    for log in logs:
        lines = written[log].splitlines()
        assert not [line for line in lines if line.startswith(("\t", "Caused by", "CLIENTS"))]
        assert len(lines) <= MOST_LINES, lines
        assert max(map(len, lines), default=0) < 700
        assert SECRET not in written[log]
        assert SECRET.encode().hex() not in written[log]
    assert "at sluice." not in written[servers.broker_log]  # Kafka's own lines are Kafka's


def _topics(gateway: KafkaGateway) -> set[str]:
    """The topics that a good client sees."""
    login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "app", "sasl_plain_password": "a"}
    servers = gateway.bootstrap_servers
    with closing(KafkaConsumer(bootstrap_servers=servers, security_protocol="SASL_PLAINTEXT", **login)) as consumer:
        return set(consumer.topics())
