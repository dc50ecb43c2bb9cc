"""The requests that a quota limits, in words."""

from collections.abc import Iterable

from sluice.state.quotas.entity import DEFAULT, EntityName, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import EntryKind
from sluice.state.quotas.resolution import PrecedenceLevel, level_of
from sluice_reading.quota_lists import entity_order
from sluice_reading.texts import entity_text

_REACH = {
    PrecedenceLevel.USER_CLIENT: "client-id {client_id} of user {user}",
    PrecedenceLevel.USER_DEFAULT_CLIENT: "every client-id of user {user}, each counted on its own",
    PrecedenceLevel.USER: "all clients of user {user}, counted together",
    PrecedenceLevel.DEFAULT_USER_CLIENT: "client-id {client_id} of every user, each user counted on its own",
    PrecedenceLevel.DEFAULT_USER_DEFAULT_CLIENT: "every client-id of every user, each pair counted on its own",
    PrecedenceLevel.DEFAULT_USER: "every user, all clients of a user counted together",
    PrecedenceLevel.CLIENT: "client-id {client_id}, all users counted together",
    PrecedenceLevel.DEFAULT_CLIENT: "every client-id, all users of a client-id counted together",
    PrecedenceLevel.TOPIC: "every partition of topic {topic}, each counted on its own",
    PrecedenceLevel.DEFAULT_TOPIC: "every partition of every topic, each counted on its own",
    PrecedenceLevel.TENANT: "all clients of tenant {tenant}, counted together and besides as each is on its own",
    PrecedenceLevel.DEFAULT_TENANT: "every tenant, all clients of a tenant counted together",
}
"""Requests that a quota on each level limits, and the requests that share its counter."""

_MOST_SHOWN = 5
"""Entities named in one line."""

_PRECEDENCE = tuple(_REACH)
"""The levels, the most specific first."""


def reach_lines(entity: QuotaEntity, kinds: Iterable[EntryKind], entries: Iterable[QuotaEntry]) -> list[str]:
    """Lines that name the requests limited by quotas on `entity`, and the entities that override them."""
    names = {part: f"'{name}'" for part, name in entity.to_mapping().items()}
    lines = [f"applies to {_REACH[level_of(entity)].format(**names)}"]
    for kind in sorted(kinds):
        overriding = [entry.entity for entry in entries if entry.kind == kind and _overrides(entry.entity, entity)]
        own = [entity_text(other) for other in sorted(overriding, key=entity_order)]
        if own:
            more = f" and {len(own) - _MOST_SHOWN} more" if len(own) > _MOST_SHOWN else ""
            lines.append(f"{kind} is set more specifically for {'; '.join(own[:_MOST_SHOWN])}{more}")
    return lines


def _overrides(other: QuotaEntity, entity: QuotaEntity) -> bool:
    """True if some request that `entity` would limit is limited by `other` instead."""
    parts = ((entity.user, other.user), (entity.client_id, other.client_id), (entity.topic, other.topic))
    is_above = _PRECEDENCE.index(level_of(other)) < _PRECEDENCE.index(level_of(entity))
    same_kind = (entity.tenant is None) == (other.tenant is None)
    return is_above and same_kind and all(_overlap(*names) for names in parts)


def _overlap(name: EntityName, other: EntityName) -> bool:
    return name is None or other is None or DEFAULT in (name, other) or name == other
