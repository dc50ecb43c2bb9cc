"""The exposure of quotas that each broker enforces for itself: each times the brokers that serve its clients.

Brokers with Sluice's plugin share a quota, so together they count as one.

Source: Kafka's quotas are defined per broker (KIP-13, KIP-124); the controller alone enforces mutations (KIP-599).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Family, QuotaKind
from sluice.state.quotas.resolution import PrecedenceLevel, Quotas, level_of

_BYTE_RATES = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE)
_CONTROLLER = -1
_ORDER = {level: place for place, level in enumerate(PrecedenceLevel)}


class ClusterFacts(msgspec.Struct, frozen=True):
    """The facts that a cluster tells of its brokers and clients.

    `leaders` are the brokers that lead partitions of clients' topics. A user's `written` and `read` are those that lead
    partitions of topics which it may write or read, a client-id's `fetched` those of partitions that a consumer group
    has assigned to it. `sharing` are the brokers with Sluice's plugin. `unknown` says what couldn't be asked.
    """

    brokers: frozenset[int]
    leaders: frozenset[int]
    users: frozenset[str] = frozenset()
    written: Mapping[str, frozenset[int]] = {}
    read: Mapping[str, frozenset[int]] = {}
    fetched: Mapping[str, frozenset[int]] = {}
    sharing: frozenset[int] = frozenset()
    unknown: tuple[str, ...] = ()


class Exposed(NamedTuple):
    """One quota, and how often a client can get all of it: once from each broker, or from those that share it.

    `source` says how the brokers are known.
    """

    entry: QuotaEntry
    times: int
    source: str

    @property
    def possible(self) -> float:
        """The most that a client can get today, in the unit of the quota."""
        return self.entry.value * self.times


def exposed(entries: Iterable[QuotaEntry], facts: ClusterFacts) -> list[Exposed]:
    """The exposure of each quota, the largest first in each kind."""
    found = []
    for entry in entries:
        brokers, source = _brokers(entry, facts)
        found.append(Exposed(entry, len(brokers - facts.sharing) + bool(brokers & facts.sharing), source))
    return sorted(found, key=lambda each: (str(each.entry.kind), -each.times, -each.entry.value))


def _brokers(entry: QuotaEntry, facts: ClusterFacts) -> tuple[frozenset[int], str]:
    """The brokers that serve the clients of a quota, and how they are known."""
    kind, user, client_id = entry.kind, entry.entity.user, entry.entity.client_id
    if not isinstance(kind, QuotaKind) or kind.family is Family.MUTATIONS:
        return frozenset({_CONTROLLER}), "the controller alone counts them"
    if kind.family is Family.REQUEST_TIME:
        return facts.brokers, "all brokers"
    if kind is QuotaKind.CONSUMER_BYTE_RATE and isinstance(client_id, str) and client_id in facts.fetched:
        return facts.fetched[client_id], "its consumer groups"
    of_users = facts.read if kind is QuotaKind.CONSUMER_BYTE_RATE else facts.written
    if isinstance(user, str) and user in of_users:
        return of_users[user], "topics that it has rights on"
    return facts.leaders, "all that lead partitions"


def shadowed(entries: Iterable[QuotaEntry]) -> list[tuple[QuotaEntry, QuotaEntry]]:
    """Quotas that no request is ever limited by, each with one that comes before it for all of its clients.

    >>> from sluice.state.quotas.entity import DEFAULT
    >>> of_app, of_users = QuotaEntity(client_id="app"), QuotaEntity(user=DEFAULT)
    >>> pairs = shadowed([QuotaEntry(each, QuotaKind.PRODUCER_BYTE_RATE, 1.0) for each in (of_app, of_users)])
    >>> [(under.entity.client_id, over.entity.user) for under, over in pairs]
    [('app', <Default.DEFAULT: '<default>'>)]
    """
    by_kind = {(entry.kind, entry.entity): entry for entry in entries}
    found = []
    for (kind, entity), entry in by_kind.items():
        wider = (by_kind.get((kind, each)) for each in _wider(entity))
        if over := [each for each in wider if each is not None]:
            found.append((entry, min(over, key=lambda each: _ORDER[level_of(each.entity)])))
    return found


def _wider(entity: QuotaEntity) -> list[QuotaEntity]:
    """The entities that come before this one for every client of it."""
    users, client_ids = ({name, DEFAULT, None} for name in (entity.user, entity.client_id))
    wider = [QuotaEntity(user, client_id) for user in users for client_id in client_ids if user or client_id]
    return [each for each in wider if _ORDER[level_of(each)] < _ORDER[level_of(entity)]]


def unseen(entries: Iterable[QuotaEntry], facts: ClusterFacts) -> list[QuotaEntity]:
    """Entities of users that have no login that the cluster knows and no right: most likely they match nobody."""
    if not facts.users:
        return []
    named = dict.fromkeys(entry.entity for entry in entries if isinstance(entry.entity.user, str))
    return [entity for entity in named if entity.user not in facts.users]


def unlimited(entries: Iterable[QuotaEntry], facts: ClusterFacts) -> dict[QuotaKind, list[str]]:
    """The users without a limit by their name alone, for each byte rate."""
    quotas = Quotas(entries)
    found = {
        kind: [user for user in sorted(facts.users) if quotas.resolve_client(kind, user, "").limit is None]
        for kind in _BYTE_RATES
    }
    return {kind: users for kind, users in found.items() if users}
