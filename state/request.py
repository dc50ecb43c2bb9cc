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
    _check_name("api", request.api)
    if not request.api:
        raise InvalidRequestError("api", "is empty", "the name of a Kafka API such as Produce")
    for name in ("user", "client_id", "request_id", "gateway"):
        _check_name(name, getattr(request, name))
    _check_amount("timestamp_ms", request.timestamp_ms, MAX_TIMESTAMP_MS)
    _check_amount("api_version", request.api_version, MAX_INT16)
    _check_amount("request_time_ns", request.request_time_ns, MAX_EXACT)
    _check_amount("network_time_ns", request.network_time_ns, MAX_EXACT)
    _check_amount("purgatory_ms", request.purgatory_ms, MAX_INT32)
    for name in ("topic_partitions", "mutations"):
        entries = len(getattr(request, name))
        if entries > MAX_ENTRIES:
            raise InvalidRequestError(name, f"has {entries} entries", f"at most {MAX_ENTRIES}")
    for index, touched in enumerate(request.topic_partitions):
        _check_topic(f"topic_partitions[{index}].topic", touched.topic)
        _check_amount(f"topic_partitions[{index}].partition", touched.partition, MAX_INT32)
        _check_amount(f"topic_partitions[{index}].bytes", touched.bytes, MAX_EXACT)
    for index, mutation in enumerate(request.mutations):
        _check_topic(f"mutations[{index}].topic", mutation.topic)
        _check_amount(f"mutations[{index}].partitions", mutation.partitions, MAX_INT32)


def _check_name(field_name: str, name: str | None) -> None:
    if name is not None and len(name) > MAX_NAME_LENGTH:
        raise InvalidRequestError(field_name, f"has {len(name)} characters", f"at most {MAX_NAME_LENGTH}")


def _check_topic(field_name: str, topic: str) -> None:
    if not topic:
        raise InvalidRequestError(field_name, "is empty", "the name of a topic")
    _check_name(field_name, topic)


def _check_amount(field_name: str, amount: int | None, maximum: int) -> None:
    if amount is not None and not 0 <= amount <= maximum:
        raise InvalidRequestError(field_name, f"is {amount}", f"an integer from 0 to {maximum}")
