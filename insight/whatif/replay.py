"""The closed loop: recorded requests are decided again, and a throttled client sends later.

A request that was recorded at r is sent at

    s = r + max(0, free now - free then)

where a client is *free* when it has sent its last request and no wait of its holds it: *then* by what was recorded,
*now* by what the replay decided. It keeps the time that it let pass by itself, and is never ahead of the recording.
Without waits, s = r.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from sluice.insight.waits import Waited
from sluice.insight.whatif.overrides import STRICT, RecordedOverrides
from sluice.insight.whatif.whose import tried_charges
from sluice.state.arithmetic.columns import columns_of
from sluice.state.arithmetic.counter import Charge, EntityCounters, Outcome, charge_mutations
from sluice.state.contract.records import MAX_APPLIED_MS, Request, Verdict
from sluice.state.decisions.decision import ALLOWED, Answer, Waits, answered
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import Family, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import at_rest

FORGET_EVERY_MS = 600_000
"""Interval between two searches for counters at rest, in the time of the requests."""


Outcomes = dict[Tags, list[Outcome]]
"""Outcomes of the charges of a request, by the tags of their counters. Of no two counters the order matters, but for
those of bytes, which are in the order of `plan_charges`: of equal waits the first one's quota decides."""


class Decider:
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

    def decide(self, request: Request, now_ms: int) -> Answer:
        """Charge the request at `now_ms`, epoch milliseconds, which need not be the time it was recorded at."""
        outcomes = self.charge(request, now_ms)
        for charged in outcomes.values():
            for outcome in charged:
                if outcome.wait_ms or any(outcome.refused):
                    return self.answer(request, now_ms, outcomes)
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

    def answer(self, request: Request, now_ms: int, outcomes: Outcomes) -> Answer:
        """The answer to these outcomes."""
        waits = Waits()
        for charged in outcomes.values():
            waits.join(Waits.of(charged))
        return answered(waits, request.purgatory_ms, now_ms, self._settings)

    def _counter(self, tags: Tags) -> EntityCounters:
        counter = self._counters.get(tags)
        if counter is None:
            counter = self._counters[tags] = EntityCounters()
        return counter

    def _forget(self, now_ms: int) -> None:
        """Forget the counters at rest, so that memory depends on the clients that are active, not on the span."""
        self._forget_at_ms = now_ms + FORGET_EVERY_MS
        if not self._counters:
            return
        columns = columns_of(self._counters.values())
        times_ms = np.full(len(self._counters), now_ms)
        resting = at_rest(columns, times_ms, self._idle_expiry_ms, self._settings).tolist()
        for tags in [tags for tags, rests in zip(self._counters, resting, strict=True) if rests]:
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


class Side(msgspec.Struct, gc=False):
    """The requests of one client as they were sent, then or now: how many, and how they were answered.

    `throttled` counts requests with a wait, refused ones among them.
    """

    requests: int = 0
    throttled: int = 0
    refused: int = 0
    free_ms: int = 0
    waited: Waited = msgspec.field(default_factory=Waited)

    def add(self, requests: int, at_ms: int, wait_ms: int, refused: bool, end_ms: int, lane: str = "") -> None:
        """Count an event of this many requests that was answered with a wait of at most an hour.

        >>> side = Side()
        >>> for at_ms in (0, 500):  # two waits of a second each that overlap by half
        ...     side.add(1, at_ms, 1000, False, end_ms=10_000)
        >>> side.throttled, side.waited_ms, side.free_ms
        (2, 1500, 1500)
        """
        self.requests += requests
        self.free_ms = max(self.free_ms, at_ms)
        self.waited.add(lane, at_ms, max(0, min(wait_ms, end_ms - at_ms)))
        if refused:
            self.refused += requests
        if wait_ms:
            self.throttled += requests
            self.free_ms = max(self.free_ms, at_ms + min(wait_ms, MAX_APPLIED_MS))

    @property
    def waited_ms(self) -> int:
        """The length of the union of its waits within the span."""
        left_ms = self.waited.end_ms() - self.waited.at_ms
        return self.waited.total_ms + max(0, left_ms)


class ClientReplay(msgspec.Struct, gc=False):
    """One client then and now; `waits` counts its requests throttled now, by quota."""

    then: Side
    now: Side
    waits: dict[str, int]

    @property
    def unsent(self) -> int:
        """Requests that were sent then and would not be now: they wait for their turn at the end of the span."""
        return self.then.requests - self.now.requests


class _Waiting(msgspec.Struct, gc=False):
    """A recorded request that can't be sent yet, and when its client was free for it then."""

    recorded: Recorded
    free_then_ms: int


class Replay:
    """Decides recorded requests, taken in the order in which they were decided, at the times at which they come now."""

    def __init__(self, decide: Callable[[Request, int], Answer], end_ms: int) -> None:
        """`decide` answers a request at a time. Nothing is sent at or after `end_ms`.

        `given_up` counts the requests that found MAX_BACKLOG others waiting, and are never sent.
        """
        self.clients: dict[ClientName, ClientReplay] = {}
        self.given_up = 0
        self._decide = decide
        self._end_ms = end_ms
        self._clock_ms = 0
        self._backlogs: dict[ClientName, deque[_Waiting]] = {}
        self._due: list[tuple[int, int, ClientName]] = []
        self._taken = 0
        self._waiting = 0

    def replay_request(self, recorded: Recorded) -> None:
        """Decide the next recorded request, after those whose turn comes before it."""
        self._taken += 1
        self._clock_ms = max(self._clock_ms, recorded.timestamp_ms)
        if self._due and self._due[0][0] <= self._clock_ms:
            self._send_due(self._clock_ms)
        name = recorded.client()
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = ClientReplay(Side(), Side(), {})
        free_then_ms = client.then.free_ms
        requests, wait_ms = recorded.request.requests, recorded.wait_ms
        client.then.add(requests, recorded.timestamp_ms, wait_ms, recorded.refused, self._end_ms, recorded.lane)
        backlog = self._backlogs.get(name)
        if backlog is None and client.now.free_ms <= free_then_ms:
            self._send(client, recorded, recorded.timestamp_ms)
        elif self._waiting < MAX_BACKLOG:
            self._waiting += 1
            waiting = _Waiting(recorded, free_then_ms)
            if backlog is None:
                self._backlogs[name] = deque([waiting])
                self._plan(name, client, waiting)
            else:
                backlog.append(waiting)
        else:
            self.given_up += requests

    def finish(self) -> dict[ClientName, ClientReplay]:
        """Send what comes before the end; returns each client then and now."""
        self._send_due(self._end_ms - 1)
        return self.clients

    def _send_due(self, until_ms: int) -> None:
        """Send the waiting requests whose turn has come, each client's in their order."""
        while self._due and self._due[0][0] <= until_ms:
            at_ms, _, name = heapq.heappop(self._due)
            client, backlog = self.clients[name], self._backlogs[name]
            self._waiting -= 1
            self._send(client, backlog.popleft().recorded, at_ms)
            if backlog:
                self._plan(name, client, backlog[0], after_ms=at_ms)
            else:
                del self._backlogs[name]

    def _plan(self, name: ClientName, client: ClientReplay, waiting: _Waiting, after_ms: int = 0) -> None:
        """Find when the first request of a backlog is sent: as far behind the recording as its client is."""
        behind_ms = max(0, client.now.free_ms - waiting.free_then_ms)
        at_ms = max(waiting.recorded.timestamp_ms + behind_ms, after_ms)
        heapq.heappush(self._due, (at_ms, self._taken, name))

    def _send(self, client: ClientReplay, recorded: Recorded, at_ms: int) -> None:
        request = recorded.request
        answer = self._decide(request, at_ms)
        client.now.add(request.requests, at_ms, answer.throttle_ms, answer.verdict is Verdict.REJECT, self._end_ms)
        if answer.throttle_ms:
            quota = answer.decided_by or ""
            client.waits[quota] = client.waits.get(quota, 0) + request.requests
