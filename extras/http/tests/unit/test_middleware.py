"""The middleware: the answer to a throttled client, the charges, and hostile headers."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sluice import (
    Answer,
    GatewayOptions,
    Request,
    StalePolicy,
    TopicPartition,
    WhenFull,
)
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import NO_LOGIN, CountedEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice_http import AsgiQuotas, HttpQuotas
from sluice_http.middleware import (
    CALLER,
    Caller,
    Message,
    Receive,
    Scope,
    Send,
    throttle_headers,
)
from tests.builders import quota
from tests.gateway_loop import NOW_MS, OfflineGateway, set_limits, tell


class RecordingGateway(OfflineGateway):
    """A gateway without a broker that remembers the requests it was given to charge."""

    def __init__(self, policy: StalePolicy = StalePolicy.KEEP_SHARES) -> None:
        self.events: list[Request] = []
        self.now_ms = NOW_MS
        options = GatewayOptions(policy=policy, when_full=WhenFull.DROP, close_timeout_s=0)
        super().__init__(options, lambda: self.now_ms)

    def admit(self, request: Any, delivered: bool = False) -> Answer:
        self.events.append(request)
        return super().admit(request, delivered)

    def throttle(self, user: str, client_id: str, wait_ms: int, quota: str = "producer_byte_rate") -> None:
        """Make the counter of this user and client-id wait."""
        entity = {"user": user, "client_id": client_id}
        charge = {"quota": quota, "entity": entity, "limit": 1024.0, "rate": 2048.0, "throttle_ms": wait_ms}
        tell(self, {"timestamp_ms": self.now_ms, "charges": [charge]})


@pytest.fixture(scope="module")
def shared_gateway() -> Iterator[RecordingGateway]:
    with RecordingGateway() as gateway:
        yield gateway


@pytest.fixture
def gateway(shared_gateway: RecordingGateway) -> RecordingGateway:
    """A gateway with nothing published and no client throttled; each test throttles users of its own."""
    shared_gateway.events.clear()
    shared_gateway.now_ms += 3_600_000
    shared_gateway.idle()
    return shared_gateway


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.01)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def drive(app: AsgiQuotas, headers: dict[str, str] | list[tuple[str, str]], kind: str = "http") -> list[Message]:
    """The messages that the application sends for one request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    pairs = headers.items() if isinstance(headers, dict) else headers
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]
    asyncio.run(app({"type": kind, "headers": raw}, receive, send))
    return sent


def sent_headers(messages: list[Message]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in messages[0]["headers"]}


def test_a_served_asgi_request_becomes_an_event_with_its_time(gateway: RecordingGateway) -> None:
    messages = drive(AsgiQuotas(hello, gateway), {"X-User": "alice", "X-Client-Id": "app"})

    assert [messages[0]["status"], messages[1]["body"]] == [200, b"hello"]
    [event] = gateway.events
    assert (event.api, event.user, event.client_id) == ("Http", "alice", "app")
    assert 10_000_000 <= (event.request_time_ns or 0) < 5_000_000_000


def test_a_slow_client_is_not_charged_the_time_for_which_the_application_waits_for_it(
    gateway: RecordingGateway,
) -> None:
    """A body of two parts, each 60 s on its way, 3 ms of work after each, and a response that nobody reads for 60 s."""
    now_ns, parts, minute_ns = [0], [True, False], 60_000_000_000

    async def receive() -> Message:
        now_ns[0] += minute_ns
        return {"type": "http.request", "body": b"x", "more_body": parts.pop(0)}

    async def send(_: Message) -> None:
        now_ns[0] += minute_ns

    async def working(_scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            now_ns[0] += 3_000_000
        now_ns[0] += 3_000_000
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    app = AsgiQuotas(working, gateway, clock_ns=lambda: now_ns[0])
    asyncio.run(app({"type": "http", "headers": [(b"x-user", b"alice")]}, receive, send))

    assert [event.request_time_ns for event in gateway.events] == [6_000_000]


def test_a_throttled_asgi_client_gets_429_and_the_application_never_sees_it(gateway: RecordingGateway) -> None:
    gateway.throttle("alice", "app", 4_001)

    messages = drive(AsgiQuotas(hello, gateway), {"X-User": "alice", "X-Client-Id": "app"})

    assert messages[0]["status"] == 429
    headers = sent_headers(messages)
    assert headers["retry-after"] == "5"
    assert headers["ratelimit"] == '"producer_byte_rate";r=0;t=5'
    assert headers["ratelimit-policy"] == '"producer_byte_rate";q=1024;qu="content-bytes";w=1'
    assert int(headers["content-length"]) == len(messages[1]["body"])
    problem = json.loads(messages[1]["body"])
    assert problem["violated-policies"] == ["producer_byte_rate"]
    assert problem["throttle_time_ms"] == 4_001
    assert gateway.events == []


def test_a_client_that_an_operator_has_stopped_gets_429_and_the_application_never_sees_it() -> None:
    gateway = RecordingGateway()
    set_limits(gateway, 1, [])
    stop = Override("hold", entity=CountedEntity(client_id="noisy"), consumers=True)
    gateway.override("operator", Overrides(1, gateway.now_ms, 60_000, [stop]))

    for client_id, status in (("noisy", 429), ("other", 200)):
        headers = {"X-User": "held", "X-Client-Id": client_id}
        assert drive(AsgiQuotas(hello, gateway), headers)[0]["status"] == status
    assert {event.client_id for event in gateway.events} == {"other"}
    gateway.close()


def test_an_application_that_fails_is_charged_too(gateway: RecordingGateway) -> None:
    async def broken(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        drive(AsgiQuotas(broken, gateway), {"X-User": "alice"})

    assert [event.user for event in gateway.events] == ["alice"]


def test_what_is_not_http_passes_untouched(gateway: RecordingGateway) -> None:
    gateway.throttle("", "", 1_000)

    drive(AsgiQuotas(hello, gateway), {}, kind="lifespan")

    assert gateway.events == []


def test_the_headers_that_name_the_client_can_be_chosen(gateway: RecordingGateway) -> None:
    options = HttpQuotas(user_header="X-Forwarded-User", client_id_header="X-App", api="Search")

    drive(AsgiQuotas(hello, gateway, options), {"x-forwarded-user": "bob", "x-app": "cli", "X-User": "alice"})

    assert [(event.api, event.user, event.client_id) for event in gateway.events] == [("Search", "bob", "cli")]


def test_an_application_may_charge_its_own_requests_for_the_caller_it_is_given(gateway: RecordingGateway) -> None:
    callers: list[Caller] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        callers.append(scope[CALLER])
        await hello(scope, receive, send)

    messages = drive(AsgiQuotas(app, gateway, HttpQuotas(api=None)), {"X-User": "alice", "X-Client-Id": "app"})

    assert messages[0]["status"] == 200
    assert callers == [("alice", "app")]
    assert gateway.events == []


def test_two_users_in_one_request_are_refused(gateway: RecordingGateway) -> None:
    messages = drive(AsgiQuotas(hello, gateway), [("X-User", "alice"), ("x-user", "bob")])

    assert messages[0]["status"] == 400
    assert gateway.events == []


def test_stale_decisions_of_a_closed_gateway_are_503_and_no_throttle() -> None:
    with RecordingGateway(StalePolicy.FAIL_CLOSED) as gateway:
        gateway.admit(Request("Http"))
        gateway.now_ms += 60_000

        messages = drive(AsgiQuotas(hello, gateway), {"X-User": "alice"})

    assert messages[0]["status"] == 503
    assert sent_headers(messages)["retry-after"] == "1"
    assert "ratelimit" not in sent_headers(messages)


@pytest.mark.parametrize("value", ["x" * 256, "%41" * 256, "<a\x00b>", "<a%0d%0ab>", "<\tb>", "x" * 1_000_000])
def test_a_header_that_is_no_name_is_refused_and_not_echoed(gateway: RecordingGateway, value: str) -> None:
    messages = drive(AsgiQuotas(hello, gateway), {"X-User": value})

    assert messages[0]["status"] == 400
    assert value[:3].encode() not in messages[1]["body"]
    assert gateway.events == []


NAMES = {
    "raw UTF-8": (b"Jos\xc3\xa9", "José"),
    "percent-encoded UTF-8": (b"Jos%C3%A9", "José"),
    "percent-encoded signs": (b"O%3DA%20client", "O=A client"),
    "255 characters, the longest way": (b"%F0%9F%A6%8A" * 255, "🦊" * 255),
    "raw Latin-1": (b"Jos\xe9", None),
    "percent-encoded Latin-1": (b"Jos%E9", None),
    "cut UTF-8": (b"Jos\xc3", None),
    "no user": (b"", NO_LOGIN),
}


@pytest.mark.parametrize(("value", "user"), NAMES.values(), ids=NAMES)
def test_a_client_is_one_user_in_any_encoding_and_bytes_that_are_no_text_are_refused(
    gateway: RecordingGateway, value: bytes, user: str | None
) -> None:
    [started, _] = drive(AsgiQuotas(hello, gateway), [("X-User", value.decode("latin-1"))])

    assert started["status"] == (400 if user is None else 200)
    assert [event.user for event in gateway.events] == ([] if user is None else [user])


@pytest.mark.parametrize(("wait_ms", "seconds"), [(1, "1"), (1_000, "1"), (1_001, "2"), (2_147_483_647, "2147484")])
def test_seconds_to_wait_are_whole_and_rounded_up(wait_ms: int, seconds: str) -> None:
    assert dict(throttle_headers(Answer(wait_ms)))["Retry-After"] == seconds


def test_a_quota_name_from_a_decision_is_written_only_if_it_is_one_of_ours() -> None:
    headers = dict(throttle_headers(Answer(1, quota='x"\r\nSet-Cookie: a', limit=1e300)))

    assert headers["RateLimit"] == '"sluice";r=0;t=1'
    assert headers["RateLimit-Policy"] == '"sluice";q=999999999999999;w=1'


def test_a_client_with_a_new_connection_for_each_request_gets_its_quota_and_no_more() -> None:
    """A broker mutes a connection, and one that reconnects isn't throttled; here the client is."""
    with RecordingGateway() as gateway:
        set_limits(gateway, 1, [quota(QuotaKind.PRODUCER_BYTE_RATE, 1_000.0, client_id="app")])
        caller, began_ms, served_at_ms = {"X-User": "mallory", "X-Client-Id": "app"}, gateway.now_ms, list[int]()

        async def upload(scope: Scope, _receive: Receive, send: Send) -> None:
            moved = [TopicPartition("orders", 0, 200)]
            gateway.admit(Request("Produce", **scope[CALLER]._asdict(), topic_partitions=moved))
            await send({"type": "http.response.start", "status": 200, "headers": []})

        app = AsgiQuotas(upload, gateway, HttpQuotas(api=None))
        while gateway.now_ms < began_ms + 60_000:
            for _ in range(3):  # connections, together six times as fast as the quota
                if drive(app, caller)[0]["status"] == 200:
                    served_at_ms.append(gateway.now_ms - began_ms)
            gateway.now_ms += 100

    later = [at_ms for at_ms in served_at_ms if at_ms >= 10_000]
    assert len(later) * 200 == pytest.approx(50_000, rel=0.1)
