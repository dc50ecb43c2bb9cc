"""Overrides of limits: what of them holds at a time, and for whom. Pure: times are arguments, in epoch milliseconds.

Deciders in the job publish them, each under a key of its own in the limits topic; gateways apply all alike:

    bound  = share * max(factor, reservation / quota)  of a gateway that is tightened

`share` is the gateway's part of the limit. A hold leaves producers a trickle, and one with `consumers` lets a consumer
fetch nothing. Of several factors of a gateway the least counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import MAX_TIMESTAMP_MS, CountedEntity
from sluice.state.quotas.entity import bounded_name
from sluice.state.quotas.tenants import Tenants

DEFAULT_RESERVATION = 0.5
"""Reservation of a quota that has none of its own, as a part of the quota."""

TIGHT_BURST_S = 0.5
"""Burst of a counter on a gateway that is tightened, in seconds of its bound. With the usual one, a client a little
above its bound would go on for 10 s and more."""

HELD_MS = 10_000
"""Wait after each request of a client under a hold. It ends no sooner when the hold does."""


def bound_of_share(factor: float, limit: float, reservation: float | None) -> float:
    """The fraction of its share that a gateway with this factor lets through.

    >>> bound_of_share(0.7, 100.0, None), bound_of_share(0.3, 100.0, None), bound_of_share(0.3, 100.0, 40.0)
    (0.7, 0.5, 0.4)
    """
    return max(factor, DEFAULT_RESERVATION if reservation is None else reservation / limit)


def factor_of(overrides: Iterable[Override], gateway: str) -> float:
    """The fraction of its shares that a gateway lets through; 1 if it isn't tightened.

    >>> tight = [Override("tighten", factor, gateway="b-1") for factor in (0.7, 0.6)]
    >>> factor_of(tight, "b-1"), factor_of(tight, "b-2")
    (0.6, 1.0)
    """
    return min((each.factor for each in overrides if each.kind == "tighten" and each.gateway == gateway), default=1.0)


def are_alike(some: Sequence[Override], others: Sequence[Override]) -> bool:
    """True if gateways do the same by both. Reasons have figures in them that change all the time.

    >>> are_alike([Override("hold", reason="5 bytes free")], [Override("hold", reason="4 bytes free")])
    True
    """
    plain = ([msgspec.structs.replace(each, reason="") for each in overrides] for overrides in (some, others))
    return next(plain) == next(plain)


def overrides_now(said: Mapping[str, Overrides], now_ms: int) -> Iterator[tuple[str, Override]]:
    """The overrides that hold now by the deciders' last records, with the decider; for readers that apply none.

    >>> said = {"disk_guard": Overrides(7, 5_000, 60_000, [Override("hold", until_ms=50_000)])}
    >>> [len(list(overrides_now(said, now_ms))) for now_ms in (49_999, 50_000)]
    [1, 0]
    """
    for decider, record in said.items():
        if abs(now_ms - record.at_ms) <= record.fresh_ms:
            yield from ((decider, each) for each in record.overrides if each.until_ms is None or now_ms < each.until_ms)


def by_another_clock(record: Overrides, ahead_ms: int) -> Overrides:
    """The same by a clock that is so much ahead of the one that its times are of.

    >>> record = Overrides(7, 10_000, 5_000, [Override("hold"), Override("hold", until_ms=12_000)])
    >>> moved = by_another_clock(record, 60_000)
    >>> moved.at_ms, [each.until_ms for each in moved.overrides]
    (70000, [None, 72000])
    """
    overrides = [
        each if each.until_ms is None else msgspec.structs.replace(each, until_ms=_moved_ms(each.until_ms, ahead_ms))
        for each in record.overrides
    ]
    return msgspec.structs.replace(record, at_ms=record.at_ms + ahead_ms, overrides=overrides)


def _moved_ms(at_ms: int, ahead_ms: int) -> int:
    """A time by such a clock, as a record can have it."""
    return min(max(0, at_ms + ahead_ms), MAX_TIMESTAMP_MS)


def heard(record: Overrides, now_ms: int, *, is_past: bool) -> Overrides:
    """A record with times by the clock of the gateway that hears it now.

    It is just published, whatever the clocks say, unless the topic had it before the gateway began to read (`is_past`):
    then it is as old as the clocks say, as nothing else tells.

    >>> record = Overrides(7, at_ms=10_000, fresh_ms=5_000)
    >>> [heard(record, now_ms, is_past=False).at_ms for now_ms in (8_000, 10_200, 900_000)]
    [8000, 10200, 900000]
    >>> [heard(record, now_ms, is_past=True).at_ms for now_ms in (8_000, 10_200, 900_000)]
    [8000, 10000, 10000]
    """
    return by_another_clock(record, min(0, now_ms - record.at_ms) if is_past else now_ms - record.at_ms)


class Hold(NamedTuple):
    """A hold of a client, and the decider, whose name events have as that of a quota."""

    decider: str
    override: Override
    until_ms: int


_Scope = tuple[str | None, str | None, str | None]
"""User, client-id and tenant of a hold; all None for everybody."""

_Factors = list[tuple[float, int]]
"""Factors, and until when they hold."""


class OverridesInForce:
    """The overrides that hold at gateway `instance`, as far as it has heard. One thread writes, others may read."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._said: Mapping[str, Overrides] = {}
        self._heard: Mapping[str, tuple[Overrides, Overrides]] = {}
        self._factors: _Factors = []
        self._holds: Mapping[_Scope, list[Hold]] = {}

    def hear(self, said: Mapping[str, Overrides], now_ms: int, *, is_past: bool = False) -> None:
        """Take over the last records of all deciders, which stay as they are. One heard before holds as long as it did.

        `is_past` while what is read is older than the gateway.
        """
        if said is self._said:
            return  # most records of the topic are limits
        records: dict[str, tuple[Overrides, Overrides]] = {}
        for decider, record in said.items():
            old = self._heard.get(decider)
            records[decider] = old if old and old[0] == record else (record, heard(record, now_ms, is_past=is_past))
        factors: _Factors = []
        holds: dict[_Scope, list[Hold]] = {}
        for decider, (_, record) in sorted(records.items()):
            believed_until_ms = record.at_ms + record.fresh_ms
            for each in record.overrides:
                until_ms = believed_until_ms if each.until_ms is None else min(believed_until_ms, each.until_ms)
                if each.gateway not in (None, self._instance):
                    continue
                if each.kind == "tighten":
                    factors.append((each.factor, until_ms))
                else:
                    holds.setdefault(_scope(each.entity), []).append(Hold(decider, each, until_ms))
        self._said, self._heard, self._factors, self._holds = said, records, factors, holds

    def command(self, now_ms: int) -> int:
        """The number of the operator's last command that is in force; 0 for none."""
        return max((each.command for _, each in self._heard.values() if now_ms < each.at_ms + each.fresh_ms), default=0)

    def factor(self, now_ms: int) -> float:
        """The part of its shares that this gateway lets through now."""
        factors = self._factors
        if not factors:
            return 1.0  # each request asks
        return min((factor for factor, until_ms in factors if now_ms < until_ms), default=1.0)

    @property
    def has_holds(self) -> bool:
        """True if anybody may be under a hold."""
        return bool(self._holds)

    def hold(self, user: str, client_id: str, tenants: Tenants, now_ms: int, is_fetch: bool = False) -> Hold | None:
        """The hold of a producer, or of a consumer that fetches, now: the strictest; None without one.

        >>> from sluice.state.quotas.entity import QuotaEntity
        >>> in_force, tenants = OverridesInForce("b-1"), Tenants([QuotaEntity(tenant="shop", user="etl")])
        >>> shop = Override("hold", entity=CountedEntity(tenant="shop"), reason="its budget is used up")
        >>> in_force.hear({"stored_bytes": Overrides(7, 1_000, 60_000, [shop])}, now_ms=1_100)
        >>> asked = [("etl", 61_099), ("web", 61_099), ("etl", 61_100)]
        >>> [in_force.hold(user, "", tenants, now_ms) is not None for user, now_ms in asked]
        [True, False, False]
        """
        holds = self._holds
        if not holds:
            return None
        tenant, user, client_id = tenants.of(user, client_id), bounded_name(user), bounded_name(client_id)
        names = (user, client_id, None), (user, None, None), (None, client_id, None)
        scopes = (None, None, None), (None, None, tenant), *names
        found = [hold for scope in scopes for hold in holds.get(scope, ()) if now_ms < hold.until_ms]
        stops = (hold for hold in found if hold.override.consumers)
        return next(stops, None if is_fetch or not found else found[0])


def _scope(entity: CountedEntity | None) -> _Scope:
    if entity is None:
        return (None, None, None)
    user, client_id = (None if name is None else bounded_name(name) for name in (entity.user, entity.client_id))
    return (user, client_id, entity.tenant)
