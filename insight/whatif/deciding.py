"""Deciding recorded requests: the functions of `plan`, `decide` and `combine` for one request at a time.

Unlimited charges, shadow quotas and reported amounts are left out: they throttle nobody.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sluice.state.arithmetic.columns import columns_of
from sluice.state.arithmetic.counter import Charge, EntityCounters, Outcome
from sluice.state.contract.records import Decision, Request, Verdict
from sluice.state.decisions.charge_plan import plan_limited
from sluice.state.decisions.decision import RequestHead, combine, partial_decision
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import at_rest

FORGET_EVERY_MS = 600_000
"""Interval between two searches for counters at rest, in the time of the requests."""


class Answer(NamedTuple):
    """The answer to a client: the verdict, the wait in ms, and the quota that decided it."""

    verdict: Verdict
    throttle_ms: int
    decided_by: str | None


ALLOWED = Answer(Verdict.ALLOW, 0, None)

Outcomes = dict[Tags, list[Outcome]]
"""Outcomes of the charges of a request, by the tags of their counters."""


class Decider:
    """The counters of all requests decided so far, under `quotas`, which may be replaced."""

    def __init__(self, quotas: Quotas, settings: QuotaSettings, idle_expiry_ms: int) -> None:
        self.quotas = quotas
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
                    decision = self.decision(request, now_ms, outcomes)
                    return Answer(decision.verdict, decision.throttle_time_ms, decision.decided_by)
        return ALLOWED

    def charge(self, request: Request, now_ms: int) -> Outcomes:
        """Make the charges of the request that have a limit."""
        if now_ms >= self._forget_at_ms:
            self._forget(now_ms)
        charges = plan_limited(request, self.quotas, self._settings)
        return {
            tags: self._counter(tags).charge_request(of_counter, now_ms, self._settings)
            for tags, of_counter in _by_counter(charges).items()
        }

    def decision(self, request: Request, now_ms: int, outcomes: Outcomes) -> Decision:
        """The decision on these outcomes, without fields that repeat or report."""
        head = RequestHead.of_request(request, "", [], self.quotas.version, now_ms)
        partials = [partial_decision(charged, tags) for tags, charged in outcomes.items()]
        return combine(head, now_ms, partials, self._settings)

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
    """The charges grouped by their counter, in the order of `plan_charges`."""
    if len(charges) == 1:
        [(tags, charge)] = charges
        return {tags: [charge]}
    grouped: dict[Tags, list[Charge]] = {}
    for tags, charge in charges:
        grouped.setdefault(tags, []).append(charge)
    return grouped
