"""Resolution of quotas, in words.

`explain` starts from a request: the precedence level that applies, the counter that is charged, the levels passed
over.
`reach_lines` starts from a quota: whose requests it limits.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sluice.cli.quota_text import entry_json
from sluice.process.texts import counter_text, entity_text, reservation_text, value_text
from sluice.state.quotas.alteration import entity_order
from sluice.state.quotas.entity import DEFAULT, EntityName, QuotaEntity, Tags
from sluice.state.quotas.entry import Mode, QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, PROXY_KINDS, TOPIC_KINDS, EntryKind, QuotaKind
from sluice.state.quotas.resolution import (
    PRECEDENCE_LEVELS,
    TENANT_LEVELS,
    TOPIC_LEVELS,
    PrecedenceLevel,
    Quotas,
    Resolution,
    bounded_entity,
    entity_at,
    level_of,
)

REACH = {
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

MOST_SHOWN = 5
"""Entities named in one line."""

PRECEDENCE = tuple(REACH)
"""The levels, the most specific first."""


class Explanation(NamedTuple):
    """The quotas of one kind and mode that match a request.

    `configured` are the matching levels that have a quota, the one that applies first. `counter` is None while no quota
    of the kind is set anywhere, because then nothing is counted. `reservation` is the one in force.
    """

    kind: QuotaKind
    mode: Mode
    configured: list[tuple[PrecedenceLevel, QuotaEntry]]
    counter: Tags | None
    reservation: float | None = None

    def lines(self, strict: str | None = None) -> list[str]:
        """Text for people: what applies, then what was passed over; and why limits don't give way."""
        apart = "apart " if self.mode is Mode.SHADOW else ""
        counted = f"counted {apart}for {_counter_text(self.counter)}" if self.counter else "not counted"
        counted += ", held by Kafka proxies alone" if self.kind in PROXY_KINDS else ""
        if not self.configured:
            return [f"{self.kind}: unlimited, {counted}"]
        (_, applied), *passed_over = self.configured
        return [
            f"{self.kind}: {value_text(applied)}{reservation_text(self.reservation, strict)} from"
            f" {entity_text(applied.entity)}, {counted}",
            *(f"  passed over {entity_text(entry.entity)}: {value_text(entry)}" for _, entry in passed_over),
        ]

    def to_mapping(self) -> dict[str, Any]:
        """JSON for machines: the same, with the names of the levels as in decisions (`matched`)."""
        quotas = [
            {"matched": level, "entity": entry.entity.to_mapping(), **(entry_json(entry) or {})}
            for level, entry in self.configured
        ]
        return {
            "quota": self.kind,
            "mode": self.mode,
            "applies": quotas[0] if quotas else None,
            "reservation": self.reservation,
            "counter": _counter_mapping(self.counter) if self.counter else None,
            "passed_over": quotas[1:],
        }


def explain(
    entries: Iterable[QuotaEntry], user: str, client_id: str, topic: str | None = None
) -> Iterator[Explanation]:
    """Resolve each client quota for this user and client-id, and each topic quota for `topic` if given.

    After a kind's enforced quotas come those of the client's tenant, then its shadow quotas, if they apply. Kinds that
    proxies alone hold are left out while none is set.
    """
    entries = list(entries)
    quotas = Quotas(entries)
    set_on = {(entry.kind, entry.mode, bounded_entity(entry.entity)): entry for entry in entries}

    def explained(kind: QuotaKind, mode: Mode, found: Resolution, levels: Iterable[PrecedenceLevel]) -> Explanation:
        names = user, client_id, topic, found.tags.tenant
        keys = ((level, (kind, mode, bounded_entity(entity_at(level, *names)))) for level in levels)
        configured = [(level, set_on[key]) for level, key in keys if key in set_on]
        return Explanation(kind, mode, configured, found.tags, found.reservation)

    for kind in (*CLIENT_KINDS, *(TOPIC_KINDS if topic is not None else ())):
        for of_mode in (quotas,) if quotas.shadow is None else (quotas, quotas.shadow):
            if kind in TOPIC_KINDS:
                is_counted, found = of_mode.enabled(kind), of_mode.resolve_topic(kind, str(topic), -1)
            else:
                is_counted, found = bool(of_mode.client_limits(kind)), of_mode.resolve_client(kind, user, client_id)
            own = explained(kind, of_mode.mode, found, TOPIC_LEVELS if kind in TOPIC_KINDS else PRECEDENCE_LEVELS)
            if own.configured or (of_mode is quotas and (kind not in PROXY_KINDS or quotas.enabled(kind))):
                yield own if is_counted else own._replace(counter=None)
            of_tenant = of_mode.resolve_tenant(kind, quotas.tenants.of(user, client_id))
            if of_tenant is not None:
                yield explained(kind, of_mode.mode, of_tenant, TENANT_LEVELS)


def reach_lines(entity: QuotaEntity, kinds: Iterable[EntryKind], entries: Iterable[QuotaEntry]) -> list[str]:
    """Lines that name the requests limited by quotas on `entity`, and the entities that override them."""
    names = {part: f"'{name}'" for part, name in entity.to_mapping().items()}
    lines = [f"applies to {REACH[level_of(entity)].format(**names)}"]
    for kind in sorted(kinds):
        overriding = [entry.entity for entry in entries if entry.kind == kind and _overrides(entry.entity, entity)]
        own = [entity_text(other) for other in sorted(overriding, key=entity_order)]
        if own:
            more = f" and {len(own) - MOST_SHOWN} more" if len(own) > MOST_SHOWN else ""
            lines.append(f"{kind} is set more specifically for {'; '.join(own[:MOST_SHOWN])}{more}")
    return lines


def _overrides(other: QuotaEntity, entity: QuotaEntity) -> bool:
    """True if some request that `entity` would limit is limited by `other` instead."""
    parts = ((entity.user, other.user), (entity.client_id, other.client_id), (entity.topic, other.topic))
    is_above = PRECEDENCE.index(level_of(other)) < PRECEDENCE.index(level_of(entity))
    same_kind = (entity.tenant is None) == (other.tenant is None)
    return is_above and same_kind and all(_overlap(*names) for names in parts)


def _overlap(name: EntityName, other: EntityName) -> bool:
    return name is None or other is None or DEFAULT in (name, other) or name == other


def _counter_text(counter: Tags) -> str:
    if counter.topic is not None:
        return f"each partition of topic '{counter.topic}'"
    if not counter.user and not counter.client_id and not counter.tenant:
        return "requests without a client-id, of all users"
    return counter_text(counter) + ("" if counter.user or counter.tenant else " of all users")


def _counter_mapping(counter: Tags) -> dict[str, str | int]:
    return {"topic": counter.topic} if counter.topic is not None else counter.to_mapping()
