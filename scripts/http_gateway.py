"""A small HTTP gateway in front of Kafka's admin and produce calls, which keeps to Sluice's quotas.

    ./scripts/gateway --bootstrap-servers 127.0.0.1:9092

POST   /topics                   {"topics": [{"name": "a", "partitions": 3}], "validate_only": false}
DELETE /topics/NAME
POST   /topics/NAME/partitions   {"count": 6, "validate_only": false}
POST   /topics/NAME/records      {"records": [{"key": "k", "value": "v", "partition": 0}]}
GET    /metrics

`?api_version=5` makes the caller an old client, as in Kafka: it is never refused, only muted afterwards.
"""

import argparse
import logging
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from types import FrameType, TracebackType
from typing import Annotated, Any, NamedTuple, NoReturn, Self, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError
from msgspec import Meta
from prometheus_client import CollectorRegistry, generate_latest

from configs.errors import InvalidSettingsError
from configs.settings import Settings, load_settings, with_bootstrap_servers
from sinks.errors import GatewayClosedError
from sinks.event_sender import PRODUCER_OPTIONS
from sinks.gateway import DecisionFields, Gateway, GatewayOptions, StalePolicy
from sinks.gateway_metrics import GatewayCollector
from sinks.middleware import HttpQuotas, InvalidNameError, bad_name, identify, refusal, throttle_headers
from sinks.topics import connect, ensure_topics
from state.charge import is_strict
from state.errors import SluiceError
from state.request import MAX_INT16, Mutation, Request, TopicPartition

MAX_BODY_BYTES = 1024 * 1024
DECISION_TIMEOUT_S = 10.0
"""How long a mutation request is held for its decision."""

PRODUCE_TIMEOUT_S = 30.0
SOCKET_TIMEOUT_S = 30.0

TopicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
Count = Annotated[int, Meta(ge=1, le=100_000)]


class NewTopic(msgspec.Struct):
    """One topic to create."""

    name: TopicName
    partitions: Count = 1
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)] = 1


class CreateTopics(msgspec.Struct):
    """Body of POST /topics."""

    topics: Annotated[list[NewTopic], Meta(min_length=1, max_length=1_000)]
    validate_only: bool = False


class CreatePartitions(msgspec.Struct):
    """Body of POST /topics/NAME/partitions; `count` is the new total, as in Kafka."""

    count: Count
    validate_only: bool = False


class Record(msgspec.Struct):
    """One record to produce."""

    value: str
    key: str | None = None
    partition: Annotated[int, Meta(ge=0, le=100_000)] | None = None


class Produce(msgspec.Struct):
    """Body of POST /topics/NAME/records."""

    records: Annotated[list[Record], Meta(min_length=1, max_length=10_000)]


class TopicOutcome(msgspec.Struct):
    """What became of one topic, in Kafka's error codes."""

    name: str
    error_code: int = 0
    error_message: str | None = None


class Caller(NamedTuple):
    """Who sent a request, and which version of the API it speaks (None: a current one)."""

    user: str | None
    client_id: str | None
    api_version: int | None


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    headers: Sequence[tuple[str, str]] = (("Content-Type", "application/json"),)


class BadRequestError(SluiceError):
    """The HTTP request is not one that the gateway takes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


BodyT = TypeVar("BodyT")


class KafkaBackend:
    """The Kafka cluster behind the gateway; every call blocks until Kafka has answered, and is thread-safe.

    Raises KafkaError as kafka-python does.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._admin = connect(KafkaAdminClient, kafka)
        self._producer = connect(KafkaProducer, kafka, **{**PRODUCER_OPTIONS, "linger_ms": 0})
        self._admin_lock = Lock()  # kafka-python doesn't say that its admin client is thread-safe

    def close(self) -> None:
        """Ends both clients; every record was acknowledged, so there is nothing to wait for."""
        self._producer.close(1)
        self._admin.close()

    def create_topics(self, topics: Sequence[NewTopic], validate_only: bool) -> list[TopicOutcome]:
        """Creates the topics, or only says what would become of them."""
        wanted = {
            topic.name: {"num_partitions": topic.partitions, "replication_factor": topic.replication_factor}
            for topic in topics
        }
        with self._admin_lock:
            answer = self._admin.create_topics(wanted, validate_only=validate_only, raise_errors=False)
            outcomes = _outcomes(answer["topics"])
            if not validate_only:  # Kafka answers before every broker knows the topics
                self._admin.wait_for_topics([outcome.name for outcome in outcomes if outcome.error_code == 0])
        return outcomes

    def delete_topic(self, name: str) -> list[TopicOutcome]:
        """Deletes one topic."""
        with self._admin_lock:
            return _outcomes(self._admin.delete_topics([name], raise_errors=False)["topics"])

    def create_partitions(self, name: str, count: int, validate_only: bool) -> list[TopicOutcome]:
        """Makes the topic's partitions `count` in all."""
        with self._admin_lock:
            answer = self._admin.create_partitions({name: count}, validate_only=validate_only, raise_errors=False)
        return _outcomes(answer.to_dict()["results"])

    def partition_count(self, name: str) -> int:
        """How many partitions the topic has; 0 if there is no such topic."""
        with self._admin_lock:
            described = self._admin.describe_topics([name])[0]
        return len(described["partitions"]) if described["error_code"] == 0 else 0

    def produce(self, topic: str, records: Sequence[Record]) -> list[Any]:
        """Writes the records; the metadata of each, which has partition, offset and sizes in bytes."""
        futures = [
            self._producer.send(
                topic,
                record.value.encode(),
                record.key.encode() if record.key is not None else None,
                partition=record.partition,
            )
            for record in records
        ]
        return [future.get(timeout=PRODUCE_TIMEOUT_S) for future in futures]


class HttpGateway:
    """Answers HTTP requests: enforces mutes, holds strict mutations for their decision, publishes what was done."""

    def __init__(self, gateway: Gateway, backend: KafkaBackend, options: HttpQuotas | None = None) -> None:
        self._gateway = gateway
        self._backend = backend
        self._options = options or HttpQuotas()
        self._registry = CollectorRegistry()
        self._registry.register(GatewayCollector(gateway))

    def answer(self, method: str, target: str, header: Callable[[str], str | None], body: bytes) -> Answer:
        """The answer to one HTTP request; never raises for what a client or Kafka did."""
        url = urlsplit(target)
        if (method, url.path) == ("GET", "/metrics"):
            return Answer(200, generate_latest(self._registry), [("Content-Type", "text/plain; version=0.0.4")])
        try:
            user, client_id = identify(header, self._options)
            refused = refusal(self._gateway, user, client_id)
            if refused is not None:
                return Answer(refused.status, refused.body, _without_length(refused.headers))
            return self._route(method, url.path, Caller(user, client_id, _api_version(url.query)), body)
        except InvalidNameError:
            refused = bad_name()
            return Answer(refused.status, refused.body, _without_length(refused.headers))
        except BadRequestError as error:
            return _problem(error.status, str(error))
        except KafkaError as error:
            return _problem(502, f"Kafka can't do it: {type(error).__name__}", getattr(error, "errno", None))
        except GatewayClosedError:
            return _problem(503, "the gateway is closing")

    def _route(self, method: str, path: str, caller: Caller, body: bytes) -> Answer:
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "POST", ["topics"]:
                return self._create_topics(caller, _decode(body, CreateTopics))
            case "DELETE", ["topics", name]:
                return self._delete_topic(caller, _topic_name(name))
            case "POST", ["topics", name, "partitions"]:
                return self._create_partitions(caller, _topic_name(name), _decode(body, CreatePartitions))
            case "POST", ["topics", name, "records"]:
                return self._produce(caller, _topic_name(name), _decode(body, Produce))
        raise BadRequestError(404, "no such resource; there are POST /topics, DELETE /topics/NAME and POST below it")

    def _create_topics(self, caller: Caller, request: CreateTopics) -> Answer:
        by_name = {topic.name: topic for topic in request.topics}
        if len(by_name) < len(request.topics):
            raise BadRequestError(400, "a topic is named twice; expected each topic once")
        # As in Kafka, only topics that could be created are charged; admission goes in the request's order.
        checked = self._backend.create_topics(list(by_name.values()), validate_only=True)
        possible = [by_name[outcome.name] for outcome in checked if outcome.error_code == 0]
        mutations = [Mutation(topic.name, topic.partitions) for topic in request.topics if topic in possible]

        def execute(names: Sequence[str]) -> list[TopicOutcome]:
            if request.validate_only or not names:
                return []
            return self._backend.create_topics([by_name[name] for name in names], validate_only=False)

        return self._mutate(caller, "CreateTopics", mutations, request.validate_only, execute, checked)

    def _delete_topic(self, caller: Caller, name: str) -> Answer:
        count = self._partition_count(name)
        return self._mutate(
            caller,
            "DeleteTopics",
            [Mutation(name, count)],
            False,
            lambda names: self._backend.delete_topic(name) if names else [],
            [TopicOutcome(name)],
        )

    def _create_partitions(self, caller: Caller, name: str, request: CreatePartitions) -> Answer:
        added = request.count - self._partition_count(name)
        checked = self._backend.create_partitions(name, request.count, validate_only=True)
        mutations = [Mutation(name, added)] if checked[0].error_code == 0 else []

        def execute(names: Sequence[str]) -> list[TopicOutcome]:
            if request.validate_only or not names:
                return []
            return self._backend.create_partitions(name, request.count, validate_only=False)

        return self._mutate(caller, "CreatePartitions", mutations, request.validate_only, execute, checked)

    def _mutate(
        self,
        caller: Caller,
        api: str,
        mutations: list[Mutation],
        validate_only: bool,
        execute: Callable[[Sequence[str]], list[TopicOutcome]],
        checked: Sequence[TopicOutcome],
    ) -> Answer:
        """Executes the mutations that are admitted: a strict caller's after the decision, an old client's at once.

        The time they took goes into a second event, for the first one is published before they begin.
        """
        outcomes = {outcome.name: outcome for outcome in checked}
        event = Request(
            api, user=caller.user, client_id=caller.client_id, api_version=caller.api_version,
            validate_only=validate_only, mutations=mutations,
        )  # fmt: skip
        request_id = self._gateway.publish(event, awaited=True) if mutations else None
        decision = self._wait_for(request_id) if is_strict(event) and mutations else None
        refused = _refused(decision)
        start_ns = time.perf_counter_ns()
        names = [mutation.topic for mutation in mutations if mutation.topic not in refused]
        outcomes |= {outcome.name: outcome for outcome in execute(names)} | refused
        self._publish_time(api, caller, start_ns)
        if decision is None and request_id is not None and not is_strict(event):
            decision = self._gateway.wait_for(request_id, DECISION_TIMEOUT_S)
        throttle_ms = int(decision["throttle_time_ms"]) if decision else 0
        return self._mutation_answer(caller, list(outcomes.values()), throttle_ms)

    def _wait_for(self, request_id: str | None) -> DecisionFields | None:
        """The decision; None if none came and the policy is to go on without. Raises BadRequestError otherwise."""
        decision = self._gateway.wait_for(request_id, DECISION_TIMEOUT_S) if request_id else None
        if decision is None and self._gateway.options.policy is StalePolicy.FAIL_CLOSED:
            raise BadRequestError(503, "the quota can't be decided at present; nothing was changed")
        return decision

    def _mutation_answer(self, caller: Caller, outcomes: list[TopicOutcome], throttle_ms: int) -> Answer:
        body = msgspec.json.encode({"throttle_time_ms": throttle_ms, "topics": outcomes})
        headers = [("Content-Type", "application/json")]
        if not all(outcome.error_code == 89 for outcome in outcomes):
            return Answer(200, body, headers)
        mute = self._gateway.mutes.find(caller.user, caller.client_id)
        return Answer(429, body, headers + throttle_headers(throttle_ms, mute))

    def _produce(self, caller: Caller, topic: str, request: Produce) -> Answer:
        self._partition_count(topic)
        start_ns = time.perf_counter_ns()
        written = self._backend.produce(topic, request.records)
        sizes: dict[int, int] = {}
        for record in written:
            size = max(0, record.serialized_key_size) + max(0, record.serialized_value_size)
            sizes[record.partition] = sizes.get(record.partition, 0) + size
        touched = [TopicPartition(topic, partition, size) for partition, size in sizes.items()]
        self._publish_time("Produce", caller, start_ns, touched)
        offsets = [{"partition": record.partition, "offset": record.offset} for record in written]
        return Answer(200, msgspec.json.encode({"throttle_time_ms": 0, "offsets": offsets}))

    def _publish_time(self, api: str, caller: Caller, start_ns: int, touched: Sequence[TopicPartition] = ()) -> None:
        """The event that says how long the work took, and what it wrote."""
        self._gateway.publish(
            Request(
                api,
                user=caller.user,
                client_id=caller.client_id,
                api_version=caller.api_version,
                request_time_ns=time.perf_counter_ns() - start_ns,
                topic_partitions=list(touched),
            )
        )

    def _partition_count(self, topic: str) -> int:
        """How many partitions the topic has. Raises BadRequestError if there is no such topic."""
        count = self._backend.partition_count(topic)
        if count == 0:
            raise BadRequestError(404, "there is no such topic")
        return count


class HttpServer:
    """The gateway on a port of 127.0.0.1, as a context manager; `address` is where it answers."""

    def __init__(self, http_gateway: HttpGateway, port: int = 0) -> None:
        class Handler(_Handler):
            gateway = http_gateway

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.server_close()

    def serve(self) -> None:
        """Serves until `stop`, which another thread calls, or until Ctrl-C."""
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Ends `serve`."""
        self._server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    """HTTP in and out."""

    gateway: HttpGateway
    protocol_version = "HTTP/1.1"
    timeout = SOCKET_TIMEOUT_S
    server_version = "sluice"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, *_: object) -> None:
        """Nothing: request lines are the client's text, and there may be thousands a second."""

    def _serve(self) -> None:
        try:
            body = self._body()
        except BadRequestError as error:
            self.close_connection = True  # the body is still on the way
            self._send(_problem(error.status, str(error)))
            return
        self._send(self.gateway.answer(self.command, self.path, self.headers.get, body))

    def _body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise BadRequestError(411, "the body has no Content-Length")
        length = self.headers.get("Content-Length", "0")
        if not re.fullmatch(r"[0-9]{1,9}", length) or int(length) > MAX_BODY_BYTES:
            raise BadRequestError(413, f"the body is too large; expected at most {MAX_BODY_BYTES} bytes")
        return self.rfile.read(int(length))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        try:
            self.end_headers()
            self.wfile.write(answer.body)
        except OSError:  # the client has gone
            self.close_connection = True


def _refused(decision: DecisionFields | None) -> dict[str, TopicOutcome]:
    """The topics that the decision refuses."""
    results = decision["topic_results"] if decision else []
    return {
        result["topic"]: TopicOutcome(result["topic"], result["error_code"], result["error_message"])
        for result in results
        if result["error_code"] != 0
    }


def _outcomes(results: Sequence[Mapping[str, Any]]) -> list[TopicOutcome]:
    return [TopicOutcome(result["name"], result["error_code"], result.get("error_message")) for result in results]


def _decode(body: bytes, kind: type[BodyT]) -> BodyT:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequestError(400, f"the body is not a JSON object as {kind.__name__} has it") from None


def _topic_name(text: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", text):
        raise BadRequestError(400, "the topic's name is none that Kafka takes")
    return text


def _api_version(query: str) -> int | None:
    """The version of `?api_version=5`; None without it. Raises BadRequestError."""
    values = parse_qs(query, max_num_fields=10).get("api_version", [])
    if not values:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", values[0]) or int(values[0]) > MAX_INT16:
        raise BadRequestError(400, f"api_version is not a whole number from 0 to {MAX_INT16}")
    return int(values[0])


def _problem(status: int, title: str, error_code: int | None = None) -> Answer:
    problem = {"type": "about:blank", "title": title, "status": status}
    if error_code is not None:
        problem["error_code"] = error_code
    headers = [("Content-Type", "application/problem+json")]
    return Answer(status, msgspec.json.encode(problem), headers + ([("Retry-After", "1")] if status == 503 else []))


def _without_length(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name != "Content-Length"]


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: None)
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `gateway`: serves until Ctrl-C; 0 then, 1 if Kafka can't be reached, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it writes a line for every attempt during an outage
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, _interrupt)
    try:
        serve(with_bootstrap_servers(load_settings(options.config), options.bootstrap_servers), options)
    except KeyboardInterrupt:
        return 0
    except InvalidSettingsError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    except (SluiceError, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0


def serve(settings: Settings, options: argparse.Namespace) -> None:
    """Serves until KeyboardInterrupt; prints the address first."""
    ensure_topics(settings)
    backend = KafkaBackend(settings.kafka)
    gateway_options = GatewayOptions(
        name=options.name,
        requests_topic=settings.topics.requests,
        decisions_topic=settings.topics.decisions,
        policy=StalePolicy(options.policy),
    )
    try:
        with (
            Gateway(settings.kafka, gateway_options) as gateway,
            HttpServer(HttpGateway(gateway, backend), options.port) as server,
        ):
            print(server.address, flush=True)
            server.serve()
    finally:
        backend.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gateway", description="An HTTP gateway that keeps to Sluice's quotas.")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="default: as the settings say")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (kafka and topics are used)")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0: a free one, which is printed (0)")
    parser.add_argument("--name", default="http-gateway", help="what events carry as gateway (http-gateway)")
    parser.add_argument(
        "--policy", choices=[policy.value for policy in StalePolicy], default=StalePolicy.FAIL_OPEN.value,
        help="what to do while decisions are missing (fail_open)",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
