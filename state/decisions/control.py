"""Control records: what an operator writes to the requests topic, so that it takes effect in the order of requests."""

from typing import Literal

import msgspec

from sluice.state.decisions.request import MAX_INT32, MAX_NAME_LENGTH
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.kinds import CLIENT_KINDS, TOPIC_KINDS, QuotaKind

UNMUTE_API = "Unmute"
"""`api` of the decision that answers an `Unmute`; Kafka has no API of this name."""


class UnmutedEntity(msgspec.Struct, forbid_unknown_fields=True):
    """A client as its requests name it (a missing part is empty, as in an event), or a topic-partition."""

    user: str | None = None
    client_id: str | None = None
    topic: str | None = None
    partition: int | None = None


class Unmute(msgspec.Struct, forbid_unknown_fields=True):
    """Resets the counters that requests of this entity are charged to now: all of them, or that of one quota."""

    control: Literal["unmute"]
    entity: UnmutedEntity
    quota: str | None = None
    request_id: str | None = None

    def kinds(self) -> tuple[QuotaKind, ...]:
        """The quota kinds whose counters are reset."""
        kinds = CLIENT_KINDS if self.entity.topic is None else TOPIC_KINDS
        return tuple(kind for kind in kinds if self.quota in (None, kind))


def check_unmute(unmute: Unmute) -> None:
    """Raises InvalidRequestError, naming the field, unless it names one entity and a quota that this can have."""
    entity = unmute.entity
    for part, name in (("user", entity.user), ("client_id", entity.client_id), ("topic", entity.topic)):
        if name is not None and not 0 < len(name) <= MAX_NAME_LENGTH:
            raise InvalidRequestError(
                f"entity.{part}", f"has {len(name)} characters", f"a name of 1 to {MAX_NAME_LENGTH} characters"
            )
    if unmute.request_id is not None and len(unmute.request_id) > MAX_NAME_LENGTH:
        raise InvalidRequestError(
            "request_id", f"has {len(unmute.request_id)} characters", f"at most {MAX_NAME_LENGTH}"
        )
    if entity.topic is None:
        if entity.user is None and entity.client_id is None:
            raise InvalidRequestError("entity", "names nobody", "a user, a client_id, both, or a topic and a partition")
        if entity.partition is not None:
            raise InvalidRequestError("entity.partition", "comes without a topic", "a topic and a partition")
    elif entity.user is not None or entity.client_id is not None:
        raise InvalidRequestError("entity.topic", "comes with a client", "a client, or a topic and a partition")
    elif entity.partition is None or not 0 <= entity.partition <= MAX_INT32:
        raise InvalidRequestError("entity.partition", f"is {entity.partition}", f"an integer from 0 to {MAX_INT32}")
    known = CLIENT_KINDS if entity.topic is None else TOPIC_KINDS
    if unmute.quota is not None and unmute.quota not in known:
        raise InvalidRequestError("quota", f"is {unmute.quota[:100]!r}", f"one of {', '.join(known)}")
