"""Changes to the quotas in force: what an alteration makes of them, what differs, and whom it hits."""

from collections.abc import Iterable, Mapping, Sequence

from state.entity import DEFAULT, EntityName, QuotaEntity
from state.errors import InvalidQuotaError
from state.quota import KEY_ALIASES, QuotaKind
from state.quota_control import CONNECTION_CREATION_RATE, RawEntity, checked_changes
from state.quota_entry import QuotaEntry
from state.resolution import Rung, ladder, topic_ladder
from state.validation import quota_kind
from streaming.quota_formats import entity_text

EntryKey = tuple[QuotaEntity, QuotaKind]
Difference = tuple[QuotaEntry | None, QuotaEntry | None]
"""The old and the new quota of one entity and key; None where there is none."""

REACH = {
    Rung.USER_CLIENT: "client-id {client_id} of user {user}",
    Rung.USER_DEFAULT_CLIENT: "every client-id of user {user}, each counted on its own",
    Rung.USER: "all clients of user {user}, counted together",
    Rung.DEFAULT_USER_CLIENT: "client-id {client_id} of every user, each user counted on its own",
    Rung.DEFAULT_USER_DEFAULT_CLIENT: "every client-id of every user, each pair counted on its own",
    Rung.DEFAULT_USER: "every user, all clients of a user counted together",
    Rung.CLIENT: "client-id {client_id}, all users counted together",
    Rung.DEFAULT_CLIENT: "every client-id, all users of a client-id counted together",
    Rung.TOPIC: "every partition of topic {topic}, each counted on its own",
    Rung.DEFAULT_TOPIC: "every partition of every topic, each counted on its own",
}
"""Whose requests a quota on each rung limits, and who shares its counter."""

MOST_SHOWN = 5
"""Entities named in one line."""

PRECEDENCE = tuple(REACH)
"""The rungs, the most specific first."""


def altered(
    entries: Iterable[QuotaEntry],
    entity: RawEntity,
    added: Mapping[str, float],
    deleted: Sequence[str] = (),
    *,
    shadow: bool = False,
) -> list[QuotaEntry]:
    """`entries` with the keys of one entity set and removed, all or none; the set ones are shadow or enforced.

    Raises InvalidQuotaError as Kafka's controller does and, as kafka-configs.sh, for removing a key that isn't set.
    """
    if "ip" in entity or CONNECTION_CREATION_RATE in added:
        raise InvalidQuotaError(
            "not_metered", f"Sluice meters requests, not connections; expected no ip and no {CONNECTION_CREATION_RATE}"
        )
    operations: list[tuple[str | None, float | None]] = [*added.items(), *((key, None) for key in deleted)]
    checked_changes(entity, operations)
    target = QuotaEntity.from_mapping(entity)
    by_key = _by_key(entries)
    set_kinds = {kind for set_on, kind in by_key if set_on == target}
    unset = [key for key in deleted if KEY_ALIASES.get(key, key) not in set_kinds]
    if unset:
        raise InvalidQuotaError("key_not_set", f"Invalid config(s): {','.join(unset)}")
    kinds = [quota_kind(target, key) for key, _ in operations]
    if len(set(kinds)) != len(kinds):
        names = ", ".join(str(key) for key, _ in operations)
        raise InvalidQuotaError("duplicate_key", f"two of {names} are the same quota; expected each once")
    for kind, (_, value) in zip(kinds, operations, strict=True):
        if value is None:
            del by_key[target, kind]
        else:
            by_key[target, kind] = QuotaEntry(target, kind, value, shadow)
    return list(by_key.values())


def merged(entries: Iterable[QuotaEntry], wanted: Iterable[QuotaEntry], *, prune: bool) -> list[QuotaEntry]:
    """The quotas of `wanted`, and unless `prune` those of `entries` that it doesn't name."""
    by_key = {} if prune else _by_key(entries)
    return list((by_key | _by_key(wanted)).values())


def differences(before: Iterable[QuotaEntry], after: Iterable[QuotaEntry]) -> list[Difference]:
    """What changed, sorted by entity and key."""
    old, new = _by_key(before), _by_key(after)
    keys = sorted(old.keys() | new.keys(), key=lambda key: (entity_text(key[0]), key[1]))
    return [(old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def reach_lines(entity: QuotaEntity, kinds: Iterable[QuotaKind], entries: Iterable[QuotaEntry]) -> list[str]:
    """Whose requests quotas of these kinds on `entity` limit, and which entities among them have their own."""
    names = {part: f"'{name}'" for part, name in entity.to_mapping().items()}
    lines = [f"applies to {REACH[rung_of(entity)].format(**names)}"]
    for kind in sorted(kinds):
        own = sorted(
            entity_text(entry.entity) for entry in entries if entry.kind == kind and _overrides(entry.entity, entity)
        )
        if own:
            more = f" and {len(own) - MOST_SHOWN} more" if len(own) > MOST_SHOWN else ""
            lines.append(f"{kind} is set more specifically for {'; '.join(own[:MOST_SHOWN])}{more}")
    return lines


def rung_of(entity: QuotaEntity) -> Rung:
    """The rung on which a request finds quotas of this entity."""
    if entity.topic is not None:
        return next(rung for rung, name in topic_ladder(str(entity.topic)) if name == entity.topic)
    key = (entity.user, entity.client_id)
    return next(rung for rung, names in ladder(str(entity.user), str(entity.client_id)) if names == key)


def _overrides(other: QuotaEntity, entity: QuotaEntity) -> bool:
    """Whether some request that `entity` would limit is limited by `other` instead."""
    return PRECEDENCE.index(rung_of(other)) < PRECEDENCE.index(rung_of(entity)) and all(
        _overlap(name, other_name)
        for name, other_name in (
            (entity.user, other.user),
            (entity.client_id, other.client_id),
            (entity.topic, other.topic),
        )
    )


def _overlap(name: EntityName, other: EntityName) -> bool:
    return name is None or other is None or DEFAULT in (name, other) or name == other


def _by_key(entries: Iterable[QuotaEntry]) -> dict[EntryKey, QuotaEntry]:
    return {(entry.entity, entry.kind): entry for entry in entries}
