"""Parsing request events: JSON bytes to a checked request, or an error that says which field is wrong."""

import re
from typing import NamedTuple

import msgspec

from state.errors import InvalidRequestError
from state.request import MAX_NAME_LENGTH, Request, check_amounts, check_lengths

_DECODER = msgspec.json.Decoder(Request)
_VALIDATION_MESSAGE = re.compile(r"Expected `(?P<expected>.+?)`, got `(?P<found>.+?)`(?: - at `\$\.?(?P<path>.*)`)?$")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.+?)`(?: - at `\$\.?(?P<path>.*)`)?$")
_PLACE = re.compile(r"(?P<problem>.+?)(?: - at `\$\.?(?P<path>.*)`)?$")


class Source(msgspec.Struct, frozen=True, gc=False):
    """Where an event came from: its Kafka record."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def record_id(self) -> str:
        """`topic-partition-offset`: the identity of the event and of the decision on it."""
        return f"{self.topic}-{self.partition}-{self.offset}"


class EventLimits(NamedTuple):
    """Bounds that protect the job: size of an event, and how far its time may lie ahead of its record's."""

    max_event_bytes: int
    max_future_ms: int


def parse_request(value: bytes | None, source: Source, limits: EventLimits) -> Request:
    """The request of one event, with the contract's defaults filled in. Raises InvalidRequestError."""
    if value is None:
        raise InvalidRequestError("value", "is null", "a JSON object")
    if len(value) > limits.max_event_bytes:
        raise InvalidRequestError("value", f"has {len(value)} bytes", f"at most {limits.max_event_bytes}")
    request = _decode(value)
    check_amounts(request)
    if len(value) > MAX_NAME_LENGTH:  # a shorter event has no room for a name or list that is too long
        check_lengths(request)
    if request.timestamp_ms is None:
        request.timestamp_ms = source.timestamp_ms
    elif request.timestamp_ms > source.timestamp_ms + limits.max_future_ms:
        ahead_ms = request.timestamp_ms - source.timestamp_ms
        raise InvalidRequestError(
            "timestamp_ms", f"lies {ahead_ms} ms ahead of its record", f"at most {limits.max_future_ms} ms"
        )
    if request.request_id is None:
        request.request_id = source.record_id()
    return request


def _decode(value: bytes) -> Request:
    try:
        return _DECODER.decode(value)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequestError("value", f"is not JSON ({error})", "a JSON object") from None
    except UnicodeDecodeError:
        raise InvalidRequestError("value", "is not UTF-8", "a JSON object in UTF-8") from None
    except RecursionError:
        raise InvalidRequestError("value", "is nested too deeply", "a JSON object as the contract has it") from None


def _invalid_field(message: str) -> InvalidRequestError:
    """The decoder's message as field, problem and expectation."""
    if match := _VALIDATION_MESSAGE.match(message):
        return InvalidRequestError(match["path"] or "value", f"is of type {match['found']}", match["expected"])
    if match := _MISSING_FIELD.match(message):
        path = f"{match['path']}.{match['name']}" if match["path"] else match["name"]
        return InvalidRequestError(path, "is missing", "a value")
    place = _PLACE.match(message)
    path, problem = (place["path"], place["problem"]) if place else (None, message)
    return InvalidRequestError(path or "value", f"can't be read ({problem})", "a value as the contract has it")
