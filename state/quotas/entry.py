"""One quota: its entity, kind, limit and mode, and the rules of Kafka's controller for its key and its value."""

import math
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from enum import StrEnum

import msgspec

from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.kinds import (
    CLIENT_KINDS,
    ENTRY_KINDS,
    KEY_ALIASES,
    TOPIC_KINDS,
    UNLIMITED,
    ElasticKey,
    EntryKind,
    Membership,
    QuotaKind,
    StorageKey,
)


class Mode(StrEnum):
    """Enforced or shadow. A shadow quota is metered and reported, and never delays or refuses."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


class QuotaEntry(msgspec.Struct, frozen=True, gc=False):
    """A quota on an entity, a reservation beside it, or a member of a tenant.

    `value` is in bytes/s, percent or mutations/s, as `kind` says.
    """

    entity: QuotaEntity
    kind: EntryKind
    value: float
    shadow: bool = False

    @property
    def mode(self) -> Mode:
        """The mode, as files, tables and commands write it."""
        return Mode.SHADOW if self.shadow else Mode.ENFORCE


FRACTION_TOLERANCE = 1e-6
"""Largest distance from a whole number at which Kafka accepts a long quota; it is stored as given."""


def quota_kind(entity: QuotaEntity, key: object) -> EntryKind:
    """The kind that `key`, or an alias of it, names on such an entity.

    Raises InvalidQuotaError (`unknown_key`) naming the keys that the entity can have, nearest first.
    """
    allowed: Sequence[EntryKind] = CLIENT_KINDS if entity.topic is None else TOPIC_KINDS
    beside: Sequence[EntryKind] = list(ElasticKey) if entity.topic is None else ()
    if entity.is_member:
        allowed, beside = list(Membership), ()
    elif entity.tenant is not None:
        allowed = [*CLIENT_KINDS, *StorageKey]
    kind = KEY_ALIASES.get(key, key) if isinstance(key, str) else key
    for candidate in (*allowed, *beside):
        if candidate == kind:
            return candidate
    whom = "users and client-ids" if entity.topic is None else "a topic"
    if entity.tenant is not None:
        whom = "a member of a tenant" if entity.is_member else "a tenant"
    names = [str(candidate) for candidate in allowed]
    nearest = get_close_matches(str(key), [*names, *beside], n=1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    problem = f"unknown quota key {key!r}"
    if isinstance(kind, str) and kind in ENTRY_KINDS:
        problem = f"{kind} is no key of {whom}"
        problem += ", but of a tenant" if isinstance(ENTRY_KINDS[kind], StorageKey) else ""
    raise InvalidQuotaError("unknown_key", f"{problem}; {hint}expected one of {', '.join(names)} on {whom}")


def check_value(kind: EntryKind, value: float) -> None:
    """Raises InvalidQuotaError unless Kafka would store `value` (bytes/s, percent or mutations/s) for `kind`.

    The checks run in Kafka's order; reasons: `unknown_key`, `not_one` (members),
    `not_finite`, `not_positive`, `too_large`, `fractional`.
    """
    if isinstance(kind, Membership):
        if value != 1.0:
            raise InvalidQuotaError("not_one", f"{kind} is {value:g}; expected 1")
        return
    if not isinstance(kind, ElasticKey | StorageKey) and kind not in CLIENT_KINDS and kind not in TOPIC_KINDS:
        raise InvalidQuotaError("unknown_key", f"unknown quota key {kind!r}; expected one of {', '.join(QuotaKind)}")
    check_number(kind, value, largest_whole=UNLIMITED if kind.family.whole else None)


def check_entries(entries: Iterable[QuotaEntry]) -> None:
    """Raises InvalidQuotaError for a reservation or storage budget that wouldn't count beside the others.

    Reasons: `never_shadow` (a shadow quota limits nobody, so there is nothing to keep or hold), and of a reservation
    `without_limit`, `above_limit`.
    """
    entries = list(entries)
    limits = {(entry.entity, entry.kind): entry.value for entry in entries if not entry.shadow}
    for entry in entries:
        if entry.shadow and isinstance(entry.kind, ElasticKey | StorageKey):
            raise InvalidQuotaError("never_shadow", f"{entry.kind} is set in mode shadow; expected mode enforce")
        if isinstance(entry.kind, ElasticKey):
            _check_beside(entry.kind, entry.value, limits.get((entry.entity, entry.kind.quota)))


def _check_beside(key: ElasticKey, value: float, limit: float | None) -> None:
    if limit is None:
        raise InvalidQuotaError("without_limit", f"{key} is {value:.15g} without {key.quota}; expected both or none")
    if value > limit:
        raise InvalidQuotaError("above_limit", f"{key} is {value:.15g}; expected at most {limit:.15g}, the {key.quota}")


_AMOUNT = re.compile(r"([0-9]{1,15}(?:[.,][0-9]+)?)\s*([kMGT]?)(i?)(?:B(?:ytes)?|%)?(?:/s|ps)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def number_hint(text: str) -> str:
    """The expectation of a number in place of this text, with the number that people mean by an amount with a unit.

    >>> number_hint("1.5 MB/s"), number_hint("1MiB"), number_hint("much")
    ('expected a number > 0, such as 1500000', 'expected a number > 0, such as 1048576', 'expected a number > 0')
    """
    amount = _AMOUNT.fullmatch(text.strip())
    if amount is None:
        return "expected a number > 0"
    number, prefix, binary = amount.groups()
    meant = float(number.replace(",", ".")) * (1024 if binary else 1000) ** _POWERS[prefix.lower()]
    return f"expected a number > 0, such as {meant:.15g}"


def check_number(key: str, value: float, largest_whole: float | None) -> None:
    """Raises InvalidQuotaError unless `value` is finite, above 0 and, with `largest_whole`, whole and at most that."""
    if not math.isfinite(value):
        raise InvalidQuotaError("not_finite", f"{key} is {value}; expected a finite number > 0")
    if value <= 0:
        raise InvalidQuotaError("not_positive", f"{key} is {value:g}; expected a number > 0")
    if largest_whole is None:
        return
    if value > largest_whole:
        raise InvalidQuotaError("too_large", f"{key} is {value:g}; expected at most {largest_whole:.0f}")
    if abs(value - round(value)) > FRACTION_TOLERANCE:
        raise InvalidQuotaError("fractional", f"{key} is {value}; expected a whole number")
