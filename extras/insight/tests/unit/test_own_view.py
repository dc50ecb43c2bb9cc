"""`own-view`: a login sees its own clients alone, whatever is in addresses, names, cookies and tokens."""

import http.client
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote as encoded
from urllib.parse import urlencode

import pytest

from console_facts import HOSTILE
from recorded import START_MS, event, write_tables
from sluice.process.http_server import HttpServer
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice_insight.console import own
from sluice_insight.console.own import (
    MAX_FORM_BYTES,
    MOST_FAILED,
    SESSION_S,
    KafkaLogins,
    OwnView,
    Sessions,
    own_app,
    proving_client_id,
)
from sluice_insight.console.slow import SlowPage
from sluice_insight.slow.sources import Recorded, SlowReport, slow_client
from sluice_reading.times import from_ms
from tests.builders import member, quota
from tests.commands import invoke

MINE, THEIRS = "mine-client", "secret-client"
PASSWORDS = {"alice": "pw-Alice-1", "bob": "pw-Bob-2"}
KAFKA = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
Get = Callable[..., tuple[int, str, str]]


class Logins(KafkaLogins):
    """Kafka's part, by a table of passwords; counts how often it was asked."""

    asked = 0

    def _accepts(self, login: Mapping[str, object]) -> bool:
        self.asked += 1
        return PASSWORDS.get(str(login.get("sasl_plain_username")), "-") == login.get("sasl_plain_password")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logins() -> Logins:
    return Logins(KAFKA)


@pytest.fixture
def page(here: Path) -> SlowPage:
    """A page that reads tables with the clients of both users."""
    limits = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1e3, user=name) for name in PASSWORDS]
    tenants = [member("our-tenant", user="alice"), member("their-tenant", client_id="secret-*")]
    names = {"alice": MINE, "bob": THEIRS}
    events = [
        event(at_ms, user, names[user], bytes=9_000, gateway=f"{names[user]}-gateway")
        for at_ms in range(0, 60_000, 1_000)
        for user in names
    ]
    tables = write_tables(here, [*limits, *tenants], events, from_ms(START_MS))
    entities = CountedEntity(client_id=THEIRS), CountedEntity(tenant="their-tenant"), CountedEntity(user="bob")
    holds = [Override("hold", entity=each, reason="their-reason", consumers=True) for each in entities]
    OverridesTable(str(here / "overrides"), {}).append([("operator", Overrides(1, START_MS, 600_000, holds))])
    return SlowPage(Recorded(tables, str(here / "overrides")))


@pytest.fixture
def get(page: SlowPage, clock: Clock, logins: Logins) -> Iterator[Get]:
    """A call of the view: path, cookie, form, cookie of a proof; gives the status, the page and the cookie."""
    view = OwnView(logins, page, Sessions(clock), is_secure=False, clock=lambda: START_MS + 60_000)
    server = HttpServer(own_app(view, any_host=False), "127.0.0.1", 0, max_connections=20, cure="")
    server.start()

    def ask(
        path: str, cookie: str = "", form: Mapping[str, str] | None = None, proof: str = ""
    ) -> tuple[int, str, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)) as connection:
            cookies = [f"{name}={value}" for name, value in (("sluice_own", cookie), ("sluice_proof", proof)) if value]
            headers = {"Cookie": "; ".join(cookies)} if cookies else {}
            body = None if form is None else urlencode(form)
            connection.request("GET" if form is None else "POST", path, body, headers)
            answer = connection.getresponse()
            name, _, given = (answer.getheader("Set-Cookie") or "").partition(";")[0].partition("=")
            return answer.status, answer.read().decode(), given if name == "sluice_own" else ""

    yield ask
    server.stop()


def log_in(get: Get, user: str = "alice", password: str | None = None) -> tuple[int, str]:
    form = {"user": user, "password": PASSWORDS.get(user, "x") if password is None else password}
    status, _, cookie = get("/login", form=form)
    return status, cookie


def test_who_logs_in_sees_the_own_clients_and_tenant_and_nothing_of_others(get: Get) -> None:
    _, cookie = log_in(get)
    for path in ("/", f"/?client_id={MINE}", f"/slow.json?client_id={MINE}"):
        status, page, _ = get(path, cookie)
        assert (status, MINE in page, "our-tenant" in page) == (200, True, True), path
        assert not [name for name in ("bob", THEIRS, "their-tenant", "their-reason") if name in page], path
    assert "their-reason" in get("/", log_in(get, "bob")[1])[1]


def test_a_query_that_takes_long_keeps_no_other_user_waiting_and_no_thread(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Event(), Event()

    def waiting(recorded: Recorded, client: Tags, *more: Any, **options: Any) -> SlowReport:
        if client.user == "alice":
            begun.set()
            go_on.wait(60)
        return slow_client(recorded, client, *more, **options)

    monkeypatch.setattr("sluice_insight.console.slow.slow_client", waiting)
    mine, theirs = log_in(get)[1], log_in(get, "bob")[1]
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(get, "/slow.json", mine)
        begun.wait(60)
        others = [pool.submit(get, f"/slow.json?client_id={number}", mine) for number in range(8)]
        assert get("/slow.json", theirs)[0] == 200
        assert {other.result()[0] for other in others} <= {429, 503}
        assert not first.done()
        go_on.set()
        assert first.result()[0] == 200
    assert get("/slow.json?client_id=0", mine)[0] == 200


def test_no_parameter_names_another_user_or_tenant(get: Get) -> None:
    _, cookie = log_in(get)
    asked = [THEIRS, f"{THEIRS}' OR '1'='1", f"{THEIRS}' OR user = 'bob' --", "' OR ''='", *HOSTILE[:-2]]
    for name in asked:
        for rest in ("", "&user=bob&tenant=their-tenant", "&only=0&user[]=bob"):
            for page in ("/", "/slow.json"):
                status, found, _ = get(f"{page}?client_id={encoded(name)}{rest}", cookie)
                assert status == 200
                assert "their-tenant" not in found
                assert "their-reason" not in found
                assert f"{THEIRS}-gateway" not in found
                assert "producer_byte_rate 1 kB/s of" not in found or name == MINE
                assert page != "/" or "<script>document" not in found


PATHS = (
    "/",
    "/slow.json",
    "/?client_id=mine-client",
    "/../",
    "/client?user=alice",
    "/overview",
    "/slow",
    "/request?id=x",
)
ODD_PATHS = ("/events?of=slow", "/assets/../own.py", "/assets/%2e%2e/own.html", "/slow.json/", "//", "/%2e%2e/login")


@pytest.mark.parametrize("path", ["/client?user=bob", "/overview", "/quotas", "/request?id=x", "/slow", *ODD_PATHS])
def test_a_login_reaches_no_path_of_the_console(get: Get, path: str) -> None:
    status, page, _ = get(path, log_in(get)[1])
    assert status in (307, 404)
    assert not [name for name in (*PASSWORDS, MINE, THEIRS, "tenant") if name in page]


@pytest.mark.parametrize("path", [*PATHS, *ODD_PATHS])
def test_without_a_login_no_path_says_anything(get: Get, path: str) -> None:
    for cookie in ("", "x" * 43, "alice", "\xff" * 20, "a" * 8_000):
        status, page, _ = get(path, cookie)
        assert status in (303, 307, 401, 404)
        assert not [name for name in (*PASSWORDS, MINE, THEIRS, "tenant") if name in page]


def test_a_session_is_of_its_user_until_it_ends(get: Get, clock: Clock) -> None:
    _, alice = log_in(get)
    _, bob = log_in(get, "bob")
    assert THEIRS in get("/", bob)[1]
    assert THEIRS not in get("/", alice)[1]
    get("/logout", bob, {})
    assert get("/", bob)[0] == 303
    clock.now_s += SESSION_S
    assert get("/", alice)[0] == 303
    assert len({log_in(get)[1] for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("user", "password"),
    [
        *(("alice", each) for each in ("", "pw-Bob-2", "pw-Alice-1 ", "PW-ALICE-1", "pw-Alice-1\0")),
        *((each, "pw-Alice-1") for each in ("", "Alice", "alice ", "alice,n=bob", "n=alice", "alice\0", "User:alice")),
        ("x" * 256, "pw"),
    ],
)
def test_what_kafka_does_not_accept_opens_nothing(get: Get, user: str, password: str) -> None:
    status, page, cookie = get("/login", form={"user": user, "password": password})
    assert (status, cookie) == (403, "")
    assert "Kafka did not accept this login, or does not answer." in page


def test_a_password_of_a_file_may_end_with_a_line(get: Get) -> None:
    """`curl --data-urlencode password@file` sends it, too."""
    assert log_in(get, "alice", "pw-Alice-1\n")[0] == 303
    assert log_in(get, "alice", "pw-Alice-1\r\n")[0] == 303


def test_a_refused_login_is_asked_of_kafka_each_time_and_not_again_and_again(
    get: Get, logins: Logins, clock: Clock
) -> None:
    """Nothing is kept of a failure: the right password counts at once, as long as there were few wrong ones."""
    assert [log_in(get, "alice", "wrong")[0] for _ in range(2)] == [403, 403]
    assert (log_in(get)[0], logins.asked) == (303, 3)
    tries = [log_in(get, "alice", "wrong")[0] for _ in range(MOST_FAILED + 2)]
    assert tries == [403] * MOST_FAILED + [429] * 2
    assert logins.asked == 3 + MOST_FAILED
    assert (log_in(get)[0], log_in(get, "bob")[0]) == (429, 303)  # bob isn't kept out by tries of alice
    clock.now_s += 60
    assert log_in(get)[0] == 303


@pytest.mark.parametrize("together", [False, True])
def test_a_client_proves_who_somebody_is_once(get: Get, page: SlowPage, together: bool) -> None:
    """A copy of the cookie is good for nothing, and the page shows another client-id afterwards."""
    secret = "s" * 43
    told = {"kind": "client", "at_ms": START_MS + 60_000, "user": "alice", "client_id": proving_client_id(secret)}
    page.heard.take(None, json.dumps(told).encode())

    def prove(_: int) -> tuple[int, str, str]:
        return get("/login", proof=secret, form={"proof": "1"})

    with ThreadPoolExecutor(4 if together else 1) as pool:
        answers = sorted(pool.map(prove, range(4)))
    assert [status for status, _, _ in answers] == [303, 403, 403, 403]
    assert "our-tenant" in get("/", answers[0][2])[1]
    assert proving_client_id(secret) not in get("/login", proof=secret)[1]
    status, login, _ = get("/login", proof="x" * 43, form={"proof": "1"})
    assert (status, "No client of this id has told a broker yet." in login) == (403, True)


def test_a_form_is_bounded(get: Get) -> None:
    assert get("/login", form={"user": "alice", "password": "x" * MAX_FORM_BYTES})[0] == 413


def token(claims: bytes) -> str:
    return ".".join(urlsafe_b64encode(each).decode().rstrip("=") for each in (b"{}", claims, b"signature"))


@pytest.mark.parametrize(
    ("text", "user"),
    [
        (token(b'{"sub":"alice"}'), "alice"),
        (token(b'{"sub":"a,b=c"}'), "a,b=c"),
        (token(b'{"sub":7}'), None),
        (token(b'{"name":"alice"}'), None),
        (token(b'{"sub":"al\\u0000ice"}'), None),
        (token(b'["alice"]'), None),
        (token(b"[" * 5_000), None),
        (token(b'{"sub":"alice"}') + "\x01auth=Bearer x", None),
        ("alice", None),
    ],
)
def test_the_user_of_a_token_is_the_claim_that_kafka_takes(text: str, user: str | None) -> None:
    assert KafkaLogins(KAFKA).named({"token": text, "user": "bob"}) == user


@pytest.mark.parametrize(
    ("protocol", "mechanism", "form"),
    [
        ("SSL", "", {"user": "alice", "password": "pw-Alice-1"}),
        ("SSL", "", {"token": token(b'{"sub":"alice"}')}),
        ("SASL_SSL", "GSSAPI", {"user": "alice", "password": "pw-Alice-1"}),
        ("SASL_SSL", "", {"user": "alice", "password": "pw-Alice-1"}),  # GSSAPI is Kafka's default
    ],
)
def test_where_this_process_would_get_in_by_its_own_certificate_or_ticket_nobody_does_by_a_password(
    protocol: str, mechanism: str, form: Mapping[str, str]
) -> None:
    logins = Logins({"bootstrap.servers": "x:1", "security.protocol": protocol, "sasl.mechanism": mechanism})
    assert logins.user_of(form) is None
    assert logins.asked == 0


def test_kafka_is_asked_with_the_given_login_and_not_with_sluices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[dict[str, object]]()

    def refuse(*_: object, **options: object) -> None:
        asked.append(options)
        raise OSError("away")

    monkeypatch.setattr(own, "connect", refuse)
    assert KafkaLogins(KAFKA).user_of({"user": "alice", "password": "p"}) is None
    assert asked == [{"group_id": None, "sasl_plain_username": "alice", "sasl_plain_password": "p"}]


@pytest.mark.parametrize(
    ("kafka", "options", "said"),
    [
        ("", [], "kafka.security.protocol has no SASL and no SSL"),
        (
            ", security.protocol: SASL_SSL, sasl.mechanism: GSSAPI",
            ["--address", "0.0.0.0"],  # noqa: S104 # refused
            "passwords would pass in clear text to 0.0.0.0",
        ),
    ],
)
def test_it_does_not_start_where_a_login_is_none_or_would_be_seen(
    here: Path, kafka: str, options: list[str], said: str
) -> None:
    (here / "s.yaml").write_text(f"kafka: {{bootstrap.servers: '127.0.0.1:1'{kafka}}}")
    assert said in invoke("own-view", "--config", here / "s.yaml", *options, code=2).error


def test_sessions_and_refused_names_are_kept_within_their_bounds(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(own, "MOST_SESSIONS", 3)
    monkeypatch.setattr(own, "MOST_NAMES", 3)
    sessions = Sessions(clock)
    opened = [sessions.begin("alice") for _ in range(10)]
    while sessions.may_try("refused"):
        pass
    for number in range(3):
        assert sessions.may_try(f"user-{number}")

    assert [sessions.user(each) for each in opened] == [None] * 7 + ["alice"] * 3
    assert sessions.may_try("refused"), "it is forgotten"
