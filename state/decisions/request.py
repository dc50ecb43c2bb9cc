"""The request event, which a gateway publishes for each request it serves, and its bounds."""

import msgspec

from state.errors import InvalidRequestError

MAX_NAME_LENGTH = 32_767
"""Longest user, client-id or topic name: the longest string that a Kafka request header can carry."""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest time that every table and client can display."""

MAX_EXACT = 2**53
"""Largest amount up to which a double represents every integer."""

MAX_ENTRIES = 10_000
"""Most topic-partitions or mutations of one request, so that its decision fits into a Kafka record."""

MAX_INT32 = 2**31 - 1
MAX_INT16 = 2**15 - 1


class TopicPartition(msgspec.Struct, gc=False):
    """Bytes that a Produce request wrote to one partition, or that a Fetch request read from it."""

    topic: str
    partition: int
    bytes: int = 0


class Mutation(msgspec.Struct, gc=False):
    """Partitions of one topic that a request creates, adds or deletes."""

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
    check_amounts(request)
    check_lengths(request)


def check_amounts(request: Request) -> None:
    """Raises InvalidRequestError unless every amount is within its bounds and no required name is empty."""
    if not request.api:
        raise InvalidRequestError("api", "is empty", "the name of a Kafka API such as Produce")
    if request.timestamp_ms is not None and not 0 <= request.timestamp_ms <= MAX_TIMESTAMP_MS:
        raise _out_of_bounds("timestamp_ms", request.timestamp_ms, MAX_TIMESTAMP_MS)
    if request.api_version is not None and not 0 <= request.api_version <= MAX_INT16:
        raise _out_of_bounds("api_version", request.api_version, MAX_INT16)
    if request.request_time_ns is not None and not 0 <= request.request_time_ns <= MAX_EXACT:
        raise _out_of_bounds("request_time_ns", request.request_time_ns, MAX_EXACT)
    if request.network_time_ns is not None and not 0 <= request.network_time_ns <= MAX_EXACT:
        raise _out_of_bounds("network_time_ns", request.network_time_ns, MAX_EXACT)
    if not 0 <= request.purgatory_ms <= MAX_INT32:
        raise _out_of_bounds("purgatory_ms", request.purgatory_ms, MAX_INT32)
    if request.topic_partitions:
        _check_topic_partitions(request.topic_partitions)
    if request.mutations:
        _check_mutations(request.mutations)


def check_lengths(request: Request) -> None:
    """Raises InvalidRequestError for names and lists that are too long. A short event needs no such check."""
    for field_name in ("api", "user", "client_id", "request_id", "gateway"):
        _check_length(field_name, getattr(request, field_name))
    for field_name in ("topic_partitions", "mutations"):
        touched = getattr(request, field_name)
        if len(touched) > MAX_ENTRIES:
            raise InvalidRequestError(field_name, f"has {len(touched)} entries", f"at most {MAX_ENTRIES}")
        for index, entry in enumerate(touched):
            _check_length(f"{field_name}[{index}].topic", entry.topic)


def _check_length(field_name: str, name: str | None) -> None:
    if name is not None and len(name) > MAX_NAME_LENGTH:
        raise InvalidRequestError(field_name, f"has {len(name)} characters", f"at most {MAX_NAME_LENGTH}")


def _check_topic_partitions(topic_partitions: list[TopicPartition]) -> None:
    for index, touched in enumerate(topic_partitions):
        if not touched.topic:
            raise _no_topic(f"topic_partitions[{index}].topic")
        if not 0 <= touched.partition <= MAX_INT32:
            raise _out_of_bounds(f"topic_partitions[{index}].partition", touched.partition, MAX_INT32)
        if not 0 <= touched.bytes <= MAX_EXACT:
            raise _out_of_bounds(f"topic_partitions[{index}].bytes", touched.bytes, MAX_EXACT)


def _check_mutations(mutations: list[Mutation]) -> None:
    for index, mutation in enumerate(mutations):
        if not mutation.topic:
            raise _no_topic(f"mutations[{index}].topic")
        if not 0 <= mutation.partitions <= MAX_INT32:
            raise _out_of_bounds(f"mutations[{index}].partitions", mutation.partitions, MAX_INT32)


def _no_topic(field_name: str) -> InvalidRequestError:
    return InvalidRequestError(field_name, "is empty", "the name of a topic")


def _out_of_bounds(field_name: str, amount: int, maximum: int) -> InvalidRequestError:
    return InvalidRequestError(field_name, f"is {amount}", f"an integer from 0 to {maximum}")
