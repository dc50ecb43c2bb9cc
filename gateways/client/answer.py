"""The answer to a request: of inline charging, or of a decision that the gateway has waited for."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple

import msgspec

from sluice.state.contract.records import Decision, Request
from sluice.state.decisions.charge_plan import charged_mutations
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.kinds import QuotaSettings


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Instructions for a response that is ready, or for mutations before they are executed.

    The client waits `throttle_ms` after the response, 0 if it needn't. With `withhold` a Fetch is to be answered empty.
    `refused` has one flag for each topic of a mutation request; if it is empty, all are executed. `quota` asked for the
    wait; `limit` is its limit and `share` the gateway's share of that, both in units of the quota per second, None if
    unknown. `request_id` is the event's, None if there is no event.
    """

    throttle_ms: int = 0
    withhold: bool = False
    refused: tuple[bool, ...] = ()
    quota: str | None = None
    limit: float | None = None
    share: float | None = None
    request_id: str | None = None


def decided_answer(decision: Decision, event: Request, request_id: str | None, longest_ms: int) -> Answer | None:
    """The answer to a mutation request, published under `request_id`, from its decision; None if that doesn't fit.

    A wait of more than `longest_ms` counts as that.
    """
    refused = tuple(result.error_code != 0 for result in decision.topic_results)
    if len(refused) != len(event.mutations):
        return None
    limit = next((charge.limit for charge in decision.charges if charge.quota == decision.decided_by), None)
    throttle_ms = min(max(0, decision.throttle_time_ms), longest_ms)
    return Answer(throttle_ms, False, refused, decision.decided_by, limit, None, request_id)


class Correction(NamedTuple):
    """Differences between a decision on mutations and the inline answer given before it came, in partitions.

    `executed_twice` were executed, charged inline, and admitted by the decision, which charges them once more.
    `executed_refused` were executed and refused by the decision, which charges nothing for them.
    """

    executed_twice: int
    executed_refused: int


def correction(
    event: Request, refused: tuple[bool, ...], decided: tuple[bool, ...], settings: QuotaSettings
) -> Correction:
    """Compare the topics refused inline with those that the decision refuses; no flags at all refuse nothing.

    >>> from sluice.state.contract.records import Mutation
    >>> event = Request("CreateTopics", mutations=[Mutation("a", 8), Mutation("b", 4), Mutation("c", 2)])
    >>> correction(event, (False, False, True), (False, True, False), QuotaSettings())
    Correction(executed_twice=8, executed_refused=4)
    """
    nothing = (False,) * len(event.mutations)
    twice = missed = 0
    charged = map(int, charged_mutations(event, settings))
    for partitions, early, late in zip(charged, refused or nothing, decided or nothing, strict=True):
        if not early:
            twice += 0 if late else partitions
            missed += partitions if late else 0
    return Correction(twice, missed)


MAX_AWAITED = 10_000
"""Largest number of requests that wait for their decisions at a time. Beyond it the oldest is given up."""


class AwaitedDecisions:
    """The decisions that are expected, by request id, each for at most `longest_ms`. Thread-safe."""

    def __init__(self, longest_ms: int, clock_ms: Callable[[], int]) -> None:
        self._longest_ms = longest_ms
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._awaited: OrderedDict[str, tuple[Future[Decision], int]] = OrderedDict()  # with the time of the request

    def __len__(self) -> int:
        return len(self._awaited)

    def expect(self, request_id: str) -> "Future[Decision]":
        """The future decision on this request. Raises InvalidRequestError for an id that is expected already.

        Its decision would be the answer to both: a small request would let a large one through.
        """
        future: Future[Decision] = Future()
        with self._lock:
            if request_id in self._awaited:
                raise InvalidRequestError("request_id", "is that of a request that is awaited", "another one")
            self._awaited[request_id] = future, self._clock_ms()
            while len(self._awaited) > MAX_AWAITED:
                self._awaited.popitem(last=False)
        return future

    def hand_over(self, decision: Decision) -> None:
        """Hand a decision to the caller that expects it, if there is one."""
        with self._lock:
            expected = self._awaited.pop(decision.request_id, None)
        if expected is not None:
            expected[0].set_result(decision)

    def forget(self, request_id: str) -> None:
        """Expect this decision no longer."""
        with self._lock:
            self._awaited.pop(request_id, None)

    def expire(self) -> None:
        """Forget the decisions that were expected for too long: their futures never end."""
        oldest_ms = self._clock_ms() - self._longest_ms
        with self._lock:
            while self._awaited and next(iter(self._awaited.values()))[1] <= oldest_ms:
                self._awaited.popitem(last=False)
