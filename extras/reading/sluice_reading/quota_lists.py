"""Lists of quotas: their order, what one adds to another, and the differences of two."""

from collections.abc import Iterable
from typing import NamedTuple

from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry, check_entries
from sluice.state.quotas.kinds import EntryKind

EntryKey = tuple[QuotaEntity, EntryKind, bool]
"""Entity, kind, and whether it is a shadow quota."""

Difference = tuple[QuotaEntry | None, QuotaEntry | None]
"""The old and the new quota of one entity, key and mode; None where there is none."""

_ORDER = (
    ("client_id", False),
    ("client_id", True),
    ("topic", True),
    ("user", True),
    ("topic", False),
    ("user", False),
    ("tenant", True),
    ("tenant", False),
)
"""Entity types, each with whether it is the default, in the order of output."""


def merged(entries: Iterable[QuotaEntry], wanted: Iterable[QuotaEntry]) -> list[QuotaEntry]:
    """The quotas of `wanted`, and those of `entries` that `wanted` doesn't name.

    Raises InvalidQuotaError as `check_entries` does for the entities of `wanted`.
    """
    wanted_by_key = _by_key(wanted)
    after = list((_by_key(entries) | wanted_by_key).values())
    named = {entity for entity, _, _ in wanted_by_key}
    check_entries(entry for entry in after if entry.entity in named)
    return after


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
    parts = (("tenant", entity.tenant), ("user", entity.user), ("client_id", entity.client_id), ("topic", entity.topic))
    return tuple(
        (_ORDER.index((part, name is DEFAULT)), "" if name is DEFAULT else str(name))
        for part, name in parts
        if name is not None
    )


def _by_key(entries: Iterable[QuotaEntry]) -> dict[EntryKey, QuotaEntry]:
    return {(entry.entity, entry.kind, entry.shadow): entry for entry in entries}


class ChangedFrom(NamedTuple):
    """The OS user and host of a process that changed quotas, and the Kafka principal it has by its settings, if any."""

    os_user: str
    host: str
    principal: str | None = None

    def __str__(self) -> str:
        """In words.

        >>> str(ChangedFrom("carol", "laptop", "User:ops"))
        'carol@laptop, User:ops'
        """
        return f"{self.os_user}@{self.host}" + (f", {self.principal}" if self.principal else "")
