"""Request events as a gateway publishes them: checked, and divided so that each fits into a record."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from sluice.state.contract.records import MAX_NAME_LENGTH, Mutation, Request, TopicPartition
from sluice.state.decisions.charge_plan import MUTATION_APIS, charged_mutations, is_strict
from sluice.state.decisions.checks import check_amounts, check_gateway_fields, check_lengths, most_mutations
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.kinds import QuotaSettings

_EVENT_FIELDS = frozenset(Request.__struct_fields__)
_ENTRY_FIELDS = {
    "topic_partitions": frozenset(TopicPartition.__struct_fields__),
    "mutations": frozenset(Mutation.__struct_fields__),
}

SHORT_ENTRIES = 20
"""Number of topic-partitions and mutations up to which an event may be a short one."""


def as_request(request: Request | Mapping[str, object]) -> Request:
    """The event as a Request. Raises InvalidRequestError for a mapping that breaks the contract.

    A field that no event has is refused too: events of a later release may have one, but a request with a misspelt
    field would be served without a charge.
    """
    if isinstance(request, Request):
        return request
    fields = dict(request)
    _check_fields(fields)
    try:
        return msgspec.convert(fields, Request)
    except msgspec.ValidationError as error:
        raise InvalidRequestError("event", str(error), "the fields of the request event contract") from None


def _check_fields(fields: Mapping[str, object]) -> None:
    """Raises InvalidRequestError for the first field that no event has, naming the nearest one."""
    if not fields.keys() <= _EVENT_FIELDS:
        raise _unknown_field("", fields, _EVENT_FIELDS)
    for name, known in _ENTRY_FIELDS.items():
        entries = fields.get(name)
        for index, entry in enumerate(entries if isinstance(entries, Sequence) else ()):
            if isinstance(entry, Mapping) and not entry.keys() <= known:
                raise _unknown_field(f"{name}[{index}].", entry, known)


def _unknown_field(path: str, fields: Mapping[str, object], known: Collection[str]) -> InvalidRequestError:
    name = next(str(field)[:100] for field in fields if field not in known)
    nearest = get_close_matches(name, known, n=1) or sorted(known)
    return InvalidRequestError(f"{path}{name}", "is no field of an event", ", ".join(nearest))


def checked_events(event: Request, most: int) -> Sequence[Request]:
    """The event, or several that charge the same: each has at most `most` topic-partitions.

    The first of them has the times, the mutations, and the number of requests.

    Raises InvalidRequestError if anything breaks the contract, and for too many mutations: their decision must see all
    of them.
    """
    if len(event.mutations) > most_mutations(most):
        raise InvalidRequestError("mutations", f"has {len(event.mutations)} entries", f"at most {most_mutations(most)}")
    events = (event,) if len(event.topic_partitions) <= most else tuple(_divided(event, most))
    for each in events:
        check_amounts(each)
        check_gateway_fields(each)
        if not _is_short(each):
            check_lengths(each)
    return events


def _is_short(event: Request) -> bool:
    """True if no name and no list of the event can be too long, and all names are ASCII.

    The whole check takes longer than charging the event.
    """
    if event.throttled_by or event.heartbeat or len(event.topic_partitions) + len(event.mutations) > SHORT_ENTRIES:
        return False
    names = f"{event.api}{event.user}{event.client_id}{event.request_id}"
    for touched in event.topic_partitions:
        names += touched.topic
    for mutation in event.mutations:
        names += mutation.topic
    characters = len(names) + len(event.gateway or "") + len(event.instance or "")
    return characters <= MAX_NAME_LENGTH and names.isascii()


def _divided(event: Request, most: int) -> Iterator[Request]:
    for number, start in enumerate(range(0, len(event.topic_partitions), most), 1):
        one = msgspec.structs.replace(
            event,
            request_id=f"{event.request_id}-{number}",
            topic_partitions=event.topic_partitions[start : start + most],
        )
        if number > 1:
            one.request_time_ns = one.network_time_ns = one.mutations_charged = None
            one.mutations = []
            one.requests = 1  # the least that an event may say: the first one counts all that it sums up
        yield one


def asks_for_mutations(event: Request) -> bool:
    """True if topics of this request can be refused."""
    return bool(event.mutations) and event.api in MUTATION_APIS and is_strict(event)


def as_executed(event: Request, refused: tuple[bool, ...], settings: QuotaSettings) -> None:
    """Turn requested mutations into executed ones, which the job charges and never refuses."""
    flags = refused or (False,) * len(event.mutations)
    charged = charged_mutations(event, settings)
    executed = sum(partitions for partitions, flag in zip(charged, flags, strict=True) if not flag)
    event.mutations, event.mutations_charged = [], int(executed)
