"""Parsing request events: JSON bytes to a checked request, or an error that names the wrong field."""

import json
import re
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from sluice.state.contract.decision_id import decision_id
from sluice.state.contract.records import MAX_NAME_LENGTH, MAX_TIMESTAMP_MS, Mutation, Request, TopicPartition, Unmute
from sluice.state.decisions.checks import (
    EventLimits,
    bound_waits,
    check_amounts,
    check_gateway_fields,
    check_lengths,
    check_unmute,
    most_mutations,
)
from sluice.state.errors import UNREADABLE, InvalidRequestError
from sluice.streaming.enforce.wire import Source

_BOUNDS = {"minimum": "ge", "maximum": "le", "minLength": "min_length"}


def _bounded(kind: Any) -> Any:
    """The type with the bounds that its JSON schema has for numbers and required names, which structs only describe."""
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        schemas = [meta.extra_json_schema or {} for meta in arguments[1:]]
        bounds = {_BOUNDS[name]: bound for schema in schemas for name, bound in schema.items() if name in _BOUNDS}
        return Annotated[_bounded(arguments[0]), msgspec.Meta(**bounds)]
    if get_origin(kind) is list:
        return GenericAlias(list, _bounded(arguments[0]))
    if arguments:
        return reduce(or_, map(_bounded, arguments))
    if kind not in (Request, TopicPartition, Mutation):  # rare structs are checked, whoever decodes them
        return kind
    fields: list[tuple[str, Any, Any]] = []
    for each in msgspec.structs.fields(kind):
        default: dict[str, Any] = {"default": each.default, "default_factory": each.default_factory}
        fields.append((each.name, _bounded(each.type), msgspec.field(**default)))
    return msgspec.defstruct(kind.__name__, fields, bases=(kind,))


BOUNDED: msgspec.json.Decoder[Request] = msgspec.json.Decoder(_bounded(Request))
"""Refuses amounts out of bounds, too, but its errors don't say them as `checks` does."""

_DECODER = msgspec.json.Decoder(Request)
_UNMUTE = msgspec.json.Decoder(Unmute)

RecordT = TypeVar("RecordT", Request, Unmute)

_CONTROL = b'"control"'
"""Bytes that every control record contains."""


class _Marks(msgspec.Struct):
    """The fields that tell a control record from an event."""

    control: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    api: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_MARKS = msgspec.json.Decoder(_Marks)

# The wording of msgspec's errors. tests/unit/test_events.py pins it, for upgrades of msgspec.
_VALIDATION_MESSAGE = re.compile(r"Expected `(?P<expected>.+?)`, got `(?P<found>.+?)`(?: - at `\$\.?(?P<path>.*)`)?$")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.+?)`(?: - at `\$\.?(?P<path>.*)`)?$")
_OTHER_MESSAGE = re.compile(r"(?P<problem>.+?)(?: - at `\$\.?(?P<path>.*)`)?$")


def parse_event(value: bytes | None, source: Source, limits: EventLimits) -> Request | Unmute:
    """The request of one event, or the control record of an operator. Raises InvalidRequestError.

    A control record has the field `control` and no `api`. No valid event lacks `api`, so neither can pass for the
    other, whatever unknown fields an event has.
    """
    try:
        return parse_request(value, source, limits)
    except InvalidRequestError:
        if value is None or len(value) > limits.max_event_bytes or not _is_control(value):
            raise
    unmute = _decoded(_UNMUTE, value)
    check_unmute(unmute)
    if unmute.request_id is None:
        unmute.request_id = decision_id(source.topic, source.partition, source.offset)
    return unmute


def parse_request(value: bytes | None, source: Source, limits: EventLimits) -> Request:
    """The request of one event, with the contract's defaults filled in. Raises InvalidRequestError."""
    if value is None:
        raise InvalidRequestError("value", "is null", "a JSON object")
    if len(value) > limits.max_event_bytes:
        raise InvalidRequestError("value", f"has {len(value)} bytes", f"at most {limits.max_event_bytes}")
    request = _decode(value, limits)
    check_gateway_fields(request)
    if len(value) > MAX_NAME_LENGTH:  # in a shorter event no name or list can be too long
        check_lengths(request)
    if request.throttled_by or request.heartbeat:
        bound_waits(request)
    if request.timestamp_ms is None:
        request.timestamp_ms = _record_time(source)
    else:
        ahead_ms = request.timestamp_ms - source.timestamp_ms
        _check_distance(ahead_ms, "its record", limits.max_future_ms, limits.max_past_ms)
    if request.request_id is None:
        request.request_id = decision_id(source.topic, source.partition, source.offset)
    return request


def _is_control(value: bytes) -> bool:
    if _CONTROL not in value:
        return False
    try:
        marks = _MARKS.decode(value)
    except UNREADABLE:
        return False
    return marks.control is not msgspec.UNSET and marks.api is msgspec.UNSET


def _record_time(source: Source) -> int:
    """The record's time in epoch milliseconds; its producer may set any. Raises InvalidRequestError."""
    if not 0 <= source.timestamp_ms <= MAX_TIMESTAMP_MS:
        raise InvalidRequestError(
            "timestamp_ms",
            f"is missing, and its record's time is {source.timestamp_ms}",
            f"one of them from 0 to {MAX_TIMESTAMP_MS}",
        )
    return source.timestamp_ms


def check_near_job_time(request: Request, decided_at_ms: int, limits: EventLimits) -> None:
    """Raises InvalidRequestError for an event whose time lies too far from the job's.

    `parse_event` compares with the record's time, which a producer may set as well. Each day of event time is a
    partition of the table `quota_metrics`, so a few thousand old events would make thousands.
    """
    if request.timestamp_ms is not None:
        _check_distance(request.timestamp_ms - decided_at_ms, "the job's time", limits.max_ahead_ms, limits.max_age_ms)


def _check_distance(ahead_ms: int, of: str, most_ahead_ms: int, most_before_ms: int) -> None:
    """Raises InvalidRequestError for an event whose time lies too far from another one."""
    if ahead_ms > most_ahead_ms:
        raise InvalidRequestError("timestamp_ms", f"lies {ahead_ms} ms ahead of {of}", f"at most {most_ahead_ms} ms")
    if -ahead_ms > most_before_ms:
        raise InvalidRequestError("timestamp_ms", f"lies {-ahead_ms} ms before {of}", f"at most {most_before_ms} ms")


def _too_many(field: str, entries: int, most: int) -> InvalidRequestError:
    return InvalidRequestError(field, f"has {entries} entries", f"at most {most}")


def _decode(value: bytes, limits: EventLimits) -> Request:
    """The request, if its charges and amounts are allowed. One that BOUNDED refuses is checked field by field."""
    try:
        request = BOUNDED.decode(value)
    except UNREADABLE:
        request = _decoded(_DECODER, value)
        _check_charges(request, limits)
        check_amounts(request)
    else:
        _check_charges(request, limits)
    return request


def _check_charges(request: Request, limits: EventLimits) -> None:
    """Raises InvalidRequestError for an event that would take the micro-batch for itself."""
    if len(request.topic_partitions) > limits.max_charges:
        raise _too_many("topic_partitions", len(request.topic_partitions), limits.max_charges)
    if len(request.mutations) > limits.max_charges and len(request.mutations) > most_mutations(limits.max_charges):
        raise _too_many("mutations", len(request.mutations), most_mutations(limits.max_charges))


def _decoded(decoder: "msgspec.json.Decoder[RecordT]", value: bytes) -> RecordT:
    """The record in these bytes. Raises InvalidRequestError, which says why they have none."""
    try:
        return decoder.decode(value)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except msgspec.DecodeError as error:
        if _has_half_of_a_pair(value):  # the decoder would say that it is truncated
            raise InvalidRequestError(
                "value", "has half of a surrogate pair, which is not Unicode", "a JSON object whose texts are Unicode"
            ) from None
        raise InvalidRequestError("value", f"is not JSON ({error})", "a JSON object") from None
    except UnicodeDecodeError:
        raise InvalidRequestError("value", "is not UTF-8", "a JSON object in UTF-8") from None
    except RecursionError:
        raise InvalidRequestError("value", "is nested too deeply", "a JSON object as the contract has it") from None


def _has_half_of_a_pair(value: bytes) -> bool:
    r"""True if it is JSON with an escape such as `\ud800` alone, which no UTF-8 can carry on.

    >>> [_has_half_of_a_pair(value) for value in (rb'"\ud83d"', rb'"\ud83d\ude00"', b'"')]
    [True, False, False]
    """
    try:
        json.dumps(json.loads(value), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _invalid_field(message: str) -> InvalidRequestError:
    """The error with field, problem and expectation of the decoder's message."""
    if match := _VALIDATION_MESSAGE.match(message):
        return InvalidRequestError(match["path"] or "value", f"is of type {match['found']}", match["expected"])
    if match := _MISSING_FIELD.match(message):
        path = f"{match['path']}.{match['name']}" if match["path"] else match["name"]
        return InvalidRequestError(path, "is missing", "a value")
    other = _OTHER_MESSAGE.match(message)
    path, problem = (other["path"], other["problem"]) if other else (None, message)
    return InvalidRequestError(path or "value", f"can't be read ({problem})", "a value as the contract has it")
