"""Changes to a list of quotas: one entity altered, two lists merged, and the differences between two lists."""

from collections.abc import Iterable, Mapping, Sequence

from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas import alteration
from sluice.state.quotas.alteration import CONNECTION_CREATION_RATE, QuotaValue, RawEntity
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import Mode, QuotaEntry, quota_kind
from sluice.state.quotas.kinds import KEY_ALIASES, QuotaKind

EntryKey = tuple[QuotaEntity, QuotaKind, bool]
"""Entity, kind, and whether it is a shadow quota."""

Difference = tuple[QuotaEntry | None, QuotaEntry | None]
"""The old and the new quota of one entity, key and mode; None where there is none."""

_ORDER = (("client_id", False), ("client_id", True), ("topic", True), ("user", True), ("topic", False), ("user", False))
"""Entity types, each with whether it is the default, in the order of output."""


def altered(
    entries: Iterable[QuotaEntry],
    entity: RawEntity,
    added: Mapping[str, float],
    deleted: Sequence[str] = (),
    *,
    shadow: bool = False,
) -> list[QuotaEntry]:
    """`entries` with the keys of one entity set and removed, all or none: of its shadow quotas, or its enforced ones.

    The quotas of the other mode stay as they are. Raises InvalidQuotaError as Kafka's controller does and, like
    kafka-configs.sh, for removing a key that isn't set.
    """
    if "ip" in entity or CONNECTION_CREATION_RATE in added:
        raise InvalidQuotaError(
            "not_metered", f"Sluice meters requests, not connections; expected no ip and no {CONNECTION_CREATION_RATE}"
        )
    target = QuotaEntity.from_mapping(entity)
    own: dict[str, QuotaValue] = {}
    others: list[QuotaEntry] = []
    for entry in entries:
        if entry.entity == target and entry.shadow == shadow:
            own[entry.kind] = QuotaValue(entry.value, entry.shadow)
        else:
            others.append(entry)
    after = alteration.altered(own, entity, [*added.items(), *((key, None) for key in deleted)], shadow=shadow)
    unset = [key for key in deleted if KEY_ALIASES.get(key, key) not in own]
    if unset:
        hint = _other_mode_hint(unset, target, others)
        raise InvalidQuotaError("key_not_set", f"Invalid config(s): {','.join(unset)}{hint}")
    return others + [QuotaEntry(target, quota_kind(target, key), *quota) for key, quota in after.items()]


def _other_mode_hint(keys: Sequence[str], target: QuotaEntity, others: Iterable[QuotaEntry]) -> str:
    """A hint for keys that are set in the other mode."""
    modes: dict[str, Mode] = {entry.kind: entry.mode for entry in others if entry.entity == target}
    found = ((key, modes.get(KEY_ALIASES.get(key, key))) for key in keys)
    return "".join(f"; {key} is set in mode {mode}: add --mode {mode}" for key, mode in found if mode)


def merged(entries: Iterable[QuotaEntry], wanted: Iterable[QuotaEntry], *, prune: bool) -> list[QuotaEntry]:
    """The quotas of `wanted` and, without `prune`, those of `entries` that `wanted` doesn't name."""
    by_key = {} if prune else _by_key(entries)
    return list((by_key | _by_key(wanted)).values())


def differences(before: Iterable[QuotaEntry], after: Iterable[QuotaEntry]) -> list[Difference]:
    """Changed quotas, sorted by entity, key and mode."""
    old, new = _by_key(before), _by_key(after)
    changed = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
    return [(old.get(key), new.get(key)) for key in sorted(changed, key=lambda key: (entity_order(key[0]), *key[1:]))]


def entity_order(entity: QuotaEntity) -> tuple[tuple[int, str], ...]:
    """Sort key of an entity; a user comes before the same user with a client-id.

    >>> entity_order(QuotaEntity(user=DEFAULT, client_id="app"))
    ((3, ''), (0, 'app'))
    """
    parts = (("user", entity.user), ("client_id", entity.client_id), ("topic", entity.topic))
    return tuple(
        (_ORDER.index((part, name is DEFAULT)), "" if name is DEFAULT else str(name))
        for part, name in parts
        if name is not None
    )


def _by_key(entries: Iterable[QuotaEntry]) -> dict[EntryKey, QuotaEntry]:
    return {(entry.entity, entry.kind, entry.shadow): entry for entry in entries}
