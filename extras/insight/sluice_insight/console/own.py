"""The view of an application team: its own clients, after Kafka itself has accepted its login.

An application of its own, with no page of the console. All that it reads is asked for by the name of the login, which
no parameter can replace, and it writes nothing.
"""

import asyncio
import base64
import binascii
import hashlib
import json
import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

import anyio.to_thread
from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from sluice.kafka_io.client import connect
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.properties import has_layer
from sluice.process.clock import now_ms
from sluice.state.quotas.entity import Tags
from sluice_insight.console.app import ASSETS, TOO_LARGE, environment, form_of
from sluice_insight.console.security import LOOPBACK_HOSTS, Guard
from sluice_insight.console.slow import MINUTES, SlowPage, minutes_of, shown
from sluice_insight.reports.span import Span
from sluice_insight.slow.words import json_answer
from sluice_reading.errors import QueryError
from sluice_reading.output import json_text

SESSION_S = 900.0
"""Time after which a login is asked for again: Kafka may have withdrawn it meanwhile."""

MOST_SESSIONS = 10_000
MOST_FAILED = 5
"""Refused logins of a name in FAILED_S, after which Kafka isn't asked for it any more."""

FAILED_S = 60.0
MOST_NAMES = 10_000
MAX_FORM_BYTES = 16_384
MOST_OF_USER = 2
"""Pages of a user that are made at once: one has its turn, and one waits for it."""

_THREADS = 4
_COOKIE, _PROOF = "sluice_own", "sluice_proof"

PROOF_MS = 600_000
"""Age of the telemetry by which a client proves who somebody is."""

_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_NOBODY = ("", "ANONYMOUS")
"""The names of a connection without a login or a certificate, or whose name telemetry doesn't keep."""

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_SCRAM_NAME = re.compile(r"[^\x00-\x1f\x7f,=]{1,255}")
"""Commas and equals signs separate the fields of a SCRAM message, and kafka-python sends a name as it is."""

_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)


class _Token(AbstractTokenProvider):  # type: ignore[misc] # kafka-python ships no type hints
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class KafkaLogins:
    """Logins that are tried at the brokers of `kafka`, as far as their listener asks for one.

    `claim` has the name of a user in OAuth's tokens, as brokers read it (`sasl.oauthbearer.sub.claim.name`).
    """

    def __init__(self, kafka: Mapping[str, str], claim: str = "sub") -> None:
        self._kafka, self._claim, mechanism = kafka, claim, kafka.get("sasl.mechanism", "")
        self.is_scram = mechanism.startswith("SCRAM")
        # elsewhere a client gets in by the certificate or ticket of this process, whatever it is given
        self.takes_token = has_layer(kafka, "SASL")
        self.takes_password = self.takes_token and mechanism in _PASSWORDS

    def user_of(self, form: Mapping[str, str]) -> str | None:
        """The user whose password or token brokers accept; None if they don't, or don't answer. Blocks."""
        user, token = self.named(form), form.get("token", "").strip()
        password = form.get("password", "").rstrip("\r\n")  # as a file of one line has it
        options: dict[str, object] = {"sasl_plain_username": user, "sasl_plain_password": password}
        if not (self.takes_token if token else self.takes_password):
            return None
        if token:
            options = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": _Token(token)}
        elif not password or "\0" in password:  # PLAIN separates its fields by it
            return None
        return user if user is not None and self._accepts(options) else None

    def named(self, form: Mapping[str, str]) -> str | None:
        """The user that a form names, which nobody has accepted yet; None for a name that no login can have."""
        if token := form.get("token", "").strip():
            name = _claim_of(token, self._claim)
            return name if name is not None and _NAME.fullmatch(name) else None
        name, right = form.get("user", ""), _SCRAM_NAME if self.is_scram else _NAME
        return name if right.fullmatch(name) else None

    def _accepts(self, login: Mapping[str, object]) -> bool:
        try:
            connect(KafkaConsumer, self._kafka, group_id=None, **login).close()
        except (KafkaUnavailableError, KafkaError, OSError, ValueError):
            return False
        return True


def _claim_of(token: str, claim: str) -> str | None:
    """A claim of a token, whose signature brokers check; None for what is no token."""
    if not _TOKEN.fullmatch(token):
        return None
    try:
        body = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))[claim]
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


class Sessions:
    """Logins of the last SESSION_S by their secrets, and refused ones of the last FAILED_S by name. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s, self._lock = clock_s, Lock()
        self._users = OrderedDict[bytes, tuple[str, float]]()
        self._failed = OrderedDict[str, tuple[int, float]]()
        self._used_up = OrderedDict[bytes, float]()

    def begin(self, user: str) -> str:
        """Begin a session; returns its secret."""
        secret = secrets.token_urlsafe(32)
        with self._lock:
            self._users[_digest(secret)] = user, self._clock_s() + SESSION_S
            while len(self._users) > MOST_SESSIONS:
                self._users.popitem(last=False)
        return secret

    def user(self, secret: str) -> str | None:
        """The user of a session that isn't over."""
        with self._lock:
            user, until_s = self._users.get(_digest(secret), ("", 0.0))
            return user if self._clock_s() < until_s else None

    def end(self, secret: str) -> None:
        """End a session."""
        with self._lock:
            self._users.pop(_digest(secret), None)

    def use_up(self, secret: str) -> bool:
        """Use up a secret that proves who somebody is, so that it opens one session; false if it did, or too many."""
        now_s = self._clock_s()
        with self._lock:
            while self._used_up and next(iter(self._used_up.values())) <= now_s:
                self._used_up.popitem(last=False)
            if _digest(secret) in self._used_up or len(self._used_up) >= MOST_SESSIONS:
                return False
            self._used_up[_digest(secret)] = now_s + 2 * PROOF_MS / 1000  # as long as its telemetry may count
            return True

    def is_used_up(self, secret: str) -> bool:
        """True if a secret has opened a session."""
        return _digest(secret) in self._used_up

    def may_try(self, name: str) -> bool:
        """Count a try of a name; false if it was refused too often lately."""
        with self._lock:
            count, until_s = self._failed.pop(name, (0, 0.0))
            if self._clock_s() >= until_s:
                count, until_s = 0, self._clock_s() + FAILED_S
            self._failed[name] = min(count + 1, MOST_FAILED + 1), until_s
            while len(self._failed) > MOST_NAMES:
                self._failed.popitem(last=False)
            return count < MOST_FAILED

    def accepted(self, name: str) -> None:
        """Forget the tries of a name."""
        with self._lock:
            self._failed.pop(name, None)


def proving_client_id(secret: str) -> str:
    """The client-id under which the owner of a secret proves who it is, and by which nobody knows the secret."""
    return f"own-view-{_digest(secret).hex()[:32]}"


def _digest(secret: str) -> bytes:
    """The digest under which a session is kept: comparing it tells nothing of the secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class OwnView:
    """The endpoints."""

    def __init__(
        self,
        logins: KafkaLogins,
        page: SlowPage,
        sessions: Sessions,
        *,
        is_secure: bool,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._logins, self._page, self._sessions = logins, page, sessions
        self._is_secure, self._clock = is_secure, clock
        self._environment = environment(())
        self._threads = asyncio.Semaphore(_THREADS)
        self._made_now = Counter[str]()

    async def login(self, request: Request) -> Response:
        """The form, and a cookie in return for a login that Kafka accepts, or that a client has shown to a broker."""
        secret = request.cookies.get(_PROOF, "")
        if not secret or self._sessions.is_used_up(secret):
            secret = secrets.token_urlsafe(32)
        if request.method != "POST":
            return self._form(200, secret)
        form = await form_of(request, MAX_FORM_BYTES)
        if form is None:
            return TOO_LARGE
        if "proof" in form:
            user, trouble = await self._in_thread(self._proven, secret), "No client of this id has told a broker yet."
            user = user if user is not None and self._sessions.use_up(secret) else None
        else:
            name = self._logins.named(form)
            if name is not None and not self._sessions.may_try(name):
                return self._form(429, secret, "This name was refused too often; try again in a minute.")
            user, trouble = None, "Kafka did not accept this login, or does not answer."
            user = None if name is None else await self._in_thread(self._logins.user_of, form)
        if user is None:
            return self._form(403, secret, trouble)
        self._sessions.accepted(user)
        answer = RedirectResponse("./", 303)
        self._keep(answer, _COOKIE, self._sessions.begin(user))
        answer.set_cookie(_PROOF, max_age=0, path=None)
        return answer

    def _proven(self, secret: str) -> str | None:
        """The user whose client has pushed telemetry under the client-id of a secret, as its broker knows it."""
        heard = self._page.heard.within(Span(self._clock() - PROOF_MS, self._clock() + PROOF_MS))
        users = {each.user for each in heard if each.client_id == proving_client_id(secret)}
        return users.pop() if len(users) == 1 and not users & {*_NOBODY} else None

    async def logout(self, request: Request) -> Response:
        """End the session."""
        self._sessions.end(request.cookies.get(_COOKIE, ""))
        return RedirectResponse("login", 303)

    async def view(self, request: Request) -> Response:
        """The page of the own clients."""
        user = self._user(request)
        if user is None:
            return RedirectResponse("login", 303)
        page = await self._of_user(self._view, user, dict(request.query_params))
        return _busy() if page is None else HTMLResponse(page)

    async def slow_json(self, request: Request) -> Response:
        """The same for scripts, as `sluice explain --slow --json` has it."""
        user = self._user(request)
        if user is None:
            return PlainTextResponse("log in first: POST user and password to login, and keep the cookie\n", 401)
        answer = await self._of_user(self._answer, user, dict(request.query_params))
        if answer is None:
            return _busy()
        if isinstance(answer, str):
            return PlainTextResponse(f"{answer}\n", 503)
        return Response(json_text(json_answer(answer)), media_type="application/json")

    def _user(self, request: Request) -> str | None:
        return self._sessions.user(request.cookies.get(_COOKIE, ""))

    def _answer(self, user: str, given: Mapping[str, str]) -> Any:
        client = Tags(user, given.get("client_id", "")[:32_767])
        return self._page.answer(client, minutes_of(given), self._clock(), only=True)

    def _view(self, user: str, given: Mapping[str, str]) -> str:
        minutes, answer = minutes_of(given), self._answer(user, given)
        client_ids: list[str] = []
        with suppress(QueryError):  # the answer says why
            client_ids = self._page.client_ids(user, minutes, self._clock())
        own = {"user": user, "client_ids": client_ids, "client_id": given.get("client_id", "")}
        asked = {"minutes": minutes, "choices": MINUTES, "title": "Your clients", "path": "/", "address": ""}
        return self._environment.get_template("own.html").render(own | asked | shown(answer))

    def _form(self, status: int, secret: str, trouble: str = "") -> Response:
        text = self._environment.get_template("own_login.html").render(
            title="Your Kafka login",
            path="/login",
            address="",
            trouble=trouble,
            logins=self._logins,
            client_id=proving_client_id(secret),
        )
        answer = HTMLResponse(text, status)
        self._keep(answer, _PROOF, secret)
        return answer

    def _keep(self, answer: Response, name: str, secret: str) -> None:
        answer.set_cookie(name, secret, path=None, httponly=True, samesite="strict", secure=self._is_secure)

    async def _of_user(self, work: Callable[..., Any], user: str, given: Mapping[str, str]) -> Any:
        """The page that `work` makes; None if as many pages of the user are being made as may be."""
        if self._made_now[user] >= MOST_OF_USER:
            return None
        self._made_now[user] += 1
        try:
            return await self._in_thread(work, user, given)
        finally:
            self._made_now[user] -= 1
            self._made_now += Counter()  # which leaves out those of none

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        async with self._threads:
            return await anyio.to_thread.run_sync(work, *arguments)


def _busy() -> Response:
    return PlainTextResponse("pages of yours are being made; ask again in some seconds\n", 429, {"Retry-After": "3"})


def own_app(view: OwnView, *, any_host: bool) -> Starlette:
    """The application; unless `any_host` it only answers requests to loopback."""
    return Starlette(
        routes=[
            Route("/", view.view),
            Route("/slow.json", view.slow_json),
            Route("/login", view.login, methods=["GET", "POST"]),
            Route("/logout", view.logout, methods=["POST"]),
            ASSETS,
        ],
        middleware=[Middleware(Guard, token=None, hosts=None if any_host else LOOPBACK_HOSTS)],
    )
