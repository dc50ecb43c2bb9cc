"""An HTTP service in front of Kafka that keeps to Sluice's quotas, on the middleware `AsgiQuotas`.

POST   /topics                {"orders": 3}: names and numbers of partitions
DELETE /topics/NAME
POST   /topics/NAME/records   [{"key": "k", "value": "v"}]
GET    /metrics

The middleware answers 429 to a throttled client. This service knows more about a request than its handler time, so it
charges its requests itself (`HttpQuotas(api=None)`): mutations before they are executed, bytes after they are written.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import msgspec
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router

import sluice
from sluice_http import AsgiQuotas, HttpQuotas

REFUSED = 89
"""Kafka's error code of a topic that its quota refuses."""


MAX_BODY_BYTES = 2**20
"""Longest body: the server itself would take any, into memory."""

BODY_S = 10.0
"""Longest time for a body to arrive: the server itself would wait for ever."""


class Record(msgspec.Struct):
    """One record to produce."""

    value: str
    key: str = ""


class KafkaService:
    """One method for each route. It gets the request and its body, and blocks until Kafka has answered."""

    def __init__(self, gateway: sluice.Gateway, admin: KafkaAdminClient, producer: KafkaProducer) -> None:
        self._gateway = gateway
        self._admin = admin
        self._lock = Lock()  # kafka-python doesn't document its admin client as thread-safe
        self._producer = producer

    def create_topics(self, request: Request, body: bytes) -> Response:
        """Create the topics that Sluice admits; the others have the error code REFUSED."""
        partitions = msgspec.json.decode(body, type=dict[str, int])

        def execute(names: list[str]) -> Any:
            wanted = {name: {"num_partitions": partitions[name]} for name in names}
            answer = self._admin.create_topics(wanted, raise_errors=False)["topics"]
            self._admin.wait_for_topics([topic["name"] for topic in answer if not topic["error_code"]], 30_000)
            return answer

        return self._mutate(_event(request, "CreateTopics"), partitions, execute)

    def delete_topic(self, request: Request, _: bytes) -> Response:
        """Delete the topic if Sluice admits it."""
        name = request.path_params["topic"]
        with self._lock:
            [topic] = self._admin.describe_topics([name])
        if topic["error_code"]:
            return _problem(404, "there is no such topic")
        return self._mutate(
            _event(request, "DeleteTopics"),
            {name: len(topic["partitions"])},
            lambda names: self._admin.delete_topics(names, raise_errors=False)["topics"],
        )

    def produce(self, request: Request, body: bytes) -> Response:
        """Write the records. The bytes of those that Kafka has written are charged, though it may refuse others."""
        topic, written, errors = request.path_params["topic"], list[Any](), list[KafkaError]()
        with self._charged(_event(request, "Produce")) as event:
            for record in msgspec.json.decode(body, type=list[Record]):
                try:
                    sent = self._producer.send(topic, record.value.encode(), record.key.encode())
                    written.append(sent.get(timeout=30))
                except KafkaError as error:
                    errors.append(error)
            event.topic_partitions = [
                sluice.TopicPartition(topic, each.partition, each.serialized_key_size + each.serialized_value_size)
                for each in written
            ]
        if errors:
            raise errors[0]
        return _json({"offsets": [{"partition": each.partition, "offset": each.offset} for each in written]})

    def _mutate(
        self, event: sluice.Request, partitions: dict[str, int], execute: Callable[[list[str]], Any]
    ) -> Response:
        """Execute the mutations that Sluice admits. Their handler time goes into a second event."""
        event.mutations = [sluice.Mutation(name, count) for name, count in partitions.items()]
        answer = self._gateway.admit_mutations(event)
        if any(answer.refused) and answer.quota is None:
            return _problem(503, "the quota can't be decided at the moment; nothing was changed")
        refused = answer.refused or (False,) * len(partitions)
        codes = {name: REFUSED if flag else 0 for name, flag in zip(partitions, refused, strict=True)}
        admitted = [name for name, code in codes.items() if code == 0]
        if admitted:
            with self._charged(sluice.Request(event.api, user=event.user, client_id=event.client_id)), self._lock:
                codes |= {topic["name"]: topic["error_code"] for topic in execute(admitted)}
        topics = [{"name": name, "error_code": code} for name, code in codes.items()]
        headers = {} if admitted else {"Retry-After": str(-(-answer.throttle_ms // 1000))}
        return _json({"throttle_time_ms": answer.throttle_ms, "topics": topics}, 200 if admitted else 429, headers)

    @contextmanager
    def _charged(self, event: sluice.Request) -> Iterator[sluice.Request]:
        """Charge the event at the end of the block, with the time until then: what Kafka refuses takes time too."""
        start_ns = time.perf_counter_ns()
        try:
            yield event
        finally:
            event.request_time_ns = time.perf_counter_ns() - start_ns
            self._gateway.admit(event)


def create_app(gateway: sluice.Gateway, service: KafkaService) -> Starlette:
    """The application. Requests of throttled clients never reach the service."""
    registry = CollectorRegistry()
    registry.register(sluice.GatewayCollector(gateway))
    kafka = Router(
        [
            Route("/topics", _endpoint(service.create_topics), methods=["POST"]),
            Route("/topics/{topic}", _endpoint(service.delete_topic), methods=["DELETE"]),
            Route("/topics/{topic}/records", _endpoint(service.produce), methods=["POST"]),
        ]
    )
    return Starlette(
        routes=[
            Route("/metrics", lambda _: Response(generate_latest(registry), media_type="text/plain; version=0.0.4")),
            Mount("/", AsgiQuotas(kafka, gateway, HttpQuotas(api=None))),
        ],
        exception_handlers={
            msgspec.DecodeError: lambda _, error: _problem(400, f"the body is invalid: {error}"),
            TimeoutError: lambda _, _error: _problem(408, f"the body was not complete after {BODY_S:g} s", _CLOSE),
            KafkaError: lambda _, error: _problem(502, f"Kafka refused: {type(error).__name__}"),
        },
    )


def _endpoint(work: Callable[[Request, bytes], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        body = bytearray()
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    return _problem(413, f"a body has at most {MAX_BODY_BYTES} bytes", _CLOSE)
        return await run_in_threadpool(work, request, bytes(body))

    return endpoint


def _event(request: Request, api: str) -> sluice.Request:
    user, client_id = request.scope["sluice.caller"]
    return sluice.Request(api, user=user, client_id=client_id)


def _json(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")


_CLOSE = {"Connection": "close"}
"""The header after which the server doesn't wait for the rest of a body."""


def _problem(status: int, title: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"title": title, "status": status}, status, headers)
