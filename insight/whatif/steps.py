"""A stepped plan: quotas on their way from those in force to those that are wanted."""

from collections.abc import Iterable, Sequence

import msgspec

from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind


def stepped(present: Iterable[QuotaEntry], wanted: Sequence[QuotaEntry], steps: int) -> list[list[QuotaEntry]]:
    """The quotas of each step, the last one being those wanted. A limit moves by an equal amount with every step.

    A quota that isn't in force yet has its wanted limit from the first step on. Limits of whole numbers stay whole.

    >>> alice = QuotaEntity(user="alice")
    >>> def limit(value: float) -> list[QuotaEntry]:
    ...     return [QuotaEntry(alice, QuotaKind.PRODUCER_BYTE_RATE, value)]
    >>> [entry.value for (entry,) in stepped(limit(1000.0), limit(500.0), 3)]
    [833.0, 667.0, 500.0]
    """
    limits: dict[tuple[QuotaEntity, QuotaKind, bool], float] = {_key(entry): entry.value for entry in present}
    return [
        [_moved(entry, limits.get(_key(entry), entry.value), step / steps) for entry in wanted]
        for step in range(1, steps + 1)
    ]


def _moved(entry: QuotaEntry, start: float, share: float) -> QuotaEntry:
    value = entry.value if share == 1.0 else start + (entry.value - start) * share
    value = max(1.0, float(round(value))) if entry.kind.family.whole else value
    return msgspec.structs.replace(entry, value=value)


def _key(entry: QuotaEntry) -> tuple[QuotaEntity, QuotaKind, bool]:
    return entry.entity, entry.kind, entry.shadow
