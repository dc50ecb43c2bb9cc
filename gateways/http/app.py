"""The HTTP service as an ASGI application, behind `AsgiQuotas`.

POST   /topics                   {"topics": [{"name": "a", "partitions": 3}], "validate_only": false}
DELETE /topics/NAME
POST   /topics/NAME/partitions   {"count": 6, "validate_only": false}
POST   /topics/NAME/records      {"records": [{"key": "k", "value": "v", "partition": 0}]}
GET    /metrics

`?api_version=5` makes the caller an old client, as in Kafka: it is never refused, only muted afterwards.
"""

from collections.abc import Awaitable, Callable

import anyio.to_thread
import msgspec
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router

from sluice.gateways.client.client import Gateway
from sluice.gateways.client.metrics import GatewayCollector
from sluice.gateways.client.middleware import CALLER, AsgiApp, AsgiQuotas, HttpQuotas, Receive, Scope, Send
from sluice.gateways.errors import GatewayClosedError
from sluice.gateways.http.backend import KafkaBackend
from sluice.gateways.http.service import Call, KafkaService
from sluice.kafka_io.client import TopicName
from sluice.state.decisions.request import MAX_INT16

MAX_BODY_BYTES = 1024 * 1024

MAX_HEADER_BYTES = 32 * 1024
"""Of names and values together. h11 refuses more than 64 KiB by itself, but only what doesn't come at once."""

MAX_THREADS = 200
"""Most requests that Kafka or a decision holds at a time; a mutation is held for up to ten seconds."""

NOT_FOUND = "no such resource; there are POST /topics, DELETE /topics/NAME and POST below it"

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(gateway: Gateway, backend: KafkaBackend) -> Starlette:
    """The application. Requests of muted clients never reach the service, which publishes its events itself."""
    service = KafkaService(gateway, backend)
    registry = CollectorRegistry()
    registry.register(GatewayCollector(gateway))
    threads = anyio.CapacityLimiter(MAX_THREADS)

    def blocking(work: Callable[[Call], Response]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            call = await _call(request)
            return await anyio.to_thread.run_sync(work, call, limiter=threads)

        return endpoint

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    # `path` matches decoded slashes too: a name with one is refused as a name, not as a resource that doesn't exist.
    kafka = Router(
        [
            Route("/topics", blocking(service.create_topics), methods=["POST"]),
            Route("/topics/{topic:path}/partitions", blocking(service.create_partitions), methods=["POST"]),
            Route("/topics/{topic:path}/records", blocking(service.produce), methods=["POST"]),
            Route("/topics/{topic:path}", blocking(service.delete_topic), methods=["DELETE"]),
        ],
        redirect_slashes=False,
        default=_problem(404, NOT_FOUND),
    )
    return Starlette(
        routes=[Route("/metrics", metrics), Mount("/", AsgiQuotas(kafka, gateway, HttpQuotas(api=None)))],
        middleware=[Middleware(BodyLimit)],
        exception_handlers={
            HTTPException: _refuse,  # type: ignore[dict-item] # Starlette calls it with this error alone
            405: _answer(404, NOT_FOUND),
            KafkaError: _kafka_failed,
            GatewayClosedError: _answer(503, "the gateway is closing"),
            ClientDisconnect: _answer(400, "the client has gone"),  # nobody receives it
            Exception: _answer(500, "the gateway failed"),
        },
    )


class BodyLimit:
    """ASGI middleware that refuses headers that are too large, and, unread, bodies too large or of unknown length."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
                title = f"the headers are too large; expected at most {MAX_HEADER_BYTES} bytes"
                await _refused_unread(431, title)(scope, receive, send)
                return
            if "transfer-encoding" in headers:
                await _refused_unread(411, "the body has no Content-Length")(scope, receive, send)
                return
            if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
                title = f"the body is too large; expected at most {MAX_BODY_BYTES} bytes"
                await _refused_unread(413, title)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refused_unread(status: int, title: str) -> Response:
    """A refusal after which the connection is closed: the body is still on its way."""
    answer = _problem(status, title)
    answer.headers["Connection"] = "close"
    return answer


async def _call(request: Request) -> Call:
    """The request as the service takes it. Raises HTTPException for a bad topic name or API version."""
    topic = request.path_params.get("topic", "")
    if "topic" in request.path_params:
        try:
            msgspec.convert(topic, TopicName)
        except msgspec.ValidationError:
            raise HTTPException(400, "the topic's name is none that Kafka takes") from None
    return Call(request.scope[CALLER], _api_version(request), topic, await request.body())


def _api_version(request: Request) -> int | None:
    """The version of `?api_version=5`; None without it."""
    text = request.query_params.get("api_version")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= MAX_INT16):
        raise HTTPException(400, f"api_version is not a whole number from 0 to {MAX_INT16}")
    return int(text)


def _problem(status: int, title: str, **members: object) -> Response:
    """The answer as problem details (RFC 9457)."""
    problem = {"type": "about:blank", "title": title, "status": status, **members}
    headers = {"Retry-After": "1"} if status == 503 else None
    return Response(msgspec.json.encode(problem), status, headers, "application/problem+json")


async def _refuse(_: Request, error: HTTPException) -> Response:
    return _problem(error.status_code, error.detail)


async def _kafka_failed(_: Request, error: Exception) -> Response:
    code = getattr(error, "errno", None)
    return _problem(502, f"Kafka can't do it: {type(error).__name__}", **({} if code is None else {"error_code": code}))


def _answer(status: int, title: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_request: Request, _error: Exception) -> Response:
        return _problem(status, title)

    return answer
