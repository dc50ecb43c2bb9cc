"""Access to the console: the Host header, the token, and headers that isolate a page from other sites."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_COOKIE = "sluice_console"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
OPEN_PATHS = ("/login", "/assets/console.css", "/assets/icon.svg")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware in front of all pages. Without a token, only requests to `hosts` are answered, if not None.

    A page of another site whose name resolves to this machine (DNS rebinding) has its own name in Host. With a token
    that is no danger: such a page has no cookie of ours.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str] | None = LOOPBACK_HOSTS) -> None:
        self._app = app
        self._token = token
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._answerer(scope)(scope, receive, guarded)

    def _answerer(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        if self._token is None:
            if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
                return PlainTextResponse("the Host header names another host than the console's\n", 421)
            return self._app
        if scope["path"] in OPEN_PATHS or is_allowed(Request(scope), self._token):
            return self._app
        if "text/html" in headers.get("accept", ""):
            return RedirectResponse("../" * (scope["path"].count("/") - 1) + "login", 303)
        return PlainTextResponse(
            "a token is needed: Authorization: Bearer TOKEN\n", 401, {"WWW-Authenticate": "Bearer"}
        )


def is_allowed(request: Request, token: str) -> bool:
    """True if the request has the token, as a bearer or in the cookie. Takes the same time for any wrong token."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    bearer = is_token(given, token) if scheme.lower() == "bearer" else False
    cookie = hmac.compare_digest(request.cookies.get(cookie_name(token), "").encode(), cookie_of(token).encode())
    return bearer or cookie


def is_token(given: str, token: str) -> bool:
    """True for the token. Digests are compared, so that the time depends on neither length nor content."""
    digests = [hashlib.sha256(each.encode("utf-8", "surrogateescape")).digest() for each in (given, token)]
    return secrets.compare_digest(*digests)


def cookie_name(token: str) -> str:
    """The cookie's name, one for each token: browsers send the cookies of a host to all its ports."""
    digest = hmac.new(token.encode(), b"sluice console cookie's name", "sha256").hexdigest()
    return f"{_COOKIE}_{digest[:12]}"


def cookie_of(token: str) -> str:
    """The cookie's value: derived from the token, which can't be derived from it."""
    return hmac.new(token.encode(), b"sluice console cookie", "sha256").hexdigest()


def _host(value: str) -> str:
    """The host of a Host header, without its port.

    >>> _host("127.0.0.1:8089"), _host("[::1]:80"), _host("LOCALHOST"), _host("[::1]x")
    ('127.0.0.1', '[::1]', 'localhost', '[::1]x')
    """
    return re.sub(r":[0-9]*\Z", "", value.lower())
