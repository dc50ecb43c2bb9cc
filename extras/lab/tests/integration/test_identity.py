"""A client is one user on every way in: the table in docs/security.md, tried with real parts."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from sluice import Gateway, GatewayOptions, WhenFull
from sluice.configs.settings import Settings, load_settings
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.kafka_io.topics import ensure_topics
from sluice.state.contract.records import NO_LOGIN
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.cluster import create_topic
from sluice_http import AsgiQuotas
from sluice_http.middleware import Message, Receive, Scope, Send
from sluice_lab.testbed.quotas_without_job import AlteringAdmin, publish_limits
from sluice_proxy.gateway import KafkaGateway
from sluice_proxy.processes import free_ports
from sluice_toolbox.cluster import client_quotas
from sluice_toolbox.cluster_quotas import read_cluster_quotas
from tests.integration.plugin_broker import published
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).resolve().parents[4] / "docs" / "security.md"
QUOTAS, PLUGIN, PROXY, PYTHON, HTTP = range(5)
"""The columns of the table."""

NAME = "José"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
LOGIN: Mapping[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": NAME,
    "sasl_plain_password": "secret",
}
CLIENTS = (
    ("no login, no certificate, no `user`, no header", b""),
    (f"login, `user` or header in UTF-8: `{NAME}`", NAME.encode()),
    ("header `Jos%C3%A9`", b"Jos%C3%A9"),
    (f"header `{NAME}` in Latin-1", NAME.encode("latin-1")),
    ("header `Jos%E9`", b"Jos%E9"),
)
"""The rows of the table: client, and the bytes of its user header."""


def table() -> dict[str, list[str]]:
    """The users in docs/security.md, a list of columns for each client; "" where the way doesn't exist."""
    lines = PAGE.read_text().partition("## Who a client is")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {client: [user.strip("`") for user in users] for client, *users in rows[1:]}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a broker with the plugin: where nobody logs in, and where everybody does."""
    plain, logins, controller = free_ports(3)
    servers, secured = f"127.0.0.1:{plain}", f"127.0.0.1:{logins}"
    listeners = f"CLIENT://{servers},LOGIN://{secured}"
    properties = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} user_{NAME}="secret";',
        **plugin_properties({"bootstrap.servers": servers}, load_settings().topics),
        "sluice.gateway.name": "plugin",
    }
    with Broker(tmp_path / "broker", properties, plugins=[plugin_jar()]):
        ensure_topics(replace(load_settings().topics, partitions=1), {"bootstrap.servers": servers})
        each = QuotaEntity(user=DEFAULT, client_id=DEFAULT)
        publish_limits(servers, [QuotaEntry(each, QuotaKind.PRODUCER_BYTE_RATE, 1e9)], 1, {})
        with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
            create_topic(admin, "orders", [1])
        yield servers, secured


class Client(NamedTuple):
    """A producer at these servers, and the user whom the events of its gateway have to name."""

    gateway: str
    servers: str
    client_id: str
    login: Mapping[str, Any]
    user: str

    def produce(self, suffix: str = "") -> None:
        client_id = self.client_id + suffix
        with closing(KafkaProducer(bootstrap_servers=self.servers, client_id=client_id, **self.login)) as producer:
            producer.send("orders", bytes(50_000)).get(120)


def produce_when_limits_are_known(events_at: str, clients: Sequence[Client]) -> None:
    """Produce through the gateways; before one knows the limits all client-ids of a user have one counter."""
    unknown = list(clients)

    def are_known() -> bool:
        for client in unknown:
            client.produce("-first")
        unknown[:] = [each for each in unknown if not users_of(events_at, each.gateway, f"{each.client_id}-first")]
        return not unknown

    eventually(are_known)
    for client in clients:
        client.produce()


def users_of(servers: str, gateway: str, client_id: str) -> set[str | None]:
    """The users in the events of this gateway and client-id."""
    events = [event for event in published(servers) if event.get("client_id") == client_id]
    return {event.get("user") for event in events if event["gateway"] == gateway}


def proxy_in_front_of(folder: Path, servers: str, login: str = "") -> KafkaGateway:
    folder.mkdir()
    file = folder / "settings.yaml"
    file.write_text(f"kafka: {{bootstrap.servers: '{servers}'{login}}}\n")
    settings: Settings = load_settings(file)
    return KafkaGateway(folder, settings, properties={"sluice.gateway.name": "proxy"})


def answer_to(gateway: Gateway, header: bytes, client_id: str) -> int:
    """The status for a request with this user header."""
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    headers = [(b"x-user", header), (b"x-client-id", client_id.encode())]
    asyncio.run(AsgiQuotas(hello, gateway)({"type": "http", "headers": headers}, receive, send))
    return statuses[0]


def test_a_client_is_the_user_that_the_page_says_on_every_way_in(brokers: tuple[str, str], tmp_path: Path) -> None:
    servers, secured = brokers
    expected = table()
    assert [*expected] == [client for client, _ in CLIENTS]
    nobody, named, *_ = expected.values()
    assert nobody[QUOTAS] == NO_LOGIN

    with closing(AlteringAdmin(bootstrap_servers=servers)) as admin:
        for user in (nobody[QUOTAS], named[QUOTAS]):
            admin.alter({"user": user}, {"request_percentage": 1000.0})
    mirrored = client_quotas(read_cluster_quotas({"bootstrap.servers": servers}))[0]
    assert {entry.entity.user for entry in mirrored} == {nobody[QUOTAS], named[QUOTAS]}

    jaas = f'{PLAIN} username="{NAME}" password="secret";'
    login = f", security.protocol: sasl_plaintext, sasl.mechanism: PLAIN, sasl.jaas.config: '{jaas}'"
    with (
        proxy_in_front_of(tmp_path / "plain", servers) as plain,
        proxy_in_front_of(tmp_path / "secured", secured, login) as with_login,
    ):
        clients = [
            Client("plugin", servers, "nobody-direct", {}, nobody[PLUGIN]),
            Client("plugin", secured, "named-direct", LOGIN, named[PLUGIN]),
            Client("proxy", plain.bootstrap_servers, "nobody-proxied", {}, nobody[PROXY]),
            Client("proxy", with_login.bootstrap_servers, "named-proxied", LOGIN, named[PROXY]),
        ]
        produce_when_limits_are_known(servers, clients)
        for client in clients:
            eventually(lambda client=client: users_of(servers, client.gateway, client.client_id) == {client.user})  # type: ignore[misc] # mypy knows no defaults of lambdas

    with Gateway({"bootstrap.servers": servers}, GatewayOptions("python", when_full=WhenFull.DROP)) as gateway:
        gateway.admit({"api": "Produce", "client_id": "nobody-python"})
        gateway.admit({"api": "Produce", "client_id": "named-python", "user": NAME})
        statuses = [answer_to(gateway, header, f"http-{row}") for row, (_, header) in enumerate(CLIENTS)]
    assert users_of(servers, "python", "nobody-python") == {nobody[PYTHON]}
    assert users_of(servers, "python", "named-python") == {named[PYTHON]}
    for row, users in enumerate(expected.values()):
        seen = users_of(servers, "python", f"http-{row}")
        assert (statuses[row], seen) == ((400, set()) if users[HTTP] == "400" else (200, {users[HTTP]}))
