"""Parts of a client that counters are kept for and limits are set on, and clients of whom a part isn't known.

A gateway that sums up the requests of several users, or client-ids, says "" for it; null is a client without a name.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from sluice.state.arithmetic.counter import Charge
from sluice.state.contract.records import Request
from sluice.state.decisions.charge_plan import plan_limited
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.quotas.resolution import ModeQuotas, PrecedenceLevel


class Part(StrEnum):
    """The column of a decision that all counters of a request depend on."""

    USER = "user"
    CLIENT_ID = "client_id"

    def is_of(self, entity: QuotaEntity) -> bool:
        """True if the entity has this part, by name or as the default."""
        return getattr(entity, self.value) is not None


_ANY = {
    Part.USER: {
        PrecedenceLevel.DEFAULT_USER_CLIENT,
        PrecedenceLevel.DEFAULT_USER_DEFAULT_CLIENT,
        PrecedenceLevel.DEFAULT_USER,
    },
    Part.CLIENT_ID: {
        PrecedenceLevel.USER_DEFAULT_CLIENT,
        PrecedenceLevel.DEFAULT_USER_DEFAULT_CLIENT,
        PrecedenceLevel.DEFAULT_CLIENT,
    },
}
"""The levels on which any name finds a quota of each user, or client-id: so would those that aren't known, as one."""


def tried_charges(request: Request, quotas: ModeQuotas, settings: QuotaSettings) -> Sequence[tuple[Tags, Charge]]:
    """The charges of a request that have a limit, but for a limit on each user, or client-id, where that isn't known.

    Requests of several users would be charged to one counter.
    """
    charges = plan_limited(request, quotas, settings)
    unknown = [part for part in Part if getattr(request, part.value) == ""]
    if not unknown:
        return charges
    levels = set[str]().union(*(_ANY[part] for part in unknown))
    return [(tags, charge) for tags, charge in charges if charge.level not in levels]


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


def whose_of(entries: Iterable[QuotaEntry]) -> list[Whose]:
    """The entities that most enforced quotas of clients are set on, several where it is equal; users without any.

    >>> from sluice.state.quotas.kinds import QuotaKind
    >>> app, alice = QuotaEntity(client_id="app"), QuotaEntity(user="alice")
    >>> quotas = [QuotaEntry(entity, QuotaKind.REQUEST_PERCENTAGE, 5.0) for entity in (app, alice)]
    >>> [each.value for each in whose_of(quotas[:1])], [each.value for each in whose_of(quotas)]
    (['client-id'], ['user', 'client-id'])
    """
    set_on = Counter({Whose.USER: 0})
    for entry in entries:
        user, client_id = entry.entity.user is not None, entry.entity.client_id is not None
        if (user or client_id) and not entry.shadow and not entry.entity.is_member:
            set_on[Whose.BOTH if user and client_id else Whose.USER if user else Whose.CLIENT_ID] += 1
    return [whose for whose in Whose if whose in set_on and set_on[whose] == max(set_on.values())]
