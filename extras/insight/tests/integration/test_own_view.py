"""`sluice own-view` on a broker that asks for logins: the broker says who gets in, by each of its mechanisms."""

import http.client
import logging
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
import yaml
from kafka import KafkaAdminClient
from kafka.admin import UserScramCredentialUpsertion

from sluice.process.clock import now_ms
from sluice_demo.broker import Broker
from sluice_insight.console.own import KafkaLogins
from tests.builders import decision
from tests.commands import SLUICE
from tests.recorded import write_decisions

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


def test_the_process_shows_a_user_the_own_clients_and_its_output_no_password(servers: str, tmp_path: Path) -> None:
    at_ms = now_ms() - 30_000
    rows = [
        decision(at_ms, user=user, client_id=f"client-of-{number}", decision_id=f"requests-0-{number}")
        for number, user in enumerate(SCRAM_USERS)
    ]
    write_decisions(tmp_path / "decisions", rows)
    tables = {name: str(tmp_path / name) for name in ("quotas", "decisions", "overrides")}
    (file := tmp_path / "s.yaml").write_text(
        yaml.safe_dump({"kafka": settings_of(servers, "SCRAM-SHA-256"), "delta": tables})
    )
    command = [*SLUICE, "own-view", "--config", str(file), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("Own clients: http://").strip().rstrip("/")
        seen = {}
        for user, password in SCRAM_USERS.items():
            for given in ("wrong-pw-9", password):
                with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
                    connection.request("POST", "/login", urlencode({"user": user, "password": given}))
                    answer = connection.getresponse()
                    answer.read()
            assert answer.status == 303
            cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
            assert "HttpOnly" in (answer.getheader("Set-Cookie") or "")
            with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
                connection.request("GET", "/", headers={"Cookie": cookie})
                seen[user] = connection.getresponse().read().decode()
        process.terminate()
        output = process.stdout.read()

    for number, user in enumerate(SCRAM_USERS):
        others = [f"client-of-{other}" for other in range(len(SCRAM_USERS)) if other != number]
        assert f"client-of-{number}" in seen[user]
        assert not [each for each in others if each in seen[user]]
    assert not [secret for secret in ("pw-", "wrong") if secret in output], output
