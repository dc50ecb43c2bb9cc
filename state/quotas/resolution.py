"""Find the quotas that apply to a request: the eight precedence levels of KIP-124, KIP-1010's two, and tenants'.

A tenant's quotas stand above those of its members: a request is charged to both. They have two levels of their own.
Source: KIP-124, "Quota entity"; KIP-1010, "Default Quota Configuration".
"""

import copy
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Self

import msgspec

from sluice.state.quotas.elastic import lent_limit
from sluice.state.quotas.entity import DEFAULT, EntityName, QuotaEntity, Tags, bounded_name
from sluice.state.quotas.entry import Mode, QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, TOPIC_KINDS, ElasticKey, Membership, QuotaKind, StorageKey
from sluice.state.quotas.name_cache import ENTRY_BYTES, NameCache
from sluice.state.quotas.tenants import Tenants


class PrecedenceLevel(StrEnum):
    """Precedence level of the quota that gave a limit, most specific first."""

    USER_CLIENT = "user+client-id"
    USER_DEFAULT_CLIENT = "user+default client-id"
    USER = "user"
    DEFAULT_USER_CLIENT = "default user+client-id"
    DEFAULT_USER_DEFAULT_CLIENT = "default user+default client-id"
    DEFAULT_USER = "default user"
    CLIENT = "client-id"
    DEFAULT_CLIENT = "default client-id"
    TOPIC = "topic"
    DEFAULT_TOPIC = "default topic"
    TENANT = "tenant"
    DEFAULT_TENANT = "default tenant"
    NONE = "none"

    __hash__ = str.__hash__  # Enum's own __hash__ is slow, and levels are looked up for every request


class Part(Enum):
    """Requirement of a level for the user, or the client-id, of an entity."""

    OWN = "the name in the request"
    DEFAULT = "the default entity"
    ABSENT = "no such part"

    __hash__ = object.__hash__  # Enum's own __hash__ is slow


PRECEDENCE_LEVELS = {
    PrecedenceLevel.USER_CLIENT: (Part.OWN, Part.OWN),
    PrecedenceLevel.USER_DEFAULT_CLIENT: (Part.OWN, Part.DEFAULT),
    PrecedenceLevel.USER: (Part.OWN, Part.ABSENT),
    PrecedenceLevel.DEFAULT_USER_CLIENT: (Part.DEFAULT, Part.OWN),
    PrecedenceLevel.DEFAULT_USER_DEFAULT_CLIENT: (Part.DEFAULT, Part.DEFAULT),
    PrecedenceLevel.DEFAULT_USER: (Part.DEFAULT, Part.ABSENT),
    PrecedenceLevel.CLIENT: (Part.ABSENT, Part.OWN),
    PrecedenceLevel.DEFAULT_CLIENT: (Part.ABSENT, Part.DEFAULT),
}
"""The eight precedence levels, most specific first, with what each requires of the user and of the client-id."""

TOPIC_LEVELS = (PrecedenceLevel.TOPIC, PrecedenceLevel.DEFAULT_TOPIC)
"""The two levels for a topic (KIP-1010, "Default Quota Configuration")."""

TENANT_LEVELS = (PrecedenceLevel.TENANT, PrecedenceLevel.DEFAULT_TENANT)

_PARTS: Mapping[str, tuple[Part, Part, Part, Part]] = {
    **{level: (*parts, Part.ABSENT, Part.ABSENT) for level, parts in PRECEDENCE_LEVELS.items()},
    PrecedenceLevel.TOPIC: (Part.ABSENT, Part.ABSENT, Part.OWN, Part.ABSENT),
    PrecedenceLevel.DEFAULT_TOPIC: (Part.ABSENT, Part.ABSENT, Part.DEFAULT, Part.ABSENT),
    PrecedenceLevel.TENANT: (Part.ABSENT, Part.ABSENT, Part.ABSENT, Part.OWN),
    PrecedenceLevel.DEFAULT_TENANT: (Part.ABSENT, Part.ABSENT, Part.ABSENT, Part.DEFAULT),
}
"""Level -> what it requires of user, client-id, topic and tenant."""

_LEVEL_OF = {parts: PrecedenceLevel(str(level)) for level, parts in _PARTS.items()}

_MAX_CACHED_BYTES = 32 * 1024 * 1024
"""Bytes of the resolutions cached per kind."""

SHADOW_KEY_PREFIX = "shadow:"
"""Begins the key of each counter of a shadow quota, so that it is stored apart from the counter with the same tags.
No other key begins so: names in keys are URL-encoded and have no colon, and keys of topics begin with `topic:`."""

_ClientName = tuple[EntityName, EntityName]
"""User and client-id of an entity."""


class Resolution(msgspec.Struct, frozen=True, gc=False):
    """The limit that applies to a request, and the counter that is charged. Limit None is unlimited.

    `key` is `tags.key()`, after `SHADOW_KEY_PREFIX` for a shadow quota. `level` is the level that gave the limit.
    `reservation` and `ceiling`, in the unit of the limit, are those set beside it, None if there are none. While
    brokers lend (`ModeQuotas.lent`), the limit is above the quota.
    """

    tags: Tags
    key: str
    level: PrecedenceLevel
    limit: float | None
    shadow: bool
    reservation: float | None = None
    ceiling: float | None = None


_Elastic = Mapping[QuotaEntity, Mapping[str, float]]
"""Reservations and ceilings of one kind, by entity and `ElasticKey.part`."""

_STRICT: _Elastic = {}
"""No reservation and no ceiling."""


class ClientLimits:
    """The limits of one quota kind, in one mode, on users, client-ids and both."""

    _lend = 1.0

    def __init__(self, entries: Iterable[QuotaEntry], mode: Mode = Mode.ENFORCE, elastic: _Elastic = _STRICT) -> None:
        """Take entries that all have the mode `mode`; the last one for an entity counts."""
        self._mode = mode
        self._elastic = elastic
        self._entries = {_bounded((entry.entity.user, entry.entity.client_id)): entry for entry in entries}
        used = {level_of(entry.entity) for entry in self._entries.values()}
        self._levels = [(level, *PRECEDENCE_LEVELS[level]) for level in PRECEDENCE_LEVELS if level in used]
        shapes = {(user is Part.ABSENT, client_id is Part.ABSENT) for _, user, client_id in self._levels}
        # With entities of several shapes, or none, unmatched requests are counted by their client-id.
        self._no_user, self._no_client_id = shapes.pop() if len(shapes) == 1 else (True, False)
        self._resolved = NameCache[tuple[str, str], Resolution](_MAX_CACHED_BYTES)

    def __bool__(self) -> bool:
        """True if any quota of this kind is set."""
        return bool(self._entries)

    def resolve(self, user: str, client_id: str) -> Resolution:
        """The first configured level of the eight, and the tags of the counter.

        If nothing matches, the tags depend on the entities of the kind: if all of them have the same parts (user,
        client-id or both), the counter has these too, else the client-id (Kafka's metric tags).
        """
        try:
            return self._resolved[user, client_id]
        except KeyError:
            resolution = self._resolve(user, client_id)
            size = ENTRY_BYTES + len(user) + len(client_id) + len(resolution.key)
            return self._resolved.keep((user, client_id), resolution, size)

    def _resolve(self, user: str, client_id: str) -> Resolution:
        user, client_id = bounded_name(user), bounded_name(client_id)
        for level, user_part, client_part in self._levels:
            entry = self._entries.get((_name(user_part, user), _name(client_part, client_id)))
            if entry is not None:
                tags = Tags("" if user_part is Part.ABSENT else user, "" if client_part is Part.ABSENT else client_id)
                return self.of_entry(tags, level, entry)
        tags = Tags("" if self._no_user else user, "" if self._no_client_id else client_id)
        return _resolution(tags, PrecedenceLevel.NONE, None, self._mode)

    def of_entry(self, tags: Tags, level: PrecedenceLevel, entry: QuotaEntry) -> Resolution:
        """The limit that an entry gives the counter with these tags."""
        return _resolution(tags, level, entry, self._mode, self._elastic, self._lend)

    def lent(self, lend: float) -> Self:
        """The same while `lend` times the quotas are lent."""
        if not self._elastic:
            return self
        limits = copy.copy(self)
        limits._lend, limits._resolved = lend, NameCache(_MAX_CACHED_BYTES)  # noqa: SLF001 - of the copy
        return limits

    def most_lend(self) -> float:
        """The largest ceiling over its quota; 1 without any."""
        return _most_lend(self._entries.values(), self._elastic)

    def entry(self, key: _ClientName) -> QuotaEntry | None:
        """The entry set on exactly this (user, client-id)."""
        return self._entries.get(_bounded(key))

    def entities(self) -> frozenset[_ClientName]:
        """Every (user, client-id) with a limit of this kind."""
        return frozenset(self._entries)


class TenantLimits:
    """The limits of one quota kind, in one mode, on tenants: a tenant's own, else the default tenant's."""

    _lend = 1.0

    def __init__(
        self,
        entries: Iterable[QuotaEntry],
        tenants: Tenants,
        mode: Mode = Mode.ENFORCE,
        elastic: _Elastic = _STRICT,
    ) -> None:
        """Take entries that all have the mode `mode`; the last one for a tenant counts."""
        self._elastic = elastic
        self._entries = {entry.entity.tenant: entry for entry in entries}
        self._tenants = tenants
        self._mode = mode
        self._resolved: dict[str, Resolution | None] = {}

    def resolve(self, user: str, client_id: str) -> "Resolution | None":
        """The limit of a client's tenant; None if it has no tenant, or this has no limit."""
        tenant = self._tenants.of(user, client_id)
        if tenant not in self._resolved:
            self._resolved[tenant] = self.limit_of(tenant)
        return self._resolved[tenant]

    def limit_of(self, tenant: str) -> "Resolution | None":
        """The limit of a tenant; None without one, and for the name ""."""
        entry = self._entries.get(tenant) or self._entries.get(DEFAULT)
        if entry is None or not tenant:
            return None
        tags, level = Tags(tenant=tenant), level_of(entry.entity)
        return _resolution(tags, level, entry, self._mode, self._elastic, self._lend)

    def lent(self, lend: float) -> Self:
        """The same while `lend` times the quotas are lent."""
        if not self._elastic:
            return self
        limits = copy.copy(self)
        limits._lend, limits._resolved = lend, {}  # noqa: SLF001 - of the copy
        return limits

    def most_lend(self) -> float:
        """The largest ceiling over its quota; 1 without any."""
        return _most_lend(self._entries.values(), self._elastic)


class ModeQuotas:
    """The quotas of one mode: each request finds its limit among them, whatever quotas the other mode has."""

    def __init__(
        self, entries: Iterable[QuotaEntry] = (), mode: Mode = Mode.ENFORCE, tenants: Tenants | None = None
    ) -> None:
        """Those of `entries` that have the mode `mode`. Of several for one entity and kind the last one counts.

        `tenants` are those of all entries, None if they are only in these. `is_elastic` says that a reservation or a
        ceiling stands beside one of them.
        """
        self.mode = mode
        self._unlent: Self | None = None
        entries = list(entries)
        self.tenants = Tenants(_members(entries)) if tenants is None else tenants
        by_kind: dict[QuotaKind, list[QuotaEntry]] = {kind: [] for kind in QuotaKind}
        of_tenants: dict[QuotaKind, list[QuotaEntry]] = {}
        elastic: dict[QuotaKind, dict[QuotaEntity, dict[str, float]]] = {}
        self._stored_bytes: dict[EntityName, float] = {}
        for entry in entries:
            if entry.mode is not mode or isinstance(entry.kind, Membership):
                continue
            if isinstance(entry.kind, StorageKey):
                self._stored_bytes[entry.entity.tenant] = entry.value
            elif isinstance(entry.kind, ElasticKey):
                of_kind = elastic.setdefault(entry.kind.quota, {})
                of_kind.setdefault(entry.entity, {})[entry.kind.part] = entry.value
            elif entry.entity.tenant is None:
                by_kind[entry.kind].append(entry)
            else:
                of_tenants.setdefault(entry.kind, []).append(entry)
        self._client_limits = {
            kind: ClientLimits(by_kind[kind], mode, elastic.get(kind, _STRICT)) for kind in CLIENT_KINDS
        }
        self._tenant_limits = {
            kind: TenantLimits(some, self.tenants, mode, elastic.get(kind, _STRICT))
            for kind, some in of_tenants.items()
        }
        self._topic_entries = {
            kind: {_bounded_part(entry.entity.topic): entry for entry in by_kind[kind]} for kind in TOPIC_KINDS
        }
        self._resolved_topics = {
            kind: NameCache[tuple[str, int], Resolution](_MAX_CACHED_BYTES) for kind in TOPIC_KINDS
        }
        self.is_elastic = bool(elastic)
        self._lent = {str(kind): _lent_counters(of_kind) for kind, of_kind in elastic.items()}
        # asked several times per request
        self._enabled = frozenset(kind for kind in QuotaKind if by_kind[kind] or kind in of_tenants)

    def enabled(self, kind: QuotaKind) -> bool:
        """True if any quota of this kind is set. Without one Kafka counts nothing."""
        return kind in self._enabled

    def client_limits(self, kind: QuotaKind) -> ClientLimits:
        """The limits of a client kind."""
        return self._client_limits[kind]

    def tenant_limits(self, kind: QuotaKind) -> TenantLimits | None:
        """The limits of a client kind on tenants; None if there is none."""
        return self._tenant_limits.get(kind)

    def resolve_client(self, kind: QuotaKind, user: str, client_id: str) -> Resolution:
        """The limit of a client kind for this user and client-id, its tenant's apart."""
        return self._client_limits[kind].resolve(user, client_id)

    def resolve_all(self, kind: QuotaKind, user: str, client_id: str) -> tuple[Resolution, ...]:
        """The limits of a client kind that hold a request: the client's own, then its tenant's.

        Without any quota on clients there is no counter of the client's own, as in Kafka.
        """
        own, of_tenants = self._client_limits[kind], self._tenant_limits.get(kind)
        resolved = (own.resolve(user, client_id),) if own else ()
        if of_tenants is None:
            return resolved
        found = of_tenants.resolve(user, client_id)
        return resolved if found is None else (*resolved, found)

    def resolve_tenant(self, kind: QuotaKind, tenant: str) -> Resolution | None:
        """The limit of a client kind that holds a tenant: its own, else the default tenant's; None without one."""
        of_tenants = self._tenant_limits.get(kind)
        return None if of_tenants is None else of_tenants.limit_of(tenant)

    def storage_budgets(self) -> dict[str, float]:
        """The bytes that the topics of each tenant may take: its own budget, else the default tenant's."""
        names = self.tenants.names if self._stored_bytes else []
        budgets = ((name, self._stored_bytes.get(name, self._stored_bytes.get(DEFAULT))) for name in names)
        return {name: budget for name, budget in budgets if budget is not None}

    def resolve_topic(self, kind: QuotaKind, topic: str, partition: int) -> Resolution:
        """The limit of a partition of a topic: the topic's own, else the default topic's (KIP-1010)."""
        resolved = self._resolved_topics[kind]
        try:
            return resolved[topic, partition]
        except KeyError:
            resolution = self._resolve_topic(kind, topic, partition)
            return resolved.keep((topic, partition), resolution, ENTRY_BYTES + len(topic) + len(resolution.key))

    def _resolve_topic(self, kind: QuotaKind, topic: str, partition: int) -> Resolution:
        topic = bounded_name(topic)
        tags = Tags(topic=topic, partition=partition)
        entries = self._topic_entries[kind]
        entry = entries.get(topic) or entries.get(DEFAULT)
        level = PrecedenceLevel.NONE if entry is None else level_of(entry.entity)
        return _resolution(tags, level, entry, self.mode)

    def limit_of(self, kind: QuotaKind, tags: Tags) -> float | None:
        """The limit of a counter, found from its tags as Kafka does; None is unlimited."""
        found = self.resolve_counter(kind, tags)
        return None if found is None else found.limit

    def resolve_counter(self, kind: QuotaKind, tags: Tags) -> Resolution | None:
        """The limit of a counter and the numbers beside it, found from its tags as Kafka does; None without an entry.

        Tags with a user and a client-id match only entities with both parts, and so on (ClientQuotaManager, "quota").
        """
        if tags.topic is not None:
            return self.resolve_topic(kind, tags.topic, tags.partition)
        if tags.tenant:
            return self.resolve_tenant(kind, tags.tenant)
        absent = (not tags.user, bool(tags.user) and not tags.client_id)
        limits = self._client_limits[kind]
        for level, (user_part, client_part) in PRECEDENCE_LEVELS.items():
            entry = limits.entry((_name(user_part, tags.user), _name(client_part, tags.client_id)))
            if entry is not None and (user_part is Part.ABSENT, client_part is Part.ABSENT) == absent:
                return limits.of_entry(tags, level, entry)
        return None

    def lent(self, lend: float) -> Self:
        """The same quotas while `lend` times the quotas are lent: limits that have a ceiling are above their quotas.

        >>> entity = QuotaEntity(user="alice")
        >>> numbers = {QuotaKind.PRODUCER_BYTE_RATE: 100.0, ElasticKey.PRODUCER_BYTE_RATE_CEILING: 250.0}
        >>> quotas = Quotas([QuotaEntry(entity, kind, value) for kind, value in numbers.items()])
        >>> [quotas.lent(lend).limit_of(QuotaKind.PRODUCER_BYTE_RATE, Tags("alice")) for lend in (1.0, 1.5, 9.0)]
        [100.0, 150.0, 250.0]
        """
        quotas = copy.copy(self)
        vars(quotas).update(
            _unlent=self.unlent,
            _client_limits={kind: limits.lent(lend) for kind, limits in self._client_limits.items()},
            _tenant_limits={kind: limits.lent(lend) for kind, limits in self._tenant_limits.items()},
        )
        return quotas

    def may_be_lent(self, counter: tuple[str, Tags]) -> bool:
        """False if no loan changes the limit of a counter of this kind and tags: no entity of it has a ceiling."""
        lent = self._lent.get(counter[0], frozenset())
        return lent is None or counter[1] in lent

    @property
    def unlent(self) -> Self:
        """The same quotas while nothing is lent."""
        return self if self._unlent is None else self._unlent

    def most_lend(self) -> float:
        """The largest ceiling over its quota; 1 without any."""
        limits: list[ClientLimits | TenantLimits] = [*self._client_limits.values(), *self._tenant_limits.values()]
        return max((each.most_lend() for each in limits), default=1.0)

    def is_empty(self) -> bool:
        """True if there is no quota of any kind."""
        return not self._enabled

    def charges_one_counter(self) -> bool:
        """True if every request charges at most one counter, so that no decisions need combining.

        So it is if no topic and no tenant has a quota, and all client kinds in use are set on the same entities: then
        each of them resolves a request to the same tags.
        """
        if any(self._topic_entries.values()) or self._tenant_limits:
            return False
        return len({limits.entities() for limits in self._client_limits.values() if limits}) <= 1


class Quotas(ModeQuotas):
    """All quotas in force at one version of the quotas table; a changed table is another `Quotas`.

    It is itself the enforced quotas. `shadow` are the shadow quotas, None if there are none, so that requests cost
    nothing more then.
    """

    def __init__(self, entries: Iterable[QuotaEntry] = (), version: int = 0) -> None:
        """Take entries; the last one for an entity, kind and mode counts."""
        entries = list(entries)
        super().__init__(entries)
        self.version = version
        shadow = ModeQuotas(entries, Mode.SHADOW, self.tenants)
        self.shadow = None if shadow.is_empty() else shadow

    def charges_one_counter(self) -> bool:
        """As for one mode. Enforced and shadow quotas have counters of their own, so only one may have any."""
        if self.shadow is None:
            return super().charges_one_counter()
        return self.is_empty() and self.shadow.charges_one_counter()


def entity_at(level: str, user: str, client_id: str, topic: str | None = None, tenant: str = "") -> QuotaEntity:
    """The entity on which a request with these names finds a quota of the level; without any part where that is none.

    >>> entity_at("user+default client-id", "alice", "app").to_mapping(), entity_at("none", "alice", "app").to_mapping()
    ({'user': 'alice', 'client_id': None}, {})
    """
    parts = _PARTS.get(level, (Part.ABSENT,) * 4)
    return QuotaEntity(*map(_name, parts, (user, client_id, topic, tenant)))


def bounded_entity(entity: QuotaEntity) -> QuotaEntity:
    """The entity with the names that counters of its requests have."""
    return QuotaEntity(*map(_bounded_part, (entity.user, entity.client_id, entity.topic, entity.tenant)))


def level_of(entity: QuotaEntity) -> PrecedenceLevel:
    """The level on which a request finds quotas of this entity."""
    return _LEVEL_OF[_part(entity.user), _part(entity.client_id), _part(entity.topic), _part(entity.tenant)]


def _members(entries: Iterable[QuotaEntry]) -> list[QuotaEntity]:
    return [entry.entity for entry in entries if isinstance(entry.kind, Membership)]


def _bounded(key: _ClientName) -> _ClientName:
    return _bounded_part(key[0]), _bounded_part(key[1])


def _bounded_part(name: EntityName) -> EntityName:
    return bounded_name(name) if isinstance(name, str) else name


def _part(name: EntityName) -> Part:
    """The kind of part that this name is."""
    if name is None:
        return Part.ABSENT
    return Part.DEFAULT if name is DEFAULT else Part.OWN


def _name(part: Part, own: str | None) -> EntityName:
    """The entity name at this level for a request named `own`."""
    if part is Part.OWN:
        return own
    return DEFAULT if part is Part.DEFAULT else None


def _resolution(
    tags: Tags,
    level: PrecedenceLevel,
    entry: QuotaEntry | None,
    mode: Mode,
    elastic: _Elastic = _STRICT,
    lend: float = 1.0,
) -> Resolution:
    limit = None if entry is None else entry.value
    if mode is Mode.SHADOW:
        return Resolution(tags, SHADOW_KEY_PREFIX + tags.key(), level, limit, shadow=True)
    numbers = elastic.get(entry.entity) if elastic and entry is not None else None
    if limit is None or numbers is None:
        return Resolution(tags, tags.key(), level, limit, shadow=False)
    reservation, ceiling = numbers.get("reservation"), numbers.get("ceiling")
    # a limit that is mirrored from Kafka may have moved past them
    reservation = None if reservation is None else min(reservation, limit)
    ceiling = None if ceiling is None else max(ceiling, limit)
    return Resolution(tags, tags.key(), level, lent_limit(limit, ceiling, lend), False, reservation, ceiling)


def _lent_counters(elastic: _Elastic) -> frozenset[Tags] | None:
    """The counters of entities with a ceiling; None if a default entity has one, so that any counter may be lent."""
    lent = [bounded_entity(entity) for entity, numbers in elastic.items() if "ceiling" in numbers]
    if any(DEFAULT in (entity.user, entity.client_id, entity.tenant) for entity in lent):
        return None
    return frozenset(
        Tags(str(each.user or ""), str(each.client_id or ""), tenant=str(each.tenant or "")) for each in lent
    )


def _most_lend(entries: Iterable[QuotaEntry], elastic: _Elastic) -> float:
    if not elastic:
        return 1.0
    ceilings = ((entry, elastic.get(entry.entity, {}).get("ceiling")) for entry in entries)
    return max((ceiling / entry.value for entry, ceiling in ceilings if ceiling is not None), default=1.0)
