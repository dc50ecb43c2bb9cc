"""The request event: what a gateway publishes about one request it served (DESIGN, "Request event")."""

from dataclasses import dataclass, field

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


@dataclass(slots=True)
class TopicPartition:
    """Bytes a Produce request wrote to, or a Fetch request read from, one partition."""

    topic: str
    partition: int
    bytes: int = 0


@dataclass(slots=True)
class Mutation:
    """Partitions a request creates in, adds to or deletes with one topic."""

    topic: str
    partitions: int


@dataclass(slots=True)
class Request:
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
    topic_partitions: list[TopicPartition] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)


def check_request(request: Request) -> None:
    """Raises InvalidRequestError, naming the field, unless every amount and name is within its bounds."""
    if not request.api:
        raise InvalidRequestError("api", "is empty", "the name of a Kafka API such as Produce")
    for field_name, name in (
        ("api", request.api),
        ("user", request.user),
        ("client_id", request.client_id),
        ("request_id", request.request_id),
        ("gateway", request.gateway),
    ):
        if name is not None and len(name) > MAX_NAME_LENGTH:
            raise _too_long(field_name, name)
    for field_name, amount, maximum in (
        ("timestamp_ms", request.timestamp_ms, MAX_TIMESTAMP_MS),
        ("api_version", request.api_version, MAX_INT16),
        ("request_time_ns", request.request_time_ns, MAX_EXACT),
        ("network_time_ns", request.network_time_ns, MAX_EXACT),
        ("purgatory_ms", request.purgatory_ms, MAX_INT32),
    ):
        if amount is not None and not 0 <= amount <= maximum:
            raise _out_of_bounds(field_name, amount, maximum)
    if request.topic_partitions:
        _check_topic_partitions(request.topic_partitions)
    if request.mutations:
        _check_mutations(request.mutations)


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
