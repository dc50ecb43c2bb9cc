"""The console as an ASGI application: pages rendered by the server, and server-sent events that renew them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from threading import Event, Lock
from typing import Any
from urllib.parse import parse_qsl

import anyio.to_thread
import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from sluice.state.quotas.kinds import QuotaKind
from sluice_insight.console.filters import FILTERS
from sluice_insight.console.pages import PAGES, QUERYING, Facts
from sluice_insight.console.security import Guard, cookie_name, cookie_of, is_token
from sluice_insight.texts import NO_TENANT

EVENT_S = 1.0
"""Least time between two events of a page."""

BUSY = 4
"""Pause between two events of a page, in times of its rendering and viewers: all together take a fifth of a core."""

CLOSE_S = 0.2
"""Longest time until a stream notices that the console ends."""

MAX_STREAMS = 32
MAX_THREADS = 4
MAX_FORM_BYTES = 4096

_FOLDER = Path(__file__).parent

Given = dict[str, str]

ASSETS = Mount("/assets", StaticFiles(directory=_FOLDER / "assets"))


Links = tuple[tuple[str, str], ...]

NAVIGATION: Links = tuple((path, title) for name, (path, title, _) in PAGES.items() if name != "client")
"""Path and title of the pages that each page leads to."""


@cache
def environment(navigation: Links) -> Environment:
    """The templates, their filters, macros and names; compiled once in a process."""
    found = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= FILTERS
    found.globals |= {"quota_kinds": list(QuotaKind), "no_tenant": NO_TENANT, "navigation": navigation}
    found.globals["parts"] = found.get_template("parts.html").module
    return found


class Pages:
    """Renders whole pages, and the parts of them that server-sent events renew."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lock = Lock()
        self._environment = environment(NAVIGATION)

    def page(self, name: str, given: Mapping[str, str], address: str) -> str:
        """The whole page."""
        return self._environment.get_template(f"{name}.html").render(self._values(name, given) | {"address": address})

    def part(self, name: str, given: Mapping[str, str]) -> str:
        """The part of the page that changes by itself."""
        template = self._environment.get_template(f"{name}.html")
        context = template.new_context(self._values(name, given) | {"address": ""})
        return "".join(template.blocks["live"](context))

    def login(self, wrong: bool) -> str:
        """The page that asks for the token."""
        return self._environment.get_template("login.html").render(
            title="Token", path="/login", wrong=wrong, address="", troubles=[]
        )

    def _values(self, name: str, given: Mapping[str, str]) -> dict[str, Any]:
        path, title, context = PAGES[name]
        facts, at_ms = self._facts, self._facts.clock()
        # one page at a time, as two would only share the interpreter; but for those that query tables
        with nullcontext() if name in QUERYING else self._lock:
            made = context(facts, given, at_ms)
        # the page of a client has the holds of this client alone
        wrong = [each for each in facts.now.troubles(facts.model, at_ms) if (name, each.name) != ("client", "hold")]
        troubles = [(each.severity, each.line) for each in wrong]
        unread = [f"topic {each.reading.topic}: {line}" for each in facts.followers if (line := each.last_error.line)]
        troubles += [("fail", line) for line in unread]
        return made | {"facts": facts, "now_ms": at_ms, "title": title, "path": path, "troubles": troubles}


class Endpoints:
    """The endpoints. When `closing` is set, the streams of events end."""

    def __init__(self, pages: Pages, token: str | None, closing: Event) -> None:
        self._pages = pages
        self._token = token
        self._closing = closing
        self._threads = anyio.CapacityLimiter(MAX_THREADS)
        self.streams = 0
        """Live pages that are open."""

    def page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a page."""

        async def endpoint(request: Request) -> Response:
            address = f"events?of={name}&{request.url.query}"
            return HTMLResponse(await self._in_thread(self._pages.page, name, _given(request), address))

        return endpoint

    async def events(self, request: Request) -> Response:
        """The changes of a page, as server-sent events."""
        given = _given(request)
        name = given.pop("of", "")
        if name not in PAGES:
            return PlainTextResponse("no such page\n", 404)
        if self.streams >= MAX_STREAMS:
            return PlainTextResponse("too many live pages are open\n", 503, {"Retry-After": "30"})
        return _LivePage(self, self._stream(name, given))

    async def login(self, request: Request) -> Response:
        """The form for the token, and a cookie in return for the token."""
        if self._token is None:
            return RedirectResponse("./", 303)
        if request.method != "POST":
            return HTMLResponse(self._pages.login(wrong=False))
        form = await form_of(request, MAX_FORM_BYTES)
        if form is None:
            return TOO_LARGE
        if not is_token(form.get("token", ""), self._token):
            return HTMLResponse(self._pages.login(wrong=True), 403)
        answer = RedirectResponse("./", 303)
        name, value = cookie_name(self._token), cookie_of(self._token)
        answer.set_cookie(name, value, path=None, httponly=True, samesite="strict")  # for the folder of this page
        return answer

    async def _stream(self, name: str, given: Given) -> AsyncIterator[bytes]:
        """An event when the page has changed; else a comment, by which a closed connection is noticed."""
        yield b"retry: 2000\n\n"
        before = ""
        while not self._closing.is_set():
            started_s = time.monotonic()
            part = await self._in_thread(self._pages.part, name, given)
            took_s = time.monotonic() - started_s
            yield b": nothing new\n\n" if part == before else b"data: " + msgspec.json.encode(part) + b"\n\n"
            before = part
            await self._pause(max(EVENT_S - took_s, BUSY * self.streams * took_s))

    async def _pause(self, wait_s: float) -> None:
        while wait_s > 0 and not self._closing.is_set():
            await asyncio.sleep(min(wait_s, CLOSE_S))
            wait_s -= CLOSE_S

    async def _in_thread(self, work: Callable[..., str], *arguments: Any) -> str:
        return await anyio.to_thread.run_sync(work, *arguments, limiter=self._threads)


class _LivePage(StreamingResponse):
    """Server-sent events, which count as open as soon as they are granted: many may be asked for at once."""

    def __init__(self, endpoints: Endpoints, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the page is closed."""
        self._endpoints.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._endpoints.streams -= 1


def create_app(facts: Facts, token: str | None, closing: Event, hosts: Sequence[str]) -> Starlette:
    """The application. Without a token it only answers requests to `hosts`.

    Pages refer to each other by relative addresses, so that they work behind the path prefix of a proxy.
    """
    endpoints = Endpoints(Pages(facts), token, closing)
    return Starlette(
        routes=[
            *(Route(path, endpoints.page(name)) for name, (path, _, _) in PAGES.items()),
            Route("/events", endpoints.events),
            Route("/login", endpoints.login, methods=["GET", "POST"]),
            ASSETS,
        ],
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
    )


def _given(request: Request) -> Given:
    """The parameters of the address; of one that is given twice the last counts."""
    return dict(request.query_params)


TOO_LARGE = PlainTextResponse("the form is too large, or of unknown length\n", 413)


async def form_of(request: Request, most_bytes: int) -> Given | None:
    """The fields of a form; None for one that is too large, or of unknown length."""
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > most_bytes:
        return None
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
