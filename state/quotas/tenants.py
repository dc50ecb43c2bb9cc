"""Tenants: named groups of users and client-ids, and the topics that they store, by names and globs.

A client is in at most one tenant. Of the members that match it the first one counts, in this order: those that name a
user and a client-id, those that name a user, those that name a client-id; of these the ones with fewer globs; of these
the ones with more characters that are no wildcards; and at last the tenant whose name sorts first. A topic is in at
most one tenant likewise.
"""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Membership
from sluice.state.quotas.name_cache import ENTRY_BYTES, NameCache

_MAX_CACHED_BYTES = 32 * 1024 * 1024
"""Bytes of the tenants that are kept by client, and of those by topic."""


class _Rank(NamedTuple):
    """Place of a member among those that match a client: the least counts."""

    parts: int
    globs: int
    wildcards_less: int
    entity: tuple[str, str, str]


class _Member(NamedTuple):
    """A member of a tenant; an empty glob is one that it doesn't have, and matches all. `user` is also a topic's."""

    rank: _Rank
    tenant: str
    user: str
    client_id: str
    entity: QuotaEntity

    @classmethod
    def of(cls, entity: QuotaEntity) -> "_Member":
        """The member that an entity names."""
        user, client_id = str(entity.user or entity.topic or ""), str(entity.client_id or "")
        globs = [part for part in (user, client_id) if is_glob(part)]
        wildcards = sum(part.count("*") + part.count("?") for part in globs)
        parts = 0 if user and client_id else 1 if user else 2
        tenant = str(entity.tenant)
        rank = _Rank(parts, len(globs), wildcards - len(user) - len(client_id), (tenant, user, client_id))
        return cls(rank, tenant, user, client_id, entity)

    def has(self, user: str, client_id: str) -> bool:
        """True if the member's globs match this client."""
        return (not self.user or matches(self.user, user)) and (
            not self.client_id or matches(self.client_id, client_id)
        )

    def meets(self, other: "_Member") -> bool:
        """True if the globs alone show a client that both match: each part of one is the other's, or a name it has."""
        return _meet(self.user, other.user) and _meet(self.client_id, other.client_id)


class _ByEnds:
    """Members by what one of their globs begins with, up to the first wildcard, or else by what it ends with.

    A name is looked up by its beginnings and ends, so a client of ten thousand tenants is compared with few of them.
    Globs that begin and end with a wildcard are compared with every name.
    """

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], list[_Member]] = {}
        self._lengths: Sequence[tuple[int, int]] = ()

    def add(self, glob: str, member: _Member) -> None:
        """Add a member under its glob."""
        self._members.setdefault(glob_ends(glob), []).append(member)

    def end(self) -> None:
        """Take notice that all are added."""
        self._lengths = sorted({(len(beginning), len(end)) for beginning, end in self._members})

    def near(self, name: str) -> Iterator[_Member]:
        """The members whose glob begins, or ends, as the name does."""
        for beginning, end in self._lengths:
            if max(beginning, end) <= len(name):
                yield from self._members.get((name[:beginning], name[len(name) - end :]), ())


class Tenants:
    """The tenant of each client and topic. False if no tenant has a member."""

    def __init__(self, members: Iterable[QuotaEntity] = ()) -> None:
        """Take members of tenants."""
        self._by_user, self._by_client_id, self._by_topic = _ByEnds(), _ByEnds(), _ByEnds()
        self._members = [_Member.of(entity) for entity in members]
        for member in self._members:
            self._index(member).add(member.user or member.client_id, member)
        for index in (self._by_user, self._by_client_id, self._by_topic):
            index.end()
        self._found = NameCache[tuple[str, str], str](_MAX_CACHED_BYTES)
        self._found_topics = NameCache[str, str](_MAX_CACHED_BYTES)

    def __bool__(self) -> bool:
        return bool(self._members)

    def of(self, user: str, client_id: str) -> str:
        """The tenant of a client, or "".

        >>> tenants = Tenants([QuotaEntity(tenant="shop", user="shop-*"), QuotaEntity(tenant="jobs", client_id="etl")])
        >>> tenants.of("shop-7", "etl"), tenants.of("eve", "etl"), tenants.of("eve", "app")
        ('shop', 'jobs', '')
        """
        try:
            return self._found[user, client_id]
        except KeyError:
            found = str(next((entity.tenant for entity in self.members_of(user, client_id)), ""))
            return self._found.keep((user, client_id), found, ENTRY_BYTES + len(user) + len(client_id))

    def of_topic(self, topic: str) -> str:
        """The tenant that stores a topic, or "".

        >>> tenants = Tenants([QuotaEntity(tenant="shop", topic="shop.*"), QuotaEntity(tenant="all", topic="*")])
        >>> tenants.of_topic("shop.orders"), tenants.of_topic("orders"), tenants.of("shop.orders", "")
        ('shop', 'all', '')
        """
        try:
            return self._found_topics[topic]
        except KeyError:
            found = str(next((entity.tenant for entity in self.members_of_topic(topic)), ""))
            return self._found_topics.keep(topic, found, ENTRY_BYTES + len(topic))

    @property
    def names(self) -> list[str]:
        """The names of the tenants that have members, sorted."""
        return sorted({member.tenant for member in self._members})

    def client_members(self) -> list[tuple[str, str, str]]:
        """User, client-id and tenant of the members that are no topics; of those that match a client the first counts.

        A name that a member doesn't have is "".

        >>> tenants = Tenants([QuotaEntity(tenant="jobs", client_id="etl"), QuotaEntity(tenant="shop", user="s-*")])
        >>> tenants.client_members()
        [('s-*', '', 'shop'), ('', 'etl', 'jobs')]
        """
        members = sorted(member for member in self._members if member.entity.topic is None)
        return [(member.user, member.client_id, member.tenant) for member in members]

    def of_tenant(self, tenant: str) -> list[QuotaEntity]:
        """The members of a tenant."""
        return [member.entity for member in self._members if member.tenant == tenant]

    def members_of(self, user: str, client_id: str) -> list[QuotaEntity]:
        """All members that match a client; the first one counts."""
        near = [*self._by_user.near(user), *self._by_client_id.near(client_id)]
        return [member.entity for member in sorted(member for member in near if member.has(user, client_id))]

    def members_of_topic(self, topic: str) -> list[QuotaEntity]:
        """All members that match a topic; the first one counts."""
        near = self._by_topic.near(topic)
        return [member.entity for member in sorted(member for member in near if member.has(topic, ""))]

    def check(self) -> None:
        """Raise InvalidQuotaError, naming both, if a member of one tenant is one of another too, as the globs show.

        So it is if each part of one is the same glob as the other's, or a name that this matches. Other globs may have
        names in common that are only seen later: then the order above decides.
        """
        for member in self._members:
            self._check_among(self._index(member).near(member.user or member.client_id), member)

    def _index(self, member: _Member) -> _ByEnds:
        if member.entity.topic is not None:
            return self._by_topic
        return self._by_user if member.user else self._by_client_id

    def _check_among(self, near: Iterable[_Member], member: _Member) -> None:
        for other in near:
            if other.tenant != member.tenant and other.rank.parts == member.rank.parts and other.meets(member):
                raise InvalidQuotaError(
                    "two_tenants",
                    f"{member_text(member.entity)} of tenant {member.tenant!r} is in tenant {other.tenant!r} too, by"
                    f" {member_text(other.entity)}; expected it in one",
                )


def check_members(entries: Iterable[QuotaEntry]) -> None:
    """Raise InvalidQuotaError as `Tenants.check` does if a member is one of two tenants."""
    Tenants(entry.entity for entry in entries if entry.kind is Membership.MEMBER).check()


def member_text(entity: QuotaEntity) -> str:
    """A member without its tenant.

    >>> member_text(QuotaEntity(tenant="shop", user="shop-*", client_id="app"))
    "user 'shop-*' with client-id 'app'"
    """
    parts = (("user", entity.user), ("client-id", entity.client_id), ("topic", entity.topic))
    return " with ".join(f"{label} {glob!r}" for label, glob in parts if glob is not None)


def is_glob(text: str) -> bool:
    """True if a member's text has a wildcard: `*` is any characters, `?` is one."""
    return "*" in text or "?" in text


def matches(glob: str, name: str) -> bool:
    """True if a glob matches a name. Large and small letters differ.

    >>> matches("shop-*", "shop-7"), matches("shop-*", "Shop-7"), matches("a[b]", "a[b]")
    (True, False, True)
    """
    return glob == name if not is_glob(glob) else fnmatchcase(name, glob.replace("[", "[[]"))


def glob_ends(glob: str) -> tuple[str, str]:
    """The characters before the first wildcard; where there are none those after the last one.

    >>> glob_ends("shop-?*"), glob_ends("carol"), glob_ends("*-eu"), glob_ends("*shop?")
    (('shop-', ''), ('carol', ''), ('', '-eu'), ('', ''))
    """
    beginning = glob.partition("*")[0].partition("?")[0]
    return beginning, "" if beginning else glob.rpartition("*")[2].rpartition("?")[2]


def _meet(one: str, other: str) -> bool:
    return one == other or (not is_glob(one) and matches(other, one)) or (not is_glob(other) and matches(one, other))
