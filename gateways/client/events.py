"""Request events as a gateway publishes them: from what it was handed to what fits into a record."""

from collections.abc import Iterator, Mapping

import msgspec

from state.decisions.charge_plan import MUTATION_APIS, is_strict
from state.decisions.request import MAX_INT32, Request
from state.errors import InvalidRequestError


def as_request(request: Request | Mapping[str, object]) -> Request:
    """The event, as a Request. Raises InvalidRequestError for a mapping that is none."""
    if isinstance(request, Request):
        return request
    try:
        return msgspec.convert(dict(request), Request)
    except msgspec.ValidationError as error:
        raise InvalidRequestError("event", str(error), "the fields of the request event contract") from None


def parts_of(event: Request, most: int) -> Iterator[Request]:
    """The event, or several that charge the same: each has at most `most` topic-partitions, the first has the times.

    Raises InvalidRequestError for too many mutations: their decision must see all of them.
    """
    if len(event.mutations) > most:
        raise InvalidRequestError("mutations", f"has {len(event.mutations)} entries", f"at most {most}")
    if len(event.topic_partitions) <= most:
        yield event
        return
    for number, start in enumerate(range(0, len(event.topic_partitions), most), 1):
        part = msgspec.structs.replace(
            event,
            request_id=f"{event.request_id}-{number}",
            topic_partitions=event.topic_partitions[start : start + most],
        )
        if number > 1:
            part.request_time_ns = part.network_time_ns = part.mutations_charged = None
            part.mutations = []
        yield part


def asks_for_mutations(event: Request) -> bool:
    """Whether topics of this request can be refused."""
    return bool(event.mutations) and event.api in MUTATION_APIS and is_strict(event)


def as_executed(event: Request, refused: tuple[bool, ...]) -> None:
    """Turn mutations that were asked for into those that are executed, which the job charges and never refuses."""
    flags = refused or (False,) * len(event.mutations)
    executed = sum(mutation.partitions for mutation, flag in zip(event.mutations, flags, strict=True) if not flag)
    event.mutations, event.mutations_charged = [], min(executed, MAX_INT32)
