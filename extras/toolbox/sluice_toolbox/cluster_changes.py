"""The changes by which the quotas table becomes a mirror of a cluster's client quotas. Pure.

Only the enforced ones of users and client-ids are a mirror: a cluster has no shadow or topic quotas, no tenants, and
no reservations, and none of the keys that proxies alone hold.
"""

from collections.abc import Iterable
from typing import NamedTuple

from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import PROXY_KINDS, ElasticKey, EntryKind


class ClusterChanges(NamedTuple):
    """Counts of mirrored quotas that differ: only the cluster has them, has another value, or doesn't have them."""

    added: int
    changed: int
    removed: int

    def __str__(self) -> str:
        """In words.

        >>> str(ClusterChanges(3, 1, 0))
        '3 added, 1 changed, 0 removed'
        """
        return f"{self.added} added, {self.changed} changed, {self.removed} removed"


def mirrored(entries: Iterable[QuotaEntry], cluster: Iterable[QuotaEntry]) -> list[QuotaEntry]:
    """`entries` with the cluster's quotas in place of the enforced ones of users and client-ids."""
    return [*(entry for entry in entries if not is_mirrored(entry)), *cluster]


def cluster_changes(entries: Iterable[QuotaEntry], cluster: Iterable[QuotaEntry]) -> ClusterChanges:
    """Changes that `mirrored` would make to `entries`."""
    before = _values(entry for entry in entries if is_mirrored(entry))
    after = _values(cluster)
    common = before.keys() & after.keys()
    return ClusterChanges(
        added=len(after) - len(common),
        changed=sum(before[key] != after[key] for key in common),
        removed=len(before) - len(common),
    )


def _values(entries: Iterable[QuotaEntry]) -> dict[tuple[QuotaEntity, EntryKind], float]:
    return {(entry.entity, entry.kind): entry.value for entry in entries}


SLUICES_OWN = frozenset[str]([*ElasticKey, *PROXY_KINDS])
"""Keys that no cluster has on users and client-ids, so that they stay in the table beside the mirrored quotas."""


def is_mirrored(entry: QuotaEntry) -> bool:
    """True if the quota is one that a cluster can have: enforced, on a user, a client-id or both."""
    if entry.kind in SLUICES_OWN:
        return False
    return not entry.shadow and entry.entity.topic is None and entry.entity.tenant is None
