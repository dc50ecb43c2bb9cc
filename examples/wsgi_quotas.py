"""Quotas for a WSGI application (Flask, Django), to copy from: `app = WsgiQuotas(app, gateway)`.

A client that has to wait gets 429 with `Retry-After`. A served request is charged its handler time, which ends when the
server has taken the whole body: a slow client occupies a thread, and is charged for that.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from urllib.parse import unquote_to_bytes
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import sluice

_MOST_CHARACTERS = 255
_MOST_BYTES = 3 * 4 * _MOST_CHARACTERS  # UTF-8 takes 4 bytes for a character, each percent-encoded


class WsgiQuotas:
    """WSGI middleware. Trust the two headers only behind a proxy that authenticates clients and sets them.

    Such a proxy strips names with `_` (nginx does): WSGI servers take `X_User` for `X-User`, and join two headers by a
    comma. So a comma is refused, and one that belongs to a name has to be percent-encoded.
    """

    def __init__(
        self,
        app: WSGIApplication,
        gateway: sluice.Gateway,
        user_header: str = "X-User",
        client_id_header: str = "X-Client-Id",
        api: str = "Http",
    ) -> None:
        self._app, self._gateway, self._api = app, gateway, api
        self._headers = (user_header, client_id_header)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            user, client_id = (_name(environ, header) for header in self._headers)
        except ValueError:
            return _refuse(start_response, "400 Bad Request", [])
        user = user or "ANONYMOUS"  # as Kafka calls a client that hasn't logged in
        throttle = self._gateway.throttle_of(user, client_id)
        if throttle.throttle_ms:
            # without a quota it isn't this client that has to wait: the gateway refuses all
            status = "503 Service Unavailable" if throttle.quota is None else "429 Too Many Requests"
            return _refuse(start_response, status, [("Retry-After", str(-(-throttle.throttle_ms // 1000)))])
        request = sluice.Request(self._api, user=user, client_id=client_id)
        body = _ChargedBody(self._gateway, request)
        try:
            body.parts = self._app(environ, start_response)
        except BaseException:
            body.charge()
            raise
        return body


class _ChargedBody:
    """A body whose request is charged once: when the server has taken it all, or has finished with it."""

    parts: Iterable[bytes] = ()

    def __init__(self, gateway: sluice.Gateway, request: sluice.Request) -> None:
        self._gateway, self._request, self._began_ns = gateway, request, time.perf_counter_ns()

    def __iter__(self) -> Iterator[bytes]:
        yield from self.parts
        self.charge()

    def close(self) -> None:
        try:
            close = getattr(self.parts, "close", None)
            if close is not None:
                close()
        finally:
            self.charge()

    def charge(self) -> None:
        if self._request.request_time_ns is None:
            self._request.request_time_ns = time.perf_counter_ns() - self._began_ns
            with suppress(sluice.GatewayClosedError):  # a served request must not fail because the gateway closes
                self._gateway.admit(self._request)


def _name(environ: WSGIEnvironment, header: str) -> str | None:
    """The name in a header, None for an empty one. Raises ValueError: as another text it would be another client."""
    value: str = environ.get("HTTP_" + header.upper().replace("-", "_"), "")
    if len(value) > _MOST_BYTES or "," in value:
        raise ValueError
    name = unquote_to_bytes(value.encode("latin-1")).decode()  # the bytes that came (PEP 3333), in UTF-8
    if len(name) > _MOST_CHARACTERS or not name.isprintable():
        raise ValueError
    return name or None


def _refuse(start_response: StartResponse, status: str, headers: list[tuple[str, str]]) -> Iterable[bytes]:
    """An answer that never contains the client's name."""
    start_response(status, [("Content-Type", "text/plain"), *headers])
    return [status.encode()]
