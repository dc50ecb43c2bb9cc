"""What each HTTP request does: admit mutations by their decision, call Kafka, charge what was done."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sluice.gateways.client.answer import Answer
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.middleware import Caller, throttle_headers
from sluice.gateways.http.backend import MAX_PARTITIONS, KafkaBackend, NewTopic, Record, TopicOutcome
from sluice.state.decisions.decision import QUOTA_EXCEEDED_MESSAGE, THROTTLING_QUOTA_EXCEEDED
from sluice.state.decisions.request import Mutation, Request, TopicPartition

BodyT = TypeVar("BodyT")


class CreateTopics(msgspec.Struct):
    """Body of POST /topics."""

    topics: Annotated[list[NewTopic], Meta(min_length=1, max_length=1_000)]
    validate_only: bool = False


class CreatePartitions(msgspec.Struct):
    """Body of POST /topics/NAME/partitions; `count` is the new total, as in Kafka."""

    count: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]
    validate_only: bool = False


class Produce(msgspec.Struct):
    """Body of POST /topics/NAME/records."""

    records: Annotated[list[Record], Meta(min_length=1, max_length=10_000)]


class Call(NamedTuple):
    """One HTTP request. `api_version` None: a current client. `topic` is the name in the path, else empty."""

    caller: Caller
    api_version: int | None
    topic: str
    body: bytes


class Change(NamedTuple):
    """A mutation request. `checked`: Kafka's outcome for each topic when nothing is changed yet.

    `mutations` are those that Kafka would accept; as in Kafka, only they are charged, in the request's order.
    """

    api: str
    checked: Sequence[TopicOutcome]
    mutations: list[Mutation]
    execute: Callable[[list[str]], list[TopicOutcome]]
    validate_only: bool = False


class KafkaService:
    """One method for each route. They block; they raise HTTPException, KafkaError and GatewayClosedError."""

    def __init__(self, gateway: Gateway, backend: KafkaBackend) -> None:
        self._gateway = gateway
        self._backend = backend

    def create_topics(self, call: Call) -> Response:
        """POST /topics"""
        body = _decode(call.body, CreateTopics)
        by_name = {topic.name: topic for topic in body.topics}
        if len(by_name) < len(body.topics):
            raise HTTPException(400, "a topic is named twice; expected each topic once")
        checked = self._backend.create_topics(body.topics, validate_only=True)
        possible = {outcome.name for outcome in checked if outcome.error_code == 0}
        mutations = [Mutation(topic.name, topic.partitions) for topic in body.topics if topic.name in possible]

        def execute(names: list[str]) -> list[TopicOutcome]:
            return self._backend.create_topics([by_name[name] for name in names], validate_only=False)

        return self._mutate(call, Change("CreateTopics", checked, mutations, execute, body.validate_only))

    def delete_topic(self, call: Call) -> Response:
        """DELETE /topics/NAME"""
        mutations = [Mutation(call.topic, self._partition_count(call))]

        def execute(_: list[str]) -> list[TopicOutcome]:
            return self._backend.delete_topic(call.topic)

        return self._mutate(call, Change("DeleteTopics", [TopicOutcome(call.topic)], mutations, execute))

    def create_partitions(self, call: Call) -> Response:
        """POST /topics/NAME/partitions"""
        body = _decode(call.body, CreatePartitions)
        added = body.count - self._partition_count(call)
        checked = self._backend.create_partitions(call.topic, body.count, validate_only=True)
        mutations = [Mutation(call.topic, added)] if checked[0].error_code == 0 else []

        def execute(_: list[str]) -> list[TopicOutcome]:
            return self._backend.create_partitions(call.topic, body.count, validate_only=False)

        return self._mutate(call, Change("CreatePartitions", checked, mutations, execute, body.validate_only))

    def produce(self, call: Call) -> Response:
        """POST /topics/NAME/records"""
        body = _decode(call.body, Produce)
        count = self._partition_count(call)
        if any(record.partition is not None and record.partition >= count for record in body.records):
            raise HTTPException(400, f"a record is for a partition that the topic doesn't have; it has {count}")
        start_ns = time.perf_counter_ns()
        written, error = self._backend.produce(call.topic, body.records)
        bytes_by_partition: dict[int, int] = {}
        for record in written:
            size = max(0, record.serialized_key_size) + max(0, record.serialized_value_size)
            bytes_by_partition[record.partition] = bytes_by_partition.get(record.partition, 0) + size
        touched = [TopicPartition(call.topic, partition, size) for partition, size in bytes_by_partition.items()]
        answer = self._charge_time(call, "Produce", start_ns, touched)
        if error is not None:
            raise error
        offsets = [{"partition": record.partition, "offset": record.offset} for record in written]
        return _json({"throttle_time_ms": answer.throttle_ms, "offsets": offsets})

    def _mutate(self, call: Call, change: Change) -> Response:
        """Executes the mutations that are admitted.

        Their event is published before they are executed, so their handler time goes into a second one.
        """
        event = _event(call, change.api)
        event.validate_only, event.mutations = change.validate_only, change.mutations
        admitted = self._gateway.admit_mutations(event) if change.mutations else Answer()
        if admitted.quota is None and any(admitted.refused):
            raise HTTPException(503, "the quota can't be decided at the moment; nothing was changed")
        outcomes = {outcome.name: outcome for outcome in change.checked} | _refused(change.mutations, admitted)
        start_ns = time.perf_counter_ns()
        names = [name for mutation in change.mutations if outcomes[name := mutation.topic].error_code == 0]
        try:
            if names and not change.validate_only:
                outcomes |= {outcome.name: outcome for outcome in change.execute(names)}
        finally:  # Kafka's failures take time too
            charged = self._charge_time(call, change.api, start_ns)
        return self._mutation_answer(
            call.caller, list(outcomes.values()), max(admitted.throttle_ms, charged.throttle_ms)
        )

    def _mutation_answer(self, caller: Caller, outcomes: list[TopicOutcome], throttle_ms: int) -> Response:
        answer = _json({"throttle_time_ms": throttle_ms, "topics": outcomes})
        if all(outcome.error_code == THROTTLING_QUOTA_EXCEEDED for outcome in outcomes):
            answer.status_code = 429
            answer.headers.update(dict(throttle_headers(throttle_ms, self._gateway.held_by(*caller))))
        return answer

    def _charge_time(self, call: Call, api: str, start_ns: int, touched: Sequence[TopicPartition] = ()) -> Answer:
        """Charges the handler time since `start_ns` and the bytes written."""
        event = _event(call, api)
        event.request_time_ns, event.topic_partitions = time.perf_counter_ns() - start_ns, list(touched)
        return self._gateway.admit(event)

    def _partition_count(self, call: Call) -> int:
        """The number of the topic's partitions. Raises HTTPException if the topic does not exist.

        The time for that is charged only then: for others it is short beside what they ask for.
        """
        start_ns = time.perf_counter_ns()
        count = self._backend.partition_count(call.topic)
        if count == 0:
            self._charge_time(call, "Metadata", start_ns)
            raise HTTPException(404, "there is no such topic")
        return count


def _event(call: Call, api: str) -> Request:
    return Request(api, user=call.caller.user, client_id=call.caller.client_id, api_version=call.api_version)


def _refused(mutations: Sequence[Mutation], admitted: Answer) -> dict[str, TopicOutcome]:
    """The topics that are refused."""
    return {
        mutation.topic: TopicOutcome(mutation.topic, THROTTLING_QUOTA_EXCEEDED, QUOTA_EXCEEDED_MESSAGE)
        for mutation, refused in zip(mutations, admitted.refused, strict=False)  # no flags: none is refused
        if refused
    }


def _decode(body: bytes, kind: type[BodyT]) -> BodyT:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, f"the body is not a JSON object as {kind.__name__} has it") from None


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
