"""Quotas for HTTP services: ASGI middleware around a gateway client.

    app = AsgiQuotas(app, gateway)     # Starlette, FastAPI, any ASGI application

A client that has to wait gets 429 with `Retry-After` and the fields `RateLimit` and `RateLimit-Policy` of
draft-ietf-httpapi-ratelimit-headers. Every served request is charged inline and becomes a request event.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from sluice.gateways.client.answer import Answer
from sluice.gateways.client.client import Gateway
from sluice.gateways.errors import GatewayClosedError
from sluice.state.contract.records import NO_LOGIN, Request
from sluice.state.quotas.kinds import QuotaKind

MAX_NAME_CHARACTERS = 255
"""Longest user or client-id in a header. Longer names would fill the state of the job."""

_MAX_NAME_BYTES = 3 * 4 * MAX_NAME_CHARACTERS
"""The longest name, if UTF-8 takes 4 bytes for each character, and each is percent-encoded."""

MAX_INTEGER = 999_999_999_999_999
"""Largest integer of a structured field."""

POLICY = "sluice"
"""Name of the policy in the RateLimit fields when the quota behind a wait is unknown."""

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
UNAVAILABLE = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

_QUOTA_UNITS = {kind.value: f';qu="{kind.family.unit}"' for kind in QuotaKind}
"""Quota -> its unit as a parameter of `RateLimit-Policy`."""

CALLER: Final = "sluice.caller"
"""The key of the `Caller` in an ASGI scope, for the application."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HttpQuotas:
    """The way in which HTTP requests become request events.

    Trust the two headers only behind a proxy that authenticates clients and sets them. The names in them are UTF-8 and
    may be percent-encoded; without a user the client is NO_LOGIN. `api` is the API of the events; an API that Sluice
    does not know is charged its handler time. With None the application charges its requests itself; it finds the
    client under CALLER.
    """

    user_header: str = "X-User"
    client_id_header: str = "X-Client-Id"
    api: str | None = "Http"


class Caller(NamedTuple):
    """The sender of a request."""

    user: str
    client_id: str | None


class InvalidNameError(ValueError):
    """A user or client-id header is too long, isn't UTF-8, has control characters, or is given twice."""


class Refusal:
    """The answer to a refused client: status, headers and a problem document. It never contains the client's name."""

    def __init__(self, status: int, headers: list[tuple[str, str]], problem: Mapping[str, object]) -> None:
        self.status = status
        self.body = msgspec.json.encode(problem)
        self.headers = [
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(len(self.body))),
            *headers,
        ]


def clean_name(value: bytes | None) -> str | None:
    """The user or client-id in a header's value; None for an empty one. Raises InvalidNameError.

    >>> clean_name("José".encode()), clean_name(b"Jos%C3%A9")
    ('José', 'José')
    """
    if not value:
        return None
    if len(value) > _MAX_NAME_BYTES:
        raise InvalidNameError
    try:
        name = unquote_to_bytes(value).decode()
    except UnicodeDecodeError:  # as another text it would be another client
        raise InvalidNameError from None
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise InvalidNameError
    return name


def throttle_headers(throttle: Answer) -> list[tuple[str, str]]:
    """`Retry-After` in whole seconds, rounded up, and the RateLimit fields for the same moment."""
    wait_s, policy = _seconds(throttle), _policy(throttle)
    headers = [("Retry-After", wait_s), ("RateLimit", f'"{policy}";r=0;t={wait_s}')]
    if throttle.limit is not None:
        limit = min(int(throttle.limit), MAX_INTEGER)
        headers.append(("RateLimit-Policy", f'"{policy}";q={limit}{_QUOTA_UNITS.get(policy, "")};w=1'))
    return headers


def _caller_of(gateway: Gateway, header: Callable[[str], bytes | None], options: HttpQuotas) -> Caller | Refusal:
    """The client if it may be served; else 400 for an invalid name, 429 for a throttled client, 503 for all clients."""
    try:
        user, client_id = clean_name(header(options.user_header)), clean_name(header(options.client_id_header))
    except InvalidNameError:
        title = (
            f"The user or client-id header is not a name of at most {MAX_NAME_CHARACTERS} printable characters in UTF-8"
        )
        return Refusal(400, [], {"type": "about:blank", "title": title, "status": 400})
    caller = Caller(user or NO_LOGIN, client_id)
    throttle = gateway.throttle_of(*caller)
    return _refusal(throttle) if throttle.throttle_ms else caller


def _refusal(throttle: Answer) -> Refusal:
    """429 for a client that has to wait; 503 if no quota asks for that, but the gateway refuses all."""
    if throttle.quota is None:
        problem = {"type": UNAVAILABLE, "title": "Quotas can't be decided at the moment", "status": 503}
        return Refusal(503, [("Retry-After", _seconds(throttle))], problem)
    problem = {
        "type": QUOTA_EXCEEDED,
        "title": "The throttling quota has been exceeded",
        "status": 429,
        "violated-policies": [_policy(throttle)],
        "throttle_time_ms": throttle.throttle_ms,
    }
    return Refusal(429, throttle_headers(throttle), problem)


def _seconds(throttle: Answer) -> str:
    return str(-(-throttle.throttle_ms // 1000))


def _policy(throttle: Answer) -> str:
    return throttle.quota if throttle.quota in _QUOTA_UNITS else POLICY


class AsgiQuotas:
    """ASGI middleware. Scopes other than HTTP (lifespan, WebSocket) pass unchanged. Never blocks the event loop.

    The time for which the application waits until its client has sent or taken a part of a body isn't charged: nobody
    works then. Give the gateway `when_full` DROP: with BLOCK a full buffer would block the loop.
    """

    def __init__(
        self,
        app: AsgiApp,
        gateway: Gateway,
        options: HttpQuotas | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._app = app
        self._gateway = gateway
        self._options = options or HttpQuotas()
        self._clock_ns = clock_ns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = _caller_of(self._gateway, lambda name: _only_header(scope, name), self._options)
        if isinstance(caller, Refusal):
            await _send_refusal(caller, send)
            return
        scope[CALLER] = caller
        served = _Served(self._gateway, self._options.api, caller, self._clock_ns)

        async def receive_charged() -> Message:
            began_ns = self._clock_ns()
            message = await receive()
            if message["type"] == "http.request":  # else it waited for the end, beside the work
                served.leave_out_since(began_ns)
            return message

        async def send_charged(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                served.charge()
            began_ns = self._clock_ns()
            await send(message)
            served.leave_out_since(began_ns)

        try:
            await self._app(scope, receive_charged, send_charged)
        finally:
            served.charge()


class _Served:
    """A request that is being served: charged once, with the time since it began but for what was left out."""

    def __init__(
        self, gateway: Gateway, api: str | None, caller: Caller, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._gateway = gateway
        self._api = api
        self._caller = caller
        self._clock_ns = clock_ns
        self._start_ns = clock_ns()
        self._is_charged = False

    def leave_out_since(self, began_ns: int) -> None:
        """Leave out the time from `began_ns` until now."""
        self._start_ns += self._clock_ns() - began_ns

    def charge(self) -> None:
        """Charge the time until now, once."""
        if self._is_charged or self._api is None:
            return
        self._is_charged = True
        time_ns = max(0, self._clock_ns() - self._start_ns)
        request = Request(self._api, user=self._caller.user, client_id=self._caller.client_id, request_time_ns=time_ns)
        with suppress(GatewayClosedError):  # a served request must not fail because the gateway closes meanwhile
            self._gateway.admit(request)


def _only_header(scope: Scope, name: str) -> bytes | None:
    """An ASGI request's header. Raises InvalidNameError if it is given twice, because it is unclear which is right."""
    wanted = name.lower().encode("latin-1")
    values = [value for key, value in scope["headers"] if key.lower() == wanted]
    if len(values) > 1:
        raise InvalidNameError
    return bytes(values[0]) if values else None


async def _send_refusal(refused: Refusal, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refused.headers]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": refused.body})
