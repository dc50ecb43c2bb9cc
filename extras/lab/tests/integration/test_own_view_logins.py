"""`sluice own-view` on a broker that asks for logins: the broker says who gets in, by each of its mechanisms."""

import http.client
import logging
import re
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
import yaml
from confluent_kafka import Producer
from kafka import KafkaAdminClient
from kafka.admin import UserScramCredentialUpsertion

from recorded import write_decisions
from sluice.jvm.plugin import KAFKA_REPORTER_CLASS
from sluice.kafka_io.client import kafka_python_config
from sluice.process.clock import now_ms
from sluice_demo.broker import Broker
from sluice_insight.console.own import KafkaLogins
from sluice_telemetry.jars import RECEIVER_CLASS, telemetry_jar
from sluice_telemetry.subscription import subscribe
from tests.builders import decision
from tests.certificates import certificate
from tests.commands import SLUICE
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

SECURITY = "org.apache.kafka.common.security"
PLAIN, SCRAM = (f"{SECURITY}.{name}LoginModule required" for name in ("plain.Plain", "scram.Scram"))
LISTENER = "listener.name.client."
PROPERTIES = {
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    f"{LISTENER}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    f"{LISTENER}plain.sasl.jaas.config": f'{PLAIN} username="a" password="a" user_a="a" user_alice="pw-Alice-1";',
    f"{LISTENER}scram-sha-256.sasl.jaas.config": f"{SCRAM};",
    f"{LISTENER}oauthbearer.sasl.jaas.config": (
        f'{SECURITY}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="a";'
    ),
}
ADMIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
ADMIN |= {"sasl_plain_username": "a", "sasl_plain_password": "a"}
ODD = 'o\'neil "x" $(id)'
SCRAM_USERS = {"alice": "pw-Alice-2", "bob": "pw-Bob-3", ODD: "pw-Odd-4 é\\"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Broker(tmp_path_factory.mktemp("logins"), PROPERTIES) as broker:
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, **ADMIN)) as admin:
            users = SCRAM_USERS.items()
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(*each[:1], "SCRAM-SHA-256", each[1]) for each in users]
            )
        yield broker.bootstrap_servers


def settings_of(servers: str, mechanism: str) -> dict[str, str]:
    """Those of the view: its own login is not that of anybody who asks."""
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    login = f'{module} username="a" password="a";'
    own = {"bootstrap.servers": servers, "security.protocol": "SASL_PLAINTEXT"}
    return own | {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def token(user: str, lasting_ms: int) -> str:
    """An unsecured token, as brokers without another handler take it."""
    now_s = now_ms() // 1000
    claims = f'{{"sub":"{user}","iat":{now_s - 5},"exp":{now_s + lasting_ms // 1000}}}'
    return ".".join(urlsafe_b64encode(each).decode().rstrip("=") for each in (b'{"alg":"none"}', claims.encode(), b""))


@pytest.mark.parametrize(
    ("mechanism", "form", "user"),
    [
        ("PLAIN", {"user": "alice", "password": "pw-Alice-1"}, "alice"),
        ("PLAIN", {"user": "alice", "password": "pw-Alice-2"}, None),
        *(("SCRAM-SHA-256", {"user": user, "password": password}, user) for user, password in SCRAM_USERS.items()),
        ("SCRAM-SHA-256", {"user": "alice", "password": "pw-Bob-3"}, None),
        ("SCRAM-SHA-256", {"user": "bob,x=alice", "password": "pw-Bob-3"}, None),
        ("SCRAM-SHA-256", {"user": "a", "password": "a"}, None),  # known by PLAIN alone
    ],
)
def test_the_broker_says_whose_password_it_is(
    servers: str, caplog: pytest.LogCaptureFixture, mechanism: str, form: Mapping[str, str], user: str | None
) -> None:
    caplog.set_level(logging.INFO)
    assert KafkaLogins(settings_of(servers, mechanism)).user_of(form) == user
    assert form["password"] not in caplog.text or form["password"] == "a"  # noqa: S105 # in many words


def test_the_broker_says_whose_token_it_is(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logins, good, old = KafkaLogins(settings_of(servers, "PLAIN")), token("carol", 60_000), token("carol", -4_000)
    assert logins.user_of({"token": good}) == "carol"
    assert logins.user_of({"token": old}) is None
    assert logins.user_of({"token": good + "x"}) is None
    assert good not in caplog.text


def test_a_broker_that_is_away_lets_nobody_in(silent_broker: str) -> None:
    assert KafkaLogins(settings_of(silent_broker, "PLAIN")).user_of({"user": "alice", "password": "pw-Alice-1"}) is None


Asked = tuple[int, str, dict[str, str]]
"""Status, text, and the cookies that the answer sets."""


@contextmanager
def serving(folder: Path, kafka: Mapping[str, str], users: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The address of a process with decisions on a client of each user, and its further output once it has ended."""
    at_ms = now_ms() - 30_000
    rows = [
        decision(at_ms, user=user, client_id=f"client-of-{number}", decision_id=f"requests-0-{number}")
        for number, user in enumerate(users)
    ]
    write_decisions(folder / "decisions", rows)
    tables = {name: str(folder / name) for name in ("quotas", "decisions", "overrides")}
    (file := folder / "s.yaml").write_text(yaml.safe_dump({"kafka": dict(kafka), "delta": tables}))
    command, output = [*SLUICE, "own-view", "--config", str(file), "--port", "0"], list[str]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("Own clients: http://"), line + process.stdout.read()
            yield line.removeprefix("Own clients: http://").strip().rstrip("/"), output
        finally:
            process.terminate()
            output.append(process.stdout.read())


def ask(address: str, path: str, cookies: Mapping[str, str], form: Mapping[str, str] | None = None) -> Asked:
    with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
        connection.request("GET" if form is None else "POST", path, None if form is None else urlencode(form), headers)
        answer = connection.getresponse()
        given = [each.split("; ") for each in answer.headers.get_all("Set-Cookie") or []]
        assert all("HttpOnly" in each for each in given if "Max-Age=0" not in each)
        kept = dict(each[0].split("=", 1) for each in given if "Max-Age=0" not in each)
        return answer.status, answer.read().decode(), kept


def test_the_process_shows_a_user_the_own_clients_and_its_output_no_password(servers: str, tmp_path: Path) -> None:
    seen = {}
    with serving(tmp_path, settings_of(servers, "SCRAM-SHA-256"), SCRAM_USERS) as (address, output):
        for user, password in SCRAM_USERS.items():
            assert ask(address, "/login", {}, {"user": user, "password": "wrong-pw-9"})[0] == 403
            status, _, cookies = ask(address, "/login", {}, {"user": user, "password": password})
            assert status == 303
            seen[user] = ask(address, "/", cookies)[1]

    for number, user in enumerate(SCRAM_USERS):
        others = [f"client-of-{other}" for other in range(len(SCRAM_USERS)) if other != number]
        assert f"client-of-{number}" in seen[user]
        assert not [each for each in others if each in seen[user]]
    assert not [secret for secret in ("pw-", "wrong") if secret in output[0]], output


CERTIFIED = ("alice", "bob")
Certificates = tuple[str, dict[str, dict[str, str]]]
"""Addresses of brokers, and the properties of a client by its user."""


@pytest.fixture(scope="module")
def of_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certificates]:
    """A broker that asks for certificates, maps their names and takes telemetry."""
    folder = tmp_path_factory.mktemp("certificates")
    made = {name: certificate(folder, name, name, "shop") for name in ("broker", "sluice", *CERTIFIED)}
    for name, (pem, key) in made.items():
        (folder / f"{name}.store").write_bytes(key.read_bytes() + pem.read_bytes())
    (folder / "all.pem").write_bytes(b"".join(pem.read_bytes() for pem, _ in made.values()))

    def stores(prefix: str, name: str) -> dict[str, str]:
        files = {"keystore": folder / f"{name}.store", "truststore": folder / "all.pem"}
        types = {f"{prefix}ssl.{store}.type": "PEM" for store in files}
        return types | {f"{prefix}ssl.{store}.location": str(file) for store, file in files.items()}

    properties = (
        stores(LISTENER, "broker")
        | stores("sluice.client.", "sluice")
        | {
            "listener.security.protocol.map": "CLIENT:SSL,CONTROLLER:PLAINTEXT",
            f"{LISTENER}ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/,DEFAULT",
            "metric.reporters": f"{KAFKA_REPORTER_CLASS},{RECEIVER_CLASS}",
            "sluice.bootstrap.servers": "127.0.0.1:{port}",
            "sluice.client.security.protocol": "SSL",
        }
    )

    def client(name: str) -> dict[str, str]:
        pem, key = made[name]
        files = {"ssl.ca.location": made["broker"][0], "ssl.certificate.location": pem, "ssl.key.location": key}
        return {"security.protocol": "SSL"} | {name: str(file) for name, file in files.items()}

    with Broker(folder / "broker", properties, plugins=[telemetry_jar()]) as broker:
        of_sluice = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SSL"} | stores("", "sluice")
        subscribe(kafka_python_config(of_sluice), 500)
        yield broker.bootstrap_servers, {"sluice": of_sluice} | {name: client(name) for name in CERTIFIED}


def test_a_client_with_a_certificate_proves_whose_it_is_to_the_browser_that_asked(
    of_certificates: Certificates, tmp_path: Path
) -> None:
    servers, clients = of_certificates
    proof = {"proof": "1"}
    with serving(tmp_path, clients["sluice"], CERTIFIED) as (address, _):
        asked = {user: ask(address, "/login", {}) for user in CERTIFIED}
        cookies = {user: kept for user, (_, _, kept) in asked.items()}
        ids = {user: re.findall("own-view-[0-9a-f]{32}", page)[0] for user, (_, page, _) in asked.items()}
        assert "password" not in asked["alice"][1]  # the listener asks for none, and would take any
        for form in ({"user": "alice", "password": "x"}, {"token": token("alice", 60_000)}, proof):
            assert ask(address, "/login", cookies["alice"], form)[0] == 403

        own = {"bootstrap.servers": servers, "client.id": ids["alice"], **clients["alice"]}
        producer, opened = Producer(own), dict[str, Asked]()

        def proven() -> bool:
            producer.poll(0)
            opened["alice"] = ask(address, "/login", cookies["alice"], proof)
            return opened["alice"][0] == 303

        eventually(proven)
        producer = Producer(own | {"client.id": ids["bob"]} | clients["bob"])
        eventually(lambda: ask(address, "/login", cookies["bob"], proof)[0] == 303)
        seen = ask(address, "/", opened["alice"][2])[1]
        for others in ({}, cookies["alice"] | {"sluice_proof": ids["alice"]}, {"sluice_proof": "x" * 43}):
            assert ask(address, "/login", others, proof)[0] == 403  # nor has who only knows the client-id
            assert ask(address, "/", others)[0] == 303

    assert "Logged in as <bdi>alice</bdi>" in seen
    assert "client-of-0" in seen
    assert "client-of-1" not in seen


def test_a_client_id_under_which_two_users_came_proves_neither(of_certificates: Certificates, tmp_path: Path) -> None:
    servers, clients = of_certificates
    with serving(tmp_path, clients["sluice"], CERTIFIED) as (address, _):
        _, page, cookies = ask(address, "/login", {})
        own = {"bootstrap.servers": servers, "client.id": re.findall("own-view-[0-9a-f]{32}", page)[0]}
        first = Producer(own | clients["alice"])
        eventually(lambda: ask(address, "/login", cookies, {"proof": "1"})[0] == 303)
        second = Producer(own | clients["bob"])
        eventually(lambda: ask(address, "/login", cookies, {"proof": "1"})[0] == 403)
        del first, second
