"""Live model of clients, from the records of the decisions topic: of bounded size, with time as an argument.

It keeps the decided figures, and Kafka's own arithmetic for the time since: a rate is 0 when all its samples have left
the windows, and tokens come back at the limit.
"""

import math
from array import array
from collections import Counter as Tally
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from sluice.state.arithmetic.rounding import divide
from sluice.state.arithmetic.token_bucket import TokenBucket
from sluice.state.contract.instances import server_text
from sluice.state.contract.records import UNMUTE_API, ChargeResult, Decision, Verdict
from sluice.state.errors import UNREADABLE
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import KINDS_BY_NAME, MAX_THROTTLE_MS, Family, QuotaKind, QuotaSettings, Window, burst
from sluice.state.shares.load import NO_LIMITS, BrokerLimits
from sluice_insight.waits import CounterNames, Waited, WaitEnd, WaitEnds, reported_waits
from sluice_reading.gateways_seen import FUTURE_MS, GatewaysSeen

MINUTE_MS = 60_000

POINTS = 60
POINT_MS = 10_000
"""A chart has the mean rate, the limit and what was waited of each POINT_MS of the last POINTS of them."""

MEAN_POINTS = 6
"""Whole points of the mean of a minute."""

STEPS = POINTS
_STEPS_MS = (1_000, POINT_MS, MINUTE_MS)
"""Waits are kept for the last STEPS seconds, points and minutes."""

_CODE = 65_536
"""A step and the milliseconds of it that were waited are one number: the step times this, and the milliseconds."""

SECONDS = 300
"""Number of seconds that are counted one by one."""

_SHOWN = 300
"""Characters that are kept of an id, a level, an API and a gateway's name: pages show as many, and a forged record may
have a megabyte of each."""

OVER = 1.1
"""Share of the limit from which a mean is over it: that of a client at its limit goes up and down a little."""

NEAR_LIMIT = 0.9
"""Share of its limit from which a counter is at it, for the same reason."""

_NAN = math.nan
_ALLOW = Verdict.ALLOW


class _SkimmedDecision(Decision, gc=False):
    """A decision with its amounts left as JSON: decoding them takes a sixth more time, and the model needs none."""

    amounts: msgspec.Raw | UnsetType = UNSET  # type: ignore[assignment] # another type on purpose


_DECISION = msgspec.json.Decoder(_SkimmedDecision)


def read_decision(value: bytes | None) -> Decision:
    """The decision in a record. Raises msgspec's errors, and RecursionError, for a record that holds none."""
    return _DECISION.decode(value or b"")


class CounterId(NamedTuple):
    """A counter: its quota kind, its mode, and its tags, as a decision names them."""

    kind: QuotaKind
    shadow: bool
    user: str
    client_id: str
    topic: str | None
    partition: int
    tenant: str = ""

    @classmethod
    def named(cls, names: CounterNames) -> "CounterId | None":
        """The enforced counter of these names (COUNTER); None for an unknown quota."""
        quota, user, client_id, topic, partition, tenant = names
        kind = KINDS_BY_NAME.get(quota)
        return None if kind is None else cls(kind, False, user, client_id, topic or None, int(partition or -1), tenant)

    def names(self) -> CounterNames:
        """The names as texts: COUNTER."""
        partition = "" if self.partition < 0 else str(self.partition)
        return self.kind.value, self.user, self.client_id, self.topic or "", partition, self.tenant

    @property
    def name_length(self) -> int:
        """Characters of all names."""
        return len(self.user) + len(self.client_id) + len(self.topic or self.tenant)

    def tags(self) -> dict[str, str | int]:
        """The names of the counter that aren't empty; of a topic also the partition."""
        names = {"user": self.user, "client_id": self.client_id, "topic": self.topic, "tenant": self.tenant}
        found: dict[str, str | int] = {part: name for part, name in names.items() if name}
        return found if self.topic is None else found | {"partition": self.partition}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the model. The least recently charged counters go first."""

    counters: int = 200_000
    name_characters: int = 20_000_000
    """All counters together: a name may have tens of thousands of characters."""
    waits: int = 5_000
    """Last waits, over all counters."""
    recent: int = 2_000
    """Last decisions with a wait or a refusal, as they were read."""
    recent_bytes: int = 16 * 1024 * 1024


class SeenWait(NamedTuple):
    """A wait as it was decided, or applied inline by a gateway, and the client that it was for.

    `server` is the broker or gateway. `tightened` is why it admitted less than its shares; None if it didn't.
    """

    key: CounterId
    timestamp_ms: int
    wait_ms: int
    inline: bool
    decision_id: str
    api: str
    server: str
    rate: float | None
    limit: float | None
    user: str
    client_id: str
    tightened: str | None


@dataclass(slots=True, eq=False)
class CounterState:
    """Last decided figures of one counter. Times are epoch milliseconds, by the events' clocks."""

    key: CounterId
    at_ms: int = 0
    matched: str = "none"
    limit: float | None = None
    rate: float | None = None
    tokens: float | None = None
    until_ms: int = 0
    decision_id: str = ""
    _waited: Waited | None = None
    _parts: "tuple[array[int], ...]" = ()
    """The waits, for each of _STEPS_MS: the last steps with a part of a wait, each at its number modulo STEPS."""
    _begun_ms: int = 0
    """The first charge after a minute without any."""
    _point: int = -1
    """The number of the newest point."""
    _points: "array[float] | None" = None
    """The sums that were charged in the last POINTS, each at its number modulo POINTS; NaN for nothing."""
    _limits: tuple[tuple[int, float], ...] = ()
    """The points in which the limit was another one than before, and that limit; NaN for none."""
    _mean: tuple[int, float, float] = (-1, _NAN, _NAN)
    """The point that the mean was taken in, the rate, and its share of the limits."""

    def charge(self, charge: ChargeResult, at_ms: int, decision_id: str) -> None:
        """Apply a charge of a decision. One that is older than the last adds only to the sums."""
        self._add(charge.value, at_ms)
        if at_ms < self.at_ms:
            return
        if charge.limit != self.limit or not self._limits:
            number, limit = at_ms // POINT_MS, _NAN if charge.limit is None else charge.limit
            self._limits = (*(step for step in self._limits[-POINTS:] if step[0] != number), (number, limit))
        if at_ms - self.at_ms >= MINUTE_MS:
            self._begun_ms = at_ms
        self.at_ms = at_ms
        self.matched, self.limit, self.rate = charge.matched[:_SHOWN], charge.limit, charge.rate
        self.tokens = None if charge.tokens is UNSET else charge.tokens
        self.decision_id = decision_id[:_SHOWN]

    def note_wait(self, lane: str, at_ms: int, wait_ms: int) -> None:
        """Note a wait from `at_ms` on, or with 0 that the clients' waits are over: those of one gateway, the lane."""
        if self._waited is None:
            if wait_ms <= 0:
                return
            self._waited = Waited(at_ms=at_ms)
            self._parts = tuple(array("q", bytes(8 * STEPS)) for _ in _STEPS_MS)
        self._count(*self._waited.add(lane, at_ms, wait_ms))
        self.until_ms = self._waited.end_ms()

    def end_waits(self, at_ms: int) -> None:
        """Note that the waits that began before a time end at it."""
        if self._waited is not None:
            self._count(*self._waited.end(at_ms))
            self.until_ms = self._waited.end_ms()

    def _count(self, begin_ms: int, end_ms: int) -> None:
        """Count a part of a wait that is over."""
        for step_ms, codes in zip(_STEPS_MS, self._parts, strict=True) if end_ms > begin_ms else ():
            last = (end_ms - 1) // step_ms
            for number in range(max(begin_ms // step_ms, last - STEPS + 1), last + 1):
                known, waited_ms = divmod(codes[number % STEPS], _CODE)
                waited_ms = waited_ms if known == number else 0
                waited_ms += _overlap_ms(begin_ms, end_ms, number, step_ms)
                codes[number % STEPS] = number * _CODE + waited_ms

    def _waited_steps(self, step_ms: int, now_ms: int) -> list[int]:
        """The milliseconds of each of the last STEPS steps that were waited until now, the oldest first."""
        if self._waited is None:
            return [0] * STEPS
        newest = now_ms // step_ms
        known = dict(divmod(code, _CODE) for code in self._parts[_STEPS_MS.index(step_ms)])
        begin_ms, end_ms = self._waited.at_ms, min(self.until_ms, now_ms)  # of a wait that isn't counted yet
        return [
            known.get(number, 0) + _overlap_ms(begin_ms, end_ms, number, step_ms)
            for number in range(newest - STEPS + 1, newest + 1)
        ]

    def waited_ms(self, now_ms: int) -> int:
        """The milliseconds of the last 60 seconds in which a client waited, by what is decided."""
        return sum(self._waited_steps(1_000, now_ms))

    def waited_points(self, now_ms: int) -> list[int]:
        """The milliseconds of each of the last POINTS in which a client waited, the oldest first."""
        return self._waited_steps(POINT_MS, now_ms)

    def throttled(self, now_ms: int) -> bool:
        """True if a client waits, or waited in the last minute: a wait is often over when its decision is read."""
        return self.until_ms > now_ms or (self._waited is not None and self.waited_ms(now_ms) > 0)

    def throttled_minutes(self, now_ms: int) -> int:
        """Number of the last 60 minutes, the current one included, that have a part of a wait."""
        return sum(part_ms > 0 for part_ms in self._waited_steps(MINUTE_MS, now_ms))

    def wait_ms(self, now_ms: int) -> int:
        """The rest of the last wait."""
        return max(0, self.until_ms - now_ms)

    def points(self, now_ms: int) -> list[float]:
        """The mean rate of each POINT_MS, the oldest first; NaN where nothing was charged. The last one still grows."""
        newest = max(now_ms // POINT_MS, self._point)
        return [self._sum(number) * 1000 / POINT_MS for number in range(newest - POINTS + 1, newest + 1)]

    def limits(self, now_ms: int) -> list[float]:
        """The limit at the end of each of the `points`; NaN for none."""
        newest = max(now_ms // POINT_MS, self._point)
        return [self._limit(number) for number in range(newest - POINTS + 1, newest + 1)]

    def mean(self, now_ms: int) -> tuple[float, float]:
        """The mean rate of the last minute, and its share of the limits meanwhile; NaN for none.

        It is that of whole points. A fresh counter may take ten seconds of its quota at once, which are left out.
        """
        newest = now_ms // POINT_MS
        if self._mean[0] != newest:
            numbers = range(max(newest - MEAN_POINTS, self._begun_ms // POINT_MS + 2), newest)
            sums = [0.0 if math.isnan(known := self._sum(number)) else known for number in numbers]
            # of two limits in a point the greater one counts
            limits = [max(self._limit(number), self._limit(number - 1)) for number in numbers]
            rate = sum(sums) * 1000 / POINT_MS / len(numbers) if numbers else _NAN
            share = divide(sum(sums) * 1000 / POINT_MS, sum(limits)) if numbers else _NAN
            self._mean = newest, rate, share
        return self._mean[1:]

    def _sum(self, number: int) -> float:
        is_known = self._points is not None and self._point - POINTS < number <= self._point
        return self._points[number % POINTS] if self._points is not None and is_known else _NAN

    def _limit(self, number: int) -> float:
        return next((limit for since, limit in reversed(self._limits) if since <= number), _NAN)

    def _add(self, value: float, at_ms: int) -> None:
        """Add what was charged to its point."""
        number = at_ms // POINT_MS
        points = self._points
        if points is None:
            points = self._points = array("f", [_NAN]) * POINTS
            self._point = number
        ahead = number - self._point
        if ahead > 0:
            for skipped in range(self._point + 1, number + 1) if ahead < POINTS else range(POINTS):
                points[skipped % POINTS] = _NAN
            self._point = number
        elif ahead <= -POINTS:
            return
        known = points[number % POINTS]
        points[number % POINTS] = value if math.isnan(known) else known + value
        if number < self._mean[0]:
            self._mean = -1, _NAN, _NAN


def _overlap_ms(begin_ms: int, end_ms: int, number: int, step_ms: int) -> int:
    return max(0, min(end_ms, (number + 1) * step_ms) - max(begin_ms, number * step_ms))


class CurrentUsage:
    """Decided figures, carried on to the present in Kafka's arithmetic."""

    def __init__(self, settings: QuotaSettings) -> None:
        self._client_span_ms = _span_ms(settings.client_window)
        self._controller_span_ms = _span_ms(settings.controller_window)
        self._controller_window = settings.controller_window

    def rate(self, counter: CounterState, now_ms: int) -> float | None:
        """The rate as last decided; 0 when all windows that were open then are over; None if decisions had none.

        Until then the job alone knows the present rate.
        """
        mutations = counter.key.kind.family is Family.MUTATIONS
        span_ms = self._controller_span_ms if mutations else self._client_span_ms
        return 0.0 if counter.rate is not None and now_ms - counter.at_ms >= span_ms else counter.rate

    def tokens(self, counter: CounterState, now_ms: int) -> float | None:
        """The tokens now: they come back at the limit, up to the burst (KIP-599). None for other quotas."""
        if counter.tokens is None or counter.limit is None:
            return counter.tokens
        bucket = TokenBucket(counter.tokens, counter.at_ms)
        return bucket.measure(counter.limit, self._controller_window, max(now_ms, counter.at_ms))

    def share(self, counter: CounterState, now_ms: int) -> float | None:
        """The part of the limit that is used up: at 1 a request more would wait. None without a limit or a rate.

        That of a sampled rate is the rate over the limit. A bucket may be emptied faster than it is filled as long as
        it has tokens (KIP-599): the part of the burst that is spent, or the rate while nothing is known of tokens.
        """
        tokens = self.tokens(counter, now_ms)
        if tokens is not None and counter.limit is not None:
            return max(0.0, 1 - divide(tokens, burst(self._controller_window, counter.limit)))
        rate = self.rate(counter, now_ms)
        return None if rate is None or counter.limit is None else rate / counter.limit

    def used(self, counter: CounterState, now_ms: int) -> float | None:
        """The share of the limit that was used in the last minute, or of a bucket; None without a limit or a rate.

        While no mean is known it is the sampled rate's, which passes the limit after each charge, so at most all. A
        throttled client has used up its limit, whatever is left of its rate.
        """
        share = self.share(counter, now_ms)
        if share is not None and counter.tokens is None:
            mean = counter.mean(now_ms)[1]
            share = min(share, 1.0) if math.isnan(mean) else mean
        return max(share or 0.0, 1.0) if counter.until_ms > now_ms and not counter.key.shadow else share

    def shares(self, counters: Sequence[CounterState], now_ms: int) -> list[float]:
        """The share of each of many counters; NaN where `used` gives None."""
        return [_NAN if (used := self.used(counter, now_ms)) is None else used for counter in counters]

    def below_quota_ms(self, counter: CounterState, now_ms: int) -> int:
        """Milliseconds of the last minute that were waited, if less than NEAR_LIMIT of the limit is used; else 0."""
        share = self.share(counter, now_ms)
        return counter.waited_ms(now_ms) if share is not None and share < NEAR_LIMIT else 0

    def remaining(self, counter: CounterState, now_ms: int) -> float | None:
        """The rest of the limit: tokens, or the limit less the rate. None without a limit or a rate."""
        if counter.limit is None:
            return None
        if counter.tokens is not None:
            return self.tokens(counter, now_ms)
        rate = self.rate(counter, now_ms)
        return None if rate is None else max(0.0, counter.limit - rate)


def _span_ms(window: Window) -> int:
    return window.samples * window.window_ms


class CounterRow(NamedTuple):
    """Present figures of one counter. `remaining` is in tokens for mutations, else in the unit of the limit."""

    key: CounterId
    matched: str
    rate: float | None
    """As last decided."""
    mean: float | None
    """The mean of the last minute; None while it isn't known."""
    limit: float | None
    used: float | None
    remaining: float | None
    wait_ms: int | None
    hour_minutes: int
    seen_ms: int
    waited_ms: int | None
    """Milliseconds of the last minute that were waited."""
    below_quota_ms: int | None
    """Those of them in which less than NEAR_LIMIT of the limit is in use."""
    points: list[float]
    """Mean rates; NaN where nothing was charged."""
    limits: list[float]
    """The limit at the end of each point; NaN for none."""
    waited_points: list[int]
    """Milliseconds of each point that were waited."""
    week_minutes: int | None
    """Minutes throttled in the last seven days, from the tables."""

    def of_then(self) -> "CounterRow":
        """The row while decisions are old: its figures of now are unknown, those of points and hours stay."""
        known = self._replace(rate=None, mean=None, used=None, remaining=None)
        return known._replace(wait_ms=None, waited_ms=None, below_quota_ms=None)

    def over(self) -> list[bool]:
        """True for each point that is over its limit; for none of a bucket, which has a burst."""
        is_bucket = self.key.kind.family is Family.MUTATIONS
        before = [self.limits[0], *self.limits]
        limits = map(max, self.limits, before)
        return [not is_bucket and point > OVER * limit for point, limit in zip(self.points, limits, strict=True)]


class Second(msgspec.Struct):
    """Figures of one second of reading."""

    at_s: int
    verdicts: dict[str, int] = {}
    heartbeats: int = 0
    lag_ms: int = 0
    """The greatest age of an event when its decision was read."""

    @property
    def decisions(self) -> int:
        """All decisions but those of heartbeats."""
        return sum(self.verdicts.values())


@dataclass
class _Recent:
    """The last decisions with a wait or a refusal, by id, within bounds of number and bytes."""

    count: int
    limit_bytes: int
    records: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    size: int = 0

    def add(self, decision_id: str, value: bytes) -> None:
        self.size += len(value) - len(self.records.pop(decision_id, b""))
        self.records[decision_id] = value
        while len(self.records) > self.count or self.size > self.limit_bytes:
            _, removed = self.records.popitem(last=False)
            self.size -= len(removed)


class LiveModel:
    """Model of all counters and gateways. Feed it every record of the decisions topic. Thread-safe.

    `evicted` counts counters that were forgotten because there were more than `bounds` allows, `unreadable` records
    that hold no decision. `total` counts decisions by verdict.
    """

    def __init__(
        self,
        settings: QuotaSettings | None = None,
        bounds: Bounds | None = None,
        limits: BrokerLimits = NO_LIMITS,
    ) -> None:
        self.usage = CurrentUsage(settings or QuotaSettings())
        self.bounds = bounds or Bounds()
        self.gateways = GatewaysSeen(limits)
        self.changes = 0
        """Grows with every record that was read."""
        self.lock = RLock()
        self._ends = WaitEnds()
        self.forget()

    @property
    def known(self) -> int:
        """The number of counters."""
        return len(self._counters)

    def on_record(self, value: bytes | None, now_ms: int) -> None:
        """Apply a record that is read at `now_ms`. One that holds no decision is counted, and changes nothing."""
        self.on_records((value,), now_ms)

    def on_records(self, values: Iterable[bytes | None], now_ms: int) -> None:
        """Apply records that are read at `now_ms`."""
        with self.lock:
            for value in values:
                self.changes += 1
                try:
                    decision = read_decision(value)
                except UNREADABLE:
                    self.unreadable += 1
                    continue
                self._on_decision(decision, value or b"", now_ms)

    def end_waits(self, ends: Iterable[WaitEnd]) -> None:
        """Take the ends of waits that decisions don't tell, by limits that were raised or removed: all that count."""
        with self.lock:
            self._ends = WaitEnds(ends)
            for counter in self._counters.values() if self._ends else ():
                for at_ms in self._ends.of(counter.key.names())[:-1] if counter.until_ms else ():
                    counter.end_waits(at_ms)

    def counters(self) -> list[CounterState]:
        """All counters, the least recently charged first. Read them while you hold `lock`."""
        return list(self._counters.values())

    def counter(self, key: CounterId) -> CounterState | None:
        """One counter."""
        return self._counters.get(key)

    def row(self, counter: CounterState, now_ms: int, week_minutes: int | None = None) -> CounterRow:
        """The present figures of one counter. The tables, which say `week_minutes`, are a minute behind or more."""
        hour_minutes = counter.throttled_minutes(now_ms)
        return CounterRow(
            key=counter.key,
            matched=counter.matched,
            rate=self.usage.rate(counter, now_ms),
            mean=None if math.isnan(mean := counter.mean(now_ms)[0]) else mean,
            limit=counter.limit,
            used=self.usage.used(counter, now_ms),
            remaining=self.usage.remaining(counter, now_ms),
            wait_ms=counter.wait_ms(now_ms),
            hour_minutes=hour_minutes,
            seen_ms=counter.at_ms,
            waited_ms=counter.waited_ms(now_ms),
            below_quota_ms=self.usage.below_quota_ms(counter, now_ms),
            points=counter.points(now_ms),
            limits=counter.limits(now_ms),
            waited_points=counter.waited_points(now_ms),
            week_minutes=None if week_minutes is None else max(week_minutes, hour_minutes),
        )

    def waits(self, keys: Iterable[CounterId] | None = None) -> Iterator[SeenWait]:
        """The last waits, of these counters or of all, the newest first."""
        wanted = None if keys is None else set(keys)
        with self.lock:
            found = list(self._waits)
        return (wait for wait in reversed(found) if wanted is None or wait.key in wanted)

    def recent(self, decision_id: str) -> bytes | None:
        """The record of one of the last decisions with a wait or a refusal; None if it isn't kept."""
        with self.lock:
            return self._recent.records.get(decision_id)

    def seconds(self, now_ms: int) -> list[Second]:
        """The last SECONDS seconds before the one that runs, the oldest first; those without decisions included."""
        with self.lock:
            known = {second.at_s: second for second in self._seconds}
        now_s = now_ms // 1000
        return [known.get(at_s) or Second(at_s) for at_s in range(now_s - SECONDS, now_s)]

    def forget(self) -> None:
        """Start again, as after the topic was deleted and made again: ids of before may name other decisions now."""
        with self.lock:
            self.evicted = 0
            self.unreadable = 0
            self.total: Tally[str] = Tally()
            self._characters = 0
            self._counters: OrderedDict[CounterId, CounterState] = OrderedDict()
            self._waits: deque[SeenWait] = deque(maxlen=self.bounds.waits)
            self._recent = _Recent(self.bounds.recent, self.bounds.recent_bytes)
            self._seconds: deque[Second] = deque(maxlen=SECONDS)
            self.gateways.forget()

    def _on_decision(self, decision: Decision, value: bytes, now_ms: int) -> None:
        at_ms = min(decision.timestamp_ms, now_ms + FUTURE_MS)
        second = self._second(now_ms // 1000)
        second.lag_ms = max(second.lag_ms, now_ms - at_ms)
        if decision.heartbeat is not UNSET:
            second.heartbeats += 1
            made_ms = decision.decided_at_ms
            self.gateways.add(decision.gateway, decision.instance, decision.heartbeat, at_ms, now_ms, made_ms)
            return
        verdict = decision.verdict
        self.total[verdict] += 1
        second.verdicts[verdict] = second.verdicts.get(verdict, 0) + 1
        self._apply(decision, at_ms)
        if decision.throttled_by or decision.throttle_time_ms or verdict is not _ALLOW:
            self._recent.add(decision.decision_id, value)

    def _apply(self, decision: Decision, at_ms: int) -> None:
        """Apply the charges of a decision, and the waits of their counters: applied inline, or decided."""
        lane = "" if decision.throttled_by is UNSET else (decision.instance or "")[:_SHOWN]
        waits = reported_waits(decision)
        for charge in decision.charges:
            if decision.api == UNMUTE_API and charge.limit is None:
                continue  # reset on the way, of a quota that limits nobody: not worth a row
            tags, shadow = Tags.of(charge.entity), charge.mode == "shadow"
            counter = self._of(charge.quota, tags, shadow=shadow)
            if counter is None:
                continue
            counter.charge(charge, at_ms, decision.decision_id)
            if decision.api == UNMUTE_API:
                counter.end_waits(at_ms)
            elif not shadow:
                wait_ms = waits.pop((charge.quota, tags), 0) if waits else 0
                self._wait(counter, at_ms, wait_ms, decision, lane)
        for (quota, tags), wait_ms in waits.items():  # those of counters that the event charges nothing to
            counter = self._of(quota, tags, shadow=False)
            if counter is not None:
                self._wait(counter, at_ms, wait_ms, decision, lane)

    def _of(self, quota: str, tags: Tags, *, shadow: bool) -> CounterState | None:
        """The counter, new if need be, which is now the most recently charged. None for an unknown quota."""
        kind = KINDS_BY_NAME.get(quota)
        if kind is None:
            return None
        key = CounterId(kind, shadow, tags.user, tags.client_id, tags.topic, tags.partition, tags.tenant)
        counter = self._counters.get(key)
        if counter is not None:
            self._counters.move_to_end(key)
            return counter
        counter = self._counters[key] = CounterState(key)
        self._characters += key.name_length
        while len(self._counters) > self.bounds.counters or (
            self._characters > self.bounds.name_characters and len(self._counters) > 1
        ):
            oldest, _ = self._counters.popitem(last=False)
            self._characters -= oldest.name_length
            self.evicted += 1
        return counter

    def _wait(self, counter: CounterState, at_ms: int, wait_ms: int, decision: Decision, lane: str) -> None:
        """Note the wait that an event reports; 0 ends the one before it."""
        is_cut = wait_ms > 0 and self._ends
        counter.note_wait(lane, at_ms, self._ends.left_ms(counter.key.names(), at_ms, wait_ms) if is_cut else wait_ms)
        if wait_ms <= 0:
            return
        wait_ms, elastic = min(wait_ms, MAX_THROTTLE_MS), decision.elastic
        self._waits.append(
            SeenWait(
                counter.key,
                at_ms,
                wait_ms,
                decision.throttled_by is not UNSET,
                decision.decision_id[:_SHOWN],
                decision.api[:_SHOWN],
                server_text(decision.instance, decision.gateway)[:_SHOWN],
                counter.rate,
                counter.limit,
                (decision.user or "")[:_SHOWN],
                (decision.client_id or "")[:_SHOWN],
                None if elastic is UNSET or elastic.factor == 1.0 else elastic.reason[:_SHOWN],
            )
        )

    def _second(self, now_s: int) -> Second:
        if not self._seconds or self._seconds[-1].at_s < now_s:
            self._seconds.append(Second(now_s))
        return self._seconds[-1]
