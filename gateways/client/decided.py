"""What a gateway takes out of a decision: who has to wait, for which counter, and until when."""

from collections.abc import Iterator

import msgspec

from gateways.client.wait_table import Wait
from state.decisions.request import MAX_TIMESTAMP_MS
from state.decisions.waits import CounterKey
from state.quotas.entity import Tags
from state.quotas.kinds import MAX_THROTTLE_MS, Family, QuotaKind

_TOKEN_QUOTAS = frozenset(kind for kind in QuotaKind if kind.family is Family.MUTATIONS)
"""The quotas whose waits don't come from a rate: tokens come back at the limit, so the wait follows the limit alone."""


class _Entity(msgspec.Struct):
    user: str = ""
    client_id: str = ""
    topic: str | None = None
    partition: int = -1


class _Charge(msgspec.Struct):
    quota: str
    entity: _Entity = msgspec.field(default_factory=_Entity)
    limit: float | None = None
    rate: float | None = None
    throttle_ms: int = 0
    mode: str | None = None


class Decided(msgspec.Struct):
    """The fields of a decision that the gateway itself uses."""

    request_id: str
    timestamp_ms: int
    decision_id: str = ""
    mute_until_ms: int | None = None
    decided_by: str | None = None
    quota_version: int = 0
    charges: list[_Charge] = []


_DECIDED = msgspec.json.Decoder(Decided)


def read_decided(value: bytes | None) -> Decided:
    """The decision in a record. Raises what msgspec does, and RecursionError, for a record that holds none."""
    decided = _DECIDED.decode(value or b"")
    if not 0 <= decided.timestamp_ms <= MAX_TIMESTAMP_MS:
        raise msgspec.ValidationError("timestamp_ms is not a time that an event can have")
    return decided


def decided_waits(decided: Decided, now_ms: int) -> Iterator[tuple[CounterKey, Wait]]:
    """What the decision says of each counter that it charged; shadow quotas never make anyone wait.

    The counter that decided waits until the decision's `mute_until_ms`, which is more than its charge says when waits
    add up, and less when the request has spent a part in purgatory. No other counter waits longer than that.

    `now_ms` bounds the order, so that a decision from the future doesn't outrank those that are made from now on.
    """
    order = (min(decided.timestamp_ms, now_ms), _offset(decided.decision_id))
    longest_ms = 0 if decided.mute_until_ms is None else decided.mute_until_ms - decided.timestamp_ms
    enforced = [charge for charge in decided.charges if charge.mode != "shadow"]
    deciding = max(
        (charge for charge in enforced if charge.quota == decided.decided_by),
        key=lambda charge: charge.throttle_ms,
        default=None,
    )
    for charge in enforced:
        wait_ms = min(longest_ms if charge is deciding else min(charge.throttle_ms, longest_ms), MAX_THROTTLE_MS)
        entity = charge.entity
        counter = (charge.quota, Tags(entity.user, entity.client_id, entity.topic, entity.partition))
        until_ms = decided.timestamp_ms + wait_ms if wait_ms > 0 else 0
        rate = None if charge.quota in _TOKEN_QUOTAS else charge.rate
        yield counter, Wait(until_ms, order, max(0, wait_ms), charge.quota, charge.limit, rate)


def _offset(decision_id: str) -> int:
    """The source offset, which a `decision_id` ends with; 0 without one."""
    offset = decision_id.rpartition("-")[2]
    return int(offset) if len(offset) < 20 and offset.isdecimal() else 0
