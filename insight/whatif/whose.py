"""Parts of a client that counters are kept for and limits are set on."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry


class Part(StrEnum):
    """The column of a decision that all counters of a request depend on."""

    USER = "user"
    CLIENT_ID = "client_id"


class Whose(StrEnum):
    """The entity of a proposed limit."""

    USER = "user"
    CLIENT_ID = "client-id"
    BOTH = "user/client-id"
    TENANT = "tenant"

    @property
    def part(self) -> Part | None:
        """The column that tells apart requests whose counters never meet; None if there is none."""
        if self is Whose.TENANT:
            return None
        return Part.CLIENT_ID if self is Whose.CLIENT_ID else Part.USER

    def entity(self, tags: Tags) -> QuotaEntity | None:
        """The entity of a limit for the counter with these tags; None if a quota file can't name it.

        That is so for an empty name and for one that a file takes for the default entity.

        >>> Whose.BOTH.entity(Tags("alice", "app")).to_mapping(), Whose.USER.entity(Tags("")) is None
        ({'user': 'alice', 'client_id': 'app'}, True)
        """
        if self is Whose.TENANT:
            return None if tags.tenant == DEFAULT.value else QuotaEntity(tenant=tags.tenant)
        user = None if self is Whose.CLIENT_ID else tags.user
        client_id = None if self is Whose.USER else tags.client_id
        return None if {user, client_id} & {"", DEFAULT.value} else QuotaEntity(user, client_id)

    def default(self) -> QuotaEntity:
        """The default entity."""
        if self is Whose.TENANT:
            return QuotaEntity(tenant=DEFAULT)
        return QuotaEntity(None if self is Whose.CLIENT_ID else DEFAULT, None if self is Whose.USER else DEFAULT)


def whose_of(entries: Iterable[QuotaEntry]) -> Whose:
    """The entity that most enforced quotas of clients are set on; that of users without any, and where it is equal.

    >>> from sluice.state.quotas.kinds import QuotaKind
    >>> whose_of([QuotaEntry(QuotaEntity(client_id="app"), QuotaKind.REQUEST_PERCENTAGE, 5.0)]).value
    'client-id'
    """
    set_on = Counter({Whose.USER: 0})
    for entry in entries:
        user, client_id = entry.entity.user is not None, entry.entity.client_id is not None
        if (user or client_id) and not entry.shadow and not entry.entity.is_member:
            set_on[Whose.BOTH if user and client_id else Whose.USER if user else Whose.CLIENT_ID] += 1
    return max(set_on, key=lambda whose: set_on[whose])
