"""The closed loop: recorded requests are decided again, those of each connection in a line of their own, as in Kafka.

A line is of one client, gateway and API. It is *free* when its last request was sent and no wait holds it: *then* by
what was recorded, *now* by what the replay decided. A request that was recorded at r comes at

    s = free now + (r - free then)      if it had waited for its turn then
    s = max(r, free now)                else: it queues until the line is free

Without waits, s = r. A request had waited for its turn if it came at most REACTION_MS after a wait of its line.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from sluice.state.arithmetic.counter import Charge, EntityCounters, Outcome, charge_mutations
from sluice.state.contract.records import MAX_APPLIED_MS, Request, Verdict
from sluice.state.decisions.decision import ALLOWED, RequestOutcome, Waits, request_outcome
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import Family, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import at_rest
from sluice_insight.reports.span import Span
from sluice_insight.waits import Waited
from sluice_insight.whatif.overrides import STRICT, RecordedOverrides
from sluice_insight.whatif.whose import tried_charges

FORGET_EVERY_MS = 600_000
"""Interval between two searches for counters at rest, in the time of the requests."""


Outcomes = dict[Tags, list[Outcome]]
"""Outcomes of the charges of a request, by the tags of their counters. Of no two counters the order matters, but for
those of bytes, which are in the order of `plan_charges`: of equal waits the first one's quota decides."""


class ReplayedCounters:
    """The counters of all requests decided so far, under `quotas`, which may be replaced."""

    def __init__(
        self, quotas: Quotas, settings: QuotaSettings, idle_expiry_ms: int, overrides: RecordedOverrides = STRICT
    ) -> None:
        self.quotas = quotas
        self._overrides = overrides
        self._settings = settings
        self._idle_expiry_ms = idle_expiry_ms
        self._counters: dict[Tags, EntityCounters] = {}
        self._forget_at_ms = 0

    def decide(self, request: Request, now_ms: int) -> RequestOutcome:
        """Charge the request at `now_ms`, epoch milliseconds, which need not be the time it was recorded at."""
        outcomes = self.charge(request, now_ms)
        for charged in outcomes.values():
            for outcome in charged:
                if outcome.wait_ms or any(outcome.refused):
                    return self.outcome(request, now_ms, outcomes)
        return ALLOWED

    def charge(self, request: Request, now_ms: int) -> Outcomes:
        """Make the charges of the request that have a limit."""
        if now_ms >= self._forget_at_ms:
            self._forget(now_ms)
        charges = tried_charges(request, self.quotas, self._settings)
        if self._overrides:
            self._give_way(charges, request.instance or "", now_ms)
        if request.mutations:
            return self._charge_mutations(charges, now_ms)
        return {
            tags: self._counter(tags).charge_request(of_counter, now_ms, self._settings)
            for tags, of_counter in _by_counter(charges).items()
        }

    def _charge_mutations(self, charges: Sequence[tuple[Tags, Charge]], now_ms: int) -> Outcomes:
        """Make the charges of a request for mutations: its client's counter and its tenant's are asked together."""
        outcomes: dict[Tags, list[Outcome]] = {tags: [] for tags, _ in charges}
        mutations = [each for each in charges if each[1].kind.family is Family.MUTATIONS]
        if mutations:
            pairs = [(self._counter(tags), charge) for tags, charge in mutations]
            made = charge_mutations(pairs, now_ms, self._settings.controller_window)
            for (tags, _), outcome in zip(mutations, made, strict=True):
                outcomes[tags].append(outcome)
        for tags, charge in charges:
            if charge.kind.family is not Family.MUTATIONS:
                outcomes[tags].append(self._counter(tags).charge(charge, now_ms, self._settings))
        return outcomes

    def _give_way(self, charges: Sequence[tuple[Tags, Charge]], instance: str, now_ms: int) -> None:
        """Give the charges the limits that were in force at a time."""
        for tags, charge in charges:
            found = self.quotas.resolve_counter(charge.kind, tags)
            if found is not None and charge.limit is not None and charge.kind.family.gives_way:
                charge.limit = self._overrides.limit(found, charge.limit, instance, now_ms)

    def outcome(self, request: Request, now_ms: int, outcomes: Outcomes) -> RequestOutcome:
        """The outcome of the request by those of its charges."""
        waits = Waits()
        for charged in outcomes.values():
            waits.join(Waits.of(charged))
        return request_outcome(waits, request.purgatory_ms, now_ms, self._settings)

    def _counter(self, tags: Tags) -> EntityCounters:
        counter = self._counters.get(tags)
        if counter is None:
            counter = self._counters[tags] = EntityCounters()
        return counter

    def _forget(self, now_ms: int) -> None:
        """Forget the counters at rest, so that memory depends on the clients that are active, not on the span."""
        self._forget_at_ms = now_ms + FORGET_EVERY_MS
        for tags, counters in [*self._counters.items()]:
            if at_rest(counters, now_ms, self._idle_expiry_ms, self._settings):
                del self._counters[tags]


def _by_counter(charges: Sequence[tuple[Tags, Charge]]) -> dict[Tags, list[Charge]]:
    """The charges grouped by their counter, in the order of the first charge of each that has a limit."""
    if len(charges) == 1:
        [(tags, charge)] = charges
        return {tags: [charge]}
    grouped: dict[Tags, list[Charge]] = {}
    for tags, charge in charges:
        grouped.setdefault(tags, []).append(charge)
    return grouped


MAX_BACKLOG = 300_000
"""Most requests that wait to be sent, of all clients together: it bounds the memory of a replay."""

LOOK_AHEAD = 50_000
"""Requests that are read before the first of them is sent: so far a client may be ahead of the recording."""

REACTION_MS = 1_000
"""Longest time from the end of a wait to the next request of a client that wanted to send all the while.

A broker publishes every 100 ms (`sluice.sum.ms`); clients and brokers take the rest.
"""

SUM_API = "Requests"
"""The API of events that sum up the request time of a client's connections to a broker."""

_REPEATED = 32
"""Requests of a line that it goes on with where the recording ends."""

_LEAST_PARTS = 8
_PART_MS = 500
"""Parts that an event of many requests becomes, and of one that sums up a long time so many more."""

_IRREGULAR = 0.2
"""Part by which two intervals between events differ if a broker sums up regularly."""

_LONGEST_SUM_MS = 30_000
"""Time for which a broker sums up the bytes of a client without a limit."""

_SUM_MS = 100
"""Time for which a broker sums up what it charges (`sluice.sum.ms`); its event says what is left of the last wait."""

_MOST = 0.75
"""Share of the time for which a line that goes on was busy: others may have ended a burst with the recording."""

ClientName = tuple[str, str]
"""User and client-id; "" where the event has none."""


class Recorded(msgspec.Struct, gc=False):
    """A recorded request, its time in epoch milliseconds, and how it was answered then.

    `wait_ms` is the wait of its client: the one that its gateway applied inline, else the decision's. It ends at the
    next request of its `lane`, which is of one gateway and API.
    """

    timestamp_ms: int
    request: Request
    wait_ms: int = 0
    refused: bool = False
    lane: str = ""

    def client(self) -> ClientName:
        """User and client-id."""
        return self.request.user or "", self.request.client_id or ""


def _parts(recorded: Recorded, parts: int, length_ms: int) -> Iterator[Recorded]:
    """The requests that an event sums up over a time, as so many of equal size: each can wait."""
    if parts < 2:
        yield recorded
        return
    request = recorded.request
    totals = {name: getattr(request, name) for name in ("requests", "bytes", "request_time_ns", "network_time_ns")}
    for part in range(parts):
        said = {name: total and total * (part + 1) // parts - total * part // parts for name, total in totals.items()}
        left = parts - 1 - part
        at_ms = recorded.timestamp_ms - length_ms * left // parts
        wait_ms = 0 if left else recorded.wait_ms
        yield Recorded(at_ms, msgspec.structs.replace(request, **said), wait_ms, recorded.refused, recorded.lane)


class Side(msgspec.Struct, gc=False):
    """The requests of one client as they were sent, then or now: how many, their bytes, and how they were answered.

    `throttled` counts requests with a wait, refused ones among them.
    """

    requests: int = 0
    throttled: int = 0
    refused: int = 0
    bytes: int = 0
    waited: Waited = msgspec.field(default_factory=Waited)

    def add(self, recorded: Recorded, at_ms: int, wait_ms: int, refused: bool, span: Span) -> None:
        """Count a request that was sent at a time, and answered with a wait of at most an hour.

        >>> side, request = Side(), Request("Produce", bytes=70)
        >>> for at_ms in (0, 500):  # two waits of a second each that overlap by half
        ...     side.add(Recorded(at_ms, request), at_ms, 1000, False, Span(0, 10_000))
        >>> side.throttled, side.bytes, side.waited_ms
        (2, 140, 1500)
        """
        if at_ms >= span.start_ms:
            if self.waited.at_ms < span.start_ms:
                self.waited.until(span.start_ms)
                self.waited.total_ms = 0
            requests = recorded.request.requests
            self.requests += requests
            self.refused += requests * refused
            self.throttled += requests * (wait_ms > 0)
            self.bytes += _moved_bytes(recorded.request)
        self.waited.add(recorded.lane, at_ms, max(0, min(wait_ms, span.end_ms - at_ms)))

    @property
    def waited_ms(self) -> int:
        """The length of the union of its waits within the span."""
        left_ms = self.waited.end_ms() - self.waited.at_ms
        return self.waited.total_ms + max(0, left_ms)


def moves_bytes(request: Request) -> bool:
    """True if a client gets bytes in or out by a request: not by one that was withheld, or of a broker."""
    return request.api in ("Produce", "Fetch") and not request.withheld and not request.cluster_action


def _moved_bytes(request: Request) -> int:
    if not moves_bytes(request):
        return 0
    return sum(part.bytes for part in request.topic_partitions) if request.bytes is None else request.bytes


class ClientReplay(msgspec.Struct, gc=False):
    """One client then and now; `waits` counts its requests throttled now, by quota.

    `repeated` requests, which are part of `now`, were never recorded: their client was throttled until the recording
    ended, and goes on. One that `wants_more` would do so too, but isn't throttled now: its speed isn't known.
    """

    then: Side
    now: Side
    waits: dict[str, int]
    repeated: int = 0
    wants_more: bool = False
    short_waits: int = 0
    long_waits: int = 0

    @property
    def is_seen(self) -> bool:
        """False if most waits of then were over before the next event: what was waited in between isn't known."""
        return self.short_waits <= self.long_waits

    @property
    def unsent(self) -> int:
        """Requests that were sent then and would not be now: they wait for their turn at the end of the span."""
        return max(0, self.then.requests + self.repeated - self.now.requests)


class _Waiting(msgspec.Struct, gc=False):
    """A recorded request that isn't sent yet.

    `pause_ms` is the time since its line was free then, None if it came by itself. In a busy period some come after a
    wait, and others because there was no wait.
    """

    recorded: Recorded
    pause_ms: int | None
    is_after_wait: bool
    is_repeated: bool = False


class _Line(msgspec.Struct, gc=False):
    """The requests of a client by one API through one gateway."""

    name: ClientName
    shared: "_Line | None" = None  # that of the request time of all of its client's lines at the gateway
    waiting: deque[_Waiting] = msgspec.field(default_factory=deque)
    recent: deque[_Waiting] = msgspec.field(default_factory=lambda: deque(maxlen=_REPEATED))
    is_busy: bool = False
    waited_then: bool = False
    free_then_ms: int = 0
    free_now_ms: int = 0
    behind_ms: int = 0  # of its next request, by the recording
    first_ms: int = 0
    read_ms: int = 0  # of its last recorded request
    busy_ms: int = 0  # from the first recorded request to the last
    ahead: int = 0  # requests that were repeated, and may be recorded yet
    produced: int = 0  # requests, and the time of all its requests, as far as they are recorded
    time_ns: int = 0
    unthrottled: int = 0  # requests since the last one that waits now

    def read(self, recorded: Recorded) -> _Waiting:
        """Take the next recorded request."""
        pause_ms = recorded.timestamp_ms - self.free_then_ms
        self.is_busy = (self.is_busy or self.waited_then) and pause_ms <= REACTION_MS
        self.busy_ms += max(0, recorded.timestamp_ms - self.read_ms) if self.is_busy else 0
        self.first_ms = self.first_ms or recorded.timestamp_ms
        self.read_ms = max(self.read_ms, recorded.timestamp_ms)
        waiting = _Waiting(recorded, pause_ms if self.is_busy else None, self.waited_then)
        self.waited_then = recorded.wait_ms > 0
        end_ms = recorded.timestamp_ms + min(recorded.wait_ms, MAX_APPLIED_MS)
        self.free_then_ms = max(end_ms, self.free_then_ms)
        return waiting

    def due_ms(self, waiting: _Waiting) -> int:
        """The time at which the next request comes."""
        behind_ms = 0 if self.shared is None or waiting.is_repeated else self.shared.behind_ms
        recorded_ms = waiting.recorded.timestamp_ms + behind_ms
        at_ms = max(recorded_ms, self.free_now_ms)
        if waiting.pause_ms is not None:
            paused_ms = self.free_now_ms + waiting.pause_ms
            at_ms = paused_ms if waiting.is_after_wait else min(at_ms, paused_ms)
        return max(at_ms, recorded_ms) if behind_ms > 0 else at_ms

    def wants_more(self, read_ms: int) -> bool:
        """True if its client was throttled most of the time, and until the recording ended, which is read so far."""
        is_throttled = self.is_busy and read_ms <= self.free_then_ms + REACTION_MS
        return is_throttled and not self.waiting and self.busy_ms > _MOST * (self.read_ms - self.first_ms)


class Replay:
    """Decides recorded requests, taken in the order in which they were decided, at the times at which they come now."""

    def __init__(self, decide: Callable[[Request, int], RequestOutcome], span: Span) -> None:
        """`decide` answers a request at a time. Requests before the span are decided, but not counted; after it none.

        `given_up` counts the requests that found MAX_BACKLOG others waiting, and are never sent.
        """
        self.clients: dict[ClientName, ClientReplay] = {}
        self.given_up = 0
        self._decide = decide
        self._span = span
        self._read_ms = 0
        self._clock_ms = 0
        self._lines: dict[tuple[ClientName, str], dict[str, _Line]] = {}
        self._brokers: set[str] = set()  # and proxies: gateways that sum up
        self._read_of: dict[tuple[ClientName, str], tuple[int, int]] = {}  # the last time by lane, and the interval
        self._due: list[tuple[int, int, _Line]] = []
        self._taken = 0
        self._waiting = 0

    def replay_request(self, recorded: Recorded) -> None:
        """Take the next recorded request, and decide those that LOOK_AHEAD has no room for."""
        self._read_ms = max(self._read_ms, recorded.timestamp_ms)
        name = recorded.client()
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = ClientReplay(Side(), Side(), {})
        line = self._line(name, recorded)
        since_ms = self._sum_since_ms(name, recorded)
        since_ms = max(since_ms, line.free_then_ms) if line.waited_then else since_ms
        length_ms = min(max(0, recorded.timestamp_ms - since_ms), _LONGEST_SUM_MS)
        for part in _parts(recorded, self._count(line, recorded, length_ms), length_ms):
            client.then.add(part, part.timestamp_ms, part.wait_ms, part.refused, self._span)
            if line.waited_then:
                is_short = (
                    line.free_then_ms - line.read_ms < _SUM_MS and part.timestamp_ms - line.read_ms <= 2 * _SUM_MS
                )
                client.short_waits += is_short
                client.long_waits += not is_short
            waiting = line.read(part)
            if line.ahead and line.is_busy:
                line.ahead -= 1
                client.repeated -= part.request.requests
            elif self._waiting >= MAX_BACKLOG:
                self.given_up += part.request.requests
            else:
                line.ahead = 0
                self._append(line, waiting)
        most = min(LOOK_AHEAD, MAX_BACKLOG - 1)
        while self._waiting > most and self._due[0][0] <= self._read_ms:
            self._send_next()

    def finish(self) -> dict[ClientName, ClientReplay]:
        """Send what comes before the end; returns each client then and now."""
        self._read_ms = self._span.end_ms
        while self._due and self._due[0][0] < self._span.end_ms:
            self._send_next()
        return {name: client for name, client in self.clients.items() if client.then.requests}

    def _count(self, line: _Line, recorded: Recorded, length_ms: int) -> int:
        """The parts of an event. A broker doesn't say of how many requests request time and fetched bytes are."""
        request, gateway = recorded.request, recorded.lane.partition("|")[2]
        by_time = length_ms // _PART_MS
        if request.api == SUM_API:
            self._brokers.add(gateway)
            line.time_ns += request.request_time_ns or 0
            requests = line.produced * (request.request_time_ns or 0) // max(1, line.time_ns)
            return min(requests, _LEAST_PARTS)
        if request.bytes is None or request.topic_partitions:
            return 1
        line.produced += request.requests if request.api == "Produce" else 0
        if request.api == "Fetch" and gateway in self._brokers:
            return by_time
        return min(request.requests, max(_LEAST_PARTS, by_time))

    def _sum_since_ms(self, name: ClientName, recorded: Recorded) -> int:
        """The time since which an event sums up: that of the event before, if they come regularly, else its own."""
        at_ms = recorded.timestamp_ms
        last_ms, gap_ms = self._read_of.get((name, recorded.lane), (at_ms, 0))
        found_ms = at_ms - last_ms
        self._read_of[name, recorded.lane] = at_ms, found_ms
        return last_ms if abs(found_ms - gap_ms) <= _IRREGULAR * gap_ms else at_ms

    def _line(self, name: ClientName, recorded: Recorded) -> _Line:
        """The line of a request. The time of requests of one API is in its line, that of several has one of its own."""
        api, _, gateway = recorded.lane.partition("|")
        lines = self._lines.setdefault((name, gateway), {})
        if api == SUM_API and len(lines.keys() - {SUM_API}) == 1:
            [line] = (line for other, line in lines.items() if other != SUM_API)
            return line
        if api not in lines:
            lines[api] = _Line(name)
            shared = lines.get(SUM_API) if len(lines) > 2 else None
            for other in lines.values():
                other.shared = None if other is shared else shared
        return lines[api]

    def _append(self, line: _Line, waiting: _Waiting) -> None:
        self._waiting += 1
        line.waiting.append(waiting)
        if len(line.waiting) == 1:
            self._plan(line)

    def _plan(self, line: _Line) -> None:
        """Plan when the first request of a line is sent."""
        waiting = line.waiting[0]
        at_ms = max(line.due_ms(waiting), self._clock_ms)
        if not waiting.is_repeated:
            line.behind_ms = at_ms - waiting.recorded.timestamp_ms
        self._taken += 1
        heapq.heappush(self._due, (at_ms, self._taken, line))

    def _send_next(self) -> None:
        """Send the request whose turn is next, unless its client's request time has fallen behind meanwhile."""
        at_ms, _, line = heapq.heappop(self._due)
        self._clock_ms = max(self._clock_ms, at_ms)
        waiting, client = line.waiting[0], self.clients[line.name]
        is_behind = line.shared is not None and not waiting.is_repeated and line.shared.behind_ms > 0
        if is_behind and line.due_ms(waiting) > at_ms:
            self._plan(line)
            return
        line.waiting.popleft()
        self._waiting -= 1
        wait_ms = self._send(client, waiting.recorded, at_ms)
        line.free_now_ms = max(line.free_now_ms, at_ms + wait_ms)
        line.unthrottled = 0 if wait_ms else line.unthrottled + 1
        if waiting.pause_ms is not None:
            line.recent.append(waiting)
        if waiting.is_repeated:
            line.ahead += 1
            client.repeated += waiting.recorded.request.requests
        if line.waiting:
            self._plan(line)
        elif line.wants_more(self._read_ms) and line.recent:
            client.wants_more |= line.unthrottled > _REPEATED
            if line.unthrottled <= _REPEATED:
                again = line.recent.popleft()
                self._append(line, _Waiting(again.recorded, again.pause_ms, is_after_wait=True, is_repeated=True))

    def _send(self, client: ClientReplay, recorded: Recorded, at_ms: int) -> int:
        """Decide a request, and return its wait, an hour at most."""
        request = recorded.request
        answer = self._decide(request, at_ms)
        wait_ms = min(answer.throttle_ms, MAX_APPLIED_MS)
        client.now.add(recorded, at_ms, wait_ms, answer.verdict is Verdict.REJECT, self._span)
        if wait_ms and at_ms >= self._span.start_ms:
            quota = answer.decided_by or ""
            client.waits[quota] = client.waits.get(quota, 0) + request.requests
        return wait_ms
