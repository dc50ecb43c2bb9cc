"""What a gateway takes out of a decision: what was charged, who has to wait, and until when."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gateways.client.wait_table import Wait
from state.decisions.request import MAX_APPLIED_WAITS, MAX_TIMESTAMP_MS
from state.decisions.waits import CounterKey
from state.quotas.entity import Tags
from state.quotas.kinds import MAX_THROTTLE_MS, Family, QuotaKind

_KINDS: dict[str, QuotaKind] = {kind.value: kind for kind in QuotaKind}

_TOKEN_QUOTAS = frozenset(kind for kind in QuotaKind if kind.family is Family.MUTATIONS)
"""The quotas whose waits don't come from a rate: tokens come back at the limit, so the wait follows the limit alone."""

# Structs without garbage collection: thousands of them are made each second, and none holds a circle.


class _Entity(msgspec.Struct, gc=False):
    user: str = ""
    client_id: str = ""
    topic: str | None = None
    partition: int = -1


class Charge(msgspec.Struct, gc=False):
    """A charge of a decision. No charge of a valid decision is larger than 1e30 (docs/contracts.md, `unreadable`)."""

    quota: str
    entity: _Entity = msgspec.field(default_factory=_Entity)
    limit: Annotated[float, Meta(ge=0)] | None = None
    value: Annotated[float, Meta(ge=0, le=1e30)] = 0.0
    rate: float | None = None
    throttle_ms: int = 0
    mode: str | None = None


class _AppliedWait(msgspec.Struct, gc=False):
    quota: str
    entity: _Entity
    ms: Annotated[int, Meta(ge=0)]


class _Amounts(msgspec.Struct, gc=False):
    withheld: bool = False


class Decided(msgspec.Struct, gc=False):
    """The fields of a decision that the gateway itself uses."""

    request_id: str
    timestamp_ms: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)]
    api: str = ""
    instance: str | None = None
    decision_id: str = ""
    mute_until_ms: int | None = None
    decided_by: str | None = None
    quota_version: int = 0
    charges: list[Charge] = []
    throttled_by: Annotated[list[_AppliedWait], Meta(max_length=MAX_APPLIED_WAITS)] | None = None
    amounts: _Amounts | None = None

    @property
    def throttle_ms(self) -> int:
        """The wait of the whole decision."""
        return 0 if self.mute_until_ms is None else max(0, self.mute_until_ms - self.timestamp_ms)

    @property
    def withheld(self) -> bool:
        """Whether the response went out empty."""
        return self.amounts is not None and self.amounts.withheld


Charges = Sequence[tuple[tuple[QuotaKind, Tags], Charge]]
"""The enforced charges of a decision, each with its counter."""

_DECIDED = msgspec.json.Decoder(Decided)


def read_decided(value: bytes | None) -> Decided:
    """The decision in a record. Raises what msgspec does, and RecursionError, for a record that holds none."""
    return _DECIDED.decode(value or b"")


def enforced_charges(decided: Decided) -> Charges:
    """The charges of known kinds that count: shadow quotas never make anyone wait."""
    return [
        ((kind, _tags(charge.entity)), charge)
        for charge in decided.charges
        if charge.mode != "shadow" and (kind := _KINDS.get(charge.quota)) is not None
    ]


def applied_waits(decided: Decided) -> dict[CounterKey, int] | None:
    """Milliseconds by counter that its gateway made the client wait in line; None if it doesn't charge in line."""
    if decided.throttled_by is None:
        return None
    return {(wait.quota, _tags(wait.entity)): wait.ms for wait in decided.throttled_by}


def decided_waits(decided: Decided, charges: Charges, now_ms: int) -> Iterator[tuple[CounterKey, Wait]]:
    """What the decision says of each counter that it charged.

    The counter that decided waits until the decision's `mute_until_ms`, which is more than its charge says when waits
    add up, and less when the request has spent a part in purgatory. No other counter waits longer than that.

    `now_ms` bounds the order, so that a decision from the future doesn't outrank those that are made from now on.
    """
    order = (min(decided.timestamp_ms, now_ms), _offset(decided.decision_id))
    longest_ms = decided.throttle_ms
    deciding = max(
        (charge for _, charge in charges if charge.quota == decided.decided_by),
        key=lambda charge: charge.throttle_ms,
        default=None,
    )
    for counter, charge in charges:
        wait_ms = min(longest_ms if charge is deciding else min(charge.throttle_ms, longest_ms), MAX_THROTTLE_MS)
        until_ms = decided.timestamp_ms + wait_ms if wait_ms > 0 else 0
        rate = None if counter[0] in _TOKEN_QUOTAS else charge.rate
        yield counter, Wait(until_ms, order, max(0, wait_ms), charge.quota, charge.limit, rate)


def _tags(entity: _Entity) -> Tags:
    return Tags(entity.user, entity.client_id, entity.topic, entity.partition)


def _offset(decision_id: str) -> int:
    """The source offset, which a `decision_id` ends with; 0 without one."""
    offset = decision_id.rpartition("-")[2]
    return int(offset) if len(offset) < 20 and offset.isdecimal() else 0
