"""Quotas for HTTP services: middleware for ASGI and WSGI around a gateway client.

    app = AsgiQuotas(app, gateway)     # Starlette, FastAPI, any ASGI application
    app = WsgiQuotas(app, gateway)     # Flask, Django, any WSGI application

A muted client gets 429 with `Retry-After` and the fields `RateLimit` and `RateLimit-Policy` of
draft-ietf-httpapi-ratelimit-headers; every request that is served becomes a request event.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec

from sinks.errors import GatewayClosedError
from sinks.gateway import Gateway
from sinks.mute_table import Mute
from state.quota import QuotaKind
from state.request import Request

MAX_NAME_CHARACTERS = 255
"""A longer user or client-id header is refused: such names would fill the state of the job."""

MAX_INTEGER = 999_999_999_999_999
"""Largest integer of a structured field."""

POLICY = "sluice"
"""Name of the policy in the fields where the quota behind a mute isn't known."""

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
UNAVAILABLE = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

_QUOTA_UNITS = {
    QuotaKind.PRODUCER_BYTE_RATE.value: ';qu="content-bytes"',
    QuotaKind.CONSUMER_BYTE_RATE.value: ';qu="content-bytes"',
    QuotaKind.TOPIC_PRODUCER_BYTE_RATE.value: ';qu="content-bytes"',
    QuotaKind.TOPIC_CONSUMER_BYTE_RATE.value: ';qu="content-bytes"',
    QuotaKind.REQUEST_PERCENTAGE.value: ';qu="sluice-thread-percent"',
    QuotaKind.CONTROLLER_MUTATION_RATE.value: ';qu="sluice-partitions"',
}
"""Quota -> its unit as a parameter of `RateLimit-Policy`; what isn't content bytes is Sluice's own."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HttpQuotas:
    """How HTTP requests become request events. Trust the headers only behind what authenticates clients and sets them.

    The names in them may be percent-encoded. `api` is the event's API; one that Sluice doesn't know is charged its
    handler time.
    """

    user_header: str = "X-User"
    client_id_header: str = "X-Client-Id"
    api: str = "Http"


class InvalidNameError(ValueError):
    """A user or client-id header is too long or has control characters."""


class Refusal:
    """The answer to a client that may not go on: status, headers and a problem document; names nobody."""

    def __init__(self, status: int, headers: list[tuple[str, str]], problem: Mapping[str, object]) -> None:
        self.status = status
        self.body = msgspec.json.encode(problem)
        self.headers = [
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(len(self.body))),
            *headers,
        ]

    @property
    def reason(self) -> str:
        """The status with its words, as HTTP/1.1 and WSGI have it."""
        return {400: "400 Bad Request", 429: "429 Too Many Requests", 503: "503 Service Unavailable"}[self.status]


class HeaderLookup(Protocol):
    """A header's value by its name; None without it."""

    def __call__(self, name: str, /) -> str | None: ...


def clean_name(value: str | None) -> str | None:
    """A user or client-id out of a header, percent-decoded; None for none. Raises InvalidNameError."""
    if not value:
        return None
    if len(value) > 3 * MAX_NAME_CHARACTERS:
        raise InvalidNameError
    name = unquote(value)
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise InvalidNameError
    return name


def identify(header: HeaderLookup, options: HttpQuotas) -> tuple[str | None, str | None]:
    """User and client-id of an HTTP request. Raises InvalidNameError."""
    return clean_name(header(options.user_header)), clean_name(header(options.client_id_header))


def throttle_headers(wait_ms: int, mute: Mute | None) -> list[tuple[str, str]]:
    """`Retry-After` in whole seconds, rounded up, and the RateLimit fields, which name the same moment."""
    wait_s = str(-(-wait_ms // 1000))
    policy = mute.quota if mute and mute.quota in _QUOTA_UNITS else POLICY
    headers = [("Retry-After", wait_s), ("RateLimit", f'"{policy}";r=0;t={wait_s}')]
    if mute is not None and mute.limit is not None:
        limit = min(int(mute.limit), MAX_INTEGER)
        headers.append(("RateLimit-Policy", f'"{policy}";q={limit}{_QUOTA_UNITS.get(policy, "")};w=1'))
    return headers


def refusal(gateway: Gateway, user: str | None, client_id: str | None) -> Refusal | None:
    """429 for a muted client, 503 while stale decisions keep everybody out, None for one that may go on."""
    wait_ms = gateway.check(user, client_id)
    if wait_ms <= 0:
        return None
    mute = gateway.mutes.find(user, client_id)
    if mute is None and gateway.refuses_all():
        problem = {"type": UNAVAILABLE, "title": "Quotas can't be decided at present", "status": 503}
        return Refusal(503, [("Retry-After", str(-(-wait_ms // 1000)))], problem)
    problem = {
        "type": QUOTA_EXCEEDED,
        "title": "The throttling quota has been exceeded",
        "status": 429,
        "violated-policies": [mute.quota if mute and mute.quota in _QUOTA_UNITS else POLICY],
        "throttle_time_ms": wait_ms,
    }
    return Refusal(429, throttle_headers(wait_ms, mute), problem)


def bad_name() -> Refusal:
    """The answer to a header that is no name."""
    title = f"The user or client-id header is not a name of at most {MAX_NAME_CHARACTERS} printable characters"
    return Refusal(400, [], {"type": "about:blank", "title": title, "status": 400})


class AsgiQuotas:
    """ASGI middleware; what is not HTTP (lifespan, WebSocket) passes untouched. Never blocks the event loop.

    Give the gateway `when_full` DROP, for a full buffer would block the loop with BLOCK.
    """

    def __init__(self, app: AsgiApp, gateway: Gateway, options: HttpQuotas | None = None) -> None:
        self._app = app
        self._gateway = gateway
        self._options = options or HttpQuotas()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            user, client_id = identify(lambda name: headers.get(name.lower().encode("latin-1")), self._options)
            refused = refusal(self._gateway, user, client_id)
        except InvalidNameError:
            refused = bad_name()
        if refused is not None:
            await _send_refusal(refused, send)
            return
        start_ns = time.perf_counter_ns()
        try:
            await self._app(scope, receive, send)
        finally:
            _publish(self._gateway, self._options.api, user, client_id, time.perf_counter_ns() - start_ns)


class WsgiQuotas:
    """WSGI middleware. The handler time counts until the server has taken the whole body."""

    def __init__(self, app: WSGIApplication, gateway: Gateway, options: HttpQuotas | None = None) -> None:
        self._app = app
        self._gateway = gateway
        self._options = options or HttpQuotas()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            user, client_id = identify(
                lambda name: environ.get("HTTP_" + name.upper().replace("-", "_")), self._options
            )
            refused = refusal(self._gateway, user, client_id)
        except InvalidNameError:
            refused = bad_name()
        if refused is not None:
            start_response(refused.reason, refused.headers)
            return [refused.body]
        return self._serve(environ, start_response, user, client_id)

    def _serve(
        self, environ: WSGIEnvironment, start_response: StartResponse, user: str | None, client_id: str | None
    ) -> Iterable[bytes]:
        start_ns = time.perf_counter_ns()

        def publish() -> None:
            _publish(self._gateway, self._options.api, user, client_id, time.perf_counter_ns() - start_ns)

        try:
            body = self._app(environ, start_response)
        except BaseException:
            publish()
            raise
        return _TimedBody(body, publish)


class _TimedBody:
    """A WSGI body that tells when the server is done with it."""

    def __init__(self, body: Iterable[bytes], on_close: Callable[[], None]) -> None:
        self._body = body
        self._on_close = on_close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._on_close()


async def _send_refusal(refused: Refusal, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refused.headers]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": refused.body})


def _publish(gateway: Gateway, api: str, user: str | None, client_id: str | None, request_time_ns: int) -> None:
    """A request that was served must not fail because the gateway closes at the same moment."""
    try:
        gateway.publish(Request(api=api, user=user, client_id=client_id, request_time_ns=request_time_ns))
    except GatewayClosedError:
        return
