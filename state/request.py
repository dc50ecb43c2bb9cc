"""The request event: what a gateway publishes about one request it served (DESIGN, "Request event")."""

import msgspec

from state.errors import InvalidRequestError

MAX_NAME_LENGTH = 32_767
"""Longest user, client-id or topic name: the longest string the Kafka protocol can carry in a request header."""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, which every table and client can still show."""

MAX_EXACT = 2**53
"""Largest amount that a double holds exactly."""

MAX_ENTRIES = 10_000
"""Most topic-partitions or mutations of one request: keeps its decision within a Kafka record."""

MAX_INT32 = 2**31 - 1
MAX_INT16 = 2**15 - 1


class TopicPartition(msgspec.Struct, gc=False):
    """Bytes a Produce request wrote to, or a Fetch request read from, one partition."""

    topic: str
    partition: int
    bytes: int = 0


class Mutation(msgspec.Struct, gc=False):
    """Partitions a request creates in, adds to or deletes with one topic."""

    topic: str
    partitions: int


class Request(msgspec.Struct):
    """One request event. Times are epoch milliseconds unless the name says nanoseconds."""

    api: str
    request_id: str | None = None
    timestamp_ms: int | None = None
    user: str | None = None
    client_id: str | None = None
    api_version: int | None = None
    validate_only: bool = False
    cluster_action: bool = False
    authenticating: bool = False
    request_time_ns: int | None = None
    network_time_ns: int | None = None
    purgatory_ms: int = 0
    gateway: str | None = None
    topic_partitions: list[TopicPartition] = []
    mutations: list[Mutation] = []


def check_request(request: Request) -> None:
    """Raises InvalidRequestError, naming the field, unless every amount and name is within its bounds."""
    _check_names(request)
    _check_amounts(request)
    if request.topic_partitions:
        _check_topic_partitions(request.topic_partitions)
    if request.mutations:
        _check_mutations(request.mutations)


def _check_names(request: Request) -> None:
    if not request.api:
        raise InvalidRequestError("api", "is empty", "the name of a Kafka API such as Produce")
    _check_length("api", request.api)
    if request.user is not None:
        _check_length("user", request.user)
    if request.client_id is not None:
        _check_length("client_id", request.client_id)
    if request.request_id is not None:
        _check_length("request_id", request.request_id)
    if request.gateway is not None:
        _check_length("gateway", request.gateway)


def _check_amounts(request: Request) -> None:
    if request.timestamp_ms is not None:
        _check_bounds("timestamp_ms", request.timestamp_ms, MAX_TIMESTAMP_MS)
    if request.api_version is not None:
        _check_bounds("api_version", request.api_version, MAX_INT16)
    if request.request_time_ns is not None:
        _check_bounds("request_time_ns", request.request_time_ns, MAX_EXACT)
    if request.network_time_ns is not None:
        _check_bounds("network_time_ns", request.network_time_ns, MAX_EXACT)
    if request.purgatory_ms:
        _check_bounds("purgatory_ms", request.purgatory_ms, MAX_INT32)


def _check_length(field_name: str, name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise _too_long(field_name, name)


def _check_bounds(field_name: str, amount: int, maximum: int) -> None:
    if not 0 <= amount <= maximum:
        raise _out_of_bounds(field_name, amount, maximum)


def _check_topic_partitions(topic_partitions: list[TopicPartition]) -> None:
    _check_count("topic_partitions", len(topic_partitions))
    for index, touched in enumerate(topic_partitions):
        if not 0 < len(touched.topic) <= MAX_NAME_LENGTH:
            raise _bad_topic(f"topic_partitions[{index}].topic", touched.topic)
        if not 0 <= touched.partition <= MAX_INT32:
            raise _out_of_bounds(f"topic_partitions[{index}].partition", touched.partition, MAX_INT32)
        if not 0 <= touched.bytes <= MAX_EXACT:
            raise _out_of_bounds(f"topic_partitions[{index}].bytes", touched.bytes, MAX_EXACT)


def _check_mutations(mutations: list[Mutation]) -> None:
    _check_count("mutations", len(mutations))
    for index, mutation in enumerate(mutations):
        if not 0 < len(mutation.topic) <= MAX_NAME_LENGTH:
            raise _bad_topic(f"mutations[{index}].topic", mutation.topic)
        if not 0 <= mutation.partitions <= MAX_INT32:
            raise _out_of_bounds(f"mutations[{index}].partitions", mutation.partitions, MAX_INT32)


def _check_count(field_name: str, entries: int) -> None:
    if entries > MAX_ENTRIES:
        raise InvalidRequestError(field_name, f"has {entries} entries", f"at most {MAX_ENTRIES}")


def _bad_topic(field_name: str, topic: str) -> InvalidRequestError:
    if not topic:
        return InvalidRequestError(field_name, "is empty", "the name of a topic")
    return _too_long(field_name, topic)


def _too_long(field_name: str, name: str) -> InvalidRequestError:
    return InvalidRequestError(field_name, f"has {len(name)} characters", f"at most {MAX_NAME_LENGTH}")


def _out_of_bounds(field_name: str, amount: int, maximum: int) -> InvalidRequestError:
    return InvalidRequestError(field_name, f"is {amount}", f"an integer from 0 to {maximum}")
