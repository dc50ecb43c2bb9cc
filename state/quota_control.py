"""Altering and describing quotas exactly as Kafka's controller does (ClientQuotaControlManager)."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from state.entity import QuotaEntity
from state.errors import InvalidQuotaError
from state.validation import check_number, check_value, quota_kind

RawEntity = Mapping[str, str | None]
"""An entity as it is asked for: type to name, None for the default."""

EntityKey = frozenset[tuple[str, str | None]]

ENTITY_TYPES = ("user", "client-id", "topic", "ip")
CONNECTION_CREATION_RATE = "connection_creation_rate"
"""The one key of ip entities. Kafka's controller keeps it; Sluice meters requests, not connections."""


class UnsupportedEntityTypeError(InvalidQuotaError):
    """A describe filter names an entity type that this version doesn't know (Kafka: UNSUPPORTED_VERSION)."""

    def __init__(self, entity_type: str) -> None:
        expected = ", ".join(ENTITY_TYPES)
        super().__init__("unsupported_version", f"unknown entity type {entity_type!r}; expected one of {expected}")


class Alteration(NamedTuple):
    """Changes to one entity: (key, new value) pairs, None removes the key."""

    entity: RawEntity
    operations: Sequence[tuple[str | None, float | None]]


@dataclass(frozen=True, slots=True)
class AlterResult:
    """The answers to one call, an error or None for each alteration, and how many values were written."""

    errors: list[InvalidQuotaError | None]
    records: int


class FilterComponent(NamedTuple):
    """One condition of a describe: this type with exactly `name`, its default, or any name."""

    entity_type: str
    match: str
    name: str | None = None


class QuotaControl:
    """The quotas of every entity, with the controller's checks on the way in."""

    def __init__(self) -> None:
        self.values_by_entity: dict[EntityKey, dict[str, float]] = {}

    def alter(self, alterations: Sequence[Alteration], validate_only: bool = False) -> AlterResult:
        """Apply each alteration whole or not at all; one that is refused doesn't stop the others.

        As in Kafka, an entity that comes twice in one call is answered with an error for both, though the first is
        written. `validate_only` gives the same answers and writes nothing.
        """
        errors: dict[EntityKey, InvalidQuotaError | None] = {}
        records = 0
        for entity, operations in alterations:
            key = frozenset(entity.items())
            if key in errors:
                errors[key] = InvalidQuotaError("duplicate_entity", f"{dict(entity)} is altered twice in one call")
                continue
            try:
                changes = checked_changes(entity, operations)
            except InvalidQuotaError as error:
                errors[key] = error
                continue
            errors[key] = None
            records += self._write(key, changes, validate_only)
        return AlterResult([errors[frozenset(entity.items())] for entity, _ in alterations], records)

    def describe(self, components: Sequence[FilterComponent], strict: bool) -> dict[EntityKey, dict[str, float]]:
        """The entities that every component matches; with `strict` they have no other type besides.

        Without components: everything, with `strict` nothing. Raises InvalidQuotaError for a filter Kafka refuses.
        """
        check_filter(components)
        if not components and strict:
            return {}
        return {
            entity: values
            for entity, values in self.values_by_entity.items()
            if all(_matches(component, dict(entity)) for component in components)
            and (not strict or len(entity) == len(components))
        }

    def _write(self, key: EntityKey, changes: Mapping[str, float | None], validate_only: bool) -> int:
        values = dict(self.values_by_entity.get(key, {}))
        changed = {name: value for name, value in changes.items() if values.get(name) != value}
        if validate_only:
            return len(changed)
        for name, value in changed.items():
            if value is None:
                del values[name]
            else:
                values[name] = value
        if values:
            self.values_by_entity[key] = values
        else:
            self.values_by_entity.pop(key, None)
        return len(changed)


def checked_changes(
    entity: RawEntity, operations: Sequence[tuple[str | None, float | None]]
) -> dict[str, float | None]:
    """The new value of each key. Raises InvalidQuotaError, types first, then keys and values, as the controller."""
    check_entity(entity)
    changes: dict[str, float | None] = {}
    for key, value in operations:
        if key in changes:
            raise InvalidQuotaError("duplicate_entity", f"{key} is given twice for {dict(entity)}; expected it once")
        changes[str(key)] = value
        if value is not None:
            _check_operation(entity, key, value)
    return changes


def check_entity(entity: RawEntity) -> None:
    """Raises InvalidQuotaError unless the types are {user}, {client-id}, {user, client-id}, {topic} or {ip}."""
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
    for lonely in ("ip", "topic"):
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
    if len(set(types)) != len(types):
        raise InvalidQuotaError("duplicate_type", "an entity type comes twice in the filter; expected it once")
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


def _matches(component: FilterComponent, entity: Mapping[str, str | None]) -> bool:
    if component.entity_type not in entity:
        return False
    name = entity[component.entity_type]
    if component.match == "specified":
        return True
    return name == component.name
