"""Which quota applies to a request: the eight rungs of KIP-124 ("Quota entity") and KIP-1010's two."""

from collections import Counter
from collections.abc import Iterable
from enum import Enum, StrEnum
from typing import TypeVar

import msgspec

from state.entity import DEFAULT, EntityName, QuotaEntity, Tags
from state.quota import CLIENT_KINDS, TOPIC_KINDS, QuotaKind, Window
from state.quota_entry import QuotaEntry


class Rung(StrEnum):
    """The configured entity that gave a limit, from the most to the least specific."""

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
    NONE = "none"

    __hash__ = str.__hash__  # an enum's own is slow, and rungs are looked up for each request


class Level(Enum):
    """Which tags the entities of a rung use."""

    CLIENT = "client-id"
    USER = "user"
    USER_CLIENT = "user+client-id"


LEVELS = {
    Rung.USER_CLIENT: Level.USER_CLIENT,
    Rung.USER_DEFAULT_CLIENT: Level.USER_CLIENT,
    Rung.USER: Level.USER,
    Rung.DEFAULT_USER_CLIENT: Level.USER_CLIENT,
    Rung.DEFAULT_USER_DEFAULT_CLIENT: Level.USER_CLIENT,
    Rung.DEFAULT_USER: Level.USER,
    Rung.CLIENT: Level.CLIENT,
    Rung.DEFAULT_CLIENT: Level.CLIENT,
}
"""The eight rungs, most specific first, and the level of each."""


MOST_REMEMBERED = 1 << 17
"""Resolutions of each kind that are kept: some 50 MB in a worker."""

LONGEST_REMEMBERED = 256
"""Characters of the names of a client that is remembered: names may have tens of thousands, and memory has an end."""

_Whom = TypeVar("_Whom", tuple[str, str], tuple[str, int])

_Part = tuple[EntityName] | None
"""What a rung looks for as user or client-id: a fixed part, or None for the request's own name."""


class Resolution(msgspec.Struct, frozen=True, gc=False):
    """The limit that applies to one request and the counter it is charged to; limit None is unlimited.

    `key` is that of the tags.
    """

    tags: Tags
    key: str
    rung: Rung
    limit: float | None
    shadow: bool


class ClientLimits:
    """The limits of one quota kind on users, client-ids and both.

    Levels are counted while entities live, as Kafka 4.4 does it: removing the last entity of a level clears it.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[EntityName, EntityName], QuotaEntry] = {}
        self._entities_by_rung: Counter[Rung] = Counter()
        self._rungs: tuple[tuple[Rung, Level, _Part, _Part], ...] = ()
        self._unmatched_level = Level.CLIENT
        self._resolved: dict[tuple[str, str], Resolution] = {}

    def __bool__(self) -> bool:
        """Whether any quota of this kind is set."""
        return bool(self._entries)

    def set(self, entry: QuotaEntry) -> None:
        """Set or replace the limit of one entity."""
        key = (entry.entity.user, entry.entity.client_id)
        if key not in self._entries:
            self._count(key, 1)
        self._entries[key] = entry
        self._resolved.clear()

    def remove(self, entity: QuotaEntity) -> None:
        """Remove the limit of one entity; nothing happens where it has none."""
        key = (entity.user, entity.client_id)
        if self._entries.pop(key, None) is not None:
            self._count(key, -1)
            self._resolved.clear()

    def resolve(self, user: str, client_id: str) -> Resolution:
        """The first configured of the eight rungs, and the tags it counts by.

        While all entities of the kind are of one level, that level gives the tags also where nothing matches;
        with several levels an unmatched request is counted by its client-id.
        """
        resolution = self._resolved.get((user, client_id))
        if resolution is None:
            resolution = _remembered(self._resolved, (user, client_id), self._resolve(user, client_id))
        return resolution

    def _resolve(self, user: str, client_id: str) -> Resolution:
        for rung, level, own_user, own_client_id in self._rungs:
            key = (
                user if own_user is None else own_user[0],
                client_id if own_client_id is None else own_client_id[0],
            )
            entry = self._entries.get(key)
            if entry is not None:
                return _resolution(_tags(level, user, client_id), rung, entry)
        return _resolution(_tags(self._unmatched_level, user, client_id), Rung.NONE, None)

    def entry(self, key: tuple[EntityName, EntityName]) -> QuotaEntry | None:
        """The entry set on exactly this (user, client-id), for showing which rungs were passed over."""
        return self._entries.get(key)

    def entities(self) -> frozenset[tuple[EntityName, EntityName]]:
        """Every (user, client-id) with a limit of this kind."""
        return frozenset(self._entries)

    def _count(self, key: tuple[EntityName, EntityName], change: int) -> None:
        """Keep the rungs in use, most specific first: only those need looking up."""
        rung = _rung_of(*key)
        entities = self._entities_by_rung[rung] + change
        self._entities_by_rung[rung] = entities
        if entities in (0, change):  # the rung's last entity has gone, or its first one come
            self._rungs = tuple(
                (rung, level, *_PARTS[rung]) for rung, level in LEVELS.items() if self._entities_by_rung[rung] > 0
            )
            levels = {level for _, level, _, _ in self._rungs}
            self._unmatched_level = levels.pop() if len(levels) == 1 else Level.CLIENT


class Quotas:
    """All quotas in force at one version of the quotas table."""

    def __init__(self, entries: Iterable[QuotaEntry] = (), version: int = 0) -> None:
        self.version = version
        self._client_limits = {kind: ClientLimits() for kind in CLIENT_KINDS}
        self._topic_entries: dict[QuotaKind, dict[EntityName, QuotaEntry]] = {kind: {} for kind in TOPIC_KINDS}
        self._resolved_topics: dict[QuotaKind, dict[tuple[str, int], Resolution]] = {kind: {} for kind in TOPIC_KINDS}
        for entry in entries:
            self.set(entry)

    def set(self, entry: QuotaEntry) -> None:
        """Set or replace one limit."""
        if entry.kind in TOPIC_KINDS:
            self._topic_entries[entry.kind][entry.entity.topic] = entry
            self._resolved_topics[entry.kind].clear()
        else:
            self._client_limits[entry.kind].set(entry)

    def remove(self, entity: QuotaEntity, kind: QuotaKind) -> None:
        """Remove one limit; nothing happens where there is none."""
        if kind in TOPIC_KINDS:
            self._topic_entries[kind].pop(entity.topic, None)
            self._resolved_topics[kind].clear()
        else:
            self._client_limits[kind].remove(entity)

    def enabled(self, kind: QuotaKind) -> bool:
        """Whether any quota of this kind is set: without one, Kafka counts nothing."""
        return bool(self._topic_entries[kind] if kind in TOPIC_KINDS else self._client_limits[kind])

    def client_limits(self, kind: QuotaKind) -> ClientLimits:
        """The limits of a kind that is set on users and client-ids."""
        return self._client_limits[kind]

    def resolve(self, kind: QuotaKind, user: str, client_id: str) -> Resolution:
        """The limit of a client kind for this user and client-id."""
        return self._client_limits[kind].resolve(user, client_id)

    def resolve_topic(self, kind: QuotaKind, topic: str, partition: int) -> Resolution:
        """The limit of each partition of a topic: the topic's own, else the default topic's (KIP-1010)."""
        resolved = self._resolved_topics[kind]
        resolution = resolved.get((topic, partition))
        if resolution is None:
            resolution = _remembered(resolved, (topic, partition), self._resolve_topic(kind, topic, partition))
        return resolution

    def _resolve_topic(self, kind: QuotaKind, topic: str, partition: int) -> Resolution:
        tags = Tags(topic=topic, partition=partition)
        entries = self._topic_entries[kind]
        for rung, name in topic_ladder(topic):
            entry = entries.get(name)
            if entry is not None:
                return _resolution(tags, rung, entry)
        return _resolution(tags, Rung.NONE, None)

    def topic_entry(self, kind: QuotaKind, name: EntityName) -> QuotaEntry | None:
        """The entry set on exactly this topic, for showing which rungs were passed over."""
        return self._topic_entries[kind].get(name)

    def one_tag_shape(self) -> bool:
        """Whether every request is sure to be charged to a single counter key, so that nothing needs combining."""
        if any(self._topic_entries.values()):
            return False
        return len({limits.entities() for limits in self._client_limits.values() if limits}) <= 1


def ladder(user: str, client_id: str) -> tuple[tuple[Rung, tuple[EntityName, EntityName]], ...]:
    """The eight rungs for a user and client-id, most specific first, each with the entity it looks for."""
    return tuple((rung, _entity_at(rung, user, client_id)) for rung in LEVELS)


def topic_ladder(topic: str) -> tuple[tuple[Rung, EntityName], ...]:
    """The two rungs for a topic (KIP-1010, "Default Quota Configuration")."""
    return ((Rung.TOPIC, topic), (Rung.DEFAULT_TOPIC, DEFAULT))


def max_in_window(limit: float | None, window: Window) -> float:
    """Most bytes worth fetching at once: Q * (S-1) * W; with no limit the largest double.

    >>> max_in_window(10.0, Window(samples=11, window_ms=1000))
    100.0
    """
    if limit is None:
        return 1.7976931348623157e308
    return limit * (window.samples - 1) * (window.window_ms / 1000.0)


def _entity_at(rung: Rung, user: str, client_id: str) -> tuple[EntityName, EntityName]:
    """The (user, client-id) that a rung looks for."""
    own_user, own_client_id = _PARTS[rung]
    return (user if own_user is None else own_user[0], client_id if own_client_id is None else own_client_id[0])


_PARTS: dict[Rung, tuple[_Part, _Part]] = {
    Rung.USER_CLIENT: (None, None),
    Rung.USER_DEFAULT_CLIENT: (None, (DEFAULT,)),
    Rung.USER: (None, (None,)),
    Rung.DEFAULT_USER_CLIENT: ((DEFAULT,), None),
    Rung.DEFAULT_USER_DEFAULT_CLIENT: ((DEFAULT,), (DEFAULT,)),
    Rung.DEFAULT_USER: ((DEFAULT,), (None,)),
    Rung.CLIENT: ((None,), None),
    Rung.DEFAULT_CLIENT: ((None,), (DEFAULT,)),
}


def _rung_of(user: EntityName, client_id: EntityName) -> Rung:
    """The rung that an entity stands on."""
    return _RUNGS[_shape(user), _shape(client_id)]


def _shape(name: EntityName) -> EntityName:
    """None and DEFAULT as they are, any name as ""."""
    return name if name is None or name is DEFAULT else ""


_RUNGS: dict[tuple[EntityName, EntityName], Rung] = {
    ("" if user is None else user[0], "" if client_id is None else client_id[0]): rung
    for rung, (user, client_id) in _PARTS.items()
}


def _resolution(tags: Tags, rung: Rung, entry: QuotaEntry | None) -> Resolution:
    if entry is None:
        return Resolution(tags, tags.key(), rung, None, shadow=False)
    return Resolution(tags, tags.key(), rung, entry.value, entry.shadow)


def _remembered(resolved: dict[_Whom, Resolution], whom: _Whom, resolution: Resolution) -> Resolution:
    """The resolution, kept for the next request of the same client: most requests come from few of them."""
    if len(f"{whom[0]}{whom[1]}") > LONGEST_REMEMBERED:
        return resolution
    if len(resolved) >= MOST_REMEMBERED:
        resolved.clear()
    resolved[whom] = resolution
    return resolution


def _tags(level: Level, user: str, client_id: str) -> Tags:
    return Tags(user if level is not Level.CLIENT else "", client_id if level is not Level.USER else "")
