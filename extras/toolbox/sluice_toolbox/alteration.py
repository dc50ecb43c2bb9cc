"""Quotas of one entity after an alteration, and the checks of entities and filters, as Kafka's controller does."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import Mode, QuotaEntry, check_entries, check_number, check_value, quota_kind
from sluice.state.quotas.kinds import KEY_ALIASES, QuotaKind
from sluice_toolbox.cluster import RawEntity, raw_text

ENTITY_TYPES = ("user", "client-id", "topic", "tenant", "ip")

CONNECTION_CREATION_RATE = "connection_creation_rate"
"""The one key of ip entities. Kafka's controller keeps it; Sluice has no quotas on ips."""


class UnsupportedEntityTypeError(InvalidQuotaError):
    """A describe filter names an entity type that this version doesn't know (Kafka: UNSUPPORTED_VERSION)."""

    def __init__(self, entity_type: str) -> None:
        expected = ", ".join(ENTITY_TYPES)
        super().__init__("unsupported_version", f"unknown entity type {entity_type!r}; expected one of {expected}")


class QuotaValue(NamedTuple):
    """A quota's value in bytes/s, percent or mutations/s; a `shadow` quota is metered and never delays."""

    value: float
    shadow: bool = False


class FilterComponent(NamedTuple):
    """One condition of a describe: this type with exactly `name`, its default, or any name."""

    entity_type: str
    match: str
    name: str | None = None


def altered(
    quotas: Mapping[str, QuotaValue],
    entity: RawEntity,
    operations: Sequence[tuple[str | None, float | None]],
    *,
    shadow: bool = False,
) -> dict[str, QuotaValue]:
    """The quotas of one entity, by key, after `operations`: (key, value) pairs, where None removes the key.

    Quotas that are set become shadow or enforced ones, as `shadow` says. As in the controller, removing a key that is
    not set changes nothing. Aliases of keys are replaced by Kafka's names.
    Raises InvalidQuotaError as the controller does, the entity first, then keys and values; then nothing is altered.

    >>> altered({}, {"user": "alice"}, [("request_time_percent", 50.0)])
    {'request_percentage': QuotaValue(value=50.0, shadow=False)}
    """
    check_entity(entity)
    after = dict(quotas)
    given: dict[str, str | None] = {}
    for key, value in operations:
        name = str(KEY_ALIASES.get(str(key), key))
        if name in given:
            if given[name] == key:
                raise InvalidQuotaError(
                    "duplicate_entity", f"{key} is given twice for {raw_text(entity)}; expected it once"
                )
            raise InvalidQuotaError(
                "duplicate_key", f"two of {given[name]}, {key} are the same quota; expected each once"
            )
        given[name] = key
        if value is None:
            after.pop(name, None)
        else:
            _check_operation(entity, key, value)
            after[name] = QuotaValue(value, shadow)
    return after


def matches(entity: RawEntity, components: Sequence[FilterComponent], *, strict: bool) -> bool:
    """True if the controller's describe answers with `entity`: every component matches it.

    With `strict`, an entity that has a type not named by the components does not match; without components nothing
    matches.
    """
    return all(_matches(component, entity) for component in components) and (
        not strict or len(entity) == len(components)
    )


def check_entity(entity: RawEntity) -> None:
    """Raises InvalidQuotaError unless the types are {user}, {client-id}, both, {topic}, {tenant} or {ip}."""
    if not entity:
        raise InvalidQuotaError("empty_entity", "the entity is empty; expected a user, a client-id or a topic")
    for entity_type, name in entity.items():
        if entity_type not in ENTITY_TYPES:
            expected = ", ".join(ENTITY_TYPES)
            raise InvalidQuotaError(
                "unknown_entity_type", f"unknown entity type {entity_type!r}; expected one of {expected}"
            )
        if name == "":
            raise InvalidQuotaError("empty_name", f"the {entity_type} name is empty; expected a name or the default")
    for lonely in ("ip", "topic", "tenant"):
        if lonely in entity and len(entity) > 1:
            raise InvalidQuotaError(f"{lonely}_combined", f"{lonely} can't be combined with another entity type")
    if entity.get("ip") is not None:
        _check_ip(str(entity["ip"]))


def check_filter(components: Sequence[FilterComponent]) -> None:
    """Raises InvalidQuotaError for a describe filter that Kafka's controller refuses."""
    types = [component.entity_type for component in components]
    for component in components:
        if component.entity_type == "":
            raise InvalidQuotaError(
                "empty_type", "a filter has an empty entity type; expected user, client-id or topic"
            )
        if component.entity_type not in ENTITY_TYPES:
            raise UnsupportedEntityTypeError(component.entity_type)
        if component.match not in ("exact", "default", "specified"):
            raise InvalidQuotaError("bad_match", f"unknown match {component.match!r}; expected exact, default or any")
        if (component.match == "exact") != (component.name is not None):
            raise InvalidQuotaError("bad_match", f"match {component.match!r} with name {component.name!r}")
    if twice := next((each for each in types if types.count(each) > 1), None):
        raise InvalidQuotaError("duplicate_type", f"{twice} is given twice; expected it once, by name or as default")
    if "ip" in types and len(types) > 1:
        raise InvalidQuotaError("ip_combined", "ip can't be combined with another entity type")


def _check_operation(entity: RawEntity, key: str | None, value: float) -> None:
    if "ip" in entity:
        if key != CONNECTION_CREATION_RATE:
            raise InvalidQuotaError("unknown_key", f"unknown key {key!r}; expected {CONNECTION_CREATION_RATE} on an ip")
        check_number(CONNECTION_CREATION_RATE, value, largest_whole=2_147_483_647.0)
        return
    check_value(quota_kind(QuotaEntity.from_mapping(entity), key), value)


def _check_ip(name: str) -> None:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise InvalidQuotaError("bad_ip", f"ip {name!r} is no address; expected IPv4 or IPv6") from None


def _matches(component: FilterComponent, entity: RawEntity) -> bool:
    if component.entity_type not in entity:
        return False
    return component.match == "specified" or entity[component.entity_type] == component.name


def with_altered(
    entries: Iterable[QuotaEntry],
    entity: RawEntity,
    added: Mapping[str, float],
    deleted: Sequence[str] = (),
    *,
    shadow: bool = False,
) -> list[QuotaEntry]:
    """`entries` with the keys of one entity set and removed, all or none: of its shadow quotas, or its enforced ones.

    The quotas of the other mode stay as they are. Raises InvalidQuotaError as Kafka's controller does and, like
    kafka-configs.sh, for removing a key that isn't set; and as `check_entries` does for the entity.
    """
    if "ip" in entity or CONNECTION_CREATION_RATE in added:
        raise InvalidQuotaError(
            "not_metered",
            f"Sluice has no quotas on ips; expected a user or client-id, and {QuotaKind.CONNECTION_RATE}"
            f" in place of {CONNECTION_CREATION_RATE}",
        )
    target = QuotaEntity.from_mapping(entity)
    own: dict[str, QuotaValue] = {}
    others: list[QuotaEntry] = []
    for entry in entries:
        if entry.entity == target and entry.shadow == shadow:
            own[entry.kind] = QuotaValue(entry.value, entry.shadow)
        else:
            others.append(entry)
    after = altered(own, entity, [*added.items(), *((key, None) for key in deleted)], shadow=shadow)
    unset = [key for key in deleted if KEY_ALIASES.get(key, key) not in own]
    if unset:
        hint = _other_mode_hint(unset, target, others)
        raise InvalidQuotaError(
            "key_not_set", f"Invalid config(s): {','.join(unset)} not set on {raw_text(entity)}{hint}"
        )
    own_after = [QuotaEntry(target, quota_kind(target, key), *quota) for key, quota in after.items()]
    check_entries(own_after)
    return others + own_after


def _other_mode_hint(keys: Sequence[str], target: QuotaEntity, others: Iterable[QuotaEntry]) -> str:
    modes: dict[str, Mode] = {entry.kind: entry.mode for entry in others if entry.entity == target}
    found = ((key, modes.get(KEY_ALIASES.get(key, key))) for key in keys)
    return "".join(f"; {key} is set in mode {mode}: add --mode {mode}" for key, mode in found if mode)
