"""Members of tenants, added and removed."""

from collections.abc import Iterable, Sequence

from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Membership
from sluice.state.quotas.tenants import member_text


def with_members(
    entries: Iterable[QuotaEntry], added: Sequence[QuotaEntity], removed: Sequence[QuotaEntity] = ()
) -> list[QuotaEntry]:
    """`entries` with members added and removed. Raises InvalidQuotaError for removing one that isn't there."""
    entries = list(entries)
    known = {entry.entity for entry in entries if entry.kind is Membership.MEMBER}
    for entity in removed:
        if entity not in known:
            raise InvalidQuotaError("no_member", f"tenant {entity.tenant!r} has no member {member_text(entity)}")
    kept = [entry for entry in entries if entry.entity not in removed or entry.kind is not Membership.MEMBER]
    return kept + [QuotaEntry(entity, Membership.MEMBER, 1.0) for entity in added if entity not in known]
