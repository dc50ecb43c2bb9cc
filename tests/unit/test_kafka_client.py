"""Kafka's property names as the Python client's arguments, and the errors when no broker answers."""

import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaTimeoutError, SaslAuthenticationFailedError

from sluice.kafka_io import broker_search
from sluice.kafka_io import client as kafka_client
from sluice.kafka_io.broker_search import BrokerSearch
from sluice.kafka_io.client import connect, kafka_python_config
from sluice.kafka_io.errors import KafkaUnavailableError, UnsupportedPropertyError
from sluice_demo.cluster import make_topic
from sluice_reading.own_clients import is_own_client_id
from tests.certificates import certificate
from tests.commands import invoke
from tests.web import answering

SERVERS = {"bootstrap.servers": "b1:9092, b2:9092"}
OPTIONS = 'required username="alice" password="a=\\"b;c";'
LOGIN = f"org.apache.kafka.common.security.plain.PlainLoginModule {OPTIONS}"
SCRAM = f"org.apache.kafka.common.security.scram.ScramLoginModule {OPTIONS}"


@pytest.mark.parametrize(
    ("properties", "translated"),
    [
        ({"client.id": "sluice", "request.timeout.ms": "5000"}, {"client_id": "sluice", "request_timeout_ms": 5000}),
        ({"receive.buffer.bytes": "-1"}, {"receive_buffer_bytes": None}),  # sizes of socket buffers are Kafka's
        ({"receive.buffer.bytes": "65536"}, {"receive_buffer_bytes": 65_536}),
        ({"sasl.login.class": "x.Y", "linger.ms": "5"}, {}),  # what only Java takes
        ({"ssl.truststore.location": "/tls/ca.jks", "sasl.jaas.config": LOGIN}, {}),  # without TLS and SASL
    ],
)
def test_servers_and_properties_are_translated(properties: dict[str, str], translated: dict[str, object]) -> None:
    servers = {"bootstrap_servers": ["b1:9092", "b2:9092"]}

    assert kafka_python_config({**SERVERS, **properties}) == servers | translated


@pytest.mark.parametrize("client", [KafkaAdminClient, KafkaProducer, KafkaConsumer])
def test_every_argument_is_known_to_every_client(client: type) -> None:
    arguments = {argument for argument, _ in kafka_client.ARGUMENTS.values()}
    others = {"sasl_plain_username", "sasl_plain_password", "ssl_cafile", "ssl_certfile", "ssl_keyfile"}

    assert arguments | others | {"bootstrap_timeout_ms", "kafka_client"} <= set(client.DEFAULT_CONFIG)  # type: ignore[attr-defined] # kafka-python has no hints


@pytest.mark.parametrize(("mechanism", "login"), [("PLAIN", LOGIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)])
def test_user_and_password_come_from_the_jaas_line(mechanism: str, login: str) -> None:
    config = kafka_python_config(
        {**SERVERS, "security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism, "sasl.jaas.config": login}
    )

    assert config["security_protocol"] == "SASL_PLAINTEXT"
    assert config["sasl_mechanism"] == mechanism
    assert config["sasl_plain_username"] == "alice"
    assert config["sasl_plain_password"] == 'a="b;c'  # noqa: S105 -- a made-up password


PEM_STORES = {
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": "/tls/ca.pem",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "/tls/client.pem",
    "ssl.key.password": "hunter2",
    "ssl.endpoint.identification.algorithm": "",
}
PEM_FILES_BESIDE_JKS_STORES = {
    "ssl.truststore.location": "/tls/ca.jks",
    "ssl.ca.location": "/tls/ca.pem",
    "ssl.keystore.location": "/tls/client.jks",
    "ssl.certificate.location": "/tls/client.pem",
    "ssl.key.location": "/tls/client.key",
}


@pytest.mark.parametrize(
    ("stores", "others"),
    [
        (PEM_STORES, {"ssl_password": "hunter2", "ssl_check_hostname": False}),
        (PEM_FILES_BESIDE_JKS_STORES, {"ssl_keyfile": "/tls/client.key"}),
    ],
    ids=["PEM stores", "PEM files beside JKS stores"],
)
def test_pem_stores_and_files_become_certificate_files(stores: dict[str, str], others: dict[str, object]) -> None:
    config = kafka_python_config({**SERVERS, "security.protocol": "SSL", **stores})

    expected = {"ssl_cafile": "/tls/ca.pem", "ssl_certfile": "/tls/client.pem", **others}
    assert {name: config[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "SSL", "ssl.truststore.location": "/ca.jks"}, "is a JKS store, .* expected .* PEM"),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "/c.p12", "ssl.keystore.type": "PKCS12"},
            "PKCS12 store",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "hunter2"}, "expected a PEM file"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "expected PLAIN, SCRAM-SHA-256"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": 'x required password="hunter2";',
            },
            'no username="..." and password',
        ),
        ({"security.protocol": "TLS"}, "'TLS'; expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"securty.protocol": "hunter2"}, r"securty\.protocol is no .* did you mean security\.protocol"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms is 'soon'; expected a whole number"),
        ({"bootstrap.servers": " "}, "bootstrap.servers is missing or empty; expected host:port"),
    ],
)
def test_what_the_python_client_cannot_do_is_said_with_what_it_can(properties: dict[str, str], message: str) -> None:
    with pytest.raises(UnsupportedPropertyError, match=message) as caught:
        kafka_python_config({**SERVERS, **properties})

    assert "hunter2" not in str(caught.value)


WITH_LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": LOGIN}

TLS_ALERT = bytes.fromhex("15030300020228")
"""The answer of a TLS server to bytes that it can't read: no frame of a Kafka broker, and no handshake."""


API_VERSIONS = 18


def versions_alone(connection: socket.socket) -> None:
    """Tell which requests are known, as a broker does before a login, and end the connection at the next one."""
    while len(head := connection.recv(12, socket.MSG_WAITALL)) == 12:
        size, api, version, correlation_id = struct.unpack(">ihhi", head)
        connection.recv(size - 8, socket.MSG_WAITALL)
        if api != API_VERSIONS:
            return
        known = [(API_VERSIONS, 0, 0), (3, 0, 1), (17, 0, 1), (36, 0, 1)]
        body = struct.pack(">ihi", correlation_id, 35 if version else 0, len(known))
        body += b"".join(struct.pack(">hhh", *each) for each in known)
        connection.sendall(struct.pack(">i", len(body)) + body)


@contextmanager
def server_that_answers(answer: bytes | Callable[[socket.socket], None]) -> Iterator[str]:
    with answering(answer) as port:
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("client", [KafkaAdminClient, KafkaConsumer, KafkaProducer])
@pytest.mark.parametrize(
    ("answer", "properties", "said"),
    [
        (None, {}, r"no Kafka broker answers at 127\.0\.0\.1:1 \(.*ECONNREFUSED\); check that it runs there"),
        (None, {"bootstrap.servers": "b.invalid:9092"}, r"no address is known for b\.invalid:9092 \(.*check the name"),
        (None, {"bootstrap.servers": "b.invalid:1,127.0.0.1:1"}, r"no address is known for b\.invalid:1 "),
        (b"", {}, "127.* ends connections without an answer .*check that security.protocol, which is PLAINTEXT,"),
        (TLS_ALERT, {}, "ends connections without an answer .*check that security.protocol, which is PLAINTEXT,"),
        (TLS_ALERT, {"security.protocol": "ssl"}, "no TLS connection with 127.* check that ssl.truststore.loc"),
        (b"", {"security.protocol": "SSL"}, "no TLS connection with 127.* security.protocol is that of this"),
        (versions_alone, WITH_LOGIN, "127.* refuses the login .*check sasl.mechanism, and user name and"),
        (versions_alone, {}, "ends connections without an answer .*check that security.protocol, which is PLAIN"),
    ],
    ids=[
        *("dead", "unknown name", "one name unknown", "closes", "TLS there", "TLS refused", "no TLS there"),
        *("login refused", "login wanted"),
    ],
)
def test_what_keeps_a_client_out_is_said_long_before_the_search_is_over(
    client: type,
    answer: bytes | Callable[[socket.socket], None] | None,
    properties: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 3_600_000)
    monkeypatch.setattr(broker_search, "PATIENCE_S", 0.1)
    there = nullcontext("127.0.0.1:1") if answer is None else server_that_answers(answer)
    with there as server, pytest.raises(KafkaUnavailableError, match=said) as caught:
        connect(client, {"bootstrap.servers": server, **properties})

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expired", "said"),
    [
        ("broker", r"no TLS connection with 127\.0\.0\.1:\d+ \(.* certificate has expired.*; renew its certificate"),
        ("client", r"the certificate /.*/client\.pem, by which .* has expired \(.* GMT\); renew it and its key"),
    ],
)
def test_an_expired_certificate_is_named_with_its_place_and_the_cure(tmp_path: Path, expired: str, said: str) -> None:
    made = [certificate(tmp_path, name, name, expired=name == expired) for name in ("broker", "client")]
    (broker, broker_key), (own, key) = made
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(broker, broker_key)
    context.load_verify_locations(own)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(connection: socket.socket) -> None:
        versions_alone(context.wrap_socket(connection, server_side=True))

    files = {"ssl.ca.location": broker, "ssl.certificate.location": own, "ssl.key.location": key}
    tls = {"security.protocol": "SSL"} | {name: str(path) for name, path in files.items()}
    with server_that_answers(serve) as server, pytest.raises(KafkaUnavailableError, match=said):
        connect(KafkaAdminClient, {"bootstrap.servers": server, **tls})


def test_a_server_that_chance_chooses_again_and_again_is_not_waited_for_ever_longer() -> None:
    """kafka-python doubles the wait for a server each time, and waits it out though another one is there."""
    with closing(BrokerSearch(bootstrap_servers="127.0.0.1:1")) as search:
        of_search = [search.search.update_backoff("bootstrap-0") for _ in range(12)]
        search.end()
        afterwards = search.search.update_backoff("bootstrap-0")

    assert max(of_search) <= 250
    assert afterwards > 10_000


def test_servers_that_end_connections_are_tried_again_on_a_machine_without_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of several, behind a proxy, may be away; to give up after one try would be to know that one alone."""
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 3_600_000)
    monkeypatch.setattr(broker_search, "PATIENCE_S", 0.0)
    tried = Counter[int]()
    note = lambda connection: tried.update([connection.getsockname()[1]])  # noqa: E731 # both do it, and no more
    with server_that_answers(note) as first, server_that_answers(note) as second, pytest.raises(KafkaUnavailableError):
        connect(KafkaAdminClient, {"bootstrap.servers": f"{first},{second}"})

    assert [count >= 3 for count in tried.values()] == [True, True]


def test_a_server_whose_packets_are_dropped_is_said_long_before_the_search_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listener that has as many connections as it lets wait drops what asks for more, as a firewall does."""
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 3_600_000)
    monkeypatch.setattr(broker_search, "CONNECTION_S", 0.2)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        server = f"127.0.0.1:{listener.getsockname()[1]}"

        with pytest.raises(KafkaUnavailableError, match=rf"{server} \(.*within 0.2 s\); .*that no firewall is between"):
            connect(KafkaAdminClient, {"bootstrap.servers": server})


def test_a_server_that_is_silent_is_named_when_the_search_is_over(
    silent_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 300)

    with pytest.raises(KafkaUnavailableError, match=f"no Kafka broker answers at {silent_broker} .* check"):
        connect(KafkaAdminClient, {"bootstrap.servers": silent_broker})


@pytest.mark.parametrize("client", [KafkaAdminClient, KafkaConsumer, KafkaProducer])
def test_attempts_that_fail_leave_no_thread(client: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has sockets of its own, too: a service that waits for brokers would use up the files of the process."""
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 100)
    before = threading.active_count()

    with pytest.raises(KafkaUnavailableError):
        connect(client, {"bootstrap.servers": "127.0.0.1:1,127.0.0.1:2"})

    assert threading.active_count() == before


def test_a_server_that_takes_connections_and_is_silent_leaves_time_for_the_others() -> None:
    asked: list[tuple[list[str], float]] = []

    def client(bootstrap_servers: list[str], bootstrap_timeout_ms: float, **_: object) -> str:
        """One that meets the silent server, as kafka-python may that is given several."""
        asked.append((bootstrap_servers, bootstrap_timeout_ms))
        if bootstrap_servers != ["b2:9092"]:
            raise KafkaTimeoutError(bootstrap_servers)
        return "connected"

    assert connect(client, {"bootstrap.servers": "b1:9092,b2:9092"}) == "connected"
    assert asked[0][0] == ["b1:9092", "b2:9092"]
    assert 3_000 < asked[0][1] < 3_334


def test_many_servers_leave_each_attempt_time_for_a_slow_login() -> None:
    asked: list[tuple[list[str], float]] = []

    def client(bootstrap_servers: list[str], bootstrap_timeout_ms: float, **_: object) -> None:
        asked.append((bootstrap_servers, bootstrap_timeout_ms))
        raise KafkaTimeoutError(bootstrap_servers)

    names = [f"b{number}:9092" for number in range(100)]
    for servers in (names, names[:1] * 3):
        with pytest.raises(KafkaUnavailableError):
            connect(client, {"bootstrap.servers": ",".join(servers)})

    assert len(asked[0][0]) == 100
    assert [len(servers) for servers, _ in asked[1:4]] == [1, 1, 1]
    assert min(timeout_ms for _, timeout_ms in asked) > 2_400
    assert [servers for servers, _ in asked[4:]] == [names[:1]]


def test_a_refused_login_is_not_tried_again() -> None:
    asked = []

    def client(**arguments: object) -> None:
        asked.append(arguments)
        raise SaslAuthenticationFailedError("wrong password")

    with pytest.raises(KafkaUnavailableError, match="wrong password"):
        connect(client, {"bootstrap.servers": "b1:9092,b2:9092"})

    assert len(asked) == 1


def test_a_certificate_file_that_is_missing_is_named() -> None:
    with pytest.raises(KafkaUnavailableError, match=r"no file /no/ca\.pem, .* expected a PEM file"):
        connect(KafkaAdminClient, {**SERVERS, "security.protocol": "SSL", "ssl.ca.location": "/no/ca.pem"})


@pytest.mark.parametrize("asks", ["exposure", "import", "demo"])
def test_who_asks_any_cluster_has_no_client_id_of_sluices_own(asks: str, tmp_path: Path) -> None:
    """Brokers would report a login of Sluice's that isn't exempt, and an alert fire, for whoever looks at quotas."""
    heard: list[bytes] = []
    with server_that_answers(lambda connection: heard.append(connection.recv(200))) as server:
        if asks == "demo":
            with pytest.raises(KafkaUnavailableError):
                make_topic(server, "orders", [1])
        else:
            table = ["--table", tmp_path] if asks == "import" else []
            invoke("quotas", asks, "--bootstrap-servers", server, *table, code=1)

    client_ids = {request[14 : 14 + int.from_bytes(request[12:14])].decode() for request in heard if request}
    assert client_ids
    assert not any(is_own_client_id({}, each) for each in client_ids)
