"""The fields of a decision that a gateway reads, and the charges and waits in them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta

from sluice.gateways.client.wait_table import Order, Wait
from sluice.state.contract.projection import projects
from sluice.state.contract.records import (
    MAX_APPLIED_WAITS,
    MAX_TIMESTAMP_MS,
    MAX_VALUE,
    Amounts,
    AppliedWait,
    ChargeResult,
    CountedEntity,
    Decision,
)
from sluice.state.decisions.waits import CounterKey
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import KINDS_BY_NAME, MAX_THROTTLE_MS, Family, QuotaKind

_TOKEN_QUOTAS = frozenset(kind for kind in QuotaKind if kind.family is Family.MUTATIONS)
"""The quotas whose waits don't come from a rate: tokens come back at the limit, so the wait follows the limit alone."""

# Structs without garbage collection: thousands of them are made each second, and none holds a circle.


@projects(CountedEntity)
class _Entity(msgspec.Struct, gc=False):
    """The entity of a counter, with the defaults of `Tags`."""

    user: str = ""
    client_id: str = ""
    topic: str | None = None
    partition: int = -1


@projects(ChargeResult)
class ReadCharge(msgspec.Struct, gc=False):
    """A charge of a decision. No charge of a valid decision is larger than MAX_VALUE."""

    quota: str
    entity: _Entity = msgspec.field(default_factory=_Entity)
    limit: Annotated[float, Meta(gt=0)] | None = None
    value: Annotated[float, Meta(ge=0, le=MAX_VALUE)] = 0.0
    rate: float | None = None
    throttle_ms: int = 0
    mode: str | None = None


@projects(AppliedWait)
class _AppliedWait(msgspec.Struct, gc=False):
    quota: str
    entity: _Entity
    ms: Annotated[int, Meta(ge=0, le=2**63 - 1)]


@projects(Amounts)
class _Amounts(msgspec.Struct, gc=False):
    withheld: bool = False
    bytes: int | None = None


@projects(Decision)
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
    charges: list[ReadCharge] = []
    throttled_by: Annotated[list[_AppliedWait], Meta(max_length=MAX_APPLIED_WAITS)] | None = None
    amounts: _Amounts | None = None

    @property
    def throttle_ms(self) -> int:
        """The wait of the whole decision."""
        return 0 if self.mute_until_ms is None else max(0, self.mute_until_ms - self.timestamp_ms)

    @property
    def withheld(self) -> bool:
        """True if the response went out empty."""
        return self.amounts is not None and self.amounts.withheld

    @property
    def sums_up(self) -> bool:
        """True if the bytes are a broker's: those of any number of requests, of unknown partitions."""
        return self.amounts is not None and self.amounts.bytes is not None


Charges = Sequence[tuple[tuple[QuotaKind, Tags], ReadCharge]]
"""The enforced charges of a decision, each with its counter."""

_NONE: Mapping[CounterKey, int] = MappingProxyType({})

_DECIDED = msgspec.json.Decoder(Decided)


def read_decided(value: bytes | None) -> Decided:
    """The decision in a record. Raises msgspec's errors, and RecursionError, for a record that holds none."""
    return _DECIDED.decode(value or b"")


def enforced_charges(decided: Decided) -> Charges:
    """The charges of known kinds that count: shadow quotas throttle no client."""
    charges = []
    for charge in decided.charges:
        kind = KINDS_BY_NAME.get(charge.quota)
        if kind is not None and charge.mode != "shadow":
            entity = charge.entity
            charges.append(((kind, Tags(entity.user, entity.client_id, entity.topic, entity.partition)), charge))
    return charges


def applied_waits(decided: Decided, longest_ms: int) -> Mapping[CounterKey, int]:
    """The waits in milliseconds, by counter, that its gateway applied inline; more than `longest_ms` count as that."""
    if not decided.throttled_by:
        return _NONE
    applied = {}
    for wait in decided.throttled_by:
        entity = wait.entity
        counter = (wait.quota, Tags(entity.user, entity.client_id, entity.topic, entity.partition))
        applied[counter] = min(wait.ms, longest_ms)
    return applied


def waits_ms(decided: Decided, charges: Charges) -> list[int]:
    """The wait of each of these counters from the decision's timestamp, in milliseconds.

    The counter that decided waits until the decision's `mute_until_ms`, which is more than its charge says when waits
    add up, and less when the request has spent a part in purgatory. No other counter waits longer than that.
    """
    longest_ms = min(decided.throttle_ms, MAX_THROTTLE_MS)
    waits = [max(0, min(charge.throttle_ms, longest_ms)) for _, charge in charges]
    deciding = [index for index, (_, charge) in enumerate(charges) if charge.quota == decided.decided_by]
    if deciding:
        waits[max(deciding, key=lambda index: charges[index][1].throttle_ms)] = longest_ms
    return waits


def order_of(decided: Decided, now_ms: int) -> Order:
    """The place of a decision among others. One from the future doesn't outrank those that are made from now on."""
    return min(decided.timestamp_ms, now_ms), _offset(decided.decision_id)


def wait_of(decided: Decided, charge: ReadCharge, wait_ms: int, order: Order) -> Wait:
    """The wait that a charge of a decision asks for."""
    rate = None if charge.quota in _TOKEN_QUOTAS else charge.rate
    return Wait(decided.timestamp_ms + wait_ms if wait_ms else 0, order, wait_ms, charge.quota, charge.limit, rate)


def _offset(decision_id: str) -> int:
    """The source offset, which a `decision_id` ends with; 0 without one."""
    offset = decision_id.rpartition("-")[2]
    return int(offset) if len(offset) < 20 and offset.isdecimal() else 0
