"""Sums of what a micro-batch decided, by counter and gateway: all that gateways need of it to compute their shares.

The job adds the charges of each counter in the order in which it decides them. A gateway applies a sum as it would have
applied these charges one by one (`sluice.state.shares.counter_share`).
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import exp

import msgspec

from sluice.state.contract.gateway_topics import Sums, SumWait
from sluice.state.contract.records import (
    MAX_APPLIED_MS,
    MAX_INSTANCE_CHARACTERS,
    MAX_INT32,
    MAX_NAMED_GATEWAYS,
    Request,
)
from sluice.state.quotas.entity import entity_text
from sluice.state.quotas.kinds import Family, QuotaKind

MAX_RECORD_BYTES = 256 * 1024
"""Size from which sums go on in another record: one is read at once."""

UNKNOWN_GATEWAY = b"null,false"
"""`gateway_text` of an event that gives no instance, and doesn't say that it was charged inline."""

_JSON = msgspec.json.Encoder()
_KINDS = list(QuotaKind)
QUOTAS = [kind.value for kind in _KINDS]
"""The quotas of all records, so that a quota has the same place in each."""
PLACES = {kind: place for place, kind in enumerate(_KINDS)}
"""The place of each quota among those of a record."""


def gateway_text(instance: str | None, charges_inline: bool) -> bytes:
    """The beginning of `SummedGateway` as JSON, by which sums know a gateway.

    >>> gateway_text("i-0", True)
    b'"i-0",true'
    """
    if instance is not None and len(instance) > MAX_INSTANCE_CHARACTERS:
        instance = None
    return _JSON.encode([instance, charges_inline])[1:-1]


def applied_waits(request: Request) -> dict[bytes, dict[str, int]]:
    """The longest wait in ms that a gateway had applied inline, by entity in JSON and quota."""
    applied: dict[bytes, dict[str, int]] = {}
    for wait in request.throttled_by or ():
        of_entity = applied.setdefault(entity_text(wait.entity), {})
        of_entity[wait.quota] = max(wait.ms, of_entity.get(wait.quota, 0))
    return applied


class Reported(msgspec.Struct, array_like=True, gc=False):
    """A request's report of more than itself, of one counter's entity.

    `applied` are the waits in ms that the gateway had applied on the entity's counters inline, by quota. If `sums_up`,
    the event is a broker's sum of any number of requests.
    """

    applied: dict[str, int]
    sums_up: bool = False


class SummedCharge(msgspec.Struct, gc=False):
    """One decided charge of an enforced quota.

    `value` is in units of the quota; if `withheld`, it was taken back. `wait_ms` is what it asks for, `rate` what was
    observed. If `is_reset`, the counter was reset, and there is no charge. `applied_ms` is the longest wait that the
    gateway had applied inline.
    """

    kind: QuotaKind
    limit: float | None
    value: float
    timestamp_ms: int
    offset: int
    gateway: bytes = UNKNOWN_GATEWAY
    applied_ms: int = 0
    sums_up: bool = False
    wait_ms: int = 0
    rate: float | None = None
    withheld: bool = False
    is_reset: bool = False


class _Gateway:
    """A gateway that records name; `until_ms` is its newest request."""

    __slots__ = ("place", "until_ms")

    def __init__(self, place: int) -> None:
        self.place = place
        self.until_ms = 0


class _Charged:
    """Charges of one gateway on one counter."""

    __slots__ = ("applied_ms", "faded", "until_ms", "value")

    def __init__(self, value: float, until_ms: int) -> None:
        self.value = self.faded = value
        self.until_ms = until_ms
        self.applied_ms = 0

    def add(self, value: float, timestamp_ms: int, span_s: float) -> None:
        """Add a charge, as `GatewayUse.record` does."""
        self.value += value
        age_ms = timestamp_ms - self.until_ms
        if not age_ms:
            self.faded += value
        elif age_ms > 0:
            self.faded = self.faded * exp(-age_ms / 1000.0 / span_s) + value
            self.until_ms = timestamp_ms
        else:
            self.faded += value * exp(age_ms / 1000.0 / span_s)


class _Counter:
    """Charges of all gateways on one counter of which a sum has more to say than one charge's value, or a reset."""

    __slots__ = ("by_gateway", "fetch_bytes", "fetches", "from_ms", "is_reset", "limit", "until_ms", "wait")

    def __init__(self, timestamp_ms: int) -> None:
        self.limit: float | None = None
        self.from_ms = self.until_ms = timestamp_ms
        self.is_reset = False
        self.by_gateway: dict[int, _Charged] = {}
        self.fetches = 0
        self.fetch_bytes = 0.0
        self.wait: SumWait | None = None

    def add(self, gateway: int, value: float, timestamp_ms: int, span_s: float) -> _Charged:
        """Add a charge of the gateway at this place. Returns the gateway's charges."""
        if timestamp_ms > self.until_ms:
            self.until_ms = timestamp_ms
        elif timestamp_ms < self.from_ms:
            self.from_ms = timestamp_ms
        charged = self.by_gateway.get(gateway)
        if charged is None:
            charged = self.by_gateway[gateway] = _Charged(value, timestamp_ms)
        else:
            charged.add(value, timestamp_ms, span_s)
        return charged

    def note_wait(self, charge: SummedCharge) -> None:
        """Note the counter's wait after a charge: one on an event that was charged inline only shortens it."""
        wait, before = _wait_of(charge), self.wait
        if not wait.is_new and before is not None:
            wait.is_new, wait.until_ms = before.is_new, min(wait.until_ms, before.until_ms)
            if not before.wait_ms:
                wait.wait_ms = 0
        self.wait = wait

    def sum_of(self, kind: QuotaKind, base_ms: int) -> list[object]:
        """The sum as records have it."""
        by_gateway: list[list[object]] = []
        for gateway, charged in self.by_gateway.items():
            faded = None if charged.faded == charged.value else charged.faded
            age_ms = self.until_ms - charged.until_ms
            of_gateway: list[object] = [gateway, charged.value]
            if charged.applied_ms or age_ms or faded is not None:
                of_gateway += (charged.applied_ms, age_ms, faded)
            by_gateway.append(of_gateway)
        made: list[object] = [PLACES[kind], self.limit, self.from_ms - base_ms, self.until_ms - base_ms, by_gateway]
        if self.wait is not None or self.fetches or self.is_reset:
            fetches = (self.fetches, self.fetch_bytes) if self.fetches else None
            made += (_after(self.wait, base_ms), fetches, self.is_reset)
        return made

    def has_new_wait(self) -> bool:
        """True if gateways have to look at the wait, whether or not they know one."""
        return self.is_reset or (self.wait is not None and self.wait.is_new and self.wait.wait_ms > 0)


def _wait_of(charge: SummedCharge) -> SumWait:
    """The wait of a counter after one charge; times are epoch milliseconds."""
    wait_ms = min(charge.wait_ms, MAX_INT32)
    rate = None if charge.is_reset or charge.kind.family is Family.MUTATIONS else charge.rate
    is_new, timestamp_ms = charge.is_reset or charge.gateway.endswith(b"false"), charge.timestamp_ms
    return SumWait(wait_ms, timestamp_ms + wait_ms, rate, timestamp_ms, charge.offset, is_new)


def _after(wait: SumWait | None, base_ms: int) -> SumWait | None:
    if wait is None:
        return None
    until_ms, timestamp_ms = wait.until_ms - base_ms, wait.timestamp_ms - base_ms
    return SumWait(wait.wait_ms, until_ms, wait.rate, timestamp_ms, wait.offset, wait.is_new)


class DecidedSums:
    """The sums of some counters in one micro-batch. `span_ms` are the S-1 windows of a meter.

    No charge is from before `base_ms`, after which records give times.

    >>> sums = DecidedSums(span_ms=10_000, base_ms=1_000)
    >>> for at_ms in (1_000, 2_000):
    ...     charge = SummedCharge(QuotaKind.PRODUCER_BYTE_RATE, 100.0, 50.0, at_ms, 7, gateway_text("i-0", True))
    ...     sums.add(b'{"user":"alice"}', charge)
    >>> for record in sums.records("3f", batch=5, quota_version=1):
    ...     print(record.decode().partition('"gateways":')[2])
    [["i-0",true,1000]],"sums":[[{"user":"alice"},[[0,100.0,0,1000,[[0,100.0,0,0,95.24187090179797]]]]]]}
    """

    def __init__(self, span_ms: int, base_ms: int = 0) -> None:
        self._span_s = span_ms / 1000.0
        self.base_ms = base_ms
        self._gateways: dict[bytes, _Gateway] = {}
        self._counters: dict[bytes, dict[QuotaKind, _Counter]] = {}
        """Sums by entity, as JSON, and kind."""

    def add(self, entity: bytes, charge: SummedCharge) -> None:
        """Add a charge on this entity, given as JSON. The charges of a counter come in their order."""
        counters = self._counters.setdefault(entity, {})
        counter = counters.get(charge.kind)
        if counter is None or charge.is_reset:
            counter = counters[charge.kind] = _Counter(charge.timestamp_ms)
        counter.limit = charge.limit
        if charge.is_reset:
            counter.is_reset = True
        else:
            gateway = self._gateway(charge.gateway, charge.timestamp_ms)
            value = 0.0 if charge.withheld and charge.kind.consumer else charge.value
            charged = counter.add(gateway.place, value, charge.timestamp_ms, self._span_s)
            charged.applied_ms = max(charged.applied_ms, min(charge.applied_ms, MAX_APPLIED_MS))
            if charge.kind.consumer and not charge.sums_up:
                counter.fetches += 1
                counter.fetch_bytes += charge.value
        if charge.wait_ms or charge.is_reset or counter.wait is not None:
            counter.note_wait(charge)

    def _gateway(self, text: bytes, timestamp_ms: int) -> _Gateway:
        """The gateway with this `gateway_text`, which has a request of this time.

        It is the one without a name where names would fill the records.
        """
        known = self._gateways.get(text)
        if known is None and len(self._gateways) >= MAX_NAMED_GATEWAYS:
            text = gateway_text(None, text.endswith(b"true"))
            known = self._gateways.get(text)
        if known is None:
            known = self._gateways[text] = _Gateway(len(self._gateways))
        if timestamp_ms > known.until_ms:
            known.until_ms = timestamp_ms
        return known

    def records(self, job_id: str | None, batch: int, quota_version: int, decided_at_ms: int = 0) -> Iterator[bytes]:
        """The records of the sums topic, each of about MAX_RECORD_BYTES at most."""
        head = Sums(job_id, batch, quota_version, self.base_ms, QUOTAS, decided_at_ms=decided_at_ms)
        gateways = {text: gateway.until_ms for text, gateway in self._gateways.items()}
        entities = [_entity_sums(entity, counters, self.base_ms) for entity, counters in self._counters.items()]
        return sum_records(head, gateways, entities)


def sum_records(head: Sums, gateways: Mapping[bytes, int], entities: Sequence[bytes]) -> Iterator[bytes]:
    """Records of the sums topic: sums of entities, as JSON, behind what all of them share.

    `gateways` are those that the sums name, in the order of their places: each `gateway_text`, and its newest request.
    """
    named = [b"[%b,%d]" % (text, max(0, until_ms - head.base_ms)) for text, until_ms in gateways.items()]
    before = _JSON.encode(head)[:-1] + b',"gateways":[' + b",".join(named) + b'],"sums":['
    ends = list(accumulate([len(entity) + 1 for entity in entities]))
    first = taken = 0
    while first < len(entities):
        last = bisect_right(ends, taken + MAX_RECORD_BYTES) + 1
        yield before + b",".join(entities[first:last]) + b"]}"
        first, taken = last, ends[min(last, len(ends)) - 1]


def _entity_sums(entity: bytes, counters: Mapping[QuotaKind, _Counter], base_ms: int) -> bytes:
    sums = [counters[kind].sum_of(kind, base_ms) for kind in sorted(counters, key=lambda kind: kind.code)]
    has_waits = any(counter.has_new_wait() for counter in counters.values())
    return b"[%b,%b%b]" % (entity, _JSON.encode(sums), b",true" if has_waits else b"")
