"""Bounds of events and control records: every error names the field, the problem and what would be right."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sluice.state.contract.records import (
    HEARTBEAT_API,
    MAX_APPLIED_MS,
    MAX_APPLIED_WAITS,
    MAX_ENTRIES,
    MAX_EXACT,
    MAX_INT16,
    MAX_INT32,
    MAX_LOG_DIRS,
    MAX_NAME_LENGTH,
    MAX_SHARES,
    MAX_TIMESTAMP_MS,
    MAX_UNLIMITED,
    MAX_VALUE,
    MUTATIONS_PER_CHARGE,
    AppliedWait,
    CountedEntity,
    Heartbeat,
    Load,
    Mutation,
    Request,
    TopicPartition,
    UnlimitedClient,
    Unmute,
    UnmutedEntity,
)
from sluice.state.decisions.charge_plan import BYTE_APIS
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.kinds import CLIENT_KINDS, TOPIC_KINDS


class EventLimits(NamedTuple):
    """Bounds that protect the job: size of an event, its charges, and how far its time may lie from its record's.

    `max_age_ms` and `max_ahead_ms` are from the job's time: tables take no row beyond, whatever the record's time says.
    """

    max_event_bytes: int
    max_future_ms: int
    max_past_ms: int = MAX_TIMESTAMP_MS
    max_charges: int = MAX_ENTRIES
    max_age_ms: int = MAX_TIMESTAMP_MS
    max_ahead_ms: int = MAX_TIMESTAMP_MS


def bound_waits(request: Request) -> None:
    """Shorten the waits that the event reports to MAX_APPLIED_MS."""
    for wait in request.throttled_by or ():
        wait.ms = min(wait.ms, MAX_APPLIED_MS)
    for share in request.heartbeat.shares if request.heartbeat else ():
        share.throttle_ms = min(share.throttle_ms, MAX_APPLIED_MS)


def most_mutations(max_charges: int) -> int:
    """Most mutations of an event that may have this many charges.

    >>> most_mutations(50), most_mutations(10_000)
    (1000, 10000)
    """
    return min(MUTATIONS_PER_CHARGE * max_charges, MAX_ENTRIES)


def check_amounts(request: Request) -> None:
    """Raise InvalidRequestError, naming the field, for amounts out of bounds and empty names in fields of any event."""
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
    """Raise InvalidRequestError for names and lists that are too long, and for names that JSON in UTF-8 can't carry.

    A short event needs no such check if its names are ASCII or were read from JSON.
    """
    for field_name in ("api", "user", "client_id", "request_id", "gateway", "instance"):
        _check_length(field_name, getattr(request, field_name))
    for field_name in ("topic_partitions", "mutations"):
        touched = getattr(request, field_name)
        if len(touched) > MAX_ENTRIES:
            raise InvalidRequestError(field_name, f"has {len(touched)} entries", f"at most {MAX_ENTRIES}")
        for index, entry in enumerate(touched):
            _check_length(f"{field_name}[{index}].topic", entry.topic)
    load = request.heartbeat.load if request.heartbeat else None
    for index, log_dir in enumerate(load.log_dirs if load else ()):
        _check_length(f"heartbeat.load.log_dirs[{index}].path", log_dir.path)
    _check_length("heartbeat.release", request.heartbeat.release if request.heartbeat else None)
    for index, client in enumerate(request.heartbeat.unlimited if request.heartbeat else ()):
        _check_length(f"heartbeat.unlimited[{index}].user", client.user)
        _check_length(f"heartbeat.unlimited[{index}].client_id", client.client_id)
    for path, quota, entity in _named_counters(request):
        for part, name in (("quota", quota), *((f"entity.{part}", name) for part, name in _names(entity))):
            _check_length(f"{path}.{part}", name)


def check_unmute(unmute: Unmute) -> None:
    """Raise InvalidRequestError, naming the field, unless it names one entity and a quota that this can have."""
    _check_unmuted(unmute.entity)
    if unmute.request_id is not None and len(unmute.request_id) > MAX_NAME_LENGTH:
        raise InvalidRequestError(
            "request_id", f"has {len(unmute.request_id)} characters", f"at most {MAX_NAME_LENGTH}"
        )
    known = CLIENT_KINDS if unmute.entity.topic is None else TOPIC_KINDS
    if unmute.quota is not None and unmute.quota not in known:
        raise InvalidRequestError("quota", f"is {unmute.quota[:100]!r}", f"one of {', '.join(known)}")


def _check_unmuted(entity: UnmutedEntity) -> None:
    for part in ("user", "client_id", "topic", "tenant"):
        name = getattr(entity, part)
        if name is not None and not 0 < len(name) <= MAX_NAME_LENGTH:
            raise InvalidRequestError(
                f"entity.{part}", f"has {len(name)} characters", f"a name of 1 to {MAX_NAME_LENGTH} characters"
            )
    is_client = entity.user is not None or entity.client_id is not None
    if entity.tenant is not None and (is_client or entity.topic is not None):
        raise InvalidRequestError("entity.tenant", "comes with another entity", "a tenant alone")
    if entity.topic is None:
        if not is_client and entity.tenant is None:
            raise InvalidRequestError(
                "entity", "names nobody", "a user, a client_id, both, a topic and a partition, or a tenant"
            )
        if entity.partition is not None:
            raise InvalidRequestError("entity.partition", "comes without a topic", "a topic and a partition")
    elif is_client:
        raise InvalidRequestError("entity.topic", "comes with a client", "a client, or a topic and a partition")
    elif entity.partition is None or not 0 <= entity.partition <= MAX_INT32:
        raise InvalidRequestError("entity.partition", f"is {entity.partition}", f"an integer from 0 to {MAX_INT32}")


def check_gateway_fields(request: Request) -> None:
    """Raise it also for the fields of gateways that charge inline, or that see sums and not requests."""
    if request.requests != 1 and not 1 <= request.requests <= MAX_INT32:
        raise InvalidRequestError("requests", f"is {request.requests}", f"an integer from 1 to {MAX_INT32}")
    if request.bytes is not None:
        _check_bytes(request, request.bytes)
    if request.mutations_charged is not None:
        _check_mutations_charged(request, request.mutations_charged)
    if request.throttled_by:
        _check_applied_waits(request.throttled_by)
    if request.heartbeat is not None:
        _check_heartbeat(request, request.heartbeat)


def _check_length(field_name: str, name: str | None) -> None:
    if name is not None and len(name) > MAX_NAME_LENGTH:
        raise InvalidRequestError(field_name, f"has {len(name)} characters", f"at most {MAX_NAME_LENGTH}")
    if name is not None and not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidRequestError(field_name, "has half of a surrogate pair", "a text in Unicode") from None


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


def _check_bytes(request: Request, amount: int) -> None:
    if not 0 <= amount <= MAX_EXACT:
        raise _out_of_bounds("bytes", amount, MAX_EXACT)
    if request.api not in BYTE_APIS:
        raise InvalidRequestError("bytes", f"comes with api {request.api[:100]!r}", f"api {' or '.join(BYTE_APIS)}")
    if amount and request.topic_partitions:
        expected = "0, or one of them: topic_partitions have the bytes"
        raise InvalidRequestError("bytes", f"is {amount} with topic_partitions", expected)


def _check_mutations_charged(request: Request, amount: int) -> None:
    if not 0 <= amount <= MAX_INT32:
        raise _out_of_bounds("mutations_charged", amount, MAX_INT32)
    if request.mutations:
        raise InvalidRequestError("mutations_charged", "comes with mutations", "one of them: executed or to decide")


def _check_applied_waits(waits: list[AppliedWait]) -> None:
    if len(waits) > MAX_APPLIED_WAITS:
        raise InvalidRequestError("throttled_by", f"has {len(waits)} entries", f"at most {MAX_APPLIED_WAITS}")
    for index, wait in enumerate(waits):
        path = f"throttled_by[{index}]"
        _check_counter(path, wait.quota, wait.entity)
        if wait.ms < 0:
            raise InvalidRequestError(f"{path}.ms", f"is {wait.ms}", "an integer from 0")


def _check_heartbeat(request: Request, heartbeat: Heartbeat) -> None:
    if request.api != HEARTBEAT_API:
        raise InvalidRequestError("heartbeat", f"comes with api {request.api[:100]!r}", f"api {HEARTBEAT_API}")
    if not 0 <= heartbeat.staleness_ms <= MAX_EXACT:
        raise _out_of_bounds("heartbeat.staleness_ms", heartbeat.staleness_ms, MAX_EXACT)
    if not 0 <= heartbeat.counters <= MAX_INT32:
        raise _out_of_bounds("heartbeat.counters", heartbeat.counters, MAX_INT32)
    if not 0 <= heartbeat.threads_down <= MAX_INT32:
        raise _out_of_bounds("heartbeat.threads_down", heartbeat.threads_down, MAX_INT32)
    if len(heartbeat.shares) > MAX_SHARES:
        raise InvalidRequestError("heartbeat.shares", f"has {len(heartbeat.shares)} entries", f"at most {MAX_SHARES}")
    for index, share in enumerate(heartbeat.shares):
        path = f"heartbeat.shares[{index}]"
        _check_counter(path, share.quota, share.entity)
        for field_name in ("limit", "share", "throttle_ms"):  # `charged` may be below 0 by rounding
            if getattr(share, field_name) < 0:
                problem = f"is {getattr(share, field_name)}"
                raise InvalidRequestError(f"{path}.{field_name}", problem, "a number from 0")
    if heartbeat.load is not None:
        _check_load(heartbeat.load)
    _check_unlimited(heartbeat.unlimited)


def _check_unlimited(clients: Sequence[UnlimitedClient]) -> None:
    if len(clients) > MAX_UNLIMITED:
        raise InvalidRequestError("heartbeat.unlimited", f"has {len(clients)} entries", f"at most {MAX_UNLIMITED}")
    for index, client in enumerate(clients):
        _check_rates(f"heartbeat.unlimited[{index}]", client, ("bytes_in_per_s", "bytes_out_per_s"), MAX_VALUE)


def _check_load(load: Load) -> None:
    if load.broker_id is not None and not 0 <= load.broker_id <= MAX_INT32:
        raise _out_of_bounds("heartbeat.load.broker_id", load.broker_id, MAX_INT32)
    for field_names, most in (
        (("bytes_in_per_s", "bytes_out_per_s", "queue_wait_ms"), MAX_VALUE),
        (("handler_idle", "network_idle", "queue_used"), 1.0),
    ):
        _check_rates("heartbeat.load", load, field_names, most)
    if len(load.log_dirs) > MAX_LOG_DIRS:
        problem = f"has {len(load.log_dirs)} entries"
        raise InvalidRequestError("heartbeat.load.log_dirs", problem, f"at most {MAX_LOG_DIRS}")
    for index, log_dir in enumerate(load.log_dirs):
        path = f"heartbeat.load.log_dirs[{index}]"
        if not log_dir.path:
            raise InvalidRequestError(f"{path}.path", "is empty", "a folder such as /var/lib/kafka")
        for field_name in ("free_bytes", "total_bytes"):
            if not 0 <= getattr(log_dir, field_name) <= MAX_EXACT:
                raise _out_of_bounds(f"{path}.{field_name}", getattr(log_dir, field_name), MAX_EXACT)


def _check_rates(path: str, measured: Load | UnlimitedClient, field_names: Sequence[str], most: float) -> None:
    for field_name in field_names:
        figure = getattr(measured, field_name)
        if figure is not None and not 0 <= figure <= most:
            raise InvalidRequestError(f"{path}.{field_name}", f"is {figure}", f"a number from 0 to {most:g}")


def _check_counter(path: str, quota: str, entity: CountedEntity) -> None:
    if not quota:
        raise InvalidRequestError(f"{path}.quota", "is empty", "the key of a quota such as producer_byte_rate")
    if entity == CountedEntity():
        raise InvalidRequestError(f"{path}.entity", "names nobody", "the entity of a charge such as {'user': 'alice'}")
    if entity.partition is not None and not 0 <= entity.partition <= MAX_INT32:
        raise _out_of_bounds(f"{path}.entity.partition", entity.partition, MAX_INT32)


def _named_counters(request: Request) -> Iterator[tuple[str, str, CountedEntity]]:
    """Path, quota and entity of each counter that the event names."""
    for index, wait in enumerate(request.throttled_by or ()):
        yield f"throttled_by[{index}]", wait.quota, wait.entity
    for index, share in enumerate(request.heartbeat.shares if request.heartbeat else ()):
        yield f"heartbeat.shares[{index}]", share.quota, share.entity


def _names(entity: CountedEntity) -> tuple[tuple[str, str | None], ...]:
    return ("user", entity.user), ("client_id", entity.client_id), ("topic", entity.topic), ("tenant", entity.tenant)


def _no_topic(field_name: str) -> InvalidRequestError:
    return InvalidRequestError(field_name, "is empty", "the name of a topic")


def _out_of_bounds(field_name: str, amount: int, maximum: int) -> InvalidRequestError:
    return InvalidRequestError(field_name, f"is {amount}", f"an integer from 0 to {maximum}")
