"""Find the quotas that apply to a request: the eight precedence levels of KIP-124, KIP-1010's two, and tenants'.

A tenant's quotas stand above those of its members: a request is charged to both. They have two levels of their own.
Source: KIP-124, "Quota entity"; KIP-1010, "Default Quota Configuration".
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum
from operator import itemgetter
from typing import Self

import msgspec

from sluice.state.quotas.entity import DEFAULT, Default, EntityName, QuotaEntity, Tags, bounded_name
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


class Requirement(Enum):
    """Requirement of a level for one part of a quota entity: its user, client-id, topic or tenant."""

    OWN = "the name in the request"
    DEFAULT = "the default entity"
    ABSENT = "no such part"

    __hash__ = object.__hash__  # Enum's own __hash__ is slow


PRECEDENCE_LEVELS = {
    PrecedenceLevel.USER_CLIENT: (Requirement.OWN, Requirement.OWN),
    PrecedenceLevel.USER_DEFAULT_CLIENT: (Requirement.OWN, Requirement.DEFAULT),
    PrecedenceLevel.USER: (Requirement.OWN, Requirement.ABSENT),
    PrecedenceLevel.DEFAULT_USER_CLIENT: (Requirement.DEFAULT, Requirement.OWN),
    PrecedenceLevel.DEFAULT_USER_DEFAULT_CLIENT: (Requirement.DEFAULT, Requirement.DEFAULT),
    PrecedenceLevel.DEFAULT_USER: (Requirement.DEFAULT, Requirement.ABSENT),
    PrecedenceLevel.CLIENT: (Requirement.ABSENT, Requirement.OWN),
    PrecedenceLevel.DEFAULT_CLIENT: (Requirement.ABSENT, Requirement.DEFAULT),
}
"""The eight precedence levels, most specific first, with what each requires of the user and of the client-id."""

TOPIC_LEVELS = (PrecedenceLevel.TOPIC, PrecedenceLevel.DEFAULT_TOPIC)
"""The two levels for a topic (KIP-1010, "Default Quota Configuration")."""

TENANT_LEVELS = (PrecedenceLevel.TENANT, PrecedenceLevel.DEFAULT_TENANT)

_OF_ALL_CLIENTS = {(DEFAULT, DEFAULT, None, None), (DEFAULT, None, None, None), (None, DEFAULT, None, None)}
"""The entities whose quota limits every client that no other limits."""

_REQUIREMENTS: Mapping[str, tuple[Requirement, ...]] = {
    **{level: (*required, Requirement.ABSENT, Requirement.ABSENT) for level, required in PRECEDENCE_LEVELS.items()},
    PrecedenceLevel.TOPIC: (Requirement.ABSENT, Requirement.ABSENT, Requirement.OWN, Requirement.ABSENT),
    PrecedenceLevel.DEFAULT_TOPIC: (Requirement.ABSENT, Requirement.ABSENT, Requirement.DEFAULT, Requirement.ABSENT),
    PrecedenceLevel.TENANT: (Requirement.ABSENT, Requirement.ABSENT, Requirement.ABSENT, Requirement.OWN),
    PrecedenceLevel.DEFAULT_TENANT: (Requirement.ABSENT, Requirement.ABSENT, Requirement.ABSENT, Requirement.DEFAULT),
}
"""Level -> what it requires of user, client-id, topic and tenant."""

_LEVEL_OF = {required: PrecedenceLevel(str(level)) for level, required in _REQUIREMENTS.items()}

_MAX_CACHED_BYTES = 24 * 1024 * 1024
"""Bytes of a generation of the resolutions cached per kind."""

_FEW_CACHED_BYTES = 2 * 1024 * 1024
"""The same for those who keep what they make of a resolution: a client's requests are planned in several ways."""

SHADOW_KEY_PREFIX = "shadow:"
"""Begins the key of each counter of a shadow quota, so that it is stored apart from the counter with the same tags.
No other key begins so: names in keys are URL-encoded and have no colon, and keys of topics begin with `topic:`."""

_OTHERS = (None, DEFAULT)
"""The names that an entity may have in place of a request's own."""

_Names = tuple[str | None, str | None, str | None, str | None, None, Default]
"""User, client-id, topic and tenant of a request, and the others."""


class Resolution(msgspec.Struct, frozen=True, gc=False):
    """The limit that applies to a request, and the counter that is charged. Limit None is unlimited.

    `key` is `tags.key()`, after `SHADOW_KEY_PREFIX` for a shadow quota. `level` is the level that gave the limit, which
    is in units of the quota per second. `reservation`, in the same unit, is set beside it, None if there is none.
    """

    tags: Tags
    key: str
    level: PrecedenceLevel
    limit: float | None
    shadow: bool
    reservation: float | None = None


_Reservations = Mapping[QuotaEntity, float]
"""Reservations of one kind, by entity."""

_NO_RESERVATIONS: _Reservations = {}


class Limits:
    """The limits of one quota kind, in one mode, on clients, on topics or on tenants. False if there are none.

    A limit is looked up by two names: user and client-id, topic and partition, or tenant and "".
    """

    def __init__(
        self,
        entries: Iterable[QuotaEntry],
        names_of: Callable[[str, str | int], _Names],
        mode: Mode = Mode.ENFORCE,
        reservations: _Reservations = _NO_RESERVATIONS,
    ) -> None:
        """Take entries that all have the mode `mode`; the last one for an entity counts.

        `names_of` makes of these two names user, client-id, topic and tenant; None where the request has none.
        """
        self._names_of = names_of
        self._mode = mode
        self._reservations = reservations
        self._entries = {_names(bounded_entity(entry.entity)): entry for entry in entries}
        used = {level_of(entry.entity) for entry in self._entries.values()}
        self._levels = [(level, _entity_of(level), _lacking(level)) for level in PrecedenceLevel if level in used]
        all_lacking = {lacking for *_, lacking in self._levels}
        # With entities of unlike parts, or none, unmatched requests are counted by their client-id.
        self._unmatched = all_lacking.pop() if len(all_lacking) == 1 else (True, False)
        self._resolved = NameCache[tuple[str, str | int], Resolution](_MAX_CACHED_BYTES)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def resolve(self, name: str, other: str | int = "") -> Resolution:
        """The first configured level, and the tags of the counter.

        If nothing matches, a client's tags depend on the entities of the kind: if all of them have the same parts
        (user, client-id or both), the counter has these too, else the client-id (Kafka's metric tags).
        """
        try:
            return self._resolved[name, other]
        except KeyError:
            resolution = self._resolve(self._names_of(name, other), other)
            size = ENTRY_BYTES + len(name) + len(str(other)) + len(resolution.key)
            return self._resolved.keep((name, other), resolution, size)

    def _resolve(self, own: _Names, other: str | int) -> Resolution:
        for level, entity_of, lacking in self._levels:
            entry = self._entries.get(entity_of(own))
            if entry is not None:
                return self._resolution(_tags(own, other, lacking), level, entry)
        return self._resolution(_tags(own, other, self._unmatched), PrecedenceLevel.NONE, None)

    def resolve_counter(self, tags: Tags) -> Resolution | None:
        """The limit of a client's counter; None without an entry.

        Tags with a user and a client-id match only entities with both parts, and so on (ClientQuotaManager, "quota").
        """
        own = (tags.user, tags.client_id, None, None, *_OTHERS)
        lacks = (not tags.user, bool(tags.user) and not tags.client_id)  # a user, a client-id
        for level, entity_of, lacking in self._levels:
            if lacking == lacks:
                entry = self._entries.get(entity_of(own))
                if entry is not None:
                    return self._resolution(tags, level, entry)
        return None

    def _resolution(self, tags: Tags, level: PrecedenceLevel, entry: QuotaEntry | None) -> Resolution:
        limit = None if entry is None else entry.value
        if self._mode is Mode.SHADOW:
            return Resolution(tags, SHADOW_KEY_PREFIX + tags.key(), level, limit, shadow=True)
        reservation = self._reservations.get(entry.entity) if self._reservations and entry is not None else None
        if limit is not None and reservation is not None:
            reservation = min(reservation, limit)  # a limit that is mirrored from Kafka may have moved below it
        return Resolution(tags, tags.key(), level, limit, False, reservation)

    def sparing(self) -> Self:
        """The same, which caches few resolutions."""
        limits = copy.copy(self)
        limits._resolved = NameCache(_FEW_CACHED_BYTES)  # noqa: SLF001 - of the copy
        return limits

    def entities(self) -> frozenset[tuple[EntityName, ...]]:
        """The names of every entity with a limit of this kind."""
        return frozenset(self._entries)


def _client(user: str, client_id: str | int) -> _Names:
    return bounded_name(user), bounded_name(str(client_id)), None, None, *_OTHERS


def _topic(topic: str, _partition: str | int) -> _Names:
    return None, None, bounded_name(topic), None, *_OTHERS


def _tenant(tenant: str, _: str | int) -> _Names:
    return None, None, None, tenant, *_OTHERS


def _tags(own: _Names, partition: str | int, lacking: tuple[bool, bool]) -> Tags:
    """The tags of a counter that has these names, but for a user or client-id if it is `lacking`."""
    user, client_id, topic, tenant, *_ = own
    if topic is not None:
        return Tags(topic=topic, partition=int(partition))
    if tenant is not None:
        return Tags(tenant=tenant)
    no_user, no_client_id = lacking
    return Tags("" if no_user or not user else user, "" if no_client_id or not client_id else client_id)


def _entity_of(level: PrecedenceLevel) -> Callable[[_Names], tuple[EntityName, ...]]:
    """A function that gives the entity at this level, of the names of a request."""
    others = {Requirement.ABSENT: 4, Requirement.DEFAULT: 5}  # the places of `_OTHERS` in `_Names`
    return itemgetter(*(others.get(required, own) for own, required in enumerate(_REQUIREMENTS[level])))


def _lacking(level: PrecedenceLevel) -> tuple[bool, bool]:
    """True for what counters of this level lack: a user, a client-id."""
    user, client_id, *_ = _REQUIREMENTS[level]
    return user is Requirement.ABSENT, client_id is Requirement.ABSENT


class ModeQuotas:
    """The quotas of one mode: each request finds its limit among them, whatever quotas the other mode has."""

    def __init__(
        self, entries: Iterable[QuotaEntry] = (), mode: Mode = Mode.ENFORCE, tenants: Tenants | None = None
    ) -> None:
        """Those of `entries` that have the mode `mode`. Of several for one entity and kind the last one counts.

        `tenants` are those of all entries, None if they are only in these.
        """
        self.mode = mode
        entries = list(entries)
        members = [entry.entity for entry in entries if isinstance(entry.kind, Membership)]
        self.tenants = Tenants(members) if tenants is None else tenants
        by_kind: dict[QuotaKind, list[QuotaEntry]] = {kind: [] for kind in QuotaKind}
        of_tenants: dict[QuotaKind, list[QuotaEntry]] = {kind: [] for kind in CLIENT_KINDS}
        reservations: dict[QuotaKind, dict[QuotaEntity, float]] = {}
        self._stored_bytes: dict[EntityName, float] = {}
        for entry in entries:
            if entry.mode is not mode or isinstance(entry.kind, Membership):
                continue
            if isinstance(entry.kind, StorageKey):
                self._stored_bytes[entry.entity.tenant] = entry.value
            elif isinstance(entry.kind, ElasticKey):
                reservations.setdefault(entry.kind.quota, {})[entry.entity] = entry.value
            elif entry.entity.tenant is None:
                by_kind[entry.kind].append(entry)
            else:
                of_tenants[entry.kind].append(entry)

        def limits(
            kinds: Iterable[QuotaKind],
            of: Mapping[QuotaKind, list[QuotaEntry]],
            names_of: Callable[[str, str | int], _Names],
        ) -> dict[QuotaKind, Limits]:
            return {kind: Limits(of[kind], names_of, mode, reservations.get(kind, _NO_RESERVATIONS)) for kind in kinds}

        self._client_limits = limits(CLIENT_KINDS, by_kind, _client)
        self._tenant_limits = limits(CLIENT_KINDS, of_tenants, _tenant)
        self._topic_limits = limits(TOPIC_KINDS, by_kind, _topic)
        # asked several times per request
        self._enabled = frozenset(kind for kind in QuotaKind if by_kind[kind] or of_tenants.get(kind))

    def enabled(self, kind: QuotaKind) -> bool:
        """True if any quota of this kind is set. Without one Kafka counts nothing."""
        return kind in self._enabled

    def client_limits(self, kind: QuotaKind) -> Limits:
        """The limits of a client kind."""
        return self._client_limits[kind]

    def resolve_client(self, kind: QuotaKind, user: str, client_id: str) -> Resolution:
        """The limit of a client kind for this user and client-id, its tenant's apart.

        Of Kafka's eight levels the first one with an entry counts, however low a later one's limit is.

        >>> kind = QuotaKind.PRODUCER_BYTE_RATE
        >>> of_app = QuotaEntry(QuotaEntity(user=DEFAULT, client_id="app"), kind, 1.0)
        >>> quotas = Quotas([QuotaEntry(QuotaEntity(user="alice"), kind, 2.0), of_app])
        >>> clients = [("alice", "app"), ("bob", "app"), ("bob", "web")]
        >>> found = [quotas.resolve_client(kind, *names) for names in clients]
        >>> [(str(one.level), one.key, one.limit) for one in found]
        [('user', 'alice|', 2.0), ('default user+client-id', 'bob|app', 1.0), ('none', '|web', None)]
        """
        return self._client_limits[kind].resolve(user, client_id)

    def resolve_all(self, kind: QuotaKind, user: str, client_id: str) -> tuple[Resolution, ...]:
        """The limits of a client kind that a request is charged under: the client's own, then its tenant's.

        Without any quota on clients there is no counter of the client's own, as in Kafka.
        """
        own = self._client_limits[kind]
        resolved = (own.resolve(user, client_id),) if own else ()
        if not self._tenant_limits[kind]:
            return resolved
        found = self.resolve_tenant(kind, self.tenants.of(user, client_id))
        return resolved if found is None else (*resolved, found)

    def resolve_tenant(self, kind: QuotaKind, tenant: str) -> Resolution | None:
        """The limit of a client kind for a tenant: its own, else the default tenant's; None without one."""
        found = self._tenant_limits[kind].resolve(tenant) if tenant else None
        return None if found is None or found.limit is None else found

    def storage_budgets(self) -> dict[str, float]:
        """The bytes that the topics of each tenant may take: its own budget, else the default tenant's."""
        names = self.tenants.names if self._stored_bytes else []
        budgets = ((name, self._stored_bytes.get(name, self._stored_bytes.get(DEFAULT))) for name in names)
        return {name: budget for name, budget in budgets if budget is not None}

    def resolve_topic(self, kind: QuotaKind, topic: str, partition: int) -> Resolution:
        """The limit of a partition of a topic: the topic's own, else the default topic's (KIP-1010)."""
        return self._topic_limits[kind].resolve(topic, partition)

    def limit_of(self, kind: QuotaKind, tags: Tags) -> float | None:
        """The limit of a counter, found from its tags as Kafka does; None is unlimited."""
        found = self.resolve_counter(kind, tags)
        return None if found is None else found.limit

    def resolve_counter(self, kind: QuotaKind, tags: Tags) -> Resolution | None:
        """The limit of a counter and its reservation, found from its tags as Kafka does; None without one."""
        if tags.topic is not None:
            return self.resolve_topic(kind, tags.topic, tags.partition)
        if tags.tenant:
            return self.resolve_tenant(kind, tags.tenant)
        return self._client_limits[kind].resolve_counter(tags)

    def sparing(self) -> Self:
        """The same quotas, which cache few resolutions."""
        quotas = copy.copy(self)
        names = ("_client_limits", "_tenant_limits", "_topic_limits")
        of_kinds: Mapping[str, Mapping[QuotaKind, Limits]] = {name: vars(self)[name] for name in names}
        spared = {name: {kind: one.sparing() for kind, one in of.items()} for name, of in of_kinds.items()}
        vars(quotas).update(spared)
        return quotas

    def without_default(self) -> list[QuotaKind]:
        """The byte rates for which some client may have no limit, so that a broker can't tighten it.

        >>> any_user = QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.PRODUCER_BYTE_RATE, 1e9)
        >>> [str(kind) for kind in Quotas([any_user]).without_default()]
        ['consumer_byte_rate']
        """
        kinds = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE)
        return [kind for kind in kinds if not _OF_ALL_CLIENTS & self._client_limits[kind].entities()]

    def is_empty(self) -> bool:
        """True if there is no quota of any kind."""
        return not self._enabled

    def charges_one_entity(self) -> bool:
        """True if every request charges the counters of one entity at most, so that no decisions need combining.

        So it is if no topic and no tenant has a quota, and all client kinds in use are set on the same entities: then
        each of them resolves a request to the same tags.
        """
        if any(self._topic_limits.values()) or any(self._tenant_limits.values()):
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

    def sparing(self) -> Self:
        """The same quotas, enforced and shadow ones, which cache few resolutions."""
        quotas = super().sparing()
        quotas.shadow = None if self.shadow is None else self.shadow.sparing()
        return quotas

    def client_names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The users and the client-ids, as counters have them, that any quota on clients names, in either mode."""
        modes = [self] if self.shadow is None else [self, self.shadow]
        entities = [names for mode in modes for kind in CLIENT_KINDS for names in mode.client_limits(kind).entities()]
        users, client_ids = ({names[part] for names in entities} for part in (0, 1))
        return _own_names(users), _own_names(client_ids)

    def charges_one_entity(self) -> bool:
        """As for one mode. Enforced and shadow quotas have counters of their own, so only one may have any."""
        if self.shadow is None:
            return super().charges_one_entity()
        return self.is_empty() and self.shadow.charges_one_entity()


def entity_at(level: str, user: str, client_id: str, topic: str | None = None, tenant: str = "") -> QuotaEntity:
    """The entity on which a request with these names finds a quota of the level; without any part where that is none.

    >>> entity_at("user+default client-id", "alice", "app").to_mapping(), entity_at("none", "alice", "app").to_mapping()
    ({'user': 'alice', 'client_id': None}, {})
    """
    required = _REQUIREMENTS.get(level, (Requirement.ABSENT,) * 4)
    return QuotaEntity(*map(_name, required, (user, client_id, topic, tenant)))


def _names(entity: QuotaEntity) -> tuple[EntityName, ...]:
    return entity.user, entity.client_id, entity.topic, entity.tenant


def bounded_entity(entity: QuotaEntity) -> QuotaEntity:
    """The entity with the names that counters of its requests have."""
    return QuotaEntity(*(bounded_name(name) if isinstance(name, str) else name for name in _names(entity)))


def _own_names(names: Iterable[EntityName]) -> frozenset[str]:
    return frozenset(name for name in names if isinstance(name, str))


def level_of(entity: QuotaEntity) -> PrecedenceLevel:
    """The level on which a request finds quotas of this entity."""
    return _LEVEL_OF[tuple(map(_requirement, _names(entity)))]


def _requirement(name: EntityName) -> Requirement:
    if name is None:
        return Requirement.ABSENT
    return Requirement.DEFAULT if name is DEFAULT else Requirement.OWN


def _name(requirement: Requirement, own: str | None) -> EntityName:
    if requirement is Requirement.OWN:
        return own
    return DEFAULT if requirement is Requirement.DEFAULT else None
