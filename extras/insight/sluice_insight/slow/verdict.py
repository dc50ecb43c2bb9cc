"""One cause out of what is known of a slow client. Pure: shares of time in, a sentence out.

A cause counts from LEAST_SHARE of the span, or of its last minute. Of causes that count the first in the order of
`Cause` is the verdict; of waits only those that are at least half as long as the longest, as a client that is stopped
also owes its own quota something.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from sluice.process.format import percent
from sluice.state.quotas.kinds import StorageKey
from sluice.state.quotas.limits import OPERATOR
from sluice_insight.texts import quota_amount
from sluice_reading.format import quantity
from sluice_reading.times import duration

LEAST_SHARE = 0.1
"""A client near its limit waits now and then, which slows nobody down."""

SELDOM_MS = 3_000.0
"""Time between two polls from which a consumer reads less than it could."""

BUSY = 0.8
"""Part of the time between two polls from which a consumer has no time to read, if nothing says how often it polls."""

REBALANCES_PER_MIN = 1.5
"""Rebalances a minute from which they slow a consumer however short they are: each empties what it has fetched."""

SMALL_BYTES, MANY_PER_S = 1_000.0, 100.0
"""Bytes of a Produce, and its requests a second, from which small batches are a cause."""

FAR_MS, FAR_TIMES, LOST_TIMES = 100.0, 3.0, 10.0
"""Latency for the client, how many times that of the broker it is from which time is lost between both, and how many
times from which a busy broker is a small part of it."""

SLOW_MS, QUEUE_MS = 500.0, 100.0
"""99th percentile of a broker's disk or request queue that slows clients, and that of a queue whose threads are busy:
one request of a hundred that waits for a tenth of a second slows nobody down."""

LEAST_IDLE, BUSY_IDLE = 0.1, 0.3
"""The idle part of a broker's threads that slows clients, and that which makes a queue worth a word."""


class Cause(StrEnum):
    """Causes, the one that explains most first."""

    HOLD = "hold"
    DISK_GUARD = "disk_guard"
    STORAGE_BUDGET = "storage_budget"
    TIGHTENED = "tightened"
    QUOTA = "quota"
    BROKER = "broker"
    CLIENT = "client"
    NETWORK = "network"
    NOTHING = "nothing"


_DECIDERS = {
    OPERATOR: Cause.HOLD,
    "disk_guard": Cause.DISK_GUARD,
    StorageKey.STORED_BYTES.value: Cause.STORAGE_BUDGET,
}
"""The name that a wait has in place of a quota's where a decider stopped the client."""

_ORDER = {cause: place for place, cause in enumerate(Cause)}


@dataclass(frozen=True, slots=True)
class Wait:
    """A limit of a client, and its waits for it: parts of the span, and of its last minute.

    `used` is the mean use of the limit in the cluster, by all who share it; `tight` the part of the waits at brokers
    that were tightened. `whose` is the counter in words, `why` the reason of a decider or of the tightening.
    """

    quota: str
    whose: str
    share: float
    last_minute: float = 0.0
    limit: float | None = None
    used: float | None = None
    tight: float = 0.0
    why: str = ""

    @property
    def cause(self) -> Cause:
        """The decider that stopped the client, the load of its brokers, or its own quota."""
        return _DECIDERS.get(self.quota) or (Cause.TIGHTENED if self.tight >= 0.5 else Cause.QUOTA)


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the client: the part of the span in which it was busy, and the signal that said so, in words."""

    name: str
    busy: float
    signal: str


@dataclass(frozen=True, slots=True)
class Own:
    """The client's own figures, and the brokers' of the same requests; None where nobody gave one."""

    between_polls_ms: float | None = None
    poll_idle: float | None = None
    """The part of the time that a consumer waits in poll(): high where there is nothing to read."""
    rebalancing: float = 0.0
    """The part of the time that rebalances took, since its first telemetry of the span."""
    rebalances_per_min: float = 0.0
    produce_bytes: float | None = None
    produces_per_s: float = 0.0
    latency_ms: float | None = None
    broker_ms: float | None = None
    throttle_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a client in a span. `waits` has all its limits, `waited` is the union of the waits."""

    span_ms: int
    waits: Sequence[Wait] = ()
    waited: float = 0.0
    brokers: Sequence[Broker] = ()
    own: Own = Own()
    tells: bool = False
    """True if the client sends telemetry."""
    is_seen: bool = True
    """True if a request of it was decided."""
    seen_ms: int = 0
    """The time since its first sign in the span, of which brokers' times are parts."""

    @property
    def is_known(self) -> bool:
        """True if the client sent a request or telemetry."""
        return self.is_seen or self.tells


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, how much of the time it explains, and a sentence with the next step."""

    cause: Cause
    share: float
    text: str


def verdicts(evidence: Evidence) -> list[Verdict]:
    """All causes that count, the first one the verdict; NOTHING alone if none does.

    8.8 of 10 minutes were waited for 1 MB/s:

    >>> wait = Wait("producer_byte_rate", "user 'alice'", 0.88, limit=1e6, used=1.0)
    >>> [each.text for each in verdicts(Evidence(600_000, [wait], 0.88))]
    ["throttled by producer_byte_rate 1 MB/s of user 'alice', 88 % of the last 10 min (all of the limit is in use): \
ask for a larger limit, or send less"]
    >>> [each.text for each in verdicts(Evidence(600_000, own=Own(between_polls_ms=9_000.0, poll_idle=0.1)))]
    ['not by the cluster: the consumer polled every 9.0 s; look at what it does between two polls']
    """
    longest = max((_weight(wait) for wait in evidence.waits), default=0.0)
    counting = [wait for wait in evidence.waits if _weight(wait) >= max(LEAST_SHARE, longest / 2)]
    waits = (Verdict(wait.cause, wait.share, _wait_text(wait, evidence.span_ms)) for wait in counting)
    found = list(chain(waits, _broker(evidence), _client(evidence.own), [] if counting else _latency(evidence.own)))
    return sorted(found, key=lambda each: (_ORDER[each.cause], -each.share, each.text)) or [_nothing(evidence)]


def near_text(wait: Wait) -> str:
    """The use of a limit in the cluster.

    >>> near_text(Wait("producer_byte_rate", "user 'alice'", 0.0, limit=1e6, used=0.8))
    "80 % of producer_byte_rate 1 MB/s of user 'alice' is in use"
    """
    return f"{_used(wait.used)} of {wait.quota} {quota_amount(wait.quota, wait.limit)} of {wait.whose} is in use"


def _used(used: float | None) -> str:
    """The part of a limit; who is throttled may have moved more than all of it."""
    return "all" if used is not None and used >= 0.995 else percent(used)


def _weight(wait: Wait) -> float:
    return max(wait.share, wait.last_minute)


def span_text(share: float, span_ms: int) -> str:
    """A part of a span in words.

    >>> span_text(0.88, 600_000)
    '88 % of the last 10 min'
    """
    return f"{percent(share)} of the last {duration(span_ms)}"


def _wait_text(wait: Wait, span_ms: int) -> str:
    part = span_text(wait.share, span_ms)
    why = f" ({wait.why})" if wait.why else ""
    match wait.cause:
        case Cause.HOLD:
            return f"stopped by an operator{why}, {part}: ask who did it"
        case Cause.DISK_GUARD:
            return f"producers are stopped by the disk guard{why}, {part}: it ends when the disk has room again"
        case Cause.STORAGE_BUDGET:
            return f"stopped as {wait.whose} stores all that it may{why}, {part}: delete records, or ask for more"
    limit = f"{wait.quota} {quota_amount(wait.quota, wait.limit)} of {wait.whose}, {part}"
    if wait.cause is Cause.TIGHTENED:
        return f"throttled below {limit}, as limits gave way{why}: it ends with the load"
    used = "" if wait.used is None else f" ({_used(wait.used)} of the limit is in use)"
    return f"throttled by {limit}{used}: ask for a larger limit, or send less"


def _broker(evidence: Evidence) -> Iterator[Verdict]:
    latency_ms, of_it_ms = evidence.own.latency_ms, evidence.own.broker_ms
    if latency_ms is not None and of_it_ms is not None and latency_ms >= max(FAR_MS, LOST_TIMES * of_it_ms):
        return  # however busy, it is a small part
    for each in evidence.brokers:
        if each.busy >= LEAST_SHARE:
            part = span_text(each.busy, evidence.seen_ms or evidence.span_ms)
            text = f"not by quotas: {each.name}'s {each.signal}, {part}; tell those who run the brokers"
            yield Verdict(Cause.BROKER, each.busy, text)


def _client(own: Own) -> Iterator[Verdict]:
    def found(text: str, share: float = 1.0) -> Verdict:
        return Verdict(Cause.CLIENT, share, f"not by the cluster: {text}")

    busy, every_ms = 1 - (1.0 if own.poll_idle is None else own.poll_idle), own.between_polls_ms
    if busy > 0.5 and every_ms is not None and every_ms >= SELDOM_MS:
        yield found(f"the consumer polled every {duration(every_ms)}; look at what it does between two polls", busy)
    elif busy > BUSY and every_ms is None:  # librdkafka says no more
        yield found(f"the consumer's own work takes {percent(busy)} of its time, between two polls", busy)
    if own.rebalancing >= LEAST_SHARE or own.rebalances_per_min >= REBALANCES_PER_MIN:
        part = percent(own.rebalancing) if own.rebalancing >= 0.005 else "less than 1 %"
        often = f"{own.rebalances_per_min:.1f} times a minute, {part} of the time"
        yield found(f"its group rebalanced {often}; see which members come and go", own.rebalancing)
    if own.produce_bytes is not None and own.produce_bytes < SMALL_BYTES and own.produces_per_s >= MANY_PER_S:
        size, rate = quantity(own.produce_bytes, "B"), f"{own.produces_per_s:.0f} requests/s"
        yield found(f"it sends {size} in a request, {rate}; raise linger.ms and batch.size")


def _latency(own: Own) -> Iterator[Verdict]:
    if own.latency_ms is None or own.broker_ms is None or own.latency_ms < FAR_MS:
        return
    took, of_it = duration(own.latency_ms), duration(own.broker_ms)
    if own.broker_ms >= FAR_MS and own.latency_ms < LOST_TIMES * own.broker_ms:
        text = f"a request takes {took}, and up to {of_it} in its brokers; tell those who run the brokers"
        yield Verdict(Cause.BROKER, min(1.0, own.broker_ms / own.latency_ms), f"not by quotas: {text}")
    elif own.latency_ms >= FAR_TIMES * own.broker_ms:
        text = f"a request takes {took}, of which the broker has {of_it}; look at the network and the client's machine"
        yield Verdict(Cause.NETWORK, 1 - own.broker_ms / own.latency_ms, f"not by quotas or brokers: {text}")


def _nothing(evidence: Evidence) -> Verdict:
    if not evidence.is_known:
        where = "see whether this is its name, and whether it reaches the brokers"
        text = f"no request and no telemetry of it is known in the last {duration(evidence.span_ms)}: {where}"
        return Verdict(Cause.NOTHING, 0.0, text)
    waited = span_text(evidence.waited, evidence.span_ms)
    near = f"throttled {waited}, as a client near its limit is" if evidence.waited else "it was not throttled"
    own = "" if evidence.tells else "; it sends no telemetry (KIP-714), which would say how it polls and batches"
    text = f"no cause is known: {near}, and no broker of its was busy{own}"
    return Verdict(Cause.NOTHING, evidence.waited, text)
