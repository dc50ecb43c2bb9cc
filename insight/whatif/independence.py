"""Clients whose charges never meet on one counter: their requests can be replayed apart, in several processes."""

import zlib
from collections.abc import Collection, Iterable

import pyarrow as pa

from sluice.insight.whatif.recording import Chosen
from sluice.insight.whatif.whose import Part
from sluice.state.quotas.entry import QuotaEntry


def independent_by(entries: Iterable[QuotaEntry]) -> Part | None:
    """The part of a client that every counter with an enforced limit is kept for; None if there is none.

    Requests of two users share no counter if every limit is set on a user, or on a user and a client-id.

    >>> from sluice.state.quotas.entity import DEFAULT, QuotaEntity
    >>> from sluice.state.quotas.kinds import QuotaKind
    >>> def limits(*entities: QuotaEntity) -> list[QuotaEntry]:
    ...     return [QuotaEntry(entity, QuotaKind.PRODUCER_BYTE_RATE, 1.0) for entity in entities]
    >>> independent_by(limits(QuotaEntity(user=DEFAULT), QuotaEntity(user="alice", client_id="app"))).value
    'user'
    >>> independent_by(limits(QuotaEntity(client_id="app"))).value
    'client_id'
    >>> print(independent_by(limits(QuotaEntity(client_id="app"), QuotaEntity(user="alice"))))
    None
    """
    entities = [entry.entity for entry in entries if not entry.shadow]
    if all(entity.user is not None for entity in entities):
        return Part.USER
    if all(entity.client_id is not None for entity in entities):
        return Part.CLIENT_ID
    return None


def rows_of(part: Part, share: int, shares: int, only: Collection[str] | None) -> Chosen:
    """Flags the rows whose `part` falls into this share of them, and is one of `only`; None stands for all names."""

    def is_chosen(name: str) -> bool:
        return (only is None or name in only) and zlib.crc32(name.encode()) % shares == share

    def chosen(table: pa.Table) -> pa.Array:
        names = table[part.value].combine_chunks().fill_null("").dictionary_encode()
        return pa.array([is_chosen(name) for name in names.dictionary.to_pylist()], pa.bool_()).take(names.indices)

    return chosen
